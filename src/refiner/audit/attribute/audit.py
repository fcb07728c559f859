"""Audit of attribute inference: whether uploads reveal a property of a client that is not the task."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from refiner import checks
from refiner.attacks import ThreatModel
from refiner.attacks.simulation import check_public_images
from refiner.audit.attacker_images import AttackerImages
from refiner.audit.attribute.result import AttributeAudit
from refiner.audit.kept_scores import ScoreSettings
from refiner.audit.public_images import are_others
from refiner.audit.seeds import SEED_OFFSET, VICTIMS
from refiner.audit.tensor_pair import checked_pair
from refiner.audit.uploads import simulator, uploads
from refiner.core.task import Task
from refiner.defenses import Defense, NoDefense, make_defense
from refiner.errors import DataError
from refiner.inference import (
    AttributeInference,
    AttributePrediction,
    Interval,
    PublicAttributes,
    auc_interval,
    balanced_accuracy,
    explained_variance,
)

Progress = Callable[[str, int, int], None]
"""Called with the stage ("control", "clients" or "models"), the steps done, and their total."""
# Of fewer the bootstrap draws the same few clients again and again, and its interval is too narrow.
_FEWEST_FOR_SHARES = 10


def audit_attribute(
    task: Task,
    x: Tensor,
    y: Tensor,
    attribute: Tensor,
    *,
    public: tuple[Tensor, Tensor, Tensor],
    groups: tuple[Tensor, Tensor] | None = None,
    defense: Defense | str = "refiner",
    attack: AttributeInference | None = None,
    name: str = "attribute",
    threat: ThreatModel | None = None,
    seed: int = 0,
    control: AttributeAudit | None = None,
    folder: Path | None = None,
    on_progress: Progress = lambda stage, done, total: None,
) -> AttributeAudit:
    """Measure how well an attribute of clients can be inferred from the uploads of a defence.

    The attack model is trained on simulated uploads of public people, and tested on the clients. The same is
    done for undefended uploads: where the attack fails there, nothing follows for a defence.

    Args:
        task: The model and its loss, which takes class labels.
        x: The clients' images `[V, B, *input]`.
        y: Their labels `[V, B]`.
        attribute: 0 or 1: one value `[V]` for each client, whose images all have it, or `[V, B]` for mixed
            batches, whose share of images with value 1 is to be predicted.
        public: Other images `[M, *input]`, their labels `[M]`, and their attribute `[M]`; −1 if unknown.
        groups: The person or other group that each of the clients' images `[V, B]` and of the public images
            `[M]` belongs to. A group on both sides is an error. By default every image is one.
        defense: A `Defense`, or its name with settings.
        attack: Settings of the attack model.
        name: What the attribute is called.
        threat: What the attacker is given besides the upload and the model. Public images are needed; without
            the defence the attack model is trained on undefended uploads.
        seed: Seed of everything random.
        control: The result of the same audit without a defence: the same clients, public images, model,
            attack and seed. By default it is computed.
        folder: Where the scores of every defence are kept; those that are there already are not computed
            again, so that an audit that was interrupted continues.
        on_progress: Called with the stage, the steps done and their total: "clients" that are simulated, and
            attack "models" that are trained; "control" for the clients that are simulated without a defence.

    Returns:
        The scores with their intervals, and the verdict.

    Raises:
        RefinerError: Images, labels, attributes or settings are wrong, or there are too few public people.

    >>> torch.manual_seed(0)
    <torch._C.Generator object at ...>
    >>> value = torch.arange(200) % 2
    >>> x, y = torch.rand(200, 5) / 2 + value[:, None] / 2, torch.arange(200) % 3
    >>> task = Task(torch.nn.Linear(5, 3), x)
    >>> result = audit_attribute(
    ...     task, x[:40, None], y[:40, None], value[:40], public=(x[40:], y[40:], value[40:]), defense="none",
    ...     attack=AttributeInference(clients=100),
    ... )
    >>> result.level, round(result.auc.value, 1)
    ('found', 1.0)
    """
    checks.integer("seed", seed, 0, SEED_OFFSET - 1)
    attacker, granted = attack or AttributeInference(), threat or ThreatModel()
    granted.check(attacker.needs, attacker.name)
    defender = make_defense(defense) if isinstance(defense, str) else defense
    x, actual = _checked_clients(task, x, y, attribute)
    images, values = _checked_public(task, x, public, groups)
    shares = attribute.ndim == 2
    if shares and len(x) < _FEWEST_FOR_SHARES:
        expected = f"{_FEWEST_FOR_SHARES} or more: with fewer the interval of R² says nothing"
        raise DataError(field="clients", value=len(x), expected=expected)
    data = {
        **{"x": x, "y": y, "attribute": attribute, "public images": images.images},
        **{"public labels": images.labels, "public attribute": values.values, "public groups": values.groups},
    }
    settings = ScoreSettings.of(
        folder, task, data, attack=attacker.name, attack_settings=asdict(attacker), threat=granted, seed=seed
    )
    if control is not None:
        settings.check_control(control)

    def predict(defense: Defense, on_progress: Progress) -> AttributePrediction:
        def infer() -> dict[str, object]:
            _, observation = uploads(task, defense, x, y, labels=False, seed=seed + VICTIMS)
            simulated = simulator(task, defense if granted.defense else NoDefense(), images)
            assert simulated is not None
            found = attacker.infer(
                observation, simulated, values, shares=shares, seed=seed, on_progress=on_progress
            )
            return {**vars(found), "scores": found.scores.tolist()}

        kept = settings.kept(task, defense, infer)
        return AttributePrediction(**{**kept, "scores": torch.tensor(kept["scores"])})

    def show_control(stage: str, done: int, total: int) -> None:
        if stage == "clients":
            on_progress("control", done, total)

    def measured(prediction: AttributePrediction) -> Interval:
        if shares:
            return explained_variance(prediction.scores, actual, prediction.blind)
        return auc_interval(prediction.scores, actual > 0.5)

    found = predict(defender, on_progress)
    score = measured(found)
    if isinstance(defender, NoDefense):
        undefended = score
    elif control is None:
        undefended = measured(predict(NoDefense(), show_control))
    else:
        undefended = control.score
    return AttributeAudit(
        defense=defense if isinstance(defense, str) else defender.name,
        attribute=name,
        clients=len(x),
        batch=x.shape[1],
        auc=None if shares else score,
        balanced_accuracy=None if shares else balanced_accuracy(found.scores > found.threshold, actual > 0.5),
        r2=score if shares else None,
        mae=float((found.scores - actual).abs().mean()) if shares else None,
        blind_mae=float((found.blind - actual).abs().mean()) if shares else None,
        undefended=undefended,
        model=found.model,
        public=len(images.images),
        scores=found.scores,
        actual=actual,
        settings=settings.values,
    )


def _checked_clients(task: Task, x: Tensor, y: Tensor, attribute: Tensor) -> tuple[Tensor, Tensor]:
    """The clients' images, and the value or share of every client `[V]`."""
    if not isinstance(task, Task) or "labels" not in task.targets:
        raise DataError(field="task", value=task, expected="a Task whose loss takes class labels")
    shape = list(task.input_shape)
    if not isinstance(x, Tensor) or x.ndim != len(shape) + 2 or list(x.shape[2:]) != shape or not x.numel():
        sizes = ", ".join(map(str, shape))
        raise DataError(field="x", value=x, expected=f"images [V, B, {sizes}]")
    if not isinstance(y, Tensor) or y.dtype != torch.long or y.shape != x.shape[:2]:
        raise DataError(field="y", value=y, expected=f"torch.int64 labels {list(x.shape[:2])}")
    if not isinstance(attribute, Tensor) or attribute.shape not in (x.shape[:1], x.shape[:2]):
        expected = f"0 or 1 for every client, [{len(x)}], or for every image, {list(x.shape[:2])}"
        raise DataError(field="attribute", value=attribute, expected=expected)
    known = set(attribute.flatten().tolist())
    if not known <= {0, 1}:
        raise DataError(field="attribute", value=sorted(known - {0, 1})[0], expected="0 or 1")
    if len(known) < 2:
        value = next(iter(known))
        raise DataError(field="attribute", value=int(value), expected="both values, 0 and 1, among clients")
    values = attribute.cpu().float()
    return x, values if values.ndim == 1 else values.mean(1)


def _checked_public(
    task: Task,
    x: Tensor,
    public: tuple[Tensor, Tensor, Tensor],
    groups: tuple[Tensor, Tensor] | None,
) -> tuple[AttackerImages, PublicAttributes]:
    """The public images and their attributes; raises if one of them, or its group, is a client's."""
    if not isinstance(public, tuple) or [isinstance(part, Tensor) for part in public] != [True] * 3:
        raise DataError(
            field="public",
            value=None if public is None else type(public).__name__,
            expected="a triple: images, their labels and their attribute, from which the attack learns",
        )
    images, labels, attribute = public
    counts = [len(images), len(labels), len(attribute)]
    if len(set(counts)) > 1 or not counts[0]:
        raise DataError(field="public", value=counts, expected="one label and one value for every image")
    check_public_images(task, images, labels, 1, AttributeInference.name)
    own = int((~are_others(images.to(x), x.flatten(0, 1))).sum())
    if own:
        raise DataError(field="public", value=own, problem="so many images are the clients'; expected others")
    public_groups = None
    if groups is not None:
        expected = "a pair of tensors of integers: the groups of the clients' and of the public images"
        client_groups, public_groups = checked_pair("groups", groups, expected, integers=True)
        if client_groups.shape != x.shape[:2] or public_groups.shape != labels.shape:
            raise DataError(
                field="groups",
                value=[list(client_groups.shape), list(public_groups.shape)],
                expected=f"{list(x.shape[:2])} and {list(labels.shape)}",
            )
        shared = int(torch.isin(public_groups.cpu(), client_groups.cpu()).sum())
        if shared:
            problem = "so many public images are of the clients' people; expected none"
            raise DataError(field="groups", value=shared, problem=problem)
    fractions = attribute[attribute != attribute.long()].tolist()
    if fractions:
        expected = "0 or 1, or another integer if unknown"
        raise DataError(field="public attribute", value=fractions[0], expected=expected)
    values = PublicAttributes(attribute.long(), public_groups)
    return AttackerImages(images.to(x.dtype), labels, f"{len(images)} public images"), values

"""Audit of tabular data: how well an attack reconstructs rows of features from uploads."""

from collections.abc import Sequence

import torch
from torch import Tensor

from refiner import checks
from refiner.attacks import Attack, ThreatModel, make_attack
from refiner.audit.attacker_images import AttackerImages
from refiner.audit.bootstrap import mean_interval
from refiner.audit.seeds import SEED_OFFSET, VICTIMS
from refiner.audit.table.result import FeatureError, TableAudit
from refiner.audit.uploads import simulator, uploads
from refiner.core.task import Task
from refiner.defenses import Defense, NoDefense, make_defense
from refiner.errors import DataError
from refiner.metrics import Share

_LEAST_PUBLIC = 2
_LEAST_SCALE = 1e-6


def audit_table(
    task: Task,
    x: Tensor,
    y: Tensor,
    *,
    public: tuple[Tensor, Tensor],
    defense: Defense | str = "dp-gaussian",
    attack: Attack | str = "linear",
    features: Sequence[str] | None = None,
    threat: ThreatModel | None = None,
    seed: int = 0,
    control: TableAudit | None = None,
) -> TableAudit:
    """Measure how well an attack reconstructs rows of features from the uploads of a defence.

    The same attack is run on undefended uploads too: where it fails there, nothing follows for a defence.

    Args:
        task: The model and its loss, which takes class labels.
        x: The clients' rows, scaled to 0..1: `[V, B, features]` for V clients with batches of B rows, or
            `[N, features]` for N clients with one row each.
        y: Their class labels, `[V, B]` or `[N]`.
        public: Other rows of the same kind `[M, features]`, and their labels `[M]`: the blind guess is their
            mean, an attack that learns does so from them, and originals are sought among them.
        defense: A `Defense`, or its name with settings.
        attack: An `Attack`, or its name with settings: `analytic`, `linear`, `learned`, `inverting`, `idlg`.
        features: A name for every feature; numbered by default.
        threat: What the attacker is given besides the upload and the model.
        seed: Seed of everything random.
        control: The result of the same attack on the same rows, model and seed without a defence; by default
            it is computed.

    Returns:
        The error of every feature and row beside a blind guess, and how many rows are identified.

    Raises:
        RefinerError: Rows, labels or settings are wrong, or the attack needs more than `threat` grants.

    >>> torch.manual_seed(0)
    <torch._C.Generator object at ...>
    >>> rows, labels = torch.rand(60, 5), torch.arange(60) % 3
    >>> task = Task(torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)), rows)
    >>> result = audit_table(
    ...     task, rows[:4], labels[:4], public=(rows[4:], labels[4:]), defense="none", attack="analytic"
    ... )
    >>> result.level, round(result.error.value, 3), result.identified.count
    ('revealed', 0.0, 4)
    """
    x, y, others = _checked(task, x, y, public)
    names = _names(features, task.input_shape[0])
    checks.integer("seed", seed, 0, SEED_OFFSET - 1)
    defender = make_defense(defense) if isinstance(defense, str) else defense
    attacker = make_attack(attack) if isinstance(attack, str) else attack
    granted = threat or ThreatModel()
    if "changed_model" in attacker.needs_for(task):
        expected = "an attack on the client's own model: those that change it read images"
        raise DataError(field="attack", value=attacker.name, expected=expected)
    granted.check(attacker.needs_for(task), attacker.name)
    attacker.check(task)
    if control is None:
        undefended = _reconstruct(task, NoDefense(), attacker, granted, x, y, others, seed)
    else:
        undefended = _checked_control(control, attacker.name, x.flatten(0, 1))
    if isinstance(defender, NoDefense):
        reconstruction = undefended
    else:
        reconstruction = _reconstruct(task, defender, attacker, granted, x, y, others, seed)
    original, clients = x.flatten(0, 1), len(x)
    mean, scale = others.images.mean(0), others.images.std(0)
    # A feature that public rows say nothing about counts as it is: dividing by almost 0 it would count alone.
    scale = torch.where(scale > _LEAST_SCALE, scale, 1.0)
    blind_errors = (original - mean).square()
    errors = (reconstruction - original).square()
    return TableAudit(
        defense=defense if isinstance(defense, str) else defender.name,
        attack=attack if isinstance(attack, str) else attacker.name,
        clients=clients,
        batch=x.shape[1],
        features=tuple(
            FeatureError(name, float(errors[:, i].mean().sqrt()), float(blind_errors[:, i].mean().sqrt()))
            for i, name in enumerate(names)
        ),
        error=mean_interval(_relative_errors(reconstruction, original, mean, scale), clients),
        identified=_identified(reconstruction, original, others.images, scale, clients),
        candidates=len(original) + len(others.images),
        undefended_error=mean_interval(_relative_errors(undefended, original, mean, scale), clients).value,
        original=original,
        reconstruction=reconstruction,
    )


def _checked(
    task: Task, x: Tensor, y: Tensor, public: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor, AttackerImages]:
    """The rows `[V, B, features]`, their labels, and the public rows without those of the clients."""
    if not isinstance(task, Task) or len(task.input_shape) != 1 or "labels" not in task.targets:
        expected = "a Task of rows [features] whose loss takes class labels; refiner.audit is for images"
        raise DataError(field="task", value=task, expected=expected)
    (width,) = task.input_shape
    axes = x.ndim - 1 if isinstance(x, Tensor) else 0
    if axes not in (1, 2) or x.shape[-1] != width or not x.numel():
        raise DataError(field="x", value=x, expected=f"rows [N, {width}] or [V, B, {width}]")
    if not isinstance(y, Tensor) or y.dtype != torch.long or y.shape != x.shape[:axes]:
        raise DataError(field="y", value=y, expected=f"torch.int64 labels {list(x.shape[:axes])}")
    if not isinstance(public, tuple) or len(public) != 2:
        raise DataError(field="public", value=type(public).__name__, expected="a pair: rows and their labels")
    rows, labels = public
    for field, values in (("x", x), ("public", rows)):
        if not values.is_floating_point() or not bool(((values >= 0) & (values <= 1)).all()):
            raise DataError(field=field, value=values, expected="floating-point rows scaled to 0..1")
    if rows.ndim != 2 or rows.shape[1] != width or labels.shape != rows.shape[:1]:
        raise DataError(
            field="public", value=[list(rows.shape), list(labels.shape)], expected=f"[M, {width}] and [M]"
        )
    x, y = (x, y) if axes == 2 else (x[:, None], y[:, None])
    is_other = (rows[:, None] != x.flatten(0, 1)[None]).any(2).all(1)
    rows, labels = rows[is_other], labels[is_other]
    if len(rows) < _LEAST_PUBLIC:
        expected = f"at least {_LEAST_PUBLIC} rows that no client has"
        raise DataError(field="public", value=len(rows), expected=expected)
    return x, y, AttackerImages(rows, labels, f"{len(rows)} public rows")


def _checked_control(control: TableAudit, attack: str, original: Tensor) -> Tensor:
    """The reconstructions of the control."""
    same_rows = control.original.shape == original.shape and bool((control.original == original).all())
    if control.defense != NoDefense.name or control.attack.partition(":")[0] != attack or not same_rows:
        expected = f"the result of {attack} on the same rows without a defence"
        raise DataError(field="control", value=control, expected=expected)
    return control.reconstruction


def _names(features: Sequence[str] | None, width: int) -> list[str]:
    names = [f"feature {i + 1}" for i in range(width)] if features is None else list(features)
    if len(names) != width:
        raise DataError(field="features", value=len(names), expected=f"{width} names, one for every feature")
    return names


def _reconstruct(
    task: Task,
    defense: Defense,
    attack: Attack,
    threat: ThreatModel,
    x: Tensor,
    y: Tensor,
    others: AttackerImages,
    seed: int,
) -> Tensor:
    """The reconstructions `[N, features]`, in the order of the originals."""
    _, observation = uploads(task, defense, x, y, labels=threat.labels, seed=seed + VICTIMS)
    learns = attack.learns_from_public_images(task)
    found = attack.reconstruct(
        observation,
        threat=threat,
        seed=seed,
        simulator=simulator(task, defense, others) if learns else None,
    ).x.to(x)
    # What is not finite reveals nothing: it counts as the blind guess.
    found = torch.where(found.isfinite(), found, others.images.mean(0))
    return torch.stack([_in_order(*pair) for pair in zip(found, x, strict=True)]).flatten(0, 1)


def _in_order(reconstruction: Tensor, original: Tensor) -> Tensor:
    """The rows of one batch in the order of their originals: the order with the lowest sum of errors."""
    from scipy.optimize import linear_sum_assignment

    distances = torch.cdist(original.double(), reconstruction.double()).square()
    return reconstruction[torch.from_numpy(linear_sum_assignment(distances.cpu().numpy())[1])]


def _relative_errors(reconstruction: Tensor, original: Tensor, mean: Tensor, scale: Tensor) -> list[float]:
    """The error of every row relative to a blind guess's, with features divided by `scale`."""
    blind = ((original - mean) / scale).norm(dim=1)
    errors = ((reconstruction - original) / scale).norm(dim=1)
    relative: list[float] = (errors / blind.clamp_min(1e-6)).tolist()
    return relative


def _identified(
    reconstruction: Tensor, original: Tensor, others: Tensor, scale: Tensor, clients: int
) -> Share:
    """Rows whose reconstruction is strictly closer to its original than to all other candidates."""
    candidates = torch.cat([original, others])
    distances = torch.cdist((reconstruction / scale).double(), (candidates / scale).double())
    own = distances.diagonal().clone()
    distances[torch.arange(len(original)), torch.arange(len(original))] = torch.inf
    return Share.of(int((own < distances.amin(1)).sum()), len(original), clients)

"""Audit of membership: do a client's uploads tell which samples it trained on?"""

import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from refiner import checks
from refiner.attacks import SimulatedUploads, Simulator, ThreatModel
from refiner.audit.attacker_images import AttackerImages, checked_pool
from refiner.audit.kept_scores import ScoreSettings
from refiner.audit.membership.result import MembershipAudit
from refiner.audit.membership.uploads import Training, round_simulator, round_uploads
from refiner.audit.public_images import are_others
from refiner.audit.seeds import SEED_OFFSET, VICTIMS
from refiner.audit.serialization import from_json_number, to_json_value
from refiner.audit.tensor_pair import checked_pair
from refiner.core.task import Task
from refiner.defenses import Defense, NoDefense, make_defense
from refiner.errors import DataError
from refiner.inference import Candidates, MembershipAttack, make_membership_attack
from refiner.metrics import Estimate, area_under_curve


class _Clients(NamedTuple):
    """The clients of an audit and the candidates of each, members first."""

    x: Tensor
    y: Tensor
    candidates: Candidates
    public: AttackerImages | None
    members: int


def audit_membership(
    task: Task,
    x: Tensor,
    y: Tensor,
    *,
    non_members: tuple[Tensor, Tensor],
    public: tuple[Tensor, Tensor] | None = None,
    defense: Defense | str = "refiner",
    attack: MembershipAttack | str = "likelihood",
    training: Training | None = None,
    threat: ThreatModel | None = None,
    seed: int = 0,
    control: MembershipAudit | None = None,
    folder: Path | None = None,
    on_simulated: Callable[[int], None] = lambda clients: None,
) -> MembershipAudit:
    """Measure how well an attack tells the samples that a client trained on from others of the same kind.

    The same attack is run on undefended uploads too, and there also on other clients' uploads: where it finds
    nothing in the former, or something in the latter, nothing follows for a defence. Non-members should have
    the labels of the members: which classes a client has is easy to see in an upload, and is no membership.

    Args:
        task: The model and its loss, which takes class labels.
        x: The clients' data `[V, B, *input]`: the members.
        y: Their labels `[V, B]`.
        non_members: Samples that no client has, `[V, N, *input]` and labels `[V, N]`; each client's are
            its other candidates. `pair_by_label` divides a dataset so.
        public: Labelled public images `[M, *input]` and `[M]` for attacks that need them, no candidates.
        defense: A `Defense`, or its name with settings.
        attack: A `MembershipAttack`, or its name with settings: a name of `refiner.inference.MEMBERSHIP`. The
            default finds most in one upload of most defences.
        training: Rounds, epochs and protocol; by default each client uploads one gradient.
        threat: What the attacker is given besides uploads, models and candidates.
        seed: Seed of everything random.
        control: The result of the same audit without a defence: the same clients, candidates, model, attack,
            training and seed. By default it is computed.
        folder: Where the scores of every defence are kept; those that are there already are not computed
            again, so that an audit that was interrupted continues.
        on_simulated: Called with the number of clients that the attack has simulated so far.

    Returns:
        The scores, their ROC curve and AUC, and a verdict.

    Raises:
        RefinerError: Data or settings are wrong, or the attack needs more than `threat` grants.

    >>> _ = torch.manual_seed(0)
    >>> rows, labels = torch.rand(112, 40), torch.arange(112) % 2
    >>> task = Task(torch.nn.Linear(40, 2), example=rows)
    >>> result = audit_membership(
    ...     task, rows[:32].view(8, 4, 40), labels[:32].view(8, 4),
    ...     non_members=(rows[32:64].view(8, 4, 40), labels[32:64].view(8, 4)),
    ...     public=(rows[64:], labels[64:]), defense="none", attack="alignment",
    ... )
    >>> result.level, result.auc.value > 0.7
    ('found', True)
    """
    training = training or Training()
    clients = _checked(task, x, y, non_members, public, training)
    checks.integer("seed", seed, 0, SEED_OFFSET - 1)
    defender = make_defense(defense) if isinstance(defense, str) else defense
    attacker = make_membership_attack(attack) if isinstance(attack, str) else attack
    granted = threat or ThreatModel()
    granted.check(attacker.needs_for(task), attacker.name)
    settings = ScoreSettings.of(
        folder, task, {"x": x, "y": y, **_candidates_by_name(clients)}, attack=attacker.name,
        attack_settings=attacker.settings(), threat=granted, seed=seed,
        further={"training": asdict(training)},
    )  # fmt: skip
    if control is not None:
        settings.check_control(control)

    def measured(defense: Defense, name: str, control: MembershipAudit | None) -> MembershipAudit:
        with_blind = control is None

        def score() -> dict[str, object]:
            start = time.perf_counter()
            scores, blind = _scores(
                task, defense, attacker, granted, clients, training, seed, on_simulated, with_blind=with_blind
            )
            # A score that is not finite is no number in JSON.
            return {
                "scores": to_json_value(scores.tolist()),
                "blind": None if blind is None else blind._asdict(),
                "seconds": time.perf_counter() - start,
            }

        kept = settings.kept(task, defense, score, {"blind baseline": with_blind})
        scores = torch.tensor(
            [[from_json_number(value) for value in row] for row in kept["scores"]], dtype=torch.float64
        )
        inside, outside = scores[:, : clients.members], scores[:, clients.members :]
        return MembershipAudit(
            defense=name,
            attack=attack if isinstance(attack, str) else attacker.name,
            clients=len(inside),
            batch=clients.members,
            rounds=training.rounds,
            epochs=training.epochs,
            members=inside,
            non_members=outside,
            undefended=area_under_curve(inside, outside) if control is None else control.undefended,
            blind=_estimate(kept["blind"]) if control is None else control.blind,
            same_labels=_have_same_labels(clients),
            seconds=kept["seconds"],
            settings=settings.values,
        )

    if control is None and not isinstance(defender, NoDefense):
        control = measured(NoDefense(), NoDefense.name, None)
    return measured(defender, defense if isinstance(defense, str) else defender.name, control)


def _scores(
    task: Task,
    defense: Defense,
    attack: MembershipAttack,
    threat: ThreatModel,
    clients: _Clients,
    training: Training,
    seed: int,
    on_simulated: Callable[[int], None],
    *,
    with_blind: bool,
) -> tuple[Tensor, Estimate | None]:
    """The scores `[V, K]` of all candidates, and the AUC with the uploads of other clients."""
    observations = round_uploads(task, defense, clients.x, clients.y, training, seed + VICTIMS)
    simulator = None
    if clients.public is not None:
        simulator = round_simulator(task, defense, clients.public, observations, training)
        simulator = _counted(simulator, on_simulated)

    def score(shift: int) -> Tensor:
        seen = [replace(o, gradient=o.gradient.roll(shift, 0)) for o in observations]
        steps, lr = training.whole.local_steps, training.protocol.lr
        return attack.score(
            seen, clients.candidates, threat=threat, simulator=simulator, seed=seed, lr=lr, steps=steps
        )

    if not with_blind or len(observations[0].gradient) < 2:
        return score(0), None
    blind = score(1)
    return score(0), area_under_curve(blind[:, : clients.members], blind[:, clients.members :])


def _counted(simulator: Simulator, on_simulated: Callable[[int], None]) -> Simulator:
    """The simulator, which also tells how many clients it has simulated."""
    done = 0

    def protect(x: Tensor, y: Tensor, seed: int) -> SimulatedUploads:
        nonlocal done
        uploads = simulator.protect(x, y, seed)
        done += len(x)
        on_simulated(done)
        return uploads

    return replace(simulator, protect=protect)


def _candidates_by_name(clients: _Clients) -> dict[str, Tensor | None]:
    public = clients.public
    return {
        "candidates": clients.candidates.x,
        "candidates' labels": clients.candidates.y,
        "public images": None if public is None else public.images,
        "public labels": None if public is None else public.labels,
    }


def _estimate(kept: dict[str, Any] | None) -> Estimate | None:
    return None if kept is None else Estimate(kept["value"], kept["low"], kept["high"])


def _checked(
    task: Task,
    x: Tensor,
    y: Tensor,
    non_members: tuple[Tensor, Tensor],
    public: tuple[Tensor, Tensor] | None,
    training: Training,
) -> _Clients:
    if not isinstance(task, Task) or "labels" not in task.targets:
        raise DataError(field="task", value=task, expected="a Task whose loss takes class labels")
    shape = tuple(task.input_shape)
    if not isinstance(x, Tensor) or x.shape[2:] != shape or not x.numel():
        expected = f"samples [V, B, {', '.join(map(str, shape))}]"
        raise DataError(field="x", value=x, expected=expected)
    if not isinstance(y, Tensor) or y.dtype != torch.long or y.shape != x.shape[:2]:
        raise DataError(field="y", value=y, expected=f"torch.int64 labels {list(x.shape[:2])}")
    others, labels = checked_pair(
        "non_members", non_members, "a pair of tensors: samples that no client has and their labels"
    )
    if others.shape[2:] != shape or len(others) != len(x) or not others.shape[1]:
        expected = f"one or more for each client, [{len(x)}, N, {', '.join(map(str, shape))}]"
        raise DataError(field="non_members", value=list(others.shape), expected=expected)
    if labels.dtype != torch.long or labels.shape != others.shape[:2]:
        expected = f"torch.int64 labels {list(others.shape[:2])}"
        raise DataError(field="non_members", value=labels, expected=expected)
    shared = int((~are_others(others.flatten(0, 1).to(x.dtype), x.flatten(0, 1))).sum())
    if shared:
        problem = f"{shared} of them are members too, expected samples that no client has"
        raise DataError(field="non_members", value=others, problem=problem)
    if len(present := torch.unique(torch.cat([y.flatten(), labels.flatten().to(y)]))) < 2:
        expected = "two classes or more: a model of one class learns nothing from a sample"
        raise DataError(field="y", value=f"class {int(present)} only", expected=expected)
    protocol = training.protocol
    members, apart = protocol.observed(x), protocol.observed(others)
    candidates = Candidates(
        torch.cat([members, apart.to(members)], 1),
        torch.cat([protocol.observed(y), protocol.observed(labels).to(y)], 1),
    )
    return _Clients(x, y, candidates, _checked_public(public, candidates), members.shape[1])


def _checked_public(public: tuple[Tensor, Tensor] | None, candidates: Candidates) -> AttackerImages | None:
    if public is None:
        return None
    images, labels = checked_pool(public, "public")
    known = candidates.x.flatten(0, 1)
    if images.shape[1:] == known.shape[1:]:
        shared = int((~are_others(images.to(known.dtype), known)).sum())
        if shared:
            problem = f"{shared} of them are candidates, expected other images: what is public is no secret"
            raise DataError(field="public", value=images, problem=problem)
    return AttackerImages(images, labels, f"{len(images)} public images")


def _have_same_labels(clients: _Clients) -> bool:
    """Whether each label is as frequent among a client's non-members as among its members."""
    labels = clients.candidates.y
    inside, outside = labels[:, : clients.members], labels[:, clients.members :]
    for label in torch.unique(labels):
        members, others = (inside == label).sum(1), (outside == label).sum(1)
        if not torch.equal(members * outside.shape[1], others * inside.shape[1]):
            return False
    return True

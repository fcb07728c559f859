"""One audit before it is run: checked, with all the settings that its result depends on."""

import hashlib
import json
import platform
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from refiner import checks
from refiner._version import __version__
from refiner.attacks import Attack, ThreatModel, make_attack
from refiner.audit.public_images import choose_public
from refiner.audit.scoring import Scorer
from refiner.audit.serialization import plain
from refiner.audit.shapes import shaped
from refiner.audit.tuning import Tuning
from refiner.core.determinism import repeatable
from refiner.core.task import Task
from refiner.defenses import Chain, Defense, Refiner, make_defense
from refiner.defenses import label as label_of
from refiner.errors import DataError
from refiner.evaluation import EvaluationNetwork
from refiner.metrics import Thresholds
from refiner.metrics.perceptual import PerceptualNetwork

# An attacker must not draw the client's noise: the defence's seed lies beyond the attack's.
APART = 2**32


@dataclass(frozen=True, eq=False)
class Plan:
    """A defence, an attack, the victims and what they are scored by; whatever is wrong is refused here.

    >>> from refiner.data import load_sample
    >>> from refiner.models import LeNet
    >>> sample = load_sample()
    >>> task = Task(LeNet(), example=sample.images[:1])
    >>> Plan.of(task, sample.images[:2], sample.labels[:2], defense="none").stem[:15]
    'none-inverting-'
    """

    task: Task
    x: Tensor
    """`[V, B, C, H, W]`"""
    y: Tensor
    """`[V, B]`"""
    names: Sequence[str]
    label: str
    """What the defence is called."""
    defense: Defense
    attack: Attack
    threat: ThreatModel
    scorer: Scorer
    seed: int
    deterministic: bool = False
    """Whether a GPU, too, gives the same bits every time."""
    tuning: Tuning | None = None
    """On what the attacker is tuned first; None leaves its settings as they are."""
    settings: Mapping[str, object] = field(init=False)
    """All that the result depends on, as plain records; images and weights by their checksum."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "settings", _settings(self))

    @classmethod
    def of(
        cls,
        task: Task,
        x: Tensor,
        y: Tensor,
        *,
        defense: Defense | str = "refiner",
        attack: Attack | str = "inverting",
        metrics: Collection[str] | None = None,
        threat: ThreatModel | None = None,
        public: Tensor | None = None,
        names: Sequence[str] | None = None,
        thresholds: Thresholds | None = None,
        seed: int = 0,
        deterministic: bool = False,
        tune: Tuning | None = None,
    ) -> "Plan":
        """The plan of `refiner.audit` with the same arguments."""
        x, y = shaped(task, x, y)
        defender = make_defense(defense) if isinstance(defense, str) else defense
        attacker = make_attack(attack) if isinstance(attack, str) else attack
        for field_, given, kind in (("defense", defender, Defense), ("attack", attacker, Attack)):
            if not isinstance(given, kind):
                raise checks.wrong(field_, given, f"a name, or one that is made as {kind.__name__}s are")
        if threat is not None and not isinstance(threat, ThreatModel):
            raise checks.wrong("threat", threat, "a ThreatModel")
        if attacker.settings().get("input_range", (0.0, 1.0)) != (0.0, 1.0):
            raise DataError("attack: its input_range must be (0, 1), in which an audit compares images")
        granted = threat or ThreatModel()
        granted.check(attacker.needed(task), attacker.name)
        attacker.check(task)
        checks.integer("seed", seed, 0, APART - 1)
        original = x.flatten(0, 1).to(torch.float64 if x.dtype == torch.float64 else torch.float32)
        others = choose_public(original, public)
        with repeatable(checks.flag("deterministic", deterministic), x.device):
            scorer = Scorer.over(original, others, metrics, thresholds or Thresholds())
        label = label_of(defense) if isinstance(defense, str) else defender.name
        titles = _names(names, *y.shape)
        tuning = None if tune is None else tune.checked(task, original, y.shape[1], attacker)
        return cls(
            task, x, y, titles, label, defender, attacker, granted, scorer, seed, deterministic, tuning
        )

    @property
    def stem(self) -> str:
        """A name for the files of this plan, another one for other settings."""
        return f"{self.label}-{self.attack.name}-{identity(self.settings)[:12]}"


def identity(settings: Mapping[str, object]) -> str:
    """A checksum of all settings but the versions of other libraries.

    >>> identity({"seed": 0, "versions": {"torch": "2"}}) == identity({"seed": 0, "versions": {"torch": "3"}})
    True
    """
    versions = settings.get("versions")
    ours = versions.get("refiner") if isinstance(versions, Mapping) else None
    told = json.dumps({**settings, "versions": ours}, sort_keys=True)
    return hashlib.sha256(told.encode()).hexdigest()


def difference(one: Mapping[str, object], other: Mapping[str, object]) -> str:
    """The first setting in which two audits differ, the versions of other libraries aside.

    >>> difference({"seed": 0, "model": {"name": "LeNet"}}, {"seed": 0, "model": {"name": "ViT"}})
    'model, name'
    """
    for name in dict.fromkeys([*one, *other]):
        left, right = one.get(name), other.get(name)
        if isinstance(left, Mapping) and isinstance(right, Mapping):
            within = ["refiner"] if name == "versions" else [*left, *right]
            left, right = ({key: side.get(key) for key in within} for side in (left, right))
            if left != right:
                return f"{name}, {difference(left, right)}"
        elif left != right:
            return name
    return ""


def _names(names: Sequence[str] | None, victims: int, batch: int) -> list[str]:
    if names is None:
        return [
            f"victim {i // batch + 1}" + (f", image {i % batch + 1}" if batch > 1 else "")
            for i in range(victims * batch)
        ]
    if len(names) != victims * batch:
        raise DataError(f"names: {len(names)}, expected {victims * batch}, one for every image")
    return list(names)


def _settings(plan: Plan) -> dict[str, object]:
    task, scorer = plan.task, plan.scorer
    return {
        "seed": plan.seed,
        "defense": {
            "name": plan.label,
            "proven": plan.defense.proves,
            "guarantee": plan.defense.guarantee(),
            "seed": plan.seed + APART,
            **plain(plan.defense.settings()),
        },
        "attack": {"name": plan.attack.name, "seed": plan.seed, **plain(plan.attack.settings())},
        **({} if plan.tuning is None else {"tuning": _tuning(plan.tuning, plan.attack)}),
        "threat": asdict(plan.threat),
        "model": {
            "name": type(task.model).__name__,
            "parameters": task.size,
            "classes": task.classes,
            "input": list(task.input_shape),
            "sha256": _digest(task.model.state_dict().values()),
            "loss of three fixed scores": _loss(task),
        },
        "data": {
            "victims": len(plan.y),
            "batch": plan.y.shape[1],
            "sha256": _digest([plan.x, plan.y]),
            "names sha256": hashlib.sha256(json.dumps(list(plan.names)).encode()).hexdigest(),
        },
        "networks": {name: _digest(network.state_dict().values()) for name, network in _networks(plan)},
        "metrics": {
            "names": list(scorer.metrics),
            "public": scorer.public.source,
            "public sha256": _digest(
                t for t in (scorer.public.images, scorer.public.others) if t is not None
            ),
            "candidates of the victims' kind": scorer.public.alike,
            "blind guesses": list(scorer.guesses),
            "intervals": "95 %, percentile bootstrap over victims",
            **asdict(scorer.thresholds),
        },
        "device": str(plan.x.device),
        "deterministic": plan.deterministic,
        "dtype": str(plan.x.dtype).removeprefix("torch."),
        "versions": {
            "refiner": __version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
    }


def _tuning(tuning: Tuning, attack: Attack) -> dict[str, object]:
    return {
        "victims": len(tuning.y),
        "sha256": _digest([tuning.x, tuning.y]),
        "grid": tuning.values(attack),
        "chosen by": "mean PSNR",
    }


def _networks(plan: Plan) -> Iterator[tuple[str, nn.Module]]:
    """The fixed networks that the result depends on, by their part in it."""
    device = plan.x.device
    # In a chain it can only stand first, since it needs the data.
    first = plan.defense.parts[0] if isinstance(plan.defense, Chain) else plan.defense
    if isinstance(first, Refiner):
        yield "evaluation, for the defence", first.network or EvaluationNetwork.bundled(device)
    for name, network in plan.attack.networks(plan.task).items():
        yield f"{name}, for the attack", network
    if "noise" in plan.scorer.metrics:
        yield "evaluation, for the metrics", EvaluationNetwork.bundled(device)
    if "lpips" in plan.scorer.metrics:
        yield "perception, for the metrics", PerceptualNetwork.bundled(device)


def _loss(task: Task) -> float:
    """Tells losses apart: a number that depends on nothing else."""
    like = next(iter(task.parameters().values()))
    scores = torch.linspace(-1, 1, 3 * task.classes, device=like.device, dtype=like.dtype)
    labels = torch.arange(3, device=like.device) % task.classes
    return float(task.loss_function(scores.view(3, task.classes), labels))


def _digest(tensors: Iterable[Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()

"""An audit before it is run: validated arguments, and all settings that the result depends on."""

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

import torch
from torch import Tensor, nn

from refiner import checks
from refiner.attacks import Attack, KnownDefense, ThreatModel, make_attack
from refiner.audit.attacker_images import AttackerImages, checked_pool, choose_attacker_images
from refiner.audit.from_robust import RobustEstimation
from refiner.audit.local_update import UPLOADS_REVISION
from refiner.audit.protocol import Protocol
from refiner.audit.public_images import choose_public_images
from refiner.audit.scoring import Scorer
from refiner.audit.seeds import SEED_OFFSET, SIMULATION, VICTIMS
from refiner.audit.serialization import to_json_value
from refiner.audit.settings_identity import (
    library_versions,
    model_settings,
    settings_digest,
    tensors_sha256,
)
from refiner.audit.tuning import Tuning
from refiner.audit.victim_shapes import with_batch_axis
from refiner.core.determinism import deterministic_algorithms
from refiner.core.task import Task
from refiner.defenses import Defense, NoDefense, make_defense, short_name
from refiner.errors import DataError
from refiner.evaluation import EvaluationNetwork
from refiner.metrics import Thresholds
from refiner.metrics.perceptual import PerceptualNetwork
from refiner.shaped_noise import NOISE_STATISTICS, NaturalNoise


@dataclass(frozen=True, eq=False)
class Plan:
    """A validated audit: a defence, an attack, victims and metrics. Make one with `Plan.of`.

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
    defense_name: str
    """The name of the defence in results and files."""
    defense: Defense
    attack: Attack
    threat: ThreatModel
    scorer: Scorer
    seed: int
    deterministic: bool = False
    """Whether a GPU, too, must give bit-identical results every time."""
    tuning: Tuning | None = None
    """What the attack is tuned on first; None leaves its settings as they are."""
    attacker_images: AttackerImages | None = None
    """What the attack or the estimate from robust data learns from; None if neither does."""
    robust_estimation: RobustEstimation | None = None
    """How images are estimated from the robust data themselves; None if they are not."""
    protocol: Protocol = field(default_factory=Protocol)
    """Local steps, and clients of a sum."""
    settings: Mapping[str, object] = field(init=False)
    """Everything that the result depends on, as JSON values; images and weights by their checksum."""

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
        pool: tuple[Tensor, Tensor] | None = None,
        names: Sequence[str] | None = None,
        thresholds: Thresholds | None = None,
        seed: int = 0,
        deterministic: bool = False,
        tune: Tuning | None = None,
        from_robust: bool | RobustEstimation = False,
        protocol: Protocol | None = None,
    ) -> "Plan":
        """Return the plan of an audit.

        Args:
            task: The model and its loss.
            x: The victims' images, as in `refiner.audit`; so are all other arguments.
            y: Their labels.
            defense: A `Defense`, or its name with settings.
            attack: An `Attack`, or its name with settings.
            metrics: Optional metrics; None for all that can be computed.
            threat: What the attacker is given besides the upload and the model.
            public: Images of the same kind that are not victims.
            pool: Labelled public images that an attack may learn from.
            names: A name for every image.
            thresholds: When an image counts as visible or identifiable.
            seed: Seed of everything random.
            deterministic: Whether a GPU, too, must give bit-identical results.
            tune: Images on which the attack is tuned first.
            from_robust: Whether, or how, images are estimated from the robust data themselves.
            protocol: Local steps, and clients of a sum.

        Returns:
            The plan, for `audit_all`.

        Raises:
            RefinerError: As `refiner.audit`, before anything is run.
        """
        x, y = with_batch_axis(task, x, y)
        defender = make_defense(defense) if isinstance(defense, str) else defense
        attacker = make_attack(attack) if isinstance(attack, str) else attack
        for argument, value, base in (("defense", defender, Defense), ("attack", attacker, Attack)):
            if not isinstance(value, base):
                raise checks.wrong(argument, value, f"a name or an instance of {base.__name__}")
        if threat is not None and not isinstance(threat, ThreatModel):
            raise checks.wrong("threat", threat, "a ThreatModel")
        if attacker.settings().get("input_range", (0.0, 1.0)) != (0.0, 1.0):
            raise DataError(
                field="attack.input_range",
                value=attacker.settings()["input_range"],
                expected="(0, 1), the range in which an audit compares images",
            )
        granted = threat or ThreatModel()
        granted.check(attacker.needs_for(task), attacker.name)
        attacker.check(task)
        if protocol is not None and not isinstance(protocol, Protocol):
            raise checks.wrong("protocol", protocol, "a Protocol")
        protocol = protocol or Protocol()
        _, samples = protocol.observations(*y.shape)
        attacker.check_samples(samples)
        attacker.check_labels(protocol.observed(y))
        original = x.flatten(0, 1).to(torch.float64 if x.dtype == torch.float64 else torch.float32)
        public_images = choose_public_images(
            original, public, None if pool is None else checked_pool(pool)[0]
        )
        if granted.public and public_images.candidates is not None:
            known = (defender.settings(), defender.networks(task)) if granted.defense else ({}, {})
            attacker = attacker.prepared(public_images.candidates, KnownDefense(*known))
        task = attacker.changed_task(task, samples)
        attacker.send_to(task, 0, protocol.summed_clients)
        checks.integer("seed", seed, 0, SEED_OFFSET - 1)
        with deterministic_algorithms(checks.flag("deterministic", deterministic), x.device):
            scorer = Scorer.create(original, public_images, metrics, thresholds or Thresholds())
        defense_name = short_name(defense) if isinstance(defense, str) else defender.name
        image_names = _image_names(names, *y.shape)
        tuning = None if tune is None else tune.checked(task, original, y.shape[1], attacker, protocol)
        estimation = from_robust if isinstance(from_robust, RobustEstimation) else None
        if estimation is None and checks.flag("from_robust", from_robust):
            estimation = RobustEstimation.for_device(x.device)
        if isinstance(defender, NoDefense):
            # It makes no robust data. So an undefended plan is the control of defended ones.
            estimation = None
        learners = []
        if attacker.learns_from_public_images(task):
            learners.append((attacker.least_public_images(samples), attacker.name))
        if estimation is not None:
            learners.append((estimation.least_public_images(samples), "the estimate from robust data"))
        images = None
        if learners:
            least, learner = max(learners)
            images = choose_attacker_images(task, original, learner, least, samples, pool)
        return cls(
            task,
            x,
            y,
            image_names,
            defense_name,
            defender,
            attacker,
            granted,
            scorer,
            seed,
            deterministic,
            tuning,
            images,
            estimation,
            protocol,
        )

    def control(self) -> "Plan":
        """Return the same attack on the same victims without a defence; the plan itself if it has none."""
        if isinstance(self.defense, NoDefense):
            return self
        learns = self.attack.learns_from_public_images(self.task)
        return replace(
            self,
            defense_name=NoDefense.name,
            defense=NoDefense(),
            attacker_images=self.attacker_images if learns else None,
            robust_estimation=None,
        )

    @property
    def noise(self) -> NaturalNoise | None:
        """The noise that the defence adds to images, as far as everybody knows its covariance."""
        noise = self.defense.networks(self.task).get(NOISE_STATISTICS)
        return noise if isinstance(noise, NaturalNoise) else None

    @property
    def stem(self) -> str:
        """The name of this plan's files without suffix; plans with other settings have other names."""
        return f"{self.defense_name}-{self.attack.name}-{settings_digest(self.settings)[:12]}"


def _image_names(names: Sequence[str] | None, victims: int, batch: int) -> list[str]:
    if names is None:
        return [
            f"victim {i // batch + 1}" + (f", image {i % batch + 1}" if batch > 1 else "")
            for i in range(victims * batch)
        ]
    if len(names) != victims * batch:
        raise DataError(
            f"names: {len(names)} names, expected {victims * batch}, one for every image", field="names"
        )
    return list(names)


def _settings(plan: Plan) -> dict[str, object]:
    task, scorer = plan.task, plan.scorer
    return {
        "seed": plan.seed,
        "defense": {
            "name": plan.defense_name,
            "proven": plan.defense.has_guarantee,
            "guarantee": plan.defense.guarantee(),
            "noise ratio applies": plan.defense.noise_ratio_applies,
            "seed": plan.seed + VICTIMS,
            **to_json_value(plan.defense.settings()),
        },
        "attack": {"name": plan.attack.name, "seed": plan.seed, **to_json_value(plan.attack.settings())},
        **({} if plan.attack.rounds == 1 else {"rounds": plan.attack.rounds}),
        **({} if plan.tuning is None else {"tuning": _tuning_settings(plan.tuning, plan.attack)}),
        **({} if plan.attacker_images is None else {"attacker images": _attacker_settings(plan)}),
        **({} if plan.robust_estimation is None else {"from robust": asdict(plan.robust_estimation)}),
        "threat": asdict(plan.threat),
        **({} if plan.protocol == Protocol() else {"protocol": asdict(plan.protocol)}),
        "uploads revision": UPLOADS_REVISION,
        "model": model_settings(task),
        "data": {
            "victims": len(plan.y),
            "batch": plan.y.shape[1],
            "sha256": tensors_sha256([plan.x, plan.y]),
            "names sha256": hashlib.sha256(json.dumps(list(plan.names)).encode()).hexdigest(),
        },
        "networks": {
            name: tensors_sha256(network.state_dict().values()) for name, network in _networks(plan)
        },
        "metrics": {
            "names": list(scorer.metrics),
            "public": scorer.public.source,
            "public sha256": tensors_sha256(
                t for t in (scorer.public.images, scorer.public.candidates) if t is not None
            ),
            "candidates of the victims' kind": scorer.public.like_victims,
            "blind guesses": list(scorer.guesses),
            "intervals": "95 %, percentile bootstrap over victims",
            **asdict(scorer.thresholds),
        },
        "device": str(plan.x.device),
        "deterministic": plan.deterministic,
        "dtype": str(plan.x.dtype).removeprefix("torch."),
        "versions": library_versions(),
    }


def _attacker_settings(plan: Plan) -> dict[str, object]:
    images = plan.attacker_images
    assert images is not None
    return {
        "source": images.source,
        "sha256": tensors_sha256([images.images, images.labels]),
        "seed": SIMULATION,
    }


def _tuning_settings(tuning: Tuning, attack: Attack) -> dict[str, object]:
    return {
        "victims": len(tuning.y),
        "sha256": tensors_sha256([tuning.x, tuning.y]),
        "grid": tuning.values(attack),
        "chosen by": "mean PSNR, or mean rank if no PSNR beats the blind guess",
    }


def _networks(plan: Plan) -> Iterator[tuple[str, nn.Module]]:
    """Yield the fixed networks that the result depends on, with their role."""
    device = plan.x.device
    for name, network in plan.defense.networks(plan.task).items():
        yield f"{name}, for the defence", network
    for name, network in plan.attack.networks(plan.task).items():
        yield f"{name}, for the attack", network
    if "noise" in plan.scorer.metrics:
        yield "evaluation, for the metrics", EvaluationNetwork.bundled(device)
    if "lpips" in plan.scorer.metrics:
        yield "perception, for the metrics", PerceptualNetwork.bundled(device)

"""Attribute inference: a model from a client's upload to a property of its batch that is not the task."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from refiner import checks
from refiner.attacks import Observation, Simulator
from refiner.attacks.learning.network_training import TrainingSettings, TrainingState, train_network
from refiner.attacks.learning.simulated_batches import derive_seed, simulate
from refiner.attacks.learning.unet import seeded_network
from refiner.attacks.threat_model import Capability
from refiner.inference.attribute_scores import auc_interval, best_threshold
from refiner.inference.public_attributes import PublicAttributes
from refiner.inference.upload_summary import UploadSummary

# There may be more values than simulated clients, which needs strong penalties.
_PENALTIES = tuple(10.0**exponent for exponent in range(-3, 5))


@dataclass(frozen=True, eq=False)
class AttributePrediction:
    """What an attack model says about every victim."""

    scores: Tensor
    """`[V]`: higher where the attribute is more likely; for shares the predicted share."""
    threshold: float
    """The score above which public clients that were held out have the attribute."""
    model: str
    """Which model did best on them: "ridge" or "network", and the number of its part if it uses one only."""
    blind: float
    """The mean share in simulated clients: the guess without an upload."""


@dataclass(frozen=True)
class AttributeInference:
    """Trains a model on simulated uploads of public people and applies it to the uploads of other clients.

    Melis, Song, De Cristofaro and Shmatikov, "Exploiting Unintended Feature Leakage in Collaborative
    Learning", IEEE S&P 2019. Ridge regressions and small networks are trained on vectors that describe an
    upload (see `UploadSummary`), on all values and on each part. Public people who are held out of the
    training choose among them, the ridge penalty, and the threshold. The simulator has the
    defence where the attacker knows it.

    >>> AttributeInference(held_out=1)
    Traceback (most recent call last):
    refiner.errors.SettingError: held_out = 1: expected a number in (0, 0.9]
    """

    name: ClassVar[str] = "attribute"
    reference: ClassVar[str] = (
        "Melis, Song, De Cristofaro and Shmatikov, Exploiting Unintended Feature Leakage in Collaborative "
        "Learning, IEEE S&P 2019"
    )
    needs: ClassVar[frozenset[Capability]] = frozenset({"public"})

    clients: int = 1000
    """Simulated clients to train on, at least; a third as many are held out."""
    held_out: float = 0.25
    """The share of the public people who are held out of the training."""
    max_features: int = 768
    """The most values of each part of an upload's description."""
    hidden: int = 64
    """Width of the network's hidden layers."""
    epochs: int = 20
    """Passes of the network over the simulated uploads."""
    lr: float = 1e-3
    """The greatest learning rate of AdamW."""

    def __post_init__(self) -> None:
        checks.integer("clients", self.clients, 4)
        checks.number("held_out", self.held_out, 0, 0.9, above=True)
        checks.integer("max_features", self.max_features, 1)
        checks.integer("hidden", self.hidden, 1)
        TrainingSettings(self.epochs, lr=self.lr)

    def infer(
        self,
        observation: Observation,
        simulator: Simulator,
        public: PublicAttributes,
        *,
        shares: bool = False,
        seed: int = 0,
        on_progress: Callable[[str, int, int], None] = lambda stage, done, total: None,
    ) -> AttributePrediction:
        """Return what the uploads of the victims say about the attribute.

        Args:
            observation: The victims' uploads.
            simulator: Public images, and the victims' defence as the attacker runs it.
            public: The attribute of every public image.
            shares: Whether to predict the share of images with value 1 in mixed batches; else whether all
                images of a batch have value 1, or all have value 0.
            seed: Seed of everything random.
            on_progress: Called with "clients" or "models", how many simulated clients or attack models are
                done, and their total.

        Returns:
            The scores of the victims.

        Raises:
            DataError: There are too few public images or people.
        """
        parts = public.split(self.held_out, derive_seed(seed, "held out"))
        counts = (self.clients, -(-self.clients // 3))
        passes = [
            part.clients(count, observation.samples, shares=shares, seed=derive_seed(seed, name))
            for part, count, name in zip(parts, counts, ("training", "validation"), strict=True)
        ]
        summary = UploadSummary(observation, self.max_features, derive_seed(seed, "projection"))
        total, before = sum(len(rows) for part in passes for rows in part), 0
        inputs = []
        for part, name in zip(passes, ("training uploads", "validation uploads"), strict=True):
            chunks = []
            for rows, uploads in simulate(simulator, part, derive_seed(seed, name), observation.task.size):
                if not summary.is_fitted:
                    summary.fit(uploads.gradients[0])
                chunks.append(summary(uploads.gradients[0]))
                on_progress("clients", before + rows.stop, total)
            inputs.append(torch.cat(chunks))
            before += len(inputs[-1])
        targets = [part.targets(rows).to(inputs[0]) for part, rows in zip(parts, passes, strict=True)]
        models: dict[str, Callable[[Tensor], Tensor]] = {}
        parts_of_upload = _parts(summary.widths)
        for title, columns in parts_of_upload.items():
            on_progress("models", len(models), 2 * len(parts_of_upload))
            chosen = [values[:, columns] for values in inputs]
            models[f"ridge{title}"] = _on_columns(_ridge(chosen, targets), columns)
            network = self._network(chosen[0], targets[0], derive_seed(seed, "network", title))
            models[f"network{title}"] = _on_columns(network, columns)
        known, actual = inputs[1], targets[1]
        quality = {
            name: -float(F.mse_loss(model(known), actual)) if shares else _area(model(known), actual)
            for name, model in models.items()
        }
        best = max(quality, key=lambda name: quality[name])
        scores = models[best](summary(observation.gradient)).cpu()
        threshold = best_threshold(models[best](known).cpu(), actual.cpu() > 0.5)
        return AttributePrediction(scores, threshold, best, float(targets[0].mean()))

    def _network(self, inputs: Tensor, targets: Tensor, seed: int) -> Callable[[Tensor], Tensor]:
        """A network from descriptions to the probability of the attribute, or to its share."""
        network = seeded_network(
            lambda: nn.Sequential(
                nn.Dropout(0.2),
                nn.Linear(inputs.shape[1], self.hidden),
                nn.GELU(),
                nn.Dropout(0.2),
                nn.Linear(self.hidden, 1),
            ),
            seed,
        ).to(inputs.device)

        def loss(index: Tensor) -> Tensor:
            rows = index.to(inputs.device)
            return F.binary_cross_entropy_with_logits(network(inputs[rows])[:, 0], targets[rows])

        settings = TrainingSettings(self.epochs, batch=64, lr=self.lr)
        # Dropout draws from the global generator.
        with torch.random.fork_rng(devices=[inputs.device] if inputs.is_cuda else []):
            torch.manual_seed(seed)
            train_network(network, loss, len(inputs), settings, seed=seed, state=TrainingState(None, {}))

        def predict(values: Tensor) -> Tensor:
            with torch.no_grad():
                return torch.sigmoid(network(values)[:, 0]).nan_to_num(0.5)

        return predict


def _parts(widths: list[int]) -> dict[str, slice]:
    """The columns of all parts together, and of each part with more than one value.

    >>> _parts([1, 4, 3])
    {'': slice(0, 8, None), ' on part 1': slice(1, 5, None), ' on part 2': slice(5, 8, None)}
    """
    found, first = {"": slice(0, sum(widths))}, 0
    for number, width in enumerate(widths):
        if width > 1:
            found[f" on part {number}"] = slice(first, first + width)
        first += width
    return found


def _on_columns(model: Callable[[Tensor], Tensor], columns: slice) -> Callable[[Tensor], Tensor]:
    return lambda values: model(values[:, columns])


def _ridge(inputs: list[Tensor], targets: list[Tensor]) -> Callable[[Tensor], Tensor]:
    """A linear map of training inputs to targets whose penalty is the best for the clients held out."""
    x, t = inputs[0].double(), targets[0].double()
    mean, target_mean = x.mean(0), t.mean()
    centred = x - mean
    # Whichever is smaller: products of clients, or of values.
    by_clients = len(x) <= x.shape[1]
    products = (centred @ centred.T if by_clients else centred.T @ centred) / len(x)
    sizes, vectors = torch.linalg.eigh(products)
    sizes = sizes.clamp_min(0)
    correlation = (t - target_mean) if by_clients else centred.T @ (t - target_mean)
    projected = vectors.T @ correlation / len(x)

    def coefficients(penalty: float) -> Tensor:
        weights: Tensor = vectors @ (projected / (sizes + penalty))
        return centred.T @ weights if by_clients else weights

    def errors(penalty: float) -> float:
        predicted = target_mean + (inputs[1].double() - mean) @ coefficients(penalty)
        return float((predicted - targets[1]).square().mean())

    best = coefficients(min(_PENALTIES, key=errors))

    def predict(values: Tensor) -> Tensor:
        return (target_mean + (values.double() - mean) @ best).float().nan_to_num(0.5).clamp(-1, 2)

    return predict


def _area(scores: Tensor, targets: Tensor) -> float:
    return auc_interval(scores.cpu(), targets.cpu() > 0.5).value

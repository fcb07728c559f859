"""Gradient matching: optimise inputs until their gradient matches the observed one, for all victims."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial

import torch
from torch import Tensor

from refiner import checks
from refiner.attacks.chunk_size import victims_per_chunk
from refiner.attacks.matching.checkpoint import AttackCheckpoint, fingerprint
from refiner.attacks.matching.descent import AdamDescent, Descent, DescentState, LBFGSDescent
from refiner.attacks.matching.distance import Distance, TaskDistance
from refiner.attacks.matching.parametrisation import Parametrisation, Pixels
from refiner.attacks.matching.priors import Guess, Prior, TotalVariation
from refiner.attacks.observation import Observation
from refiner.attacks.reconstruction import Reconstruction
from refiner.attacks.run_options import RunOptions
from refiner.core.cuda_graphs import CudaGraphCache
from refiner.core.gradients import flatten, gradients
from refiner.core.input_range import InputRange, from_unit_range
from refiner.core.lbfgs import LBFGS
from refiner.core.noise import NoiseSource
from refiner.core.optim import Adam
from refiner.core.precision import tensor_float32
from refiner.core.task import Task

# Iterations between two reports of progress.
_ITERATIONS_PER_BLOCK = 20
# Generated images at a time when the results are converted.
_RESULTS_AT_ONCE = 256


@dataclass(frozen=True, eq=False)
class PerVictimSettings:
    """Settings that differ between the victims of one run; each is `[V]`."""

    number: Tensor
    """The victim's number, which determines its random draws."""
    lr: Tensor
    total_variation: Tensor

    def for_guesses(self, rows: slice, restarts: int) -> "PerVictimSettings":
        """Return the settings of the victims in `rows`, repeated for each restart."""
        columns = (getattr(self, f.name) for f in fields(self))
        return PerVictimSettings(*(column[rows].repeat_interleave(restarts) for column in columns))


@dataclass(frozen=True)
class GradientMatching:
    """Minimises distance(gradient of a guess, observed gradient) + priors(guess) for every victim.

    Args:
        distance: How gradients are compared.
        priors: Costs of guesses that don't look like natural images; they are added to the distance.
        optimizer: Adam, signed Adam or L-BFGS.
        iterations: Steps of the optimizer.
        decays: Fractions of the iterations after which the learning rate is divided by ten.
        restarts: Guesses for each victim; the one with the lowest objective is the result. The truth is never
            used for that choice.
        parametrisation: What is optimised: pixels, or the input of a generator.

    >>> GradientMatching(iterations=0)
    Traceback (most recent call last):
    refiner.errors.SettingError: iterations = 0: expected an integer ≥ 1
    """

    distance: Distance = field(default_factory=Distance)
    priors: Sequence[Prior] = ()
    optimizer: Adam | LBFGS = field(default_factory=lambda: Adam(lr=0.1))
    iterations: int = 4000
    decays: Sequence[float] = ()
    restarts: int = 1
    parametrisation: Parametrisation = field(default_factory=Pixels)

    def __post_init__(self) -> None:
        checks.integer("iterations", self.iterations, 1)
        checks.integer("restarts", self.restarts, 1)
        for fraction in self.decays:
            checks.number("decays", fraction, 0, 1)

    def run(
        self,
        observations: Sequence[Observation],
        labels: Tensor,
        options: RunOptions,
        per_victim: PerVictimSettings | None = None,
    ) -> Reconstruction:
        """Return the best guess of every victim's batch.

        Args:
            observations: One or more uploads of the same victims; their distances are added.
            labels: The labels `[V, B]`.
            options: Seed, chunk and the like.
            per_victim: A learning rate and a weight of total variation for each victim, in place of the
                attack's own.

        Returns:
            The guess of the restart with the lowest objective, for every victim.
        """
        start = time.perf_counter()
        channels = _channel_ranges(self.parametrisation)
        if channels is not None:
            observations = [replace(o, task=o.task.with_unit_inputs(channels)) for o in observations]
        first = observations[0]
        self.parametrisation.check(first.task)
        history = 2 * self.optimizer.history if isinstance(self.optimizer, LBFGS) else 4
        chunk = options.chunk or victims_per_chunk(first, self.restarts * len(observations), history)
        y = labels.to(first.gradient.device)
        fingerprints = self._fingerprints(observations, y, options, per_victim)
        checkpoint = AttackCheckpoint(options.resume, fingerprints, str(y.device), chunk)
        with tensor_float32(False), torch.no_grad():
            try:
                while checkpoint.begin < len(y):
                    rows = slice(checkpoint.begin, min(checkpoint.begin + checkpoint.chunk, len(y)))
                    state = self._attack_chunk(observations, y, rows, options, checkpoint, per_victim)
                    checkpoint.finish(rows.stop, *self._best_restart(state))
            except KeyboardInterrupt:
                checkpoint.save()
                raise
            z, objective, diverged = checkpoint.results()
            slices = zip(*(torch.split(t, _RESULTS_AT_ONCE) for t in (z, y)), strict=True)
            x = torch.cat([self.parametrisation.result(first.task, *part) for part in slices])
            x = x if channels is None else from_unit_range(x, channels, len(first.task.input_shape))
            labels = self.parametrisation.labels(first.task, z, y)
            labels = labels.argmax(-1) if labels.is_floating_point() else labels
        return Reconstruction(x, labels, objective, diverged, time.perf_counter() - start)

    def _fingerprints(
        self,
        observations: Sequence[Observation],
        y: Tensor,
        options: RunOptions,
        per_victim: PerVictimSettings | None,
    ) -> dict[str, str]:
        """Fingerprints of everything that a state on disk depends on, by name."""
        if options.resume is None:
            return {}
        settings = {f.name: getattr(self, f.name) for f in fields(self)}
        uploads = [
            t for o in observations for t in (o.gradient, *o.parameters.values(), *o.statistics.values())
        ]
        networks = self.parametrisation.networks(observations[0].task)
        points = {} if per_victim is None else {"points": fingerprint(tensors=vars(per_victim).values())}
        return {
            **points,
            "settings": fingerprint(settings),
            **{name: fingerprint(tensors=net.state_dict().values()) for name, net in networks.items()},
            "seed": fingerprint(options.seed),
            "chunk": fingerprint(options.chunk),
            "deterministic": fingerprint(options.deterministic),
            "uploads": fingerprint(tensors=uploads),
            "labels": fingerprint(tensors=[y]),
        }

    def _with(self, per_victim: PerVictimSettings) -> "GradientMatching":
        """The same with a weight of total variation for each guess, and a learning rate of 1 to be scaled."""
        priors = [
            TotalVariation(per_victim.total_variation) if isinstance(prior, TotalVariation) else prior
            for prior in self.priors
        ]
        return replace(self, priors=priors, optimizer=replace(self.optimizer, lr=1.0))

    def _descent(self, task: Task, lr_factor: float | Tensor) -> Descent:
        if isinstance(self.optimizer, LBFGS):
            return LBFGSDescent(self.optimizer, lr_factor)
        project = partial(self.parametrisation.project, task)
        return AdamDescent(self.optimizer, self.decays, self.iterations, project, lr_factor)

    def _attack_chunk(
        self,
        observations: Sequence[Observation],
        y: Tensor,
        rows: slice,
        options: RunOptions,
        checkpoint: AttackCheckpoint,
        per_victim: PerVictimSettings | None,
    ) -> DescentState:
        """Attack the victims in `rows`, from the start or from where an earlier run stopped."""
        task, victims = observations[0].task, len(y)
        chunk_settings = None if per_victim is None else per_victim.for_guesses(rows, self.restarts)
        matching = self if chunk_settings is None else self._with(chunk_settings)
        objective = _Objective(matching, observations, rows, y)
        descent = matching._descent(task, 1.0 if chunk_settings is None else chunk_settings.lr)
        state = checkpoint.state
        if state is None:
            # A victim's draws depend only on its number, so that the chunk size does not change them.
            numbers = torch.arange(victims, device=y.device) if per_victim is None else per_victim.number
            guesses, images = (torch.arange(n, device=y.device) for n in (self.restarts, y.shape[1]))
            ids = (numbers[rows, None] * self.restarts + guesses).view(-1, 1) * len(images) + images
            source = NoiseSource(seed=options.seed)
            z = self.parametrisation.initial(task, source, ids, objective.observed[0].dtype)
            state = descent.init(z, objective)
        while checkpoint.iteration < self.iterations and not descent.finished(state):
            until = min(checkpoint.iteration + _ITERATIONS_PER_BLOCK, self.iterations)
            state = descent.advance(state, objective, checkpoint.iteration, until)
            checkpoint.advance(until, state)
            done = rows.start * self.iterations + (rows.stop - rows.start) * until
            options.on_progress(done * self.restarts, victims * self.iterations * self.restarts)
        return state

    def _best_restart(self, state: DescentState) -> tuple[Tensor, Tensor, Tensor]:
        """Each victim's guess with the lowest objective: variables, objective, whether it diverged."""
        values = state.best_value.view(-1, self.restarts)
        best = values.argmin(1) + self.restarts * torch.arange(len(values), device=values.device)
        return state.best_z[best], state.best_value[best], state.diverged[best]


def _channel_ranges(parametrisation: Parametrisation) -> InputRange | None:
    """The range of each channel, if pixels are optimised that have one."""
    pixels = getattr(parametrisation, "pixels", parametrisation)
    return pixels.channels if isinstance(pixels, Pixels) else None


def decay_fractions(decayed: bool) -> tuple[float, ...]:
    """Return 3/8, 5/8 and 7/8 (Geiping et al. 2020) if `decayed`, else nothing."""
    return (3 / 8, 5 / 8, 7 / 8) if checks.flag("decayed", decayed) else ()


class _Objective:
    """Value and gradient of the objective for a chunk of guesses; replayed as a CUDA graph on a GPU."""

    def __init__(
        self, matching: GradientMatching, observations: Sequence[Observation], rows: slice, y: Tensor
    ) -> None:
        self.matching, self.task = matching, observations[0].task
        self.distance: TaskDistance = matching.distance.for_task(self.task)
        self.labels = y[rows].repeat_interleave(matching.restarts, 0)
        self.observed = [o.gradient[rows].repeat_interleave(matching.restarts, 0) for o in observations]
        self.models = [(dict(o.parameters), dict(o.statistics)) for o in observations]
        self.graphs = CudaGraphCache()

    def __call__(self, z: Tensor) -> tuple[Tensor, Tensor]:
        value, gradient = self.graphs("objective", self._compute, [z])
        return value, gradient

    def _compute(self, z: Tensor) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            variables = z.detach().requires_grad_()
            parametrisation = self.matching.parametrisation
            x = parametrisation.images(self.task, variables, self.labels)
            y = parametrisation.labels(self.task, variables, self.labels)
            total = z.new_zeros(len(z))
            for observed, (parameters, _) in zip(self.observed, self.models, strict=True):
                gradient = gradients(self.task, x, y, parameters=parameters)
                total = total + self.distance(flatten(gradient), observed)
            guess = Guess(x, variables, self.task, self.models, self.matching.restarts)
            for prior in self.matching.priors:
                total = total + prior(guess)
            (objective_grad,) = torch.autograd.grad(total.sum(), variables)
        return total.detach(), objective_grad

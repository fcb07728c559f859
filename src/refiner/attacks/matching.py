"""The engine: vary images until their gradient matches the one that was seen, for all victims at once."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial

import torch
from torch import Tensor

from refiner import checks
from refiner.attacks.base import Reconstruction, Run
from refiner.attacks.checkpoint import Checkpoint, fingerprint
from refiner.attacks.distance import Distance, Measure
from refiner.attacks.memory import fitting
from refiner.attacks.observation import Observation
from refiner.attacks.parametrisation import Parametrisation, Pixels
from refiner.attacks.priors import Guess, Prior, TotalVariation
from refiner.attacks.search import FirstOrder, QuasiNewton, Search, Walk
from refiner.core.cuda_graphs import Captured
from refiner.core.gradients import flatten, gradients
from refiner.core.lbfgs import LBFGS
from refiner.core.noise import NoiseSource
from refiner.core.optim import Adam
from refiner.core.precision import tensor_float32
from refiner.core.task import Task

# Iterations between two looks at the clock.
_BLOCK = 20


@dataclass(frozen=True, eq=False)
class Each:
    """What differs from victim to victim where one run holds several settings of an attack; each is `[V]`."""

    number: Tensor
    """Whose draws a victim has."""
    lr: Tensor
    total_variation: Tensor

    def of(self, rows: slice, restarts: int) -> "Each":
        """Of some victims, once for each guess at them."""
        held = (getattr(self, f.name)[rows].repeat_interleave(restarts) for f in fields(self))
        return Each(*held)


@dataclass(frozen=True)
class Matching:
    """Distance × priors × optimizer × schedule × restarts × parametrisation.

    >>> Matching(iterations=0)
    Traceback (most recent call last):
    refiner.errors.SettingError: iterations = 0: expected an integer ≥ 1
    """

    distance: Distance = field(default_factory=Distance)
    priors: Sequence[Prior] = ()
    optimizer: Adam | LBFGS = field(default_factory=lambda: Adam(lr=0.1))
    iterations: int = 4000
    decays: Sequence[float] = ()
    """Shares of the iterations after which the learning rate is divided by ten."""
    restarts: int = 1
    """Guesses at each victim; the best is chosen by the objective, which is all that an attacker has."""
    parametrisation: Parametrisation = field(default_factory=Pixels)

    def __post_init__(self) -> None:
        checks.integer("iterations", self.iterations, 1)
        checks.integer("restarts", self.restarts, 1)
        for share in self.decays:
            checks.number("decays", share, 0, 1)

    def run(
        self, observations: Sequence[Observation], labels: Tensor, run: Run, each: Each | None = None
    ) -> Reconstruction:
        """The best guess at every victim's batch; several observations of it add up.

        With `each` every victim has a learning rate and a weight of total variation of its own.
        """
        began = time.perf_counter()
        first = observations[0]
        self.parametrisation.check(first.task)
        history = 2 * self.optimizer.history if isinstance(self.optimizer, LBFGS) else 4
        size = run.chunk or fitting(first, self.restarts * len(observations), history)
        y = labels.to(first.gradient.device)
        held = Checkpoint(run.resume, self._identity(observations, y, run, each), str(y.device), size)
        with tensor_float32(False), torch.no_grad():
            try:
                while held.begin < len(y):
                    rows = slice(held.begin, min(held.begin + held.size, len(y)))
                    search = self._attack(observations, y, rows, run, held, each)
                    held.finish(rows.stop, *self._chosen(search))
            except KeyboardInterrupt:
                held.store()
                raise
            z, best, diverged = held.results()
            parts = zip(*(torch.split(t, 256) for t in (z, y)), strict=True)
            x = torch.cat([self.parametrisation.shown(first.task, *part) for part in parts])
            found = self.parametrisation.labels(first.task, z, y)
            named = found.argmax(-1) if found.is_floating_point() else found
        return Reconstruction(x, named, best, diverged, time.perf_counter() - began)

    def _identity(
        self, observations: Sequence[Observation], y: Tensor, run: Run, each: Each | None
    ) -> dict[str, str]:
        """All that a state on disk depends on, part by part."""
        if run.resume is None:
            return {}
        settings = {f.name: getattr(self, f.name) for f in fields(self)}
        uploads = [
            t for o in observations for t in (o.gradient, *o.parameters.values(), *o.statistics.values())
        ]
        networks = self.parametrisation.networks(observations[0].task)
        points = {} if each is None else {"points": fingerprint(tensors=vars(each).values())}
        return {
            **points,
            "settings": fingerprint(settings),
            **{name: fingerprint(tensors=net.state_dict().values()) for name, net in networks.items()},
            "seed": fingerprint(run.seed),
            "chunk": fingerprint(run.chunk),
            "deterministic": fingerprint(run.deterministic),
            "uploads": fingerprint(tensors=uploads),
            "labels": fingerprint(tensors=[y]),
        }

    def _of(self, each: Each) -> "Matching":
        """The engine of guesses that each have a weight of their own; learning rates are left to the walk."""
        priors = [
            TotalVariation(each.total_variation) if isinstance(prior, TotalVariation) else prior
            for prior in self.priors
        ]
        return replace(self, priors=priors, optimizer=replace(self.optimizer, lr=1.0))

    def _walk(self, task: Task, rates: float | Tensor) -> Walk:
        if isinstance(self.optimizer, LBFGS):
            return QuasiNewton(self.optimizer, rates)
        box = partial(self.parametrisation.boxed, task)
        return FirstOrder(self.optimizer, self.decays, self.iterations, box, rates)

    def _attack(
        self,
        observations: Sequence[Observation],
        y: Tensor,
        rows: slice,
        run: Run,
        held: Checkpoint,
        each: Each | None,
    ) -> Search:
        """A chunk of victims from start to end, or on from where an earlier run stopped."""
        task, victims = observations[0].task, len(y)
        own = None if each is None else each.of(rows, self.restarts)
        engine = self if own is None else self._of(own)
        objective = _Objective(engine, observations, rows, y)
        walk, search = engine._walk(task, 1.0 if own is None else own.lr), held.search
        if search is None:
            # A victim's draws depend on its number alone, so that chunks change nothing.
            numbers = torch.arange(victims, device=y.device) if each is None else each.number
            guesses, images = (torch.arange(n, device=y.device) for n in (self.restarts, y.shape[1]))
            ids = (numbers[rows, None] * self.restarts + guesses).view(-1, 1) * len(images) + images
            start = self.parametrisation.start(
                task, NoiseSource(seed=run.seed), ids, objective.targets[0].dtype
            )
            search = walk.begin(start, objective)
        while held.iteration < self.iterations and not walk.over(search):
            until = min(held.iteration + _BLOCK, self.iterations)
            search = walk.advance(search, objective, held.iteration, until)
            held.advance(until, search)
            done = rows.start * self.iterations + (rows.stop - rows.start) * until
            run.on_progress(done * self.restarts, victims * self.iterations * self.restarts)
        return search

    def _chosen(self, search: Search) -> tuple[Tensor, Tensor, Tensor]:
        best = search.best.view(-1, self.restarts)
        pick = best.argmin(1) + self.restarts * torch.arange(len(best), device=best.device)
        return search.best_z[pick], search.best[pick], search.diverged[pick]


def decays(wanted: bool) -> tuple[float, ...]:
    """After 3/8, 5/8 and 7/8 of the iterations (Geiping et al. 2020), or never."""
    return (3 / 8, 5 / 8, 7 / 8) if checks.flag("decayed", wanted) else ()


class _Objective:
    """Value and slope of the attacker's objective for a chunk of guesses; a CUDA graph on a GPU."""

    def __init__(self, engine: Matching, observations: Sequence[Observation], rows: slice, y: Tensor) -> None:
        self.engine, self.task = engine, observations[0].task
        self.measure: Measure = engine.distance.over(self.task)
        self.labels = y[rows].repeat_interleave(engine.restarts, 0)
        self.targets = [o.gradient[rows].repeat_interleave(engine.restarts, 0) for o in observations]
        self.states = [(dict(o.parameters), dict(o.statistics)) for o in observations]
        self.captured = Captured()

    def __call__(self, z: Tensor) -> tuple[Tensor, Tensor]:
        value, slope = self.captured("objective", self._compute, [z])
        return value, slope

    def _compute(self, z: Tensor) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            point = z.detach().requires_grad_()
            guessed = self.engine.parametrisation
            x = guessed.images(self.task, point, self.labels)
            y = guessed.labels(self.task, point, self.labels)
            total = z.new_zeros(len(z))
            for target, (parameters, _) in zip(self.targets, self.states, strict=True):
                found = gradients(self.task, x, y, parameters=parameters)
                total = total + self.measure(flatten(found), target)
            guess = Guess(x, point, self.task, self.states, self.engine.restarts)
            for prior in self.engine.priors:
                total = total + prior(guess)
            (slope,) = torch.autograd.grad(total.sum(), point)
        return total.detach(), slope

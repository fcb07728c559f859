"""The search for a defence: all candidates on few clients, then fewer candidates on more clients."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from refiner.attacks import Attack, attack_with_iterations, tunable
from refiner.audit import AuditResult, Plan, Tuning, Victims, working_attacks
from refiner.audit.control import as_control
from refiner.core.task import Task
from refiner.defenses import Defense, NoDefense, make_defense
from refiner.errors import ProtectionError, RefinerError
from refiner.federation.federated_settings import FederatedSettings
from refiner.recommendation.price import Price, measure_price
from refiner.recommendation.result import Recommendation, Row
from refiner.recommendation.search_plan import Rung, SearchPlan
from refiner.recommendation.short_training import short_training
from refiner.recommendation.target import Evidence

RunPlans = Callable[[Sequence[Plan]], list[AuditResult]]
"""Runs audits, with their controls, and returns their results."""
Note = Callable[[str], None]

# Weights, total variation and shares of the iterations that attacks are tuned over in the last rung.
TUNING_GRID = {"total_variation": (1e-4, 1e-2), "lr": (), "iterations": (0.25,)}
# So many finalists are trained.
_TRAINED = 3


@dataclass
class Search:
    """One search; call `run`.

    Args:
        task: The model and its loss.
        images: The clients to attack, images to tune attacks on, and images to learn from and train on.
        plan: What to measure.
        folder: For the checkpoints of trainings.
        run_plans: Runs audits.
        note: Called with a line about every step.
    """

    task: Task
    images: Victims
    plan: SearchPlan
    folder: Path
    run_plans: RunPlans
    note: Note = field(default=lambda text: None)

    def run(self) -> Recommendation:
        """Return the recommendation."""
        working, failing, undefended = self._control()
        if not working:
            return Recommendation(None, (), undefended, (), tuple(failing), {}, self.plan)
        self.note(f"attacks that work without a defence: {', '.join(working)}")
        prices, skipped = self._prices()
        rows: dict[str, Row] = {}
        names = list(prices)
        for number, rung in enumerate(self.plan.rungs, start=1):
            names = names[: rung.candidates]
            self.note(f"rung {number} of {len(self.plan.rungs)}: {', '.join(names)}")
            rows |= self._measure(names, working, rung, prices)
            names = self._ranked([rows[name] for name in names])
        rows |= self._next_best(rows, working, prices)
        # The controls of the last rung.
        undefended = self._evidence(self.task, ["none"], working, self.plan.rungs[-1], tune=True)["none"]
        if self.plan.training_rounds:
            rows |= self._train(rows, working)
        ranked = self._ranked(list(rows.values()))
        final = [rows[name] for name in ranked if rows[name].is_met and rows[name].is_final]
        chosen = final[0].defense if final else None
        return Recommendation(
            chosen,
            tuple(rows[name] for name in ranked),
            undefended,
            tuple(working),
            tuple(failing),
            skipped,
            self.plan,
        )

    def _control(self) -> tuple[list[str], list[str], Evidence]:
        """The attacks that work without a defence, those that don't, and what they reach."""
        plans, names = [], []
        for name in self.plan.attacks:
            try:
                plans.append(self._plan(self.task, "none", name, self.plan.rungs[0]))
                names.append(name)
            except RefinerError as error:
                self.note(f"{name} is not tried: {error}")
        results = self.run_plans(plans)
        works = [as_control(r, p.scorer.thresholds).works for p, r in zip(plans, results, strict=True)]
        chosen = working_attacks(plans, results) if any(works) else []
        working = [name for name, plan in zip(names, plans, strict=True) if plan.attack in chosen]
        return working, [name for name in names if name not in working], Evidence.of(results)

    def _prices(self) -> tuple[dict[str, Price], dict[str, str]]:
        """The price of every candidate that applies, and why the others don't."""
        prices, skipped = {}, {}
        x, y = self._training_batch()
        for name in self.plan.candidates:
            try:
                prices[name] = measure_price(self.task, make_defense(name), x, y, self.plan.seed)
            except RefinerError as error:
                skipped[name] = str(error)
                self.note(f"{name} does not apply: {error}")
        return prices, skipped

    def _measure(
        self, names: Sequence[str], attacks: Sequence[str], rung: Rung, prices: dict[str, Price]
    ) -> dict[str, Row]:
        """The row of each defence, measured as a rung says."""
        is_final = rung is self.plan.rungs[-1]
        evidence = self._evidence(self.task, names, attacks, rung, tune=is_final)
        return {
            name: Row(
                name,
                evidence[name],
                prices[name],
                min(rung.victims, len(self.images.y)),
                self.plan.target.is_met(evidence[name]),
                is_final,
            )
            for name in names
        }

    def _next_best(
        self, rows: dict[str, Row], attacks: Sequence[str], prices: dict[str, Price]
    ) -> dict[str, Row]:
        """If no finalist will do: those left behind, one by one, until one does or the budget is spent.

        Without a training, finalists that meet the target with a large gradient error won't do where others
        may meet it with a small one.
        """
        found: dict[str, Row] = {}
        left = [name for name in self._ranked(list(rows.values())) if not rows[name].is_final]
        while left:
            met = [row for row in (rows | found).values() if row.is_met and row.is_final]
            if any(self.plan.training_rounds or not row.price.may_not_train for row in met):
                break
            name = left.pop(0)
            if not self.plan.target.is_possible(rows[name].evidence) or (met and prices[name].may_not_train):
                continue
            problem = "no finalist meets the target" + (" with a small gradient error" if met else "")
            if self.plan.spare is not None and len(found) >= self.plan.spare:
                self.note(f"{problem}, and the budget leaves no time for {name}")
                break
            self.note(f"{problem}; next: {name}")
            found |= self._measure([name], attacks, self.plan.rungs[-1], prices)
        return found

    def _train(self, rows: dict[str, Row], attacks: Sequence[str]) -> dict[str, Row]:
        """The finalists with PMM, and with what the attacks reach on the trained model."""
        finalists = [
            name for name in self._ranked(list(rows.values())) if rows[name].is_met and rows[name].is_final
        ][:_TRAINED]
        accuracy, trained_task = self._training(NoDefense(), "none")
        found = {}
        for name in finalists:
            row = rows[name]
            try:
                kept = 100 * self._training(make_defense(name), name)[0] / max(accuracy, 1e-9)
            except ProtectionError as error:
                self.note(f"{name} is left out: its training failed ({error})")
                found[name] = replace(row, price=replace(row.price, pmm=0.0), is_met=False)
                continue
            evidence = self._evidence(trained_task, [name], attacks, self.plan.rungs[-1], tune=False)[name]
            found[name] = replace(
                row,
                price=replace(row.price, pmm=kept),
                trained=evidence,
                is_met=row.is_met and self.plan.target.is_met(evidence),
            )
        return found

    def _training(self, defense: Defense, name: str) -> tuple[float, Task]:
        settings = FederatedSettings(
            self.plan.training_rounds, clients=1, batch=self.plan.batch, lr=self.plan.lr, seed=self.plan.seed
        )
        accuracy, task = short_training(self.task, self._labelled_images(), settings, defense, self.folder)
        self.note(f"{name}: accuracy {100 * accuracy:.1f} % after {settings.rounds:,} rounds")
        return accuracy, task

    def _evidence(
        self, task: Task, names: Sequence[str], attacks: Sequence[str], rung: Rung, tune: bool
    ) -> dict[str, Evidence]:
        plans = [self._plan(task, name, attack, rung, tune) for name in names for attack in attacks]
        results = self.run_plans(plans)
        count = len(attacks)
        return {name: Evidence.of(results[count * i : count * (i + 1)]) for i, name in enumerate(names)}

    def _plan(self, task: Task, defense: str, attack: str, rung: Rung, tune: bool = False) -> Plan:
        images, rows = self.images, slice(0, rung.victims)
        attacker: Attack = attack_with_iterations(attack, rung.iterations)
        tuning = None
        if tune and self.plan.tuning_victims and images.tuning_x is not None and tunable(attacker):
            assert images.tuning_y is not None
            count = slice(0, self.plan.tuning_victims)
            tuning = Tuning(
                self._here(images.tuning_x[count]), self._here(images.tuning_y[count]), **TUNING_GRID
            )
        x, y = images.x[rows], images.y[rows]
        return Plan.of(
            task,
            self._here(x),
            self._here(y),
            defense=defense,
            attack=attacker,
            public=None if images.public is None else self._here(images.public),
            pool=self._pool(),
            names=images.names[: y.numel()],
            seed=self.plan.seed,
            tune=tuning,
            metrics=None if rung is self.plan.rungs[-1] else ["identification"],
        )

    def _ranked(self, rows: Sequence[Row]) -> list[str]:
        """Names in the order of preference: target met, possible, missed; then by price or, missed, PSNR."""

        def key(row: Row) -> tuple[float, ...]:
            if row.is_met or self.plan.target.is_possible(row.evidence):
                pmm = 0.0 if row.price.pmm is None else -row.price.pmm
                met = 0.0 if row.is_met else 1.0
                return (met, not row.is_final, row.price.may_not_train, pmm, row.price.gradient_error)
            return (2.0, not row.is_final, row.evidence.psnr.value, row.price.gradient_error)

        return [row.defense for row in sorted(rows, key=key)]

    def _labelled_images(self) -> tuple[Tensor, Tensor]:
        """Images that are not attacked; the attacked ones if there are no others."""
        if self.images.pool is not None:
            return self.images.pool
        self.note("there are no other images: prices are measured on the attacked ones")
        return self.images.x.flatten(0, 1), self.images.y.flatten()

    def _pool(self) -> tuple[Tensor, Tensor] | None:
        """The images that attacks learn from: as many as the plan says, at random."""
        pool, count = self.images.pool, self.plan.public_images
        if pool is None or count is None:
            return pool
        rows = torch.randperm(len(pool[1]), generator=torch.Generator().manual_seed(self.plan.seed))[:count]
        return pool[0][rows], pool[1][rows]

    def _training_batch(self) -> tuple[Tensor, Tensor]:
        x, y = self._labelled_images()
        order = torch.randperm(len(y), generator=torch.Generator().manual_seed(self.plan.seed))
        rows = order[: self.plan.batch]
        return self._here(x[rows][None]), self._here(y[rows][None])

    def _here(self, tensor: Tensor) -> Tensor:
        """On the model's device."""
        return tensor.to(next(iter(self.task.parameters().values())).device)

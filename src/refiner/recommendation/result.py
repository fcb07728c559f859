"""The result of a search for a defence: one recommendation, and what every candidate reached."""

from dataclasses import asdict, dataclass
from typing import Any

from refiner.defenses import make_defense
from refiner.recommendation.price import LARGE_ERROR, Price
from refiner.recommendation.search_plan import SearchPlan
from refiner.recommendation.target import Evidence

ACCURACY_ROUNDS = 500
"""Rounds of the short trainings that are offered where accuracy was not measured."""
_PYTHON_CALL = f"recommend(…, training_rounds={ACCURACY_ROUNDS})"


@dataclass(frozen=True)
class Row:
    """What was measured of one defence."""

    defense: str
    """Its name with settings."""
    evidence: Evidence
    price: Price
    clients: int
    """The clients that were attacked, more the further the defence came."""
    is_met: bool
    """Whether the target is met, as far as it was measured."""
    is_final: bool
    """Whether it was measured in the last rung; others were left behind."""
    trained: Evidence | None = None
    """The same attacks on the model after the short training; None if there was none."""


@dataclass(frozen=True)
class Recommendation:
    """Which defence to take, and why.

    Attributes:
        chosen: The defence, by name with settings; None if no candidate meets the target.
        rows: All candidates that apply, those that meet the target first, then by price.
        undefended: What the attacks reach without a defence.
        attacks: The attacks that work on this model.
        failing: Attacks that were tried and reveal nothing of undefended uploads.
        skipped: Candidates that don't apply to this model or data, with the reason.
        plan: What was run.
        command: The command that measures accuracy, too; empty if it was called from Python.
    """

    chosen: str | None
    rows: tuple[Row, ...]
    undefended: Evidence
    attacks: tuple[str, ...]
    failing: tuple[str, ...]
    skipped: dict[str, str]
    plan: SearchPlan
    command: str = ""

    @property
    def sentence(self) -> str:
        """The recommendation in one sentence, and what it leaves open."""
        if not self.attacks:
            return (
                f"No recommendation: no attack works on this model without a defence (the best reaches "
                f"{self.undefended.psnr.value:.1f} dB, a blind guess {self.undefended.blind_psnr:.1f}), so "
                f"that none can show what a defence does.{self._scaled_down}"
            )
        target = self.plan.target.text
        row = next((row for row in self.rows if row.defense == self.chosen), None)
        if row is None:
            text = f"No candidate meets the target ({target}); the table shows what each of them reaches."
            return " ".join(filter(None, (text + self._scaled_down, self.undefended.caveat)))
        worst = row.evidence.or_worse(row.trained)
        price = f"its uploads differ from the gradient by {row.price.gradient_error:.2g} of its length"
        if row.price.pmm is not None:
            price = f"a short training keeps {row.price.pmm:.1f} % of the accuracy"
        unmeasured = ""
        if row.price.may_not_train:
            unmeasured = (
                f" Accuracy was not measured, and uploads with an error of {LARGE_ERROR} or more may not "
                f"train the model; measure it with “{self.command or _PYTHON_CALL}”."
            )
        untrained = (
            ""
            if row.trained
            else " Measured on these weights only: at another stage of the training uploads may reveal more."
        )
        batches = ""
        if make_defense(row.defense).reveals_more_in_batches(self.plan.batch):
            batches = (
                f" Only single images were attacked. In batches of {self.plan.batch} it moves the noisy "
                "images towards the real gradient, which may reveal more: check with `refiner audit … "
                f"--defense {row.defense} --batch {self.plan.batch}`."
            )
        return (
            f"Take {row.defense}: the strongest attack, {worst.attack}, reaches {worst.psnr.value:.1f} dB "
            f"(a blind guess {worst.blind_psnr:.1f}, undefended {self.undefended.psnr.value:.1f}), "
            f"{worst.visible} images are visible, {worst.identifiable} visible or identifiable, and with "
            f"batches of {self.plan.batch} "
            f"{price}.{batches}{unmeasured}{untrained}{worst.caveat and ' '}{worst.caveat}"
        )

    @property
    def _scaled_down(self) -> str:
        if not self.plan.scaled_down:
            return ""
        return f" The budget allowed only: {', '.join(self.plan.scaled_down)}; a larger one may find more."

    @property
    def code(self) -> str:
        """The lines for a training loop; empty without a recommendation."""
        return "" if self.chosen is None else training_lines(self.chosen)

    def record(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {"sentence": self.sentence, "code": self.code, **asdict(self)}


def training_lines(defense: str) -> str:
    """Return the lines that protect a training loop with a defence.

    >>> print(training_lines("gq:bits=8").splitlines()[1])
    defense = make_defense("gq:bits=8")
    """
    uses_secret = make_defense(defense).uses_secret_key
    secret = ', secret=refiner.load_secret("client.secret")' if uses_secret else ""
    return (
        "from refiner.defenses import make_defense\n"
        f'defense = make_defense("{defense}"{secret})\n'
        "state = defense.init_state()  # for the whole training\n"
        "refiner.backward(model, loss, x, y, defense, state=state)  # for loss(model(x), y).backward()"
    )

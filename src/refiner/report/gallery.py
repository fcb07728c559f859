"""What every attack rebuilt of every victim, by defence: images side by side with scores and a verdict."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from refiner.errors import DataError
from refiner.report.inline_image import Pixels, check_pixels, image
from refiner.report.markup import counted, paragraph, text
from refiner.report.verdict import VERDICTS, Verdict, badge, bar, check_verdict, icon, tally

_FEW = 3  # groups up to this many stand open, and need no overview


@dataclass(frozen=True, eq=False)
class Card:
    """One victim: its image, what an attack rebuilt of it, its robust data if there is some, how bad it is.

    Images are uint8 [height, width, 3]; scores are (name, value) in the order they are to be read.

    >>> import numpy as np
    >>> grey = np.full((32, 32, 3), 128, np.uint8)
    >>> Card("frog", grey, grey, scores=[("PSNR", "31.2 dB")], verdict="exposed").verdict
    'exposed'
    """

    name: str
    original: Pixels
    reconstruction: Pixels
    robust: Pixels | None = None
    scores: Sequence[tuple[str, str]] = ()
    verdict: Verdict | None = None

    def __post_init__(self) -> None:
        for name, pixels in self.images():
            check_pixels(name, pixels)
        check_verdict(self.verdict)

    def images(self) -> list[tuple[str, Pixels]]:
        """The images with their labels, from left to right."""
        robust = [] if self.robust is None else [("robust data", self.robust)]
        return [("original", self.original), *robust, ("reconstruction", self.reconstruction)]


@dataclass(frozen=True)
class Group:
    """The victims of one attack on one defence."""

    defense: str
    attack: str
    cards: Sequence[Card]
    note: str = ""


@dataclass(frozen=True)
class Gallery:
    """Groups of cards, one a (defence, attack), that open and close, with an overview if they are many.

    >>> Gallery("Victims", [Group("none", "InvertingGrad", []), Group("none", "InvertingGrad", [])])
    Traceback (most recent call last):
    refiner.errors.DataError: gallery 'Victims': 'none' against 'InvertingGrad' stands there twice
    """

    kind: ClassVar[str] = "Figure"
    title: str
    groups: Sequence[Group]
    note: str = ""

    def __post_init__(self) -> None:
        seen = Counter((group.defense, group.attack) for group in self.groups)
        for (defense, attack), times in seen.items():
            if times > 1:
                raise DataError(f"gallery '{self.title}': '{defense}' against '{attack}' stands there twice")

    def html(self, anchor: str) -> str:
        """Overview, filter, groups; only the first of many groups is open."""
        few = len(self.groups) <= _FEW
        anchors = [f"{anchor}-group-{number}" for number in range(1, len(self.groups) + 1)]
        groups = "".join(
            _group(group, at, few or at == anchors[0]) for group, at in zip(self.groups, anchors, strict=True)
        )
        overview = "" if few else _overview(self, anchors)
        return f"{paragraph(self.note, 'note')}{overview}{_tools(self.groups)}{groups}"


def _overview(gallery: Gallery, anchors: Sequence[str]) -> str:
    """A table of defences by attacks; each cell leads to its group."""
    places = {(g.defense, g.attack): (g, at) for g, at in zip(gallery.groups, anchors, strict=True)}
    attacks = list(dict.fromkeys(group.attack for group in gallery.groups))
    head = "".join(f'<th scope="col">{text(attack)}</th>' for attack in attacks)
    body = ""
    for defense in dict.fromkeys(group.defense for group in gallery.groups):
        cells = (places.get((defense, attack)) for attack in attacks)
        row = "".join("<td>–</td>" if cell is None else f"<td>{_link(*cell)}</td>" for cell in cells)
        body += f'<tr><th scope="row">{text(defense)}</th>{row}</tr>\n'
    return (
        f'<div class="scroll" role="region" aria-label="Overview: {text(gallery.title)}" tabindex="0">\n'
        f'<table class="overview">\n<thead><tr><th scope="col">defence</th>{head}</tr></thead>\n'
        f"<tbody>\n{body}</tbody>\n</table>\n</div>\n"
    )


def _link(group: Group, anchor: str) -> str:
    verdicts = [card.verdict for card in group.cards]
    worst = next((verdict for verdict in VERDICTS if verdict in verdicts), None)
    if worst is None:
        return f'<a href="#{anchor}">{counted(len(verdicts), "victim")}</a>'
    many = verdicts.count(worst)
    told = f"all {worst}" if many == len(verdicts) else f"{many} of {len(verdicts)} {worst}"
    return f'<a class="{worst}" href="#{anchor}">{bar(verdicts)}<span>{icon(worst)}{told}</span></a>'


def _tools(groups: Sequence[Group]) -> str:
    """Choices for the reader; hidden until the script that answers them runs."""
    count = Counter(card.verdict for group in groups for card in group.cards)
    shown = [verdict for verdict in VERDICTS if count[verdict]]
    boxes = "".join(
        f'<label><input type="checkbox" value="{verdict}" checked>{badge(verdict)} {count[verdict]}</label>\n'
        for verdict in shown
    )
    choose = f"<fieldset>\n<legend>Show</legend>\n{boxes}</fieldset>\n" if len(shown) > 1 else ""
    toggle = '<button type="button">Open all</button>\n' if len(groups) > 1 else ""
    return f'<div class="tools" hidden>\n{choose}{toggle}</div>\n' if choose or toggle else ""


def _group(group: Group, anchor: str, is_open: bool) -> str:
    verdicts = [card.verdict for card in group.cards]
    told = tally(verdicts) or counted(len(verdicts), "victim")
    cards = "".join(map(_card, group.cards))
    widest = max((len(card.images()) for card in group.cards), default=2)
    return (
        f'<details class="group" id="{anchor}"{" open" if is_open else ""}>\n'
        f'<summary><h3>{text(group.defense)} <span class="against">against {text(group.attack)}</span></h3>'
        f'<span class="tally">{bar(verdicts)}{told}</span></summary>\n{paragraph(group.note, "note")}'
        f'<div class="cards" style="--images:{widest}">\n{cards}</div>\n</details>\n'
    )


def _card(card: Card) -> str:
    name = text(card.name)
    images = "".join(
        f"<figure>{image(pixels, f'{card.name}, {label}')}<figcaption>{label}</figcaption></figure>"
        for label, pixels in card.images()
    )
    scores = "".join(f"<div><dt>{text(n)}</dt><dd>{text(value)}</dd></div>" for n, value in card.scores)
    verdict = card.verdict or ""
    return (
        f'<article class="card {verdict}" data-verdict="{verdict}">\n'
        f"<header><h4>{name}</h4>{badge(card.verdict) if card.verdict else ''}</header>\n"
        f'<div class="trio">{images}</div>\n'
        f"{f'<dl>{scores}</dl>' if scores else ''}</article>\n"
    )

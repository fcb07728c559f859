"""The reconstruction of every victim by every attack, with the original, the scores and a verdict."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from refiner.errors import DataError
from refiner.report.inline_image import Pixels, check_pixels, img_element
from refiner.report.markup import count_of, escape, paragraph
from refiner.report.verdict import (
    VERDICTS,
    Verdict,
    badge,
    check_verdict,
    css_class,
    icon,
    share_bar,
    verdict_counts,
)

_FEW_GROUPS = 3  # up to this many groups are all open and need no overview


@dataclass(frozen=True, eq=False)
class Card:
    """One victim: its image, the attack's reconstruction of it, scores and a verdict.

    Args:
        name: Name of the image.
        original: uint8 `[height, width, 3]`.
        reconstruction: uint8 `[height, width, 3]`.
        robust: The robust data that a defence computed its gradient on; None for other defences.
        scores: (name, value), in the order in which they are shown.
        verdict: One of `VERDICTS`, or None.

    Raises:
        DataError: if an image has another shape or type.
        SettingError: if `verdict` is none of `VERDICTS`.

    >>> import numpy as np
    >>> grey = np.full((32, 32, 3), 128, np.uint8)
    >>> Card("frog", grey, grey, scores=[("PSNR", "31.2 dB")], verdict="visible").verdict
    'visible'
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
        """Return the images with their labels, from left to right."""
        robust = [] if self.robust is None else [("robust data", self.robust)]
        return [("original", self.original), *robust, ("reconstruction", self.reconstruction)]


@dataclass(frozen=True)
class CardGroup:
    """The victims of one attack on one defence.

    Args:
        defense: Name of the defence.
        attack: Name of the attack.
        cards: One card per victim, or for the first of them.
        note: Text above the cards; may be empty.
        verdicts: The verdicts on all victims where there are more of them than cards; they are counted
            instead of those of the cards.
    """

    defense: str
    attack: str
    cards: Sequence[Card]
    note: str = ""
    verdicts: Sequence[Verdict] = ()

    def counted(self) -> list[Verdict | None]:
        """Return the verdicts on all victims."""
        return list(self.verdicts) or [card.verdict for card in self.cards]


@dataclass(frozen=True)
class Gallery:
    """A figure of cards in groups that open and close, with an overview if there are many groups.

    Args:
        title: Heading of the section.
        groups: One group per pair of defence and attack.
        note: Text below the heading; may be empty.

    Raises:
        DataError: if two groups have the same defence and attack.

    >>> Gallery("Victims", [CardGroup("none", "InvertingGrad", []), CardGroup("none", "InvertingGrad", [])])
    Traceback (most recent call last):
    refiner.errors.DataError: gallery 'Victims': two groups are named 'none' against 'InvertingGrad'
    """

    caption_label: ClassVar[str] = "Figure"
    title: str
    groups: Sequence[CardGroup]
    note: str = ""

    def __post_init__(self) -> None:
        pairs = Counter((group.defense, group.attack) for group in self.groups)
        for (defense, attack), times in pairs.items():
            if times > 1:
                raise DataError(
                    f"gallery '{self.title}': two groups are named '{defense}' against '{attack}'",
                    field="groups",
                )

    def html(self, anchor: str) -> str:
        """Return overview, filter and groups; if there are many groups only the first is open."""
        few = len(self.groups) <= _FEW_GROUPS
        anchors = [f"{anchor}-group-{number}" for number in range(1, len(self.groups) + 1)]
        groups = "".join(
            _group(group, at, few or at == anchors[0]) for group, at in zip(self.groups, anchors, strict=True)
        )
        overview = "" if few else _overview(self, anchors)
        return f"{paragraph(self.note, 'note')}{overview}{_filter(self.groups)}{groups}"


def _overview(gallery: Gallery, anchors: Sequence[str]) -> str:
    """Return a table of defences by attacks; each cell links to its group."""
    linked_groups = {(g.defense, g.attack): (g, at) for g, at in zip(gallery.groups, anchors, strict=True)}
    attacks = list(dict.fromkeys(group.attack for group in gallery.groups))
    head = "".join(f'<th scope="col">{escape(attack)}</th>' for attack in attacks)
    body = ""
    for defense in dict.fromkeys(group.defense for group in gallery.groups):
        cells = (linked_groups.get((defense, attack)) for attack in attacks)
        row = "".join("<td>–</td>" if cell is None else f"<td>{_link(*cell)}</td>" for cell in cells)
        body += f'<tr><th scope="row">{escape(defense)}</th>{row}</tr>\n'
    return (
        f'<div class="scroll" role="region" aria-label="Overview: {escape(gallery.title)}" tabindex="0">\n'
        f'<table class="overview">\n<thead><tr><th scope="col">defence</th>{head}</tr></thead>\n'
        f"<tbody>\n{body}</tbody>\n</table>\n</div>\n"
    )


def _link(group: CardGroup, anchor: str) -> str:
    verdicts = group.counted()
    worst = next((verdict for verdict in VERDICTS if verdict in verdicts), None)
    if worst is None:
        return f'<a href="#{anchor}">{count_of(len(verdicts), "victim")}</a>'
    count = verdicts.count(worst)
    summary = f"{count} of {len(verdicts)} {worst}"
    if count == len(verdicts):
        summary = worst if worst == "no verdict" else f"all {worst}"
    content = f"{share_bar(verdicts)}<span>{icon(worst)}{summary}</span>"
    return f'<a class="{css_class(worst)}" href="#{anchor}">{content}</a>'


def _filter(groups: Sequence[CardGroup]) -> str:
    """Return check boxes for the verdicts and a button that opens all groups; shown by the page's script."""
    count = Counter(verdict for group in groups for verdict in group.counted())
    present = [verdict for verdict in VERDICTS if count[verdict]]
    boxes = "".join(
        f'<label><input type="checkbox" value="{verdict}" checked>{badge(verdict)} {count[verdict]}</label>\n'
        for verdict in present
    )
    choose = f"<fieldset>\n<legend>Show</legend>\n{boxes}</fieldset>\n" if len(present) > 1 else ""
    toggle = '<button type="button">Open all</button>\n' if len(groups) > 1 else ""
    return f'<div class="tools" hidden>\n{choose}{toggle}</div>\n' if choose or toggle else ""


def _group(group: CardGroup, anchor: str, is_open: bool) -> str:
    verdicts = group.counted()
    counts = verdict_counts(verdicts) or count_of(len(verdicts), "victim")
    cards = "".join(map(_card, group.cards))
    widest = max((len(card.images()) for card in group.cards), default=2)
    return (
        f'<details class="group" id="{anchor}"{" open" if is_open else ""}>\n'
        f"<summary><h3>{escape(group.defense)} "
        f'<span class="against">against {escape(group.attack)}</span></h3>'
        f'<span class="tally">{share_bar(verdicts)}{counts}</span></summary>\n{paragraph(group.note, "note")}'
        f'<div class="cards" style="--images:{widest}">\n{cards}</div>\n</details>\n'
    )


def _card(card: Card) -> str:
    name = escape(card.name)
    images = "".join(
        f"<figure>{img_element(pixels, f'{card.name}, {label}')}<figcaption>{label}</figcaption></figure>"
        for label, pixels in card.images()
    )
    scores = "".join(f"<div><dt>{escape(n)}</dt><dd>{escape(value)}</dd></div>" for n, value in card.scores)
    style = "" if card.verdict is None else css_class(card.verdict)
    return (
        f'<article class="card {style}" data-verdict="{card.verdict or ""}">\n'
        f"<header><h4>{name}</h4>{badge(card.verdict) if card.verdict else ''}</header>\n"
        f'<div class="trio">{images}</div>\n'
        f"{f'<dl>{scores}</dl>' if scores else ''}</article>\n"
    )

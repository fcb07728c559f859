"""An invented audit page with real images, and a parser that checks a page's HTML."""

from collections.abc import Callable
from datetime import UTC, datetime
from html.parser import HTMLParser

import numpy as np
import pytest
from numpy.typing import NDArray

from refiner.data import load_sample
from refiner.report import (
    Card,
    CardGroup,
    Cell,
    Distribution,
    Gallery,
    Page,
    ReferenceLine,
    SettingsTable,
    Strip,
    Table,
    Verdict,
    render_page,
    to_pixels,
)

# The share of noise that each defence and attack adds to the reconstruction.
DEFENSES = {
    "none": 0.02,
    "Refiner": 0.62,
    "Refiner, the paper's settings": 0.45,
    "Gaussian noise σ = 0.01": 0.3,
    "DP-SGD ε = 8": 0.7,
    "pruning 90 %": 0.1,
    "Soteria": 0.06,
    "ATS": 0.16,
}
ATTACKS = {"InvertingGrad": 0.0, "DLG": 0.25, "GI with a generator": 0.05, "LAMP": 0.4}


def audit_page(defenses: int = 3, attacks: int = 2, victims: int = 4) -> Page:
    """An invented audit of the given numbers of defences, attacks and victims."""
    sample = load_sample()
    images: NDArray[np.float32] = sample.images[:victims].numpy()
    names = [f"{40000 + n} {sample.class_names[y]}" for n, y in enumerate(sample.labels[:victims].tolist())]
    draw = np.random.default_rng(0)
    groups, strips = [], []
    rows: list[list[str | Cell]] = []
    for defense, hidden in list(DEFENSES.items())[:defenses]:
        robust = 0.5 * images + 0.5 * draw.random(images.shape)
        for attack, weak in list(ATTACKS.items())[:attacks]:
            share = np.clip(hidden + weak + draw.normal(0, 0.06, victims), 0.0, 1.0)[:, None, None, None]
            reconstructed = (1 - share) * images + share * draw.random(images.shape)
            psnr = -10 * np.log10(np.square(reconstructed - images).mean((1, 2, 3)) + 1e-6)
            cards = [
                Card(
                    names[v],
                    to_pixels(images[v]),
                    to_pixels(reconstructed[v]),
                    to_pixels(robust[v]) if defense.startswith("Refiner") else None,
                    [
                        ("PSNR", f"{psnr[v]:.1f} dB"),
                        ("SSIM", f"{1 - share[v].item() ** 0.5:.2f}"),
                        ("LPIPS", f"{share[v].item():.2f}"),
                    ],
                    _verdict(psnr[v]),
                )
                for v in range(victims)
            ]
            groups.append(CardGroup(defense, attack, cards))
            strips.append(Strip(defense, attack, psnr.tolist()))
            visible = sum(card.verdict == "visible" for card in cards)
            spread = 1.96 * psnr.std() / victims**0.5
            rows.append(
                [
                    defense,
                    attack,
                    Cell(f"{psnr.mean():.1f} ± {spread:.1f} dB"),
                    f"{psnr.max():.1f} dB",
                    f"{1 - share.mean() ** 0.5:.3f}",
                    f"{share.mean():.3f}",
                    Cell(f"{visible} of {victims}", value=visible / victims),
                    Cell(verdict=_verdict(psnr.mean())),
                ]
            )
    columns = ["defence", "attack", "PSNR", "worst victim", "SSIM", "LPIPS", "visible", "verdict"]
    return Page(
        "Privacy audit of LeNet on CIFAR-10",
        "With Refiner, InvertingGrad does no better than a blind guess on every victim; without a defence "
        "all of them are visible.",
        [
            ("victims", str(victims)),
            ("defences", str(defenses)),
            ("attacks", str(attacks)),
            ("batch", "1"),
            ("model", "LeNet, 15,826 parameters, untrained"),
        ],
        [
            Distribution(
                "How well each attack did, victim by victim",
                "PSNR in dB, higher reveals more",
                strips,
                [
                    ReferenceLine("blind guess", 14.1),
                    ReferenceLine("identifiable from", 15.0),
                    ReferenceLine("visible from", 19.0),
                ],
                "Every dot is a victim, the box holds the middle half, the mark is the median.",
                "dB",
            ),
            Table("All numbers", columns, rows, "Means over the victims with 95 % intervals."),
            Gallery(
                "Victim by victim",
                groups,
                "Visible from 19 dB, identifiable from 15 dB, neither below.",
            ),
            SettingsTable(
                {
                    "seed": 0,
                    "device": "cpu",
                    "versions": {"torch": "2.13.0", "numpy": "2.4.6"},
                    "attack": {
                        "name": "InvertingGrad",
                        "iterations": 2400,
                        "optimizer": {"name": "signed Adam", "rate": 0.1, "betas": [0.9, 0.999]},
                        "total variation": 1e-4,
                    },
                    "defence": {"alpha": 0.5, "beta": 1.0, "tau": None, "secret": "not shown"},
                }
            ),
        ],
        "The attacker knows the model, the labels and the batch size, but not the defence.",
        "neither",
        datetime(2026, 3, 14, 9, 26, tzinfo=UTC),
    )


def _verdict(psnr: float) -> Verdict:
    return "visible" if psnr >= 19 else "identifiable" if psnr >= 15 else "neither"


@pytest.fixture(scope="session")
def audit() -> Callable[..., Page]:
    """`audit(defenses, attacks, victims)`: the page of an invented audit."""
    return audit_page


class Reader(HTMLParser):
    """Collects elements, their text and attributes; asserts correct nesting."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in {"meta", "link", "img", "br", "input"}:
            self.open.append(tag)
            self.texts.setdefault(tag, []).append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        for tag in self.open:
            self.texts[tag][-1] += data


@pytest.fixture(scope="session")
def read() -> Callable[[Page], Reader]:
    """`read(page)`: its elements; asserts that all are closed, ids are unique and references resolve."""

    def reader(page: Page) -> Reader:
        parser = Reader()
        parser.feed(render_page(page))
        parser.close()
        assert parser.open == []
        ids = [attributes["id"] for _, attributes in parser.tags if "id" in attributes]
        assert len(ids) == len(set(ids))
        for _, attributes in parser.tags:
            links = [attributes.get("href") or ""]
            targets = [link[1:] for link in links if link.startswith("#")]
            targets += (attributes.get("aria-labelledby") or "").split()
            targets += (attributes.get("aria-describedby") or "").split()
            assert set(targets) <= set(ids)
        return parser

    return reader

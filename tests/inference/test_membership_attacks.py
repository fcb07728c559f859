"""Every membership attack finds planted members, and nothing in uploads that say nothing."""

import re
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.inference.membership_scene import BATCH, CLIENTS, Scene, make_scene
from torch import Tensor

from refiner.attacks import Observation, SimulatedUploads, Simulator, ThreatModel
from refiner.audit.membership.uploads import Training
from refiner.audit.protocol import Protocol
from refiner.core.gradients import flatten, gradients
from refiner.describe import settings_of
from refiner.errors import DataError, RefinerError, SettingError, ThreatModelError
from refiner.inference import (
    MEMBERSHIP,
    Alignment,
    Candidates,
    MembershipAttack,
    RunFacts,
    make_membership_attack,
)
from refiner.inference.candidate_gradients import candidate_products, public_products, relative_to_class
from refiner.inference.client_models import answers, client_models
from refiner.inference.lira import _halves, _log_ratio
from refiner.metrics import area_under_curve

QUICK = {
    "likelihood": "likelihood:clients=150",
    "lira": "lira:shadows=8",
    "white-box": "white-box:clients=20,hidden=8",
}
BUILT_IN = MEMBERSHIP.builtin_names()


@pytest.fixture(scope="module")
def scene() -> Scene:
    return make_scene()


def score(name: str, scene: Scene, observations: Any, simulator: Simulator) -> Tensor:
    attack = make_membership_attack(QUICK.get(name, name))
    return attack.score(observations, scene.candidates, simulator=simulator, lr=0.5)


@pytest.mark.parametrize("name", BUILT_IN)
def test_members_of_undefended_uploads_are_found(name: str, scene: Scene) -> None:
    observations, simulator = scene.observed()
    scores = score(name, scene, observations, simulator)
    estimate = area_under_curve(scores[:, :BATCH], scores[:, BATCH:])
    assert estimate.low is not None and estimate.low > 0.5
    torch.testing.assert_close(score(name, scene, observations, simulator), scores)


@pytest.mark.parametrize("name", BUILT_IN)
def test_nothing_is_found_in_uploads_that_say_nothing(name: str, scene: Scene) -> None:
    observations, simulator = scene.observed()
    draws = torch.randn(observations[0].gradient.shape, generator=torch.Generator().manual_seed(0))
    null = replace(observations[0], gradient=draws * observations[0].gradient.std())
    scores = score(name, scene, null, simulator)
    estimate = area_under_curve(scores[:, :BATCH], scores[:, BATCH:])
    assert estimate.low is not None and estimate.high is not None
    assert estimate.low <= 0.5 <= estimate.high


@pytest.mark.parametrize("name", BUILT_IN)
def test_several_rounds_are_used(name: str, scene: Scene) -> None:
    observations, simulator = scene.observed(training=Training(rounds=2, protocol=Protocol(lr=0.5)))
    parameters = [torch.cat([p.flatten() for p in o.parameters.values()]) for o in observations]
    # The server's step: the model of the next round.
    step = 0.5 * observations[0].gradient.mean(0)
    torch.testing.assert_close(parameters[1], parameters[0] - step)
    scores = score(name, scene, observations, simulator)
    assert float(area_under_curve(scores[:, :BATCH], scores[:, BATCH:]).value) > 0.6
    if name not in ("lira", "white-box"):  # the two that take long
        assert not torch.allclose(scores, score(name, scene, observations[:1], simulator))


def test_alignments_are_those_of_the_definition(scene: Scene) -> None:
    (observation,), _ = scene.observed()
    upload = observation.gradient[3]
    x, y = scene.candidates
    own = flatten(gradients(scene.task, x[3, 5][None, None], y[3, 5][None, None]))[0]
    cosine = float(torch.cosine_similarity(own, upload, dim=0))
    found = candidate_products(observation, scene.candidates)
    assert float(found.cosines[3, 5]) == pytest.approx(cosine, abs=1e-5)
    assert float(found.products[3, 5].sum()) == pytest.approx(float(own @ upload), abs=1e-5)
    again = public_products(observation, x.flatten(0, 1), y.flatten())
    torch.testing.assert_close(again.cosines[3].view(y.shape)[3], found.cosines[3], atol=1e-5, rtol=0)
    assert found.layer_cosines.shape == (*y.shape, 2)


def test_a_sample_alone_in_its_batch_is_aligned_perfectly(scene: Scene) -> None:
    x, y = scene.candidates
    single = scene._replace(x=scene.x[:, :1], y=scene.y[:, :1])
    (observation,), _ = single.observed()
    scores = Alignment(relative=False).score(observation, Candidates(x, y))
    torch.testing.assert_close(scores[:, 0], torch.ones(len(scores)).double(), atol=1e-5, rtol=0)
    assert bool((scores[:, 1:] < 1 - 1e-4).all())


def test_scores_relative_to_a_class_need_two_images_of_it() -> None:
    with pytest.raises(DataError, match="public = 2: 1 of class 1, expected at least 2 of every candidate's"):
        relative_to_class(torch.ones(1, 1), torch.tensor([[1]]), torch.ones(1, 2), torch.tensor([0, 1]))


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_attack_has_a_reference_and_described_settings(name: str) -> None:
    attack = MEMBERSHIP[name]()
    assert attack.name == name and re.search(r"\b\d{4}$", attack.reference)
    assert [s.name for s in settings_of(MEMBERSHIP[name]) if not s.help.strip()] == []
    for field in fields(attack):
        with pytest.raises(SettingError, match=f"^{field.name} = "):
            make_membership_attack(name, **{field.name: "many"})


def test_what_is_not_granted_is_refused(scene: Scene) -> None:
    observations, _ = scene.observed()
    with pytest.raises(ThreatModelError, match="alignment needs public"):
        Alignment().score(observations, scene.candidates, threat=ThreatModel(public=False))
    with pytest.raises(DataError, match="public = None: expected public images and the defence"):
        Alignment().score(observations, scene.candidates)
    assert Alignment(relative=False).score(observations, scene.candidates).shape == scene.candidates.y.shape
    with pytest.raises(DataError, match="did you mean 'alignment'"):
        make_membership_attack("alignement")


@dataclass(frozen=True)
class UsesTheDefense(MembershipAttack):
    """Declares that it needs public images only, and simulates the defence all the same."""

    name = "undeclared"
    needs = frozenset({"public"})

    def run(
        self, observations: list[Observation], candidates: Candidates, simulator: Any, facts: RunFacts
    ) -> Tensor:
        uploads: Tensor = simulator.protect(candidates.x, candidates.y, 0).gradients[0]
        return uploads


def test_an_attack_can_not_use_a_defence_that_it_does_not_declare(scene: Scene) -> None:
    observations, simulator = scene.observed()
    with pytest.raises(AssertionError, match="does not declare that it needs the defence"):
        UsesTheDefense().score(observations, scene.candidates, simulator=simulator)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.rand(3, 2, 24)}, r"candidates = \[3, 2, 24\]: expected one or more for each client"),
        ({"y": torch.zeros(12, 3, dtype=torch.long)}, "expected a label of each"),
        ({"y": torch.full((12, 8), 2)}, r"candidates = 2: expected labels in \[0, 1\]"),
    ],
)
def test_wrong_candidates_are_one_line(change: dict[str, Tensor], message: str, scene: Scene) -> None:
    observations, simulator = scene.observed()
    with pytest.raises(RefinerError, match=message):
        Alignment().score(observations, scene.candidates._replace(**change), simulator=simulator)


def test_what_models_say_is_what_plain_pytorch_says(scene: Scene) -> None:
    (observation,), _ = scene.observed()
    models = client_models(observation, lr=0.5)
    x, y = scene.candidates
    found = answers(scene.task, models, x, y)
    model = {name: value[2] for name, value in scene.task.unflatten(models).items()}
    scores = torch.func.functional_call(scene.task.model, model, (x[2],))
    probability = scores.softmax(1).gather(1, y[2, :, None])[:, 0]
    torch.testing.assert_close(found.loss[2], -probability.log(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found.confidence[2], torch.logit(probability), atol=1e-5, rtol=1e-5)
    assert torch.equal(found.correct[2], (scores.argmax(1) == y[2]).float())


def test_the_spread_of_a_class_with_few_images_is_drawn_to_that_of_all() -> None:
    public = torch.tensor([[0.0, 2.0, 10.0, 16.0, 13.0, 13.0]])
    labels = torch.tensor([0, 0, 1, 1, 1, 2])
    found = relative_to_class(torch.tensor([[3.0, 14.0]]), torch.tensor([[0, 1]]), public, labels)
    pooled = (2 + 18) / 3  # three degrees of freedom: one image of the third class has none
    expected = torch.tensor([[2 / ((2 + 4 * pooled) / 5) ** 0.5, 1 / ((18 + 4 * pooled) / 6) ** 0.5]])
    torch.testing.assert_close(found, expected)


def test_the_likelihood_ratio_is_that_of_normal_densities() -> None:
    draws = torch.randn(8, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    inside = torch.tensor([True, False] * 4)[:, None]
    seen = torch.tensor([0.7], dtype=torch.float64)
    densities = [
        torch.distributions.Normal(draws[group].mean(), draws[group].std()).log_prob(seen)
        for group in (inside, ~inside)
    ]
    found = _log_ratio(seen[None], draws[None], inside[None])[0]
    torch.testing.assert_close(found, densities[0] - densities[1])


def test_a_candidate_has_as_many_shares_of_an_upload_as_there_are_local_steps(scene: Scene) -> None:
    """Uploads that add up four gradients are four times as long; what they tell is the same."""
    observations, simulator = scene.observed()

    def summed(x: Tensor, y: Tensor, seed: int) -> SimulatedUploads:
        found = simulator.protect(x, y, seed)
        return SimulatedUploads([4 * gradient for gradient in found.gradients], found.robust)

    attack = make_membership_attack(QUICK["likelihood"])
    one = attack.score(observations, scene.candidates, simulator=simulator)
    four = attack.score(
        [replace(each, gradient=4 * each.gradient) for each in observations],
        scene.candidates,
        simulator=replace(simulator, protect=summed),
        steps=4,
    )
    torch.testing.assert_close(four, one, atol=1e-3, rtol=1e-3)


def test_no_two_shadows_of_a_candidate_share_a_secret(scene: Scene) -> None:
    observations, simulator = scene.observed()
    calls: dict[int, list[Tensor]] = {}

    def protect(x: Tensor, y: Tensor, seed: int) -> SimulatedUploads:
        calls.setdefault(seed, []).append(x.flatten(0, 1))
        return simulator.protect(x, y, seed)

    make_membership_attack("lira:shadows=6").score(
        observations, scene.candidates, simulator=replace(simulator, protect=protect)
    )
    assert sum(len(torch.cat(rows)) for rows in calls.values()) == CLIENTS * 6 * BATCH
    for rows in calls.values():
        together = torch.cat(rows)
        assert len(together.unique(dim=0)) == len(together)


def test_two_shadows_in_turn_divide_the_candidates() -> None:
    halves = _halves(8, 4, 6, torch.Generator().manual_seed(0))
    for first, second in zip(halves[::2], halves[1::2], strict=True):
        assert sorted([*first.tolist(), *second.tolist()]) == list(range(8))


@pytest.mark.parametrize("text", ["lira:online=false", "loss:relative_to=sent", "loss:relative_to=nothing"])
def test_other_variants_score_every_candidate(text: str, scene: Scene) -> None:
    observations, simulator = scene.observed(training=Training(epochs=4, protocol=Protocol(lr=1.0)))
    scores = make_membership_attack(text).score(observations, scene.candidates, simulator=simulator, lr=1.0)
    assert scores.shape == scene.candidates.y.shape and bool(scores.isfinite().all())
    assert area_under_curve(scores[:, :BATCH], scores[:, BATCH:]).value > 0.5


def test_shadows_need_twice_as_many_candidates_as_members(scene: Scene) -> None:
    observations, simulator = scene.observed()
    few = Candidates(*(part[:, 1:] for part in scene.candidates))
    with pytest.raises(DataError, match="candidates = 7: expected at least 8 for each client"):
        make_membership_attack("lira").score(observations, few, simulator=simulator)


def test_every_attack_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "membership.md").read_text(encoding="utf-8")
    assert [name for name in BUILT_IN if f"| `{name}` |" not in page] == []

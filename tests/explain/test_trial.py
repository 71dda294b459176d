"""Trust: right about maps whose worth is known, careful without references, and the same in every batch."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import pytest
import torch
from scipy import stats
from torch import Tensor

from tests.explain.planted_lab import load_planted
from vitrail.data.readers.planted import Variant, planted_digits
from vitrail.errors import UsageError
from vitrail.explain import Heat
from vitrail.explain.compare import compare
from vitrail.explain.evidence import COMPOSITES, SURROGATES
from vitrail.explain.explainable import in_precision
from vitrail.explain.heat import aim_of
from vitrail.explain.methods.conservative import conservative
from vitrail.explain.methods.generic_attention import generic_attention
from vitrail.explain.methods.raw_attention import raw_attention
from vitrail.explain.methods.rollout import rollout
from vitrail.explain.methods.saliency import saliency
from vitrail.explain.scores.random_maps import random_maps
from vitrail.explain.scores.streams import keys_of
from vitrail.explain.selftest import selftest
from vitrail.explain.tested import Trust, _told
from vitrail.explain.trial import _t_97_5, begin, check_masks, trust
from vitrail.model import Model
from vitrail.nn import ViT
from vitrail.text import percent_in_words


@dataclass(frozen=True)
class Lab:
    """A model with pictures whose truth is known."""

    model: Model
    images: Tensor
    masks: Tensor

    def select(self, count: int) -> "Lab":
        """The first pictures."""
        return Lab(self.model, self.images[:count], self.masks[:count])

    def heat(self, values: Tensor) -> Heat:
        """Values as if a method had made them, for the top class."""
        return replace(generic_attention(self.model.network, self.images), values=values)


def make_lab(count: int, variant: Variant = "single", name: str = "mean-0") -> Lab:
    """Pictures of the test digits, those of `single` classified correctly."""
    model = load_planted(name)
    made = planted_digits("test", count, variant, seed=3)
    images = model.preprocessing.normalise(torch.from_numpy(made.pixels)[:, None])
    masks = torch.from_numpy(made.masks(model.network.config.patch))
    if variant == "empty":
        return Lab(model, images, masks.any(dim=1))
    with torch.no_grad():
        right = model.network(images).argmax(dim=1) == torch.from_numpy(made.labels[:, 0])
    return Lab(model, images[right], masks[right, 0])


@pytest.fixture(scope="module")
def lab() -> Lab:
    return make_lab(20)


@pytest.fixture(scope="module")
def few(lab: Lab) -> Lab:
    """For what no chance decides."""
    return lab.select(6)


class _Small(NamedTuple):
    """What can be explained, with pictures that lend their patches."""

    network: ViT
    donors: Tensor


def share(held: Trust, word: str) -> float:
    return held.verdict.count(word) / len(held.verdict)


def test_the_true_mask_is_faithful_and_its_opposite_is_not(lab: Lab) -> None:
    true = trust(lab.model, lab.images, lab.heat(lab.masks.float()), masks=lab.masks)
    assert share(true, "supported") >= 0.5
    assert float((true.faithful <= 0.05).double().mean()) >= 0.75
    assert true.oracle is not None
    assert (true.oracle - true.paired).abs().max() <= 1e-4  # the map is the mask
    assert (true.score > true.random.mean(dim=1)).double().mean() >= 0.95
    false = trust(lab.model, lab.images, lab.heat(-lab.masks.float()))
    assert share(false, "supported") == 0
    assert torch.equal(true.evidence, false.evidence)  # evidence is the picture's, not the map's


def test_random_maps_are_faithful_as_often_as_chance_has_it(lab: Lab) -> None:
    found, noise = [], torch.rand(lab.masks.shape, generator=torch.Generator().manual_seed(0))
    for seed in range(2):
        values = random_maps(lab.masks.float() + noise, 1, 50 + seed, keys_of(lab.images))[0]
        found.append(trust(lab.model, lab.images, lab.heat(values), seed=seed).faithful)
    faithful = torch.cat(found)
    assert float((faithful <= 0.05).double().mean()) <= 0.16  # 38 maps: chance is 0.05
    assert abs(float(faithful.mean()) - 0.5) <= 0.14


@pytest.mark.parametrize("method", [generic_attention, conservative])
def test_covering_what_a_method_names_lowers_the_probability(few: Lab, method: object) -> None:
    assert callable(method)
    held = trust(few.model, few.images, method(few.model.network, few.images), masks=few.masks)
    assert (held.covered < held.before).double().mean() >= 0.8
    assert (held.interval[:, 0] <= held.score).all()
    assert (held.score <= held.interval[:, 1]).all()


def test_without_references_nothing_is_supported(lab: Lab) -> None:
    bare = replace(lab.model, references=None)
    held = trust(bare, lab.images[:4], generic_attention(bare.network, lab.images[:4]))
    assert held.fill == "own patches"
    assert set(held.verdict) == {"cannot tell"}
    assert all("reference" in reason for reason in held.reason)
    assert held.evidence.isnan().all()
    assert not held.score.isnan().any()
    lent = trust(bare, lab.images[:4], generic_attention(bare.network, lab.images[:4]), references=lab.model.donors)
    assert lent.fill == "donor"
    whole = trust(lab.model, lab.images[:4], generic_attention(bare.network, lab.images[:4]))
    assert lent.verdict == whole.verdict


@pytest.mark.parametrize("references", ["grey", "one picture"])
def test_copies_of_one_picture_are_too_few_references(lab: Lab, references: str) -> None:
    """Twelve grey pictures passed for a fill of patches as they are seen in training: 31 of 50 were "supported"."""
    lent = torch.zeros_like(lab.images[:12]) if references == "grey" else lab.images[:1].expand(12, -1, -1, -1)
    held = trust(lab.model, lab.images[:4], generic_attention(lab.model.network, lab.images[:4]), references=lent)
    assert set(held.verdict) == {"cannot tell"}
    assert "1 different reference picture is too few" in held.reason[0]


def test_a_batch_is_one_by_one_and_the_seed_decides(lab: Lab) -> None:
    images = lab.images[:3]
    together = trust(lab.model, images, generic_attention(lab.model.network, images))
    for index in range(3):
        one = images[index : index + 1]
        alone = trust(lab.model, one, generic_attention(lab.model.network, one))
        for name in ("score", "random", "paired", "covered", "before", "covered_random"):
            assert (getattr(together, name)[index] - getattr(alone, name)[0]).abs().max() <= 1e-4
        assert together.verdict[index] == alone.verdict[0]
    again = trust(lab.model, images, generic_attention(lab.model.network, images))
    assert torch.equal(again.random, together.random)
    other = trust(lab.model, images, generic_attention(lab.model.network, images), seed=1)
    assert not torch.equal(other.random, together.random)


def test_a_map_without_signal_is_not_judged(few: Lab) -> None:
    """Whether its method said so or not: a map of zeros was called "supported" in one of 24 pictures."""
    heat = few.heat(torch.zeros_like(few.masks, dtype=torch.float32))
    noted = few.heat(few.masks.float() + torch.rand(few.masks.shape))
    for silent in (heat, replace(noted, notes=(("no signal",),) * len(few.images))):
        held = trust(few.model, few.images, silent)
        assert set(held.verdict) == {"cannot tell"}
        assert "prefers no square" in held.reason[0]
        assert held.faithful.isnan().all()
    broken = few.heat(torch.full(few.masks.shape, torch.nan))
    assert set(trust(few.model, few.images, broken).reason) == {"the map holds values that are no numbers"}


def test_a_twin_that_covers_the_same_squares_counts_against_the_map() -> None:
    """On a grid of few patches many do, and rounding in another place of a batch decided between equals."""
    torch.manual_seed(0)
    network = ViT(replace(load_planted("class-0").network.config, image_size=(8, 8), depth=1)).eval()
    torch.nn.init.normal_(network.head.weight)
    images = torch.randn(40, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    small = _Small(network, torch.randn(12, 1, 8, 8, generator=torch.Generator().manual_seed(1)))
    values = torch.rand(40, 2, 2, generator=torch.Generator().manual_seed(2))
    heat = replace(generic_attention(network, images), values=values, notes=((),) * 40)
    for seed in range(3):
        trial = begin(small, images, aim_of(heat), seed=seed)
        twins = random_maps(heat.values, 39, seed, keys_of(images))
        alike = trial.covering.alike(twins, heat.values)
        assert 0.1 < alike.double().mean() < 0.4
        held = trial.judge(heat)
        lower = (held.paired > held.random.T) & ~alike
        assert torch.equal(held.faithful, (40 - lower.sum(dim=0)).double() / 40)


def test_contrasts_and_functions(lab: Lab) -> None:
    images, network = lab.images[:3], lab.model.network
    rather = trust(lab.model, images, conservative(network, images, (0, 1)))
    with torch.no_grad():
        logits = network(images)
    assert not rather.score.isnan().any()
    assert (rather.before - (logits[:, 0] - logits[:, 1]).sigmoid()).abs().max() <= 1e-5

    def third(rows: Tensor) -> Tensor:
        return rows[:, 3] - rows.mean(dim=1)

    held = trust(lab.model, images, conservative(network, images, third), function=third)
    plain = trust(lab.model, images, conservative(network, images, 3))
    assert held.before.isnan().all()
    assert (plain.before - logits.softmax(dim=1)[:, 3]).abs().max() <= 1e-5
    assert held.sentence(0, "3").startswith(held.verdict[0][0].upper())


def test_sentences(few: Lab) -> None:
    held = trust(few.model, few.images, conservative(few.model.network, few.images))
    index = held.verdict.index("supported")
    sentence = held.sentence(index, "seven")
    assert sentence.startswith(f"Covering the {int(held.squares[index])} brightest squares drops seven from ")
    assert sentence.endswith(": supported.")
    assert percent_in_words(float(held.before[index])) in sentence
    one = replace(held, squares=torch.ones_like(held.squares))
    assert "the brightest square " in one.sentence(index, "seven")
    assert "a random square " in one.sentence(index, "seven")


def test_numbers_are_told_apart() -> None:
    assert [_told(one, 0.118, 0.089) for one in (0.118, 0.089)] == ["0.12", "0.09"]  # with one decimal both are 0.1
    assert [_told(one, 2.51, 0.3) for one in (2.51, 0.3)] == ["2.5", "0.3"]
    assert [_told(one, 0.0012, 0.0011) for one in (0.0012, 0.0011)] == ["0.0012", "0.0011"]
    assert [_told(one, -0.01, 0.3) for one in (-0.01, 0.3)] == ["0.0", "0.3"]  # zero without a sign


@pytest.mark.parametrize("method", [generic_attention, conservative, rollout, raw_attention, saliency])
def test_no_sentence_contradicts_its_verdict(few: Lab, method: object) -> None:
    assert callable(method)
    held = trust(few.model, few.images, method(few.model.network, few.images))
    for index, says in enumerate(held.verdict):
        sentence = held.sentence(index, "it")
        if says in ("supported", "weak") and "%" in sentence:
            _, after, chance = (float(number) for number in re.findall(r"([0-9.]+) %", sentence))
            assert after < chance
        elif says == "supported":
            assert held.paired[index] > held.random[index].median()
        elif says == "no better than random":
            assert "%" not in sentence
        assert sentence.endswith(f"{says}.") or sentence.startswith("Cannot tell: ")


@pytest.mark.parametrize("name", ["random_maps", "draws"])
def test_too_few_is_a_usage_error(lab: Lab, name: str) -> None:
    heat = generic_attention(lab.model.network, lab.images[:1])
    with pytest.raises(UsageError, match=rf"{name} must be at least \d+, got 5\ntry: {name}="):
        trust(lab.model, lab.images[:1], heat, **{name: 5})


def test_what_does_not_fit_is_a_usage_error(lab: Lab) -> None:
    network: ViT = lab.model.network
    heat = generic_attention(network, lab.images[:2])
    with pytest.raises(UsageError, match="the heat is of 2 pictures, and these are 1"):
        trust(lab.model, lab.images[:1], heat)
    with pytest.raises(UsageError, match="masks must be"):
        check_masks((8, 8), 2, lab.masks[:1])
    with pytest.raises(UsageError, match="explains a class, and a function is given"):
        trust(lab.model, lab.images[:2], heat, function=lambda rows: rows[:, 0])


def test_what_is_no_number_never_speaks_for_a_map(few: Lab) -> None:
    """The planted fault compares with >=: a nan is not above, so it counted in favour."""
    heat = generic_attention(few.model.network, few.images)
    assert few.model.donors is not None
    broken = few.model.donors.clone()
    broken[..., 0] = torch.nan
    held = trust(few.model, few.images, heat, references=broken)
    assert set(held.verdict) == {"cannot tell"}
    assert held.evidence.tolist() == [1.0] * len(few.images)
    assert held.faithful.tolist() == [1.0] * len(few.images)
    noted = replace(heat, notes=(("not finite",),) * len(few.images))
    assert "no numbers" in trust(few.model, few.images, noted).reason[0]


@pytest.mark.usefixtures("as_a_user")
def test_an_unknown_precision_is_a_usage_error(few: Lab) -> None:
    with pytest.raises(ValueError, match="precision is fp32 or bf16, not 'fp8'\ntry: precision='bf16'"):
        in_precision(few.model.network, "fp8")


def test_a_trial_judges_maps_of_its_own_question_alone(few: Lab) -> None:
    """With the evidence of the top class, maps of other classes were "supported"."""
    network = few.model.network
    heat, top = generic_attention(network, few.images), generic_attention(network, few.images).target
    trial = begin(few.model, few.images, aim_of(heat))
    whole, alone = trial.judge(heat), trust(few.model, few.images, heat)
    assert whole.verdict == alone.verdict
    assert torch.equal(whole.random, alone.random)
    for other in (
        generic_attention(network, few.images, (top + 1) % 10),
        generic_attention(network, few.images, (top, (top + 1) % 10)),
        generic_attention(network, few.images, lambda logits: logits[:, 0]),
    ):
        with pytest.raises(UsageError, match=r"explains another target than the trial\ntry: a trial for each target"):
            trial.judge(other)
    with pytest.raises(UsageError, match="the heat has the shape"):
        trial.judge(generic_attention(network, few.images[:1]))


def test_patches_in_place_of_pictures_are_a_usage_error(few: Lab) -> None:
    heat = generic_attention(few.model.network, few.images)
    patches = few.images.flatten(2).unflatten(2, (8, -1))[:, 0]
    with pytest.raises(UsageError, match=r"covers squares of pictures \(b, c, h, w\)"):
        trust(few.model, patches, heat)


def test_pictures_of_another_size_need_references_of_their_own(lab: Lab) -> None:
    wide = torch.cat([lab.images[:2], lab.images[:2]], dim=3)
    heat = generic_attention(lab.model.network, wide)
    with pytest.raises(
        UsageError, match=r"references are \(1, 32, 32\), and these pictures \(1, 32, 64\)\ntry: references="
    ):
        trust(lab.model, wide, heat)
    assert trust(lab.model, wide, heat, references=torch.cat([lab.images[:12]] * 2, dim=3)).fill == "donor"


@pytest.mark.parametrize("function", [trust, compare, selftest])
@pytest.mark.usefixtures("as_a_user")
def test_a_bare_network_is_no_model(lab: Lab, function: Callable) -> None:
    given = (lab.images[:1], lab.heat(lab.masks.float())) if function is trust else (lab.images[:1],)
    with pytest.raises(ValueError, match=r"a model is wanted, .* got ViT\ntry: vitrail\.load"):
        function(lab.model.network, *given)
    with pytest.raises(ValueError, match=r"a network is wanted, got Model\ntry: model\.network"):
        rollout(lab.model, lab.images[:1])
    with pytest.raises(
        ValueError, match=r"computes in torch\.float32, and the images are torch\.float64\ntry: images\.to"
    ):
        rollout(lab.model.network, lab.images[:1].double())


def test_no_picture_is_a_usage_error(few: Lab) -> None:
    with pytest.raises(UsageError, match="there is no picture to test"):
        trust(few.model, few.images[:0], generic_attention(few.model.network, few.images[:0]))


def test_an_empty_mask_has_no_fall(few: Lab) -> None:
    masks = few.masks.clone()
    masks[0] = False
    held = trust(few.model, few.images, generic_attention(few.model.network, few.images), masks=masks)
    assert held.oracle is not None
    assert held.oracle.isnan().tolist() == [True] + [False] * (len(masks) - 1)


def test_student_quantile() -> None:
    for count in (10, 12, 20, 100):
        assert math.isclose(_t_97_5(count), stats.t.ppf(0.975, count - 1), rel_tol=1e-3)


def test_p_meets_its_limit_exactly(lab: Lab) -> None:
    """2 of 40 is 0.05: in single precision it would be above, and the rule twice as strict as it says."""
    heat = generic_attention(lab.model.network, lab.images[:4])
    held = trust(lab.model, lab.images[:4], heat)
    for found, wholes in ((held.faithful, {40}), (held.evidence, {1 + n for n in (*COMPOSITES, *SURROGATES)})):
        assert found.dtype == torch.float64
        assert all(any(p in {n / whole for n in range(1, whole + 1)} for whole in wholes) for p in found.tolist())

"""What networks say of composites is computed once: stored under all that decides it, and of nothing else taken."""

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.explain.planted_lab import load_planted
from tests.explain.reference import PLAIN, make_images, make_network
from vitrail.data.tensor_files import read_tensors, tensors_to_bytes
from vitrail.errors import DataError
from vitrail.explain import Trust, evidence, generic_attention, trust
from vitrail.explain.evidence import COMPOSITES, composite_logits, composites_of, with_composites
from vitrail.model import Model, load, save
from vitrail.model.loading import COMPOSITES as COMPOSITES_FILE
from vitrail.nn.twin import twin

pytestmark = pytest.mark.usefixtures("as_a_user")

NETWORK, IMAGES, TEN_OTHERS = make_network(PLAIN), make_images(PLAIN, 2), make_images(PLAIN, 12, seed=2)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where it is kept."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "vitrail" / "composites"


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """An entry for each time that logits are computed."""
    calls = list[int]()

    def counted(*given: object) -> Tensor:
        calls.append(1)
        return composites_of(*given)  # pyrefly: ignore[bad-argument-type]

    monkeypatch.setattr(evidence, "composites_of", counted)
    return calls


def test_they_are_computed_once_and_have_the_bits_of_a_computation(cache: Path, computed: list[int]) -> None:
    first = composite_logits(NETWORK, TEN_OTHERS, 0, "fp32")
    assert torch.equal(first, composites_of(NETWORK, TEN_OTHERS, 0))
    again = composite_logits(copy.deepcopy(NETWORK), TEN_OTHERS.clone(), 0, "fp32")
    assert torch.equal(first, again), "another object of the same numbers"
    assert len(computed) == len(list(cache.iterdir())) == 1


def test_whatever_decides_them_decides_where_they_are_kept(cache: Path, computed: list[int]) -> None:
    other = copy.deepcopy(NETWORK)
    with torch.no_grad():
        other.head.bias[0] += 1e-6
    cases = [
        (NETWORK, TEN_OTHERS, 0, "fp32"),
        (other, TEN_OTHERS, 0, "fp32"),
        (NETWORK, TEN_OTHERS[:11], 0, "fp32"),
        (NETWORK, torch.cat([TEN_OTHERS, TEN_OTHERS], dim=3), 0, "fp32"),
        (NETWORK, TEN_OTHERS, 1, "fp32"),
        (NETWORK, TEN_OTHERS, 0, "bf16"),
        (twin(NETWORK, {nn.LayerNorm: lambda norm: nn.Identity()}), TEN_OTHERS, 0, "fp32"),
    ]
    for case in cases * 2:
        composite_logits(*case)
    assert len(computed) == len(cases)


@pytest.mark.parametrize("damage", ["cut", "a number", "fewer", "no room"])
def test_what_is_damaged_is_computed_anew(damage: str, cache: Path, computed: list[int]) -> None:
    if damage == "no room":
        cache.parent.mkdir()
        cache.write_text("a file where the folder would be")
    wanted = composite_logits(NETWORK, TEN_OTHERS, 0, "fp32")
    if damage != "no room":
        (file,) = cache.iterdir()
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        if damage == "fewer":
            (name,) = read_tensors(file, "")
            content = bytearray(tensors_to_bytes({name: wanted[:-1].clone()}))
        file.write_bytes(content[:-9] if damage == "cut" else content)
    assert torch.equal(composite_logits(NETWORK, TEN_OTHERS, 0, "fp32"), wanted)
    assert len(computed) == 2


# ---- what a model carries

PLANTED = load_planted("mean-0")


MANY = 1664  # samples of a training, of which 499 passes are a tenth


def verdict_of(model: Model) -> Trust:
    images = model.background_images
    assert images is not None
    return trust(model, images[:1], generic_attention(model.network, images[:1]))


@pytest.fixture(scope="module")
def carrying(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """The model with its composites, as it is read from a folder."""
    folder = tmp_path_factory.mktemp("carrying")
    return load(save(with_composites(PLANTED, MANY), folder / "model"))


def test_a_verdict_computes_nothing_that_the_model_carries(carrying: Model, cache: Path, computed: list[int]) -> None:
    found = verdict_of(carrying)
    assert not computed
    assert not cache.exists()
    wanted = verdict_of(PLANTED)
    assert len(computed) == 1
    assert (found.verdict, found.evidence.p.tolist()) == (wanted.verdict, wanted.evidence.p.tolist())
    torch.testing.assert_close(found.evidence.effect, wanted.evidence.effect)


def test_what_is_carried_of_anything_else_is_not_taken(carrying: Model, cache: Path, computed: list[int]) -> None:
    """Another network, another background, another precision or seed, fewer images: all are computed."""
    assert carrying.background is not None
    ((key, logits),) = carrying.composites.items()
    scrambled = copy.deepcopy(carrying.network)
    with torch.no_grad():
        scrambled.head.weight.mul_(-1)
    for other in (
        replace(carrying, network=scrambled),
        replace(carrying, background=carrying.background[:-1]),
        replace(carrying, composites={key: logits[:-1]}),
        replace(carrying, composites={"0" * 32: logits}),
        replace(carrying, composites={}),
    ):
        verdict_of(other)
    images = carrying.background_images
    assert images is not None
    attribution = generic_attention(carrying.network, images[:1])
    trust(carrying, images[:1], attribution, background=images[:20])
    trust(carrying, images[:1], attribution, seed=1)
    trust(carrying, images[:1], attribution, precision="bf16")
    assert len(computed) == 5 + 3 - 2, "those of the cache serve the last three of the first five"


def test_it_is_carried_on_where_the_size_stays(carrying: Model, tmp_path: Path) -> None:
    """An image size of the network's own changes nothing; another one leaves nothing that was computed for it."""
    rows, columns = carrying.network.config.image
    folder = save(carrying, tmp_path / "model")
    assert load(folder, image_size=(rows, columns)).composites.keys() == carrying.composites.keys() != {}
    assert load(folder, image_size=(2 * rows, columns)).composites == {}


def test_a_damaged_file_is_refused_and_none_is_fine(carrying: Model, tmp_path: Path) -> None:
    folder = save(carrying, tmp_path / "model")
    file = folder / COMPOSITES_FILE
    whole = file.read_bytes()
    assert len(whole) < COMPOSITES * 10 * 4 + 300
    ((key, logits),) = carrying.composites.items()
    others = [tensors_to_bytes({key: each.contiguous()}) for each in (logits[:, :9], logits[0], logits.long())]
    for content in (whole[:-9], whole[:-1] + bytes([whole[-1] ^ 1]), b"{", *others):
        file.write_bytes(content)
        with pytest.raises(DataError, match=COMPOSITES_FILE):
            load(folder)
    file.unlink()
    assert load(folder).composites == {}
    save(carrying, folder)
    assert file.is_file()
    save(replace(carrying, background=None), folder)
    assert not file.exists(), "without the background they are of no use"


def test_they_are_left_to_the_first_verdict_where_a_training_was_short(computed: list[int]) -> None:
    bare = replace(PLANTED, background=None)
    few = replace(PLANTED, background=None if PLANTED.background is None else PLANTED.background[:9])
    for model, samples in ((PLANTED, 1663), (bare, MANY), (few, MANY)):
        assert with_composites(model, samples) is model
    assert not computed

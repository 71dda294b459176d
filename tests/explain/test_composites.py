"""What networks say of composites is computed once: kept under all that decides it, and never trusted when damaged."""

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.explain.reference import PLAIN, make_images, make_network
from vitrail.data.tensor_files import tensors_to_bytes
from vitrail.explain import evidence
from vitrail.explain.evidence import COMPOSITES, composites_of, kept_composites
from vitrail.explain.scores.fill import from_background
from vitrail.explain.verdict import in_precision

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

    def counted(network: object, images: Tensor, *given: object) -> Tensor:
        calls.append(1)
        return composites_of(network, images, *given)  # pyrefly: ignore[bad-argument-type]

    monkeypatch.setattr(evidence, "composites_of", counted)
    return calls


def test_they_are_computed_once_and_have_the_bits_of_a_computation(cache: Path, computed: list[int]) -> None:
    first = kept_composites(NETWORK, NETWORK, IMAGES, TEN_OTHERS, 0, "fp32")
    assert torch.equal(first, composites_of(NETWORK, IMAGES, from_background(TEN_OTHERS), range(COMPOSITES), 0))
    again = kept_composites(copy.deepcopy(NETWORK), NETWORK, IMAGES[:1] + 1, TEN_OTHERS, 0, "fp32")
    assert torch.equal(first, again), "other images of the size, another object of the same numbers"
    assert len(computed) == len(list(cache.iterdir())) == 1


def test_whatever_decides_them_decides_where_they_are_kept(cache: Path, computed: list[int]) -> None:
    other = copy.deepcopy(NETWORK)
    with torch.no_grad():
        other.head.bias[0] += 1e-6
    half = in_precision(NETWORK, "bf16")
    wide = torch.cat([IMAGES, IMAGES], dim=3)
    cases = [
        (NETWORK, NETWORK, IMAGES, TEN_OTHERS, 0, "fp32"),
        (other, other, IMAGES, TEN_OTHERS, 0, "fp32"),
        (NETWORK, NETWORK, IMAGES, TEN_OTHERS[:11], 0, "fp32"),
        (NETWORK, NETWORK, wide, torch.cat([TEN_OTHERS, TEN_OTHERS], dim=3), 0, "fp32"),
        (NETWORK, NETWORK, IMAGES, TEN_OTHERS, 1, "fp32"),
        (NETWORK, half, IMAGES, TEN_OTHERS, 0, "bf16"),
    ]
    for case in cases * 2:
        kept_composites(*case)
    assert len(computed) == len(cases)


@pytest.mark.parametrize("damage", ["cut", "a number", "fewer", "no room"])
def test_what_is_damaged_is_computed_anew(damage: str, cache: Path, computed: list[int]) -> None:
    if damage == "no room":
        cache.parent.mkdir()
        cache.write_text("a file where the folder would be")
    wanted = kept_composites(NETWORK, NETWORK, IMAGES, TEN_OTHERS, 0, "fp32")
    if damage != "no room":
        (file,) = cache.iterdir()
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        if damage == "fewer":
            content = bytearray(tensors_to_bytes({evidence.LOGITS: wanted[:-1].clone()}))
        file.write_bytes(content[:-9] if damage == "cut" else content)
    assert torch.equal(kept_composites(NETWORK, NETWORK, IMAGES, TEN_OTHERS, 0, "fp32"), wanted)
    assert len(computed) == 2

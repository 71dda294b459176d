"""How far heads look, against loops, and the line of a head that looks everywhere alike."""

import importlib
import math

import pytest
import torch

from tests.explain.reference import PLAIN, VARIANTS, make_images, make_network
from tests.explain.refused import must_refuse
from vitrail.explain.inside import attention_distance, uniform_distance
from vitrail.nn import Record, ViTConfig


@pytest.mark.parametrize(
    ("grid", "patch", "wanted"), [((14, 14), 16, 116.49), ((8, 8), 4, 16.55), ((37, 37), 14, 269.99)]
)
def test_the_line_of_uniform_attention(grid: tuple[int, int], patch: int, wanted: float) -> None:
    assert uniform_distance(grid, (patch, patch)) == pytest.approx(wanted, abs=0.005)


def test_the_line_of_a_grid_that_is_not_square() -> None:
    centres = [(4.0 * i, 2.0 * j) for i in range(3) for j in range(5)]
    wanted = sum(math.dist(a, b) for a in centres for b in centres) / 15**2
    assert uniform_distance((3, 5), (4, 2)) == pytest.approx(wanted, abs=1e-12)
    assert uniform_distance((3, 5), (2, 4)) != pytest.approx(wanted, abs=0.1)
    assert uniform_distance((1, 1), (4, 2)) == 0


@pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("size", [(12, 10), (8, 22)])
def test_distances_are_those_of_loops(config: ViTConfig, size: tuple[int, int]) -> None:
    network, record = make_network(config).double(), Record()
    images = torch.randn(2, 2, *size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    network(images, record)
    found = attention_distance(network, images)
    centres = [(4.0 * i, 2.0 * j) for i in range(size[0] // 4) for j in range(size[1] // 2)]
    assert found.pixels.shape == (3, 2, 2)
    assert found.uniform == uniform_distance((size[0] // 4, size[1] // 2), (4, 2))
    for layer in range(3):
        weights = record[f"blocks.{layer}.attention"][:, :, config.prefix :, config.prefix :]
        for head in range(2):
            for image in range(2):
                means = []
                for i, centre in enumerate(centres):
                    row = weights[image, head, i].tolist()
                    far = (math.dist(centre, other) for other in centres)
                    means.append(sum(fraction * one for fraction, one in zip(row, far, strict=True)) / sum(row))
                assert float(found.pixels[layer, head, image]) == pytest.approx(sum(means) / len(means), rel=1e-10)


def test_a_head_that_looks_everywhere_lies_on_the_line() -> None:
    network = make_network(VARIANTS["class-5-registers"])
    with torch.no_grad():
        network.blocks[1].attn.qkv.weight[:20] = 0.0  # queries and keys of both heads are their bias
    found = attention_distance(network, make_images(PLAIN, 3))
    assert (found.pixels[1] - found.uniform).abs().max() <= 1e-5
    assert (found.pixels[0] - found.uniform).abs().max() > 0.1


def test_rows_in_pieces_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    network, images = make_network(PLAIN).double(), make_images(PLAIN, 3).double()
    whole = attention_distance(network, images).pixels
    file = importlib.import_module("vitrail.explain.inside.heads")  # the function bears the same name
    for numbers in (1, 3 * 2 * 16 * 4, 10**9):
        monkeypatch.setattr(file, "NUMBERS_AT_ONCE", numbers)
        assert (attention_distance(network, images).pixels - whole).abs().max() <= 1e-12


def test_training_mode_is_refused() -> None:
    with must_refuse("training mode"):
        attention_distance(make_network(PLAIN).train(), make_images(PLAIN))

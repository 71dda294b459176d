"""A token of outlying norm is found and noted, and a map without it differs (T19)."""

from dataclasses import replace

import pytest
import torch

from tests.errors import figures
from tests.explain.reference import VARIANTS, make_images, make_network
from tests.explain.refused import must_refuse, must_refuse_and_say_what_works
from vitrail.explain import generic_attention, raw_attention
from vitrail.explain.inside import find_sinks, with_sink_notes
from vitrail.nn import Record, ViT, ViTConfig

LARGE = ViTConfig(
    image_size=(24, 28), patch_size=4, channels=2, classes=4, width=24, depth=3, heads=2, mlp_dim=32, registers=1
)
every_variant = pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS)


def with_sinks(config: ViTConfig, *patches: tuple[int, int]) -> ViT:
    """A network in which the tokens of some patches have 20 times the usual norm, through their positions."""
    network = make_network(config)
    record = Record("tokens")
    network(make_images(config, 8), record)
    usual = record["tokens"][:, config.prefix :].norm(dim=-1).median()
    with torch.no_grad():
        for row, column in patches:
            position = network.pos_embed[0, config.prefix + row * config.grid[1] + column]
            position.mul_(20 * usual / position.norm())
    return network


def test_without_a_sink_nothing_is_found() -> None:
    sinks = find_sinks(make_network(LARGE), make_images(LARGE, 16))
    assert not sinks.found.any()
    assert sinks.notes() == ((),) * 16
    attribution = generic_attention(make_network(LARGE), make_images(LARGE, 16))
    sinks = find_sinks(make_network(LARGE), make_images(LARGE, 16))
    assert with_sink_notes(attribution, sinks).notes == attribution.notes


@every_variant
def test_a_planted_sink_is_found_where_it_is(config: ViTConfig) -> None:
    network, images = with_sinks(config, (1, 3)), make_images(config, 4)
    sinks = find_sinks(network, images)
    assert sinks.norms.shape == sinks.found.shape == (3, 4, 3, 5)
    assert sinks.found.sum(dim=(2, 3)).tolist() == [[1] * 4] * 3
    assert sinks.found[:, :, 1, 3].all()
    assert sinks.anywhere.sum(dim=(1, 2)).tolist() == [1] * 4
    (note,) = sinks.notes()[2]
    assert figures(note) == ["1", "2", "4", "0", "2"], "one patch, its row and column, the blocks"


def test_the_map_carries_a_mark_and_differs_without_sinks() -> None:
    network, images = with_sinks(LARGE, (5, 3), (0, 6)), make_images(LARGE, 3)
    for method in (generic_attention, raw_attention):
        attribution = method(network, images)
        sinks = find_sinks(network, images)
        marked = with_sink_notes(attribution, sinks)
        assert torch.equal(marked.values, attribution.values)
        for notes in marked.notes:
            (note,) = notes
            assert figures(note)[:5] == ["2", "1", "7", "6", "4"]
        without = attribution.values.masked_fill(sinks.anywhere, 0)
        assert not torch.equal(without, attribution.values)
        assert without[:, 5, 3].tolist() == without[:, 0, 6].tolist() == [0.0] * 3
        assert sinks.anywhere.sum(dim=(1, 2)).tolist() == [2] * 3


def test_norms_and_cut_off_are_those_of_the_formula() -> None:
    network, images, record = with_sinks(LARGE, (2, 2)), make_images(LARGE, 2), Record()
    network(images, record)
    sinks = find_sinks(network, images, threshold=3.0)
    for layer in range(3):
        for image in range(2):
            tokens = record[f"blocks.{layer}.output"][image, LARGE.prefix :]
            norms = sorted(float(token.square().sum()) ** 0.5 for token in tokens)
            assert torch.allclose(sinks.norms[layer, image].flatten().sort().values, torch.tensor(norms), atol=1e-4)
            middle = norms[(len(norms) - 1) // 2]
            spread = sorted(abs(norm - middle) for norm in norms)[(len(norms) - 1) // 2]
            wanted = max(middle + 3 * spread, 2 * middle)
            assert float(sinks.cut_off[layer, image]) == pytest.approx(wanted, rel=1e-5)


def test_registers_of_any_size_are_no_sinks() -> None:
    network, images = make_network(LARGE), make_images(LARGE)
    with torch.no_grad():
        network.reg_token.mul_(100)
    assert not find_sinks(network, images).found[0].any()


def test_only_the_image_that_has_one_gets_a_note() -> None:
    network, images = make_network(replace(LARGE, positions="none")), make_images(LARGE, 3)
    images[1, :, 8:12, 4:8] *= 60
    sinks = find_sinks(network, images)
    assert sinks.found[0, 1, 2, 1]
    assert [len(note) for note in sinks.notes()] == [0, 1, 0]
    flat = torch.full_like(images, 0.5)  # patches that are all alike differ by rounding, and none of them is a sink
    assert not find_sinks(network, flat).found.any()


def test_many_sinks_are_not_all_named() -> None:
    network, images = with_sinks(LARGE, *((0, column) for column in range(7)), (3, 3)), make_images(LARGE)
    said = figures(find_sinks(network, images).notes()[0][0])
    assert said[:14] == ["8", *(each for column in "123456" for each in ("1", column)), "2"]


def test_notes_are_added_to_those_that_are_there() -> None:
    network, images = with_sinks(LARGE, (5, 3)), make_images(LARGE, 2)
    attribution = replace(generic_attention(network, images), notes=(("no signal",), ()))
    marked = with_sink_notes(attribution, find_sinks(network, images))
    assert [len(notes) for notes in marked.notes] == [2, 1]
    assert marked.notes[0][0] == "no signal"


def test_what_does_not_fit_is_a_usage_error() -> None:
    network, images = make_network(LARGE), make_images(LARGE, 3)
    attribution = generic_attention(network, images)
    with must_refuse("(3, 6, 7)"):
        with_sink_notes(attribution, find_sinks(network, images[:2]))
    must_refuse_and_say_what_works(lambda **options: find_sinks(network, images, **options), "threshold", threshold=0.0)

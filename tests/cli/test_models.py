"""`vitrail models RUN` of networks that write: one table of both stacks, whose sums are the network's."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.command import Answer
from tests.sequence_models import picture_model, text_model
from vitrail.model import save
from vitrail.nn.cost import flops, layers

Says = Callable[..., Answer]


@pytest.mark.parametrize(
    ("make", "of"),
    [
        (text_model, "a text of 7 tokens read and one of 7 written"),
        (picture_model, "one picture of 16 x 24 and a text of 6 tokens written"),
    ],
)
def test_the_layers_of_a_network_that_writes(vitrail_says: Says, make: Callable, of: str, tmp_path: Path) -> None:
    model = make()
    folder = save(model, tmp_path / "model")
    count = sum(parameter.numel() for parameter in model.network.parameters())
    told = json.loads(vitrail_says("models", folder, "--json").out)
    assert (told["parameters"], told["flops"]) == (count, flops(model.network.config))
    assert [row["name"] for row in told["layers"]] == [row.name for row in layers(model.network.config)]
    answer = vitrail_says("models", folder)
    assert answer.code == 0, answer.err
    assert f"{folder}: {count:,} parameters, " in answer.out
    assert f"for {of} (2 per multiply-add" in answer.out
    rows = [line.split() for line in answer.out.splitlines() if line.startswith(("encoder.", "decoder."))]
    whole = [row[-2] if "." in row[-1] else row[-1] for row in rows]  # the last column, FLOPs, may be empty
    assert sum(int(number.replace(",", "")) for number in whole) == count
    blocks = model.network.config.decoder_depth
    assert answer.out.count("decoder.blocks.1, as decoder.blocks.0") == (blocks == 2)


def test_other_sizes_are_not_for_a_folder(vitrail_says: Says, tmp_path: Path) -> None:
    answer = vitrail_says("models", save(text_model(), tmp_path / "model"), "--image-size", 32)
    assert answer.code == 2
    assert "has its own --image-size" in answer.problem

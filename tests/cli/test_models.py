"""`vitrail models RUN` of networks that write: one table of both stacks, whose sums are the network's."""

import json
import shlex
from pathlib import Path

import pytest

import vitrail
from tests.cli.command import DATA, USAGE, Cli, must_be_understood, must_refuse
from tests.shared_runs import run_of
from vitrail.nn.cost import flops, layers


@pytest.mark.parametrize("name", ["sort-digits", "strings"])
def test_the_layers_of_a_network_that_writes(name: str, cli: Cli) -> None:
    run = run_of(name)
    network = vitrail.load(run).network
    count = sum(parameter.numel() for parameter in network.parameters())
    told = json.loads(cli("models", run, "--json").out)
    assert (told["parameters"], told["flops"]) == (count, flops(network.config))
    assert [row["name"] for row in told["layers"]] == [row.name for row in layers(network.config)]
    answer = cli("models", run)
    assert answer.code == 0, answer.err
    assert f"{count:,} parameters" in answer.out
    rows = [line.split() for line in answer.out.splitlines() if line.startswith(("encoder.", "decoder."))]
    whole = [row[-2] if "." in row[-1] else row[-1] for row in rows]  # the last column, FLOPs, may be empty
    assert sum(int(number.replace(",", "")) for number in whole) == count


def test_other_sizes_are_not_for_a_folder(cli: Cli) -> None:
    must_refuse(cli("models", run_of("sort-digits"), "--image-size", 32), USAGE, "--image-size")


def test_what_is_no_size_is_not_called_one(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plain.h5").write_bytes(b"HDF")
    must_refuse(cli("models", "plain.h5"), DATA, "plain.h5")
    answer = cli("models", "a_folder_that_is_not_there")
    must_refuse(answer, USAGE, "a_folder_that_is_not_there")
    must_be_understood(shlex.split(answer.hint)[1:])

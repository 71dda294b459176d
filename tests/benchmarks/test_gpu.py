"""The benchmark for GPUs, rehearsed on the processor: what it compares is equal, and a run leaves its rows."""

import argparse
import json
from pathlib import Path

import pytest
import torch

from benchmarks import gpu, gpu_networks

pytest.importorskip("timm")
SHAPE = gpu.TINY["S"]


def test_what_is_compared_answers_alike() -> None:
    found, proof = gpu.networks(SHAPE, "cpu", ["timm"])
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        ours, theirs = (gpu.answer(network, images) for network in found.values())
    assert list(found) == ["vitrail", "timm"]
    assert torch.allclose(ours, theirs, atol=1e-5)
    assert theirs.std() > 0.1  # else any two would be alike
    assert proof["timm"] < 1e-5


def test_each_block_is_found() -> None:
    found, _ = gpu.networks(SHAPE, "cpu", ["timm"])
    for network in found.values():
        blocks = gpu_networks.blocks_of(network, SHAPE.depth)
        assert [blocks[0], blocks[1]] == list(network.blocks)  # pyrefly: ignore
    pairs = torch.nn.ModuleList(torch.nn.ModuleList([torch.nn.Linear(2, 2)]) for _ in range(2))
    assert gpu_networks.blocks_of(torch.nn.Sequential(pairs), 2) == []


@pytest.mark.soak
def test_a_run_leaves_its_rows(tmp_path: Path) -> None:
    given = {"rows": ["memory", "train", "infer", "one"], "peers": ["timm"], "forms": ["T", "D"], "compile": "off"}
    typed = argparse.Namespace(
        **given, sizes=["S"], out=tmp_path / "gpu.json", rounds=2, budget=200.0, mode="default", device="cpu", tiny=True
    )
    bench = gpu.Bench(typed)
    bench.run()
    read = json.loads((tmp_path / "gpu.json").read_text())
    rows = [(one["row"], one["name"], one["form"], len(one["values"])) for one in read["found"]]
    contestants = [("vitrail", "T", 2), ("timm", "T", 2), ("timm", "D", 2)]
    assert rows == [(row, *one) for row in ("train", "infer", "one") for one in contestants]
    assert all(value > 0 for one in read["found"] for value in one["values"])
    ours, theirs = (one["facts"]["loss"] for one in read["found"][:2])
    assert ours == pytest.approx(theirs, rel=1e-2)
    assert gpu.table(bench.about, bench.found).count("| timm D |") == 3

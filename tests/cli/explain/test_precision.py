"""The precision of the test: chosen once for all pictures of a command, by a timing that waits, and told."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image

import vitrail
from tests.cli.command import Cli
from tests.cli.planted import planted_model
from vitrail.cli.explain import maps
from vitrail.pages.trust import PRECISIONS
from vitrail.training import execution


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> vitrail.Model:
    """A model that counts as wide enough to gain by bf16."""
    monkeypatch.setattr(execution, "BF16_LEAST_WIDTH", 1)
    return planted_model(background=True)


def test_one_precision_for_all_pictures_of_a_command(
    wide: vitrail.Model, pictures: Path, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was timed anew for each batch, so one page could hold verdicts of both."""
    monkeypatch.setattr(maps, "BATCH", 1)
    timings = iter([1.0, 0.5, 1.0, 2.0])  # bf16 is faster when first asked, and slower when asked again
    monkeypatch.setattr(maps, "seconds_of", lambda forward: next(timings))
    run, page = vitrail.save(wide, tmp_path / "run"), tmp_path / "p.html"
    words = ("explain", run, pictures, "--out", page)
    answer = cli(*words, "--json")
    assert answer.code == 0, answer.err
    assert [row["heats"][0]["trust"]["precision"] for row in json.loads(answer.out)] == ["bf16", "bf16"]
    assert f"The test was computed {PRECISIONS['bf16']}." in page.read_text()
    answer = cli("explain", run, pictures / "1.png", "--out", page, "--json", "--precision", "fp32")
    assert [row["heats"][0]["trust"]["precision"] for row in json.loads(answer.out)] == ["fp32"]
    assert f"The test was computed {PRECISIONS['fp32']}." in page.read_text()


@pytest.mark.parametrize(("bf16", "chosen"), [(0.79, "bf16"), (0.81, "fp32"), (2.0, "fp32")])
def test_the_faster_is_taken_and_what_is_asked_for_is_not_timed(
    bf16: float, chosen: str, wide: vitrail.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, dtypes = Image.new("L", (32, 32)), []

    def seconds(forward: Callable[[], torch.Tensor]) -> float:
        dtypes.append(forward().dtype)
        return bf16 if dtypes[-1] == torch.bfloat16 else 1.0

    monkeypatch.setattr(maps, "seconds_of", seconds)
    assert maps.choose_precision(wide, read, "auto") == chosen
    assert dtypes == [torch.float32, torch.bfloat16]
    assert [maps.choose_precision(wide, read, asked) for asked in ("fp32", "bf16")] == ["fp32", "bf16"]
    monkeypatch.setattr(execution, "BF16_LEAST_WIDTH", 192)
    assert maps.choose_precision(wide, read, "auto") == "fp32"
    assert len(dtypes) == 2


class WorksAhead:
    """A device that takes orders at once, and works when a number is read: 10 seconds for the first, 1 for others."""

    def __init__(self) -> None:
        self.now, self.orders, self.first = 0.0, 0, True

    def __call__(self) -> "WorksAhead":
        self.orders += 1
        return self

    def float(self) -> "WorksAhead":
        return self

    def sum(self) -> "WorksAhead":
        return self

    def item(self) -> float:
        self.now += self.orders + 9 * self.first
        self.orders, self.first = 0, False
        return 0.0


def test_a_device_that_works_ahead_is_waited_for_before_the_clock_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    device = WorksAhead()
    monkeypatch.setattr(maps.time, "perf_counter", lambda: device.now)
    assert maps.seconds_of(device) == 1.0

"""The precision of the test: chosen once for all images of a command, by a timing that waits, and told."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitrail
from tests.cli.command import Cli
from tests.cli.planted import planted_model
from tests.pages.shown import constant
from vitrail import explain
from vitrail.explain.reporting import plan
from vitrail.jobs import precision

PRECISIONS = constant("trust.html", "precisions")


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> vitrail.Model:
    """A model that counts as wide enough to gain by bf16, for which nothing was chosen yet."""
    monkeypatch.setattr(precision, "BF16_LEAST_WIDTH", 1)
    monkeypatch.setattr(precision, "multiplies_bf16", lambda device: True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return planted_model(background=True)


def test_one_precision_for_all_images_of_a_command_and_of_the_next(
    wide: vitrail.Model, images: Path, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was timed anew for each batch, so one page could hold verdicts of both."""
    monkeypatch.setattr(plan, "BATCH", 1)
    faster = iter([0.5, 2.0])  # bf16 is faster when first asked, and slower when asked again
    monkeypatch.setattr(precision, "_gain", lambda *given: 1 / next(faster))
    run, page = vitrail.save(wide, tmp_path / "run"), tmp_path / "p.html"
    words = ("explain", run, images, "--out", page)
    for _ in range(2):
        answer = cli(*words, "--json")
        assert answer.code == 0, answer.err
        rows = json.loads(answer.out)["images"]
        assert [row["attributions"][0]["trust"]["precision"] for row in rows] == ["bf16", "bf16"]
        assert PRECISIONS["bf16"] in page.read_text()
    answer = cli("explain", run, images / "1.png", "--out", page, "--json", "--precision", "fp32")
    assert [row["attributions"][0]["trust"]["precision"] for row in json.loads(answer.out)["images"]] == ["fp32"]
    assert PRECISIONS["fp32"] in page.read_text()


def test_what_is_asked_for_is_not_timed(wide: vitrail.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Image.new("L", (32, 32))
    monkeypatch.setattr(precision, "_gain", lambda *given: 1 / 0)
    for stated in ("fp32", "bf16"):
        assert explain.report(wide, [read], "saliency", precision=stated)[0].trust[0].precision == stated
    monkeypatch.setattr(precision, "BF16_LEAST_WIDTH", 192)
    assert explain.report(wide, [read], "saliency")[0].trust[0].precision == "fp32"


def test_a_test_in_python_has_the_precision_of_a_report(wide: vitrail.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """`trust` computed in fp32 what `report` computed in bf16, so one map could have two verdicts."""
    monkeypatch.setattr(precision, "_gain", lambda *given: 2.0)
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (32, 32), np.uint8))
    images = wide.tensor([image])
    attribution = explain.saliency(wide.network, images)
    (shown,) = explain.report(wide, [image], "saliency")
    alone, several = (
        explain.trust(wide, images, attribution),
        explain.compare(wide, images, ["saliency"]),
    )
    for found in (alone, several.trusts[0]):
        assert found.precision == shown.view.attributions[0].trust.precision == "bf16"
    assert explain.trust(wide, images, attribution, precision="fp32").precision == "fp32"


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
    monkeypatch.setattr(precision.time, "perf_counter", lambda: device.now)
    assert precision.time_pass(device) == 1.0

"""A job over many images that was stopped goes on with the same things, and refuses others under the same names."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.audit.marked import digits, honest
from tests.errors import must_raise
from vitrail.data.sources import read_images
from vitrail.errors import UsageError
from vitrail.explain.reporting import job
from vitrail.explain.reporting.plan import ReportOptions
from vitrail.features.poolings import answer_by_features

MODEL = honest()


class Stopped(Exception):
    """A job has written its first part."""


def stop(done: int, total: int) -> None:
    if done:
        raise Stopped


def test_an_own_method_a_background_and_the_other_image_are_known_by_what_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(job, "ROWS", 1)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    method, background, like = tmp_path / "own_method_of_job.py", tmp_path / "background", tmp_path / "like.png"
    photos = tmp_path / "photos"
    method.write_text("def mine(network, images, target=None):\n    return images.abs().sum(dim=1)\n")
    for folder, first in ((photos, 0), (background, 20)):
        folder.mkdir()
        for number in range(12):
            digits(marked=False)[first + number][0].save(folder / f"{number}.png")
    digits(marked=False)[40][0].save(like)
    features, samples = answer_by_features(MODEL), read_images(photos, flat=True).held_out

    def begin(wanted: ReportOptions, out: str, model: Any = MODEL) -> None:
        monkeypatch.delitem(sys.modules, method.stem, raising=False)
        job.explain_all(samples, model, tmp_path / f"{out} job.jsonl", wanted, progress=stop)

    by_method = ReportOptions(f"{method.stem}:mine", trust=False)
    by_background = ReportOptions("saliency", background=background, precision="fp32")
    by_image = ReportOptions("saliency", similar_to=str(like), trust=False)
    for place, content, asked in (
        (method, method.read_bytes().replace(b"images.abs", b"-images.abs"), (by_method, "method")),
        (background / "3.png", (background / "4.png").read_bytes(), (by_background, "background")),
        (like, (background / "4.png").read_bytes(), (by_image, "similar_to", features)),
    ):
        before = place.read_bytes()
        for _ in range(2):  # begun, and gone on with
            with pytest.raises(Stopped):
                begin(*asked)
        place.write_bytes(content)
        with must_raise(UsageError, rf"other {asked[1]}\n"):
            begin(*asked)
        place.write_bytes(before)
        with pytest.raises(Stopped):
            begin(*asked)
    # a model's own background is no other model's
    assert MODEL.background is not None
    own, other = ReportOptions("saliency", precision="fp32"), replace(MODEL, background=255 - MODEL.background)
    for _ in range(2):
        with pytest.raises(Stopped):
            begin(own, "own")
    with must_raise(UsageError, "background\n"):
        begin(own, "own", other)

"""One image alone: its passes are counted as they are done, and from the first batch on the time left is known."""

from dataclasses import replace
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

import vitrail
from vitrail import explain
from vitrail.cli.output import TimeLeft
from vitrail.data.images import NamedImage, open_image
from vitrail.explain.reporting.plan import ReportOptions, plan_report
from vitrail.explain.reporting.report import explain_images
from vitrail.explain.scores import perturb
from vitrail.explain.verdict import PreparedTest

SIZE = 32
DRAW = torch.Generator().manual_seed(0)


class Counted(vitrail.ViT):
    """Counts the images that pass."""

    passed: ClassVar[list[int]] = []

    def forward(self, images: Any, *more: Any, **named: Any) -> Any:
        self.passed.append(len(images))
        return super().forward(images, *more, **named)


@pytest.fixture(scope="module")
def model() -> vitrail.Model:
    config = vitrail.ViTConfig(width=16, depth=2, heads=2, mlp_dim=32, image_size=SIZE, patch_size=8, classes=3)
    network = Counted(config)
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.3, generator=DRAW)
    background = torch.randint(0, 256, (16, 3, SIZE, SIZE), dtype=torch.uint8, generator=DRAW)
    reads, names = vitrail.Preprocessing((SIZE, SIZE)), vitrail.Classes(("a", "b", "c"))
    return vitrail.Model(network.eval(), reads, names, background=background)


WAYS = [(["saliency"], False), (["saliency"], True), (["saliency", "rollout"], True)]


@pytest.mark.parametrize(("methods", "bump"), WAYS)
def test_passes_done_and_planned_are_those_of_the_network(
    model: vitrail.Model, methods: list[str], bump: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(perturb, "VALUES", 9 * 3 * SIZE * SIZE)  # images at a time
    pixels = np.random.default_rng(5).integers(0, 255, (SIZE, SIZE, 3), np.uint8)
    image = [NamedImage("one", open_image(pixels))]
    plan = replace(plan_report(model, ReportOptions(methods=methods, full=True, precision="fp32")), bump=bump)
    seen, network = list[tuple[int, int, int]](), model.network
    network.passed.clear()
    found = explain_images(image, plan, progress=lambda *done: seen.append((*done, sum(network.passed))))
    begin = max(place for place, (done, _, _) in enumerate(seen) if not done)
    assert [done[:2] for done in seen[:begin]] == [(0, 1), (1, 1), (0, 1)]
    assert seen[-1][:2] == (1, 1)
    passes = seen[begin:-1]
    assert len(passes) > 10
    for (before, _, known), (after, _, passed) in pairwise(passes):
        assert 0 < after - before == passed - known <= 9  # no pass is left out, and none counted twice
    trusts = found[0].trust
    tested = sum(one.passes - 1 - one.surrogates for one in trusts)
    assert passes[-1][0] == passes[-1][1] == tested + 14 * len(methods) * (len(methods) > 1) + 25 * bump
    more = sum(one.random_maps > 24 for one in trusts)
    assert passes[0][1] == passes[-1][1] - 125 * more
    monkeypatch.setattr(PreparedTest, "counting", lambda test, *how: test)
    uncounted = explain_images(image, plan)[0].trust
    assert [(one.score, one.random) for one in trusts] == [(one.score, one.random) for one in uncounted]
    left, now = TimeLeft(2), 100.0
    for place, (done, of, _) in enumerate(seen[:-1]):
        now += (done - seen[place - 1][0]) * 0.1 if place > begin else 7.0
        left.count(done, of, now)
        if place <= begin:
            assert left.ends is None
        elif not more:
            assert left.ends == pytest.approx(now + 0.1 * (of - done))


def test_without_a_test_the_image_alone_is_counted(model: vitrail.Model) -> None:
    seen = list[tuple[int, int]]()
    explain.report(model, np.zeros((SIZE, SIZE, 3), np.uint8), trust=False, progress=lambda *done: seen.append(done))
    assert {*seen} == {(0, 1), (1, 1)}

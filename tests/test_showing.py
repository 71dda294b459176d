"""What a prompt shows of a value that holds much: at most five lines, with what a person looks for."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import vitrail
from tests.training.tiny import whole
from tests.wrong_types import calls
from vitrail import data, explain, tasks
from vitrail.runs.data import Run
from vitrail.text import short_repr


def test_values_are_shown_in_five_lines() -> None:
    run = whole("digits")
    model, result = vitrail.load(run), vitrail.evaluate(run)
    height, width = model.preprocessing.size
    images = torch.zeros(2, 1, height, width)
    _, record = vitrail.run_with_record(model.network, images)
    attribution = vitrail.explain.grad_cam(model.network, images)
    parameters = f"{sum(each.numel() for each in model.network.parameters()):,}"
    for value, wanted in (
        (model, ("classify", str(run), parameters, f"{height} x {width}", "10 classes: 0, 1")),
        (result, (result.metric.shown(result.value), "digits")),
        (record, (f"{len(list(record))} names", "tokens", "attended")),
        (Run(run), (str(run), "classify", "digits", "359")),
        (vitrail.Record(), ("0 names",)),
        (Run(None), ("None",)),
        (attribution, ("grad_cam", "2 x 2 x 2", f"class {int(attribution.target[0])} ")),
        (vitrail.embed(model, "digits"), ("1797", "10 classes", "mean")),
        (vitrail.similar(model, "digits", "digits", queries=2), ("1,797", "digits/")),
        (vitrail.data.read("digits"), ("train 1,258", "test 359", "label")),
    ):
        assert is_short(value)
        for word in wanted:
            assert word in repr(value)


def is_short(value: object) -> bool:
    shown = repr(value).splitlines()
    return 1 <= len(shown) <= 5 and all(len(line) <= 200 for line in shown)


def test_all_that_public_functions_return_is_shown_in_five_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for tensors and networks, which are torch's, and configurations, of which the repr is how they are made."""
    monkeypatch.chdir(tmp_path)
    public, names = calls(), tuple(f"class number {number}" for number in range(1000))
    methods = {f"explain.{name}" for name in explain.METHODS}
    made: dict[str, Any] = {
        name: function(**right)
        for name, (function, right) in public.items()
        if name not in {"train", "distill", "explain.sanity_check", *methods}
    }
    model, images = made["Model"], public["nn.features"][1]["images"]
    compared = explain.compare(
        model, images, ["saliency", "grad_cam"], background=torch.randn(12, 3, 16, 16), full=True
    )
    record, view = vitrail.run_with_record(model.network, images)[1], made["explain.report"][0].view
    many = tasks.FeaturePrediction("x", torch.zeros(768))
    labels, files = data.Labels(np.zeros(3000, np.int64), names), data.FileImages([Path("x" * 40)] * 3000)
    made |= {
        "compared": [
            compared,
            compared.trusts[0],
            compared.trusts[0].evidence,
            compared.trusts[0].drops,
            compared.chosen,
        ],
        "page": [view, *view.attributions, *made["explain.report"][0].trust, made["explain.report"]],
        "names": [vitrail.Classes(names), vitrail.Vocabulary(names, "|"), data.Texts(names), labels, many],
        "samples": [
            data.Samples(files, {"label": labels}),
            data.Split(data.Samples(files, {"label": labels}), "train"),
        ],
        "record": [record, record.kept("blocks.0"), data.Values(np.zeros((3000, 9)))],
        "rows": [*explain.METHODS.values(), vitrail.Teacher(model.network, model.input, names)],
    }
    shown = {
        f"{name}: {value!r:.300}": is_short(value)
        for name, found in made.items()
        for value in (found if isinstance(found, list | tuple) and not hasattr(found, "_fields") else [found])
        if not isinstance(value, Tensor | nn.Module) and not type(value).__name__.endswith("Config")
    }
    assert [words for words, short in shown.items() if not short] == []
    assert len(shown) > 90
    assert "of 1,000" in repr(vitrail.Classes(names))
    assert "float32 768" in repr(many)


def test_a_repr_has_shapes_instead_of_numbers_and_an_end() -> None:
    class Pair(tuple):
        _fields, numbers, names = ("numbers", "names"), torch.zeros(3, 4), [f"{'n' * 90}{i}" for i in range(90)]

    shown = short_repr(Pair())
    assert shown.startswith("Pair(numbers=<float32 3 x 4>, names=[")
    assert len(shown) <= 5 * 120 + 4
    assert shown.endswith(("...", ")"))

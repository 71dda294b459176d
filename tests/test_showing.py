"""What a prompt shows of a value that holds much: at most five lines, with what a person looks for."""

import torch

import vitrail
from tests.training.tiny import whole
from vitrail.runs.data import Run


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
        (vitrail.embed("digits", model), ("1797", "10 classes", "mean")),
        (vitrail.similar("digits", "digits", model, queries=2), ("1,797", "digits/")),
        (vitrail.data.read("digits"), ("train 1,258", "test 359", "label")),
    ):
        shown = repr(value).splitlines()
        assert 1 <= len(shown) <= 5
        assert all(len(line) <= 200 for line in shown)
        for word in wanted:
            assert word in repr(value)

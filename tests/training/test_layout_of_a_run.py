"""A run stores how its data are laid out: training, evaluation and resuming read them alike, and groups stay whole."""

import json
import shutil
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest
import yaml

import vitrail
from tests.cli.command import call
from tests.photographs import make_photographs
from tests.shared_runs import configuration
from vitrail.data.columns import GROUP
from vitrail.data.layout import Layout
from vitrail.errors import UsageError
from vitrail.options import TrainOptions
from vitrail.runs.data import Run, open_for


@pytest.fixture(scope="module")
def listed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A list of 80 photographs with columns of other names, and a column that would be the label unasked."""
    root = tmp_path_factory.mktemp("laid-out")
    files = make_photographs(root / "photos", ("ant", "bee"), 40, 0)
    lines = [
        f"{file.relative_to(root)};{'a' if n % 3 else 'b'};{file.parent.name};{file.stem[:3]}{n // 5}"
        for n, file in enumerate(files)
    ]
    (root / "list.csv").write_text("\n".join(["where;class;kind;visit", *lines]))
    return root


OPTIONS = TrainOptions(
    recipe="few-photos", size="Ti/16", image_size=32, epochs=1, batch_size=16, threads=1, device="cpu", precision="fp32"
)


@pytest.mark.usefixtures("as_a_user")
def test_what_was_named_is_stored_and_read_again(listed: Path, tmp_path: Path) -> None:
    named = {"label_column": "kind", "group_column": "visit", "fractions": "60/20/20"}
    options = replace(OPTIONS, **named, size=None, config=configuration("photos"))
    result = vitrail.train(str(listed / "list.csv"), options=options, out=tmp_path / "run")
    stored = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["layout"]
    assert {name: value for name, value in stored.items() if value} == named
    model, run, seen = vitrail.load(tmp_path / "run"), Run(tmp_path / "run"), dict[str, set[str]]()
    assert model.output.names == ("ant", "bee")
    for split in ("train", "validation", "select", "report", "test"):
        try:
            samples = open_for(model, run, None, None, split).samples
        except UsageError:  # validation is too small to be cut in halves
            continue
        seen[split] = set(samples.column(GROUP).values)
        assert GROUP in samples.columns
    assert not any(seen[one] & seen[other] for one, other in combinations(("train", "validation", "test"), 2))
    assert vitrail.evaluate(tmp_path / "run").split == "test"
    cells = [line.split(";") for line in (listed / "list.csv").read_text().splitlines()[1:]]
    group_of = {Path(where).name: group for where, group, *_ in cells}
    for split in ("train", "validation", "test"):  # a column that is reported by does not move a split
        own = open_for(model, run, None, None, split).samples
        by = Layout(label_column="kind", group_column="class")
        found = open_for(model, run, str(listed / "list.csv"), None, split, layout=by)
        assert found.samples.inputs.names() == own.inputs.names()
        assert [*found.samples.column(GROUP).values] == [group_of[Path(name).name] for name in own.inputs.names()]
        assert not any("changed" in note for note in found.notes)
    typed = ["--label-column", "kind", "--group-column", "visit"]
    other = shutil.copytree(listed, tmp_path / "elsewhere") / "list.csv"
    by_command = call("evaluate", tmp_path / "run", other, *typed, "--json")
    answer = json.loads(by_command.out)
    assert answer["images"] + answer["trained_on"]["images"] == 80
    assert vitrail.evaluate(tmp_path / "run", other, layout=Layout(label_column="kind")).count == answer["images"]
    assert len(json.loads(call("predict", tmp_path / "run", other, *typed[:2], "--json").out)) == 80
    assert call("predict", tmp_path / "run", listed / "photos", *typed[:2]).code == 2
    again = vitrail.train(
        str(listed / "list.csv"), options=replace(options, epochs=2, resume="auto"), out=tmp_path / "run"
    )
    assert again.folder == result.folder
    assert again.weights != result.weights


def test_what_has_no_columns_or_has_splits_is_refused(tmp_path: Path) -> None:
    for wrong in ({"label_column": "kind"}, {"fractions": "80/20"}, {"group_pattern": "("}):
        with pytest.raises(UsageError, match=next(iter(wrong))):
            vitrail.train("digits", options=replace(OPTIONS, recipe="digits", **wrong), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()

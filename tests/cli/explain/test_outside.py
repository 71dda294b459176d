"""A method from outside: named on the command line, and as a row of the table; pages, JSON, help and docs know it."""

import re
import sys
from pathlib import Path

import pytest

from tests.cli.command import USAGE, Cli, must_refuse, retyped
from tests.cli.explain.test_run import rows
from tests.explain.methods_page import tables_of
from tests.explain.outside import METHOD, TWIN, __file__ as FILE
from vitrail.cli.args import Explain
from vitrail.cli.parse import parse
from vitrail.errors import UsageError
from vitrail.explain import METHODS, rollout
from vitrail.explain.methods import METHODS_OF_TEXTS, method_of, methods_of

NAMED = "tests.explain.outside:METHOD"
BROKEN = """
import torch, vitrail
from tests.explain.outside import METHOD, strongest
from dataclasses import replace

def fails(network, images, target=None):
    return images.nothing

def flat(network, images, target=None):
    return replace(strongest(network, images), values=torch.ones(len(images), 3))

def other(network, images, target=None):
    return replace(strongest(network, images), class_specific=True)

def nothing(network, images, target=None):
    return None

def requires(network, images, target=None, *, layer):
    return strongest(network, images, target, layer=layer)

FAILS, FLAT, OTHER, NOTHING = (replace(METHOD, function=each) for each in (fails, flat, other, nothing))
ROLLOUT, SLASH = replace(METHOD, name="rollout"), replace(METHOD, name="a/b")
REQUIRES = replace(METHOD, function=requires)
UNKNOWN = replace(METHOD, options={"power": METHOD.options["layer"]})
NUMBER = 3
"""
FUNCTIONS = '''
import torch

def corner(network, images, target):
    """Three pixels of the first patch."""
    found = torch.zeros(len(images), *images.shape[2:])
    found[:, 0, :3] = torch.tensor([1.0, 2.0, 3.0])
    return found

def down(network, images, target):
    """Downwards."""
    return -corner(network, images, target)
'''


@pytest.mark.parametrize(
    "named", [pytest.param(True, id="named"), pytest.param(False, id="in the table", marks=pytest.mark.soak)]
)
def test_a_method_from_outside(
    named: bool, cli: Cli, planted: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not named:
        monkeypatch.setitem(METHODS, METHOD.name, METHOD)
    method, page = NAMED if named else METHOD.name, tmp_path / "page.html"
    words = ("explain", planted, images / "0.png", "--no-trust", "--out", page, "--json")

    def values(*more: object) -> list[list[float]]:
        ((attribution,),) = (row["attributions"] for row in rows(cli(*words, "--method", method, *more)))
        assert (attribution["method"], attribution["signed"], attribution["cost"]) == (
            "strongest",
            False,
            METHOD.cost,
        )
        return attribution["values"]

    assert values() == values("--option", "layer=-1") != values("--option", "layer=0")
    assert values("--option", "layer=0", "--option", "squared=true") == [
        [pytest.approx(value**2) for value in row] for row in values("--option", "layer=0")
    ]
    assert METHOD.title in page.read_text()
    assert METHOD.about in page.read_text()
    (both,) = rows(cli(*words, "--compare", "--methods", f"rollout,{method}"))
    assert [attribution["method"] for attribution in both["attributions"]] == ["rollout", "strongest"]
    for option, hint in (("layers=1", "layer=-1"), ("layer=x", "layer=-1"), ("layer=9", None)):
        answer = cli(*words, "--method", method, "--option", option)
        must_refuse(answer, USAGE, option.partition("=")[0])
        again = retyped([*map(str, words), "--method", method, "--option", option], answer)
        assert again is not None
        assert cli(*again).code == 0
        assert again[-1] == (hint or "layer=-1")


def test_a_row_of_the_table_is_compared_with_others(
    cli: Cli, planted: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(METHODS, METHOD.name, METHOD)
    words = ("--no-trust", "--compare", "--methods", "all", "--out", tmp_path / "page.html", "--json")
    (row,) = rows(cli("explain", planted, images / "0.png", *words))
    assert METHOD.name in [attribution["method"] for attribution in row["attributions"]]


def test_a_method_planted_in_a_file_is_in_help_page_comparison_and_docs(
    cli: Cli, planted: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "planted_method.py").write_text(Path(FILE).read_text().replace("strongest", "planted_head"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    named = "planted_method:METHOD"
    method = method_of(named)
    shown = (method.name, method.summary, method.about, "layer=-1", "from 0; -1 is the last.", "Whether it is squared.")
    for words in (("--method", named), (f"--method={named}",), ("--compare", "--methods", f"rollout,{named}")):
        text = " ".join(cli("explain", *words, "--help").out.split())
        for each in shown:
            assert each in text
    for name, table in (("rise", METHODS), *((name, METHODS_OF_TEXTS) for name in METHODS_OF_TEXTS)):
        text = " ".join(cli("explain", "--method", name, "--help").out.split())
        assert table[name].about in text
        assert all(option.help in text for option in table[name].options.values())
    assert cli("explain", "--method", "all", "--help").out == cli("explain", "--help").out
    must_refuse(cli("explain", "--method", "planted_method:ABSENT", "--help"), USAGE, "ABSENT")
    absent = ["explain", str(planted), str(images / "0.png"), "--no-trust", "--method", "planted_method:METHO"]
    assert parse(Explain, "explain", (retyped(absent, cli(*absent)) or [])[1:]).method == named
    page = tmp_path / "page.html"
    words = ("explain", planted, images / "0.png", "--no-trust", "--compare", "--methods", f"rollout,{named}")
    (row,) = rows(cli(*words, "--out", page, "--json"))
    assert [attribution["method"] for attribution in row["attributions"]] == ["rollout", method.name]
    for each in (method.title, method.about):
        assert each in page.read_text()
    for each in (*shown[:2], *shown[3:]):
        assert each in tables_of([method])


def test_a_plain_function_is_a_method_by_its_name(
    cli: Cli, planted: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It returns numbers of pixels, as in Python, and its docstring is the text about it."""
    (tmp_path / "my_functions.py").write_text(FUNCTIONS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    words = ("explain", planted, images / "0.png", "--no-trust", "--out", tmp_path / "page.html", "--json")
    named = {each: f"my_functions:{each}" for each in ("corner", "down")}
    found = {each: rows(cli(*words, "--method", named[each]))[0]["attributions"][0] for each in named}
    assert {each: (one["method"], one["signed"]) for each, one in found.items()} == {
        "corner": ("corner", False),
        "down": ("down", True),
    }
    values = found["corner"]["values"]
    assert values[0][0] == 6  # 1 + 2 + 3 in a corner, and nothing else
    assert sum(map(sum, values)) == 6
    assert "Downwards." in (tmp_path / "page.html").read_text()
    assert "Three pixels of the first patch." in cli("explain", "--method", named["corner"], "--help").out
    (both,) = rows(cli(*words, "--compare", "--methods", f"rollout,{named['down']}"))
    assert [each["method"] for each in both["attributions"]] == ["rollout", "down"]
    assert both["attributions"][1]["values"] == found["down"]["values"]


def test_every_row_is_in_the_help(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, METHOD.name, METHOD)
    text = " ".join(cli("explain", "--help").out.split())
    for name, method in METHODS.items():
        assert re.search(rf"\b{name} {re.escape(method.summary)}", text), name
    assert f"{METHOD.summary} (layer=-1, squared=false)" in text


@pytest.mark.parametrize(
    ("name", "given"),
    [
        *[
            (name, name)
            for name in ("FAILS", "FLAT", "OTHER", "NOTHING", "SLASH", "REQUIRES", "UNKNOWN", "NUMBER", "nothing")
        ],
        ("ROLLOUT", "rollout"),
        ("ABSENT", "ABSENT"),
    ],
)
def test_a_broken_contract_is_one_line(
    name: str, given: str, cli: Cli, planted: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"broken_{name.lower()}.py").write_text(BROKEN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    words = ("explain", planted, images / "0.png", "--no-trust", "--out", tmp_path / "page.html")
    must_refuse(cli(*words, "--method", f"broken_{name.lower()}:{name}"), USAGE, given)
    assert not (tmp_path / "page.html").exists()


def test_two_methods_of_one_name_are_refused_and_one_that_is_named_twice_is_one(
    cli: Cli, planted: Path, images: Path, tmp_path: Path
) -> None:
    page, other = tmp_path / "page.html", "tests.explain.outside:TWIN"
    words = ("explain", planted, images / "0.png", "--no-trust", "--out", page, "--compare", "--json", "--methods")
    answer = cli(*words, f"rollout,{NAMED},{other}")
    for title in (METHOD.title, TWIN.title):
        must_refuse(answer, USAGE, title)
    assert not page.exists()
    with pytest.raises(UsageError):
        methods_of([METHOD, TWIN], False, 4)
    (row,) = rows(cli(*words, f"{NAMED},rollout,{NAMED}"))
    assert [attribution["method"] for attribution in row["attributions"]] == ["strongest", "rollout"]
    found, _ = methods_of([METHOD, NAMED, rollout, "rollout"], False, 4)
    assert [each.name for each in found] == ["strongest", "rollout"]


@pytest.mark.parametrize(
    "what",
    [
        "nowhere_at_all:METHOD",
        ":METHOD",
        "tests.explain.outside:",
        "a/b:c",
        "os:nothing",
        "outside.py:METHOD",
        "os:path:join",
        "os:1",
    ],
)
def test_what_is_not_there_is_refused(what: str, cli: Cli, planted: Path, images: Path, tmp_path: Path) -> None:
    words = ("explain", planted, images / "0.png", "--no-trust", "--out", tmp_path / "page.html")
    must_refuse(cli(*words, "--method", what), USAGE, what.partition(":")[0])

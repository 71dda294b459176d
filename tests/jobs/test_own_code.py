"""A person's own code is known by what it is: another under the same name is another job."""

import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from tests.audit.marked import EACH, digits, honest
from tests.errors import must_raise
from tests.explain.planted_lab import load_planted
from vitrail.audit import EDITS, Audit, audit
from vitrail.errors import UsageError
from vitrail.explain import rollout, saliency
from vitrail.jobs.own_code import own_code
from vitrail.jobs.precision import identity_of

MINE = """
import torch
from own_helper import scaled
class Mine(torch.nn.Linear):
    def forward(self, images):
        return super().forward(images)
def mine(network, images, target=None):
    return scaled(images) if target in {"one", "two", "three"} else images
def bound(factor):
    def mine(network, images, target=None):
        return factor * images
    return mine
"""
HELPER = "def scaled(images):\n    return 2 * images\n"

Write = Callable[[str, str], ModuleType]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a module, and imports it anew."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def written(name: str, text: str) -> ModuleType:
        (tmp_path / f"{name}.py").write_text(text)
        for known in ("own_mine", "own_helper"):
            monkeypatch.delitem(sys.modules, known, raising=False)
        importlib.invalidate_caches()
        return importlib.import_module("own_mine")

    (tmp_path / "own_helper.py").write_text(HELPER)
    return written


def test_it_changes_with_the_file_with_what_that_imports_and_with_what_is_bound(write: Write) -> None:
    own = write("own_mine", MINE)
    first = own_code([own.mine])
    assert first
    assert own_code([write("own_mine", MINE).mine]) == first
    texts = {
        "own_mine": MINE.replace("else images", "else -images"),
        "own_helper": HELPER.replace("2", "3"),
    }
    for name, text in texts.items():
        assert own_code([write(name, text).mine]) != first, name
        before = {"own_mine": MINE, "own_helper": HELPER}[name]
        assert own_code([write(name, before).mine]) == first, name
    bound = [own.bound(2), own.bound(3), partial(own.mine, target=1), partial(own.mine, target=2), own.mine, own.Mine]
    assert len({own_code([each]) for each in bound}) == len(bound)
    assert own_code([own.bound(2)]) == own_code([own.bound(2)])


MORE = """
import functools, threading
import numpy as np, torch
from dataclasses import dataclass, field
class Mine:
    def __init__(self, factor):
        self.factor = factor
    def __call__(self, network, images, target=None):
        return self.factor * images
    def go(self, network, images, target=None):
        return self.factor * images
    @functools.cached_property
    def lazy(self):
        return object()
class Slots:
    __slots__ = ("factor",)
    def __init__(self, factor):
        self.factor = factor
@dataclass(frozen=True)
class Data:
    steps: object = ()
    seen: dict = field(default_factory=dict)
class Filled(Mine):
    def __init__(self, factor):
        super().__init__(factor)
        self.cache, self.lock = {}, threading.Lock()
    def __getstate__(self):
        return {"factor": self.factor}
class Own(torch.nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor
class Worded(str):
    pass
def f(network, images, target=None, steps=()):
    return images
def g(network, images, target=None, steps=()):
    return -images
def closed(value):
    def mine(network, images, target=None):
        return value, images
    return mine
def scaled(factor):
    def around(inner):
        @functools.wraps(inner)
        def mine(*given):
            return factor * inner(*given)
        return mine
    return around
def kind_of(value):
    class Made:
        factor = value
        @property
        def twice(self):
            return value
    return Made
def numbers(at=None, kind=torch.float32):
    made = torch.arange(5000, dtype=kind)
    if at is not None:
        made[at] = 7
    return made
def linear(value):
    made = torch.nn.Linear(3, 3)
    for each in made.parameters():
        each.data.fill_(value)
    return made
def cycle(value):
    made = Mine(value)
    made.itself, made.steps = made, [made]
    return made
def of_objects(value):
    return np.array([value, "text"], dtype=object)
def image(value):
    from PIL import Image
    return Image.new("L", (4, 4), value)
def bound(**values):
    return functools.partial(f, **values)
def keep(self, *steps):
    self.steps = [*steps]
composed = type("Compose", (), {"__module__": "torch", "__init__": keep})
"""

DIFFER = {  # two expressions each
    "fields": ("Mine(2)", "Mine(3)"),
    "types of fields": ("Mine(2)", "Mine(2.0)"),
    "bound methods": ("Mine(2).go", "Mine(3).go"),
    "slots": ("Slots(2)", "Slots(3)"),
    "own modules": ("Own(2)", "Own(3)"),
    "__getstate__": ("Filled(2)", "Filled(3)"),
    "dataclasses": ("Data([f])", "Data([g])"),
    "lists": ("bound(steps=[f])", "bound(steps=[g])"),
    "nesting": ("bound(steps=[[f], [g]])", "bound(steps=[[f, g], []])"),
    "repeated": ("bound(steps=[f, g, f])", "bound(steps=[f, g, g])"),
    "tuples": ("bound(steps=(f, (1, 2)))", "bound(steps=(f, (1, 3)))"),
    "dicts": ("bound(steps={'a': f})", "bound(steps={'a': g})"),
    "sets": ("bound(steps={f})", "bound(steps={g})"),
    "keywords": ("bound(steps=2)", "bound(target=2)"),
    "closures over lists": ("closed([f])", "closed([g])"),
    "closures over objects": ("closed(Mine(2))", "closed(Mine(3))"),
    "texts": ("closed('<a>')", "closed('<b>')"),
    "addresses in texts": ("closed('0x1')", "closed('0x2')"),
    "texts and bytes": ("closed('a')", "closed(b'a')"),
    "tensors": ("closed(numbers())", "closed(numbers(2500))"),
    "dtypes": ("closed(numbers())", "closed(numbers(kind=torch.int32))"),
    "shapes": ("closed(numbers())", "closed(numbers().view(50, 100))"),
    "bf16": ("closed(numbers(kind=torch.bfloat16))", "closed(numbers(2500, torch.bfloat16))"),
    "arrays": ("closed(numbers().numpy())", "closed(numbers(2500).numpy())"),
    "arrays of objects": ("closed(of_objects(f))", "closed(of_objects(g))"),
    "images": ("closed(image(1))", "closed(image(2))"),
    "weights": ("closed(linear(2))", "closed(linear(3))"),
    "sequences": ("torch.nn.Sequential(torch.nn.Dropout(0.1))", "torch.nn.Sequential(torch.nn.Dropout(0.2))"),
    "wrappers": ("scaled(2)(f)", "scaled(3)(f)"),
    "wrapped": ("scaled(2)(f)", "scaled(2)(g)"),
    "wrapped by others": ("torch.no_grad()(f)", "torch.no_grad()(g)"),
    "cached": ("functools.lru_cache(f)", "functools.lru_cache(g)"),
    "class attributes": ("kind_of(2)", "kind_of(3)"),
    "cycles": ("cycle(2)", "cycle(3)"),
    "bound C methods": ("{1: f}.get", "{1: g}.get"),
    "lambdas": ("lambda x: x", "lambda x: -x"),
    "nested code": ("lambda x: [y for y in x]", "lambda x: [-y for y in x]"),
    "names of arguments": ("lambda x, *, a=1, b=2: a - b", "lambda x, *, b=1, a=2: b - a"),
    "ufuncs": ("np.add", "np.subtract"),
    "of installed types": ("composed(f, 1)", "composed(g, 1)"),
    "arguments of installed types": ("composed(f, 1)", "composed(f, 2)"),
    "compiled by others": ("np.vectorize(f)", "np.vectorize(g)"),
}
SAME = [
    *(
        "Mine(2)",
        "Mine(2).go",
        "Slots(2)",
        "cycle(2)",
        "kind_of(2)",
        "scaled(2)(f)",
        "Filled(2)",
        "Own(2)",
        "Worded(2)",
    ),
    *("closed({f, g, 'a', 'b', 'c', ('d', 'e')})", "closed(frozenset('abcdef'))", "Data({'a', 'b', 'c'}, {'a': f})"),
    *("closed(numbers())", "closed(linear(2))", "closed(of_objects(f))", "closed(threading.Lock())", "np.add", "len"),
    *(
        "lambda x: x in {'a', 'b', 'c', ('d', 'e')}",
        "closed(object())",
        "closed(iter(()))",
        "torch.maximum",
        "[].append",
    ),
    *(
        "closed(torch.empty(2, device='meta'))",
        "closed(torch.eye(2).to_sparse())",
        "composed(f)",
        "Mine",
        "Data",
        "None",
    ),
    *(
        "closed(threading)",
        "bound(steps=f, target=1)",
        "functools.lru_cache(f)",
        "torch.nn.Linear.forward",
        "list[int]",
    ),
]


@pytest.mark.parametrize("with_file", [True, False])
def test_what_is_bound_tells(write: Write, with_file: bool) -> None:
    """What a person may bind; each a second time, made anew, is the same."""
    space: dict[str, Any] = {"__name__": "a_notebook"}
    if with_file:
        space = vars(write("own_mine", MORE))
    else:
        exec(MORE, space)

    def known(words: str) -> str:
        return own_code([eval(words, space)])

    for what, pair in DIFFER.items():
        first, second = map(known, pair)
        assert first != second, what
        assert [known(each) for each in pair] == [first, second], what
    assert len({known(each) for each in SAME}) == len(SAME)


def test_what_passes_does_not_tell(write: Write) -> None:
    """What an object fills as it runs: its mode, hooks, what its state leaves out, and what is kept for later."""
    own = write("own_mine", MORE)
    network, filled, lazy = own.linear(2), own.Filled(2), own.Mine(2)
    held = own.closed(network)
    before = own_code([held, filled, lazy])
    network.eval().register_forward_hook(lambda *_: None)
    filled.cache["a"] = 2
    assert lazy.lazy
    assert own_code([held, filled, lazy]) == before
    handles = [own.closed(network.register_forward_hook(lambda *_: None)) for _ in range(2)]
    assert own_code(handles[:1]) == own_code(handles[1:])


def test_what_wraps_a_function_of_vitrail_in_its_place_does_not_tell(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a tool does that checks types; a person's own wrapper of it, passed as a method, does."""
    own = write("own_mine", MORE)
    made = ModuleType("vitrail.made")
    exec("def plain(images):\n    return images", vars(made))
    monkeypatch.setitem(sys.modules, "vitrail.made", made)
    before, wrapped = own_code([made.plain]), own.scaled(2)(made.plain)
    assert own_code([wrapped]) != before
    assert own_code([wrapped]) != own_code([own.scaled(3)(made.plain)])
    monkeypatch.setattr(made, "plain", wrapped)
    assert own_code([made.plain]) == before


NOTEBOOK = """
import functools
FACTOR, TABLE = 2, [1, 2]
def helper(images):
    return 2 * images
def scaled(factor):
    def around(inner):
        @functools.wraps(inner)
        def wrapped(*given):
            return factor * inner(*given)
        return wrapped
    return around
class Base:
    size = 2
    @property
    def half(self):
        return 2
class Mine(Base):
    pass
@scaled(2)
def mine(images):
    unused = [helper(each) * FACTOR for each in TABLE]
    return lambda: (Mine().size, mine)
"""


def made_without_file(text: str, name: str = "a_notebook") -> Any:
    space: dict[str, Any] = {"__name__": name}
    exec(text, space)
    return space["mine"]


@pytest.mark.parametrize(
    "change",
    [
        *(("return 2 * images", "return 3 * images"), ("FACTOR, TABLE = 2", "FACTOR, TABLE = 3"), ("[1, 2]", "[1, 3]")),
        *(("@scaled(2)", "@scaled(3)"), ("return factor * inner", "return inner"), ("size = 2", "size = 3")),
        *(("        return 2\n", "        return 3\n"), ("Mine().size", "-Mine().size"), ("(Base)", "")),
    ],
)
def test_without_a_file_the_globals_that_are_read_tell(change: tuple[str, str]) -> None:
    for name in ("a_notebook", "__main__"):
        first = own_code([made_without_file(NOTEBOOK, name)])
        assert NOTEBOOK.count(change[0]) == 1
        assert own_code([made_without_file(NOTEBOOK.replace(*change), name)]) != first
        assert own_code([made_without_file(f"import os\nother = object()\n{NOTEBOOK}", name)]) == first


def test_without_a_file_compiled_code_and_its_constants_tell() -> None:
    texts = [f"def mine(images):\n    return {what}" for what in ("images", "-images", "2 * images", "3 * images")]
    texts += [f"class mine:\n    def go(self):\n        return {what}" for what in "12"]
    assert len({own_code([made_without_file(text)]) for text in texts}) == len(texts)
    assert [own_code([made_without_file(text)]) for text in texts] == [
        own_code([made_without_file(text)]) for text in texts
    ]


def test_the_modules_that_a_file_imports_tell_whether_or_not_they_are_imported_yet(
    write: Write, tmp_path: Path
) -> None:
    files = {
        "__init__": "from . import c",
        "a": "from .deep.d import two",
        "b": "def two():\n    return 2",
        "c": "two = 2",
        "deep/__init__": "",
        "deep/d": "from ..e import two",
        "e": "import own_missing\ntwo = 2",
        "other": "two = 2",
        "broken": "two = (",
    }
    (tmp_path / "ownpkg" / "deep").mkdir(parents=True)
    for name, text in files.items():
        (tmp_path / "ownpkg" / f"{name}.py").write_text(text)
    (tmp_path / "own_missing.py").write_text("")
    own = write("own_mine", "import ownpkg.a\nSEEN = []\ndef mine():\n    import ownpkg.b, ownpkg.broken, not_there\n")
    try:
        first = own_code([own.mine])
        assert "ownpkg.b" not in sys.modules
        with pytest.raises(SyntaxError):
            own.mine()
        importlib.import_module("ownpkg.other")
        own.SEEN.append(importlib.import_module("ownpkg.other"))
        assert "ownpkg.b" in sys.modules
        assert own_code([own.mine]) == first
        for name, before in files.items():
            file = tmp_path / "ownpkg" / f"{name}.py"
            file.write_text(before + "\n# other\n")
            assert (own_code([own.mine]) != first) is (name != "other"), name
            file.write_text(before)
        assert own_code([own.mine]) == first
    finally:
        for name in [each for each in sys.modules if each.partition(".")[0] in ("ownpkg", "own_missing")]:
            del sys.modules[name]


def test_another_process_says_the_same(write: Write, tmp_path: Path) -> None:
    """Also of sets, whose order changes from one process to the next, and of what was sent there without its file."""
    space = vars(write("own_mine", MORE))
    here = [own_code([eval(each, space)]) for each in SAME]
    notebook = own_code([made_without_file(NOTEBOOK)])
    (tmp_path / "elsewhere.py").write_text(
        "import sys, torch, numpy, own_mine; from vitrail.jobs.own_code import own_code\n"
        f"space = {{'__name__': 'a_notebook'}}\nexec({NOTEBOOK!r}, space)\n"
        f"for each in {SAME!r}: print(own_code([eval(each, vars(own_mine))]))\nprint(own_code([space['mine']]))\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path]), "PYTHONHASHSEED": "1"}
    command = [sys.executable, str(tmp_path / "elsewhere.py")]
    ran = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert dict(zip([*SAME, "notebook"], ran.stdout.split(), strict=True)) == dict(
        zip([*SAME, "notebook"], [*here, notebook], strict=True)
    )


def test_an_audit_refuses_to_go_on_with_another_object_of_one_class(write: Write, tmp_path: Path) -> None:
    """And goes on with an equal one."""
    own = write("own_mine", MORE.replace("self.factor * images", "self.factor * images.sum(dim=1)"))
    for number, (image, label) in enumerate(digits(marked=False)):
        if number % EACH < 4:
            (tmp_path / "photos" / label).mkdir(parents=True, exist_ok=True)
            image.save(tmp_path / "photos" / label / f"{number % EACH}.png")

    def audited(factor: int) -> Audit:
        few = tuple(edit for edit in EDITS if edit.name == "upper-left")
        given = {"count": 2, "edits": few, "folder": tmp_path / "audit"}
        return audit(honest(), str(tmp_path / "photos"), method=own.Mine(factor), **given)

    first = audited(2)
    assert audited(2).to_dict()["verdicts"] == first.to_dict()["verdicts"]
    with must_raise(UsageError, "method"):
        audited(3)


def test_a_model_is_known_by_the_code_of_its_own_network(write: Write) -> None:
    others = [torch.maximum, torch.minimum, saliency, rollout, torch.nn.Linear, torch.nn.LayerNorm, pytest.raises]
    assert len({own_code([each]) for each in others}) == len(others)
    model = load_planted("mean-0")

    def known(text: str) -> dict[str, str]:
        network = write("own_mine", text).Mine(3, 10)
        network.load_state_dict({"weight": torch.ones(10, 3), "bias": torch.zeros(10)})
        return identity_of(replace(model, network=network))

    first, other = known(MINE), known(MINE.replace("forward(images)", "forward(-images)"))
    assert first == known(MINE)
    assert {name for name in first if first[name] != other[name]} == {"code"}

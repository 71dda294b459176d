"""Faults planted in functions of the library, to see whether the tests would notice.

    Fault(caveats, lambda caveats, values: ((),) * len(values), guards=(...))
    Fault(rolled_out, lambda reversed, layers: layers, at="reversed", guards=(...))
    Fault(composite, lambda where, mask, one, other: where(mask, other, one), at="where", guards=(...))

The first fault puts something else in place of a whole function. The others do so in place of an operation inside one:
of each call of `reversed` or `x.where`, or of each `+`, `@`, `>=`, `is not` ... (`at` is the name that is called, or
the operator). What stands in its place is called with the true function or operation, then with what that is given: it
may go on with it, with other arguments or another result. For a method `x.clamp(min=0)` the true one is bound, and
`clamp.__self__` is x.

To add a fault: import the function, say what happens in its place, and name the guards that must notice: functions
without arguments (`functools.partial` gives them some) that raise an AssertionError. The row in the table is all.

No text of the library is matched. A function that was renamed is an ImportError where it is imported; one that no
longer does the operation is an error that lists what it does. The fault lies in the function itself (its code is
exchanged), so that everybody who has imported it meets the fault. Shapes are not checked meanwhile: it is the guard
that must notice.
"""

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

import jaxtyping
import pytest

Instead = Callable[..., Any]


@dataclass(frozen=True, eq=False)
class Fault:
    """Something else in place of a function, or of an operation inside it, and the guards that must notice."""

    function: Any
    instead: Instead
    at: str = ""
    guards: tuple[Callable[[], None], ...] = ()


@contextmanager
def planted(fault: Fault) -> Iterator[None]:
    """The fault is there inside the block, and gone after it."""
    function = inspect.unwrap(getattr(fault.function, "fget", fault.function))
    assert not function.__code__.co_freevars, f"{function.__qualname__} is made by another function: plant it there"
    code, names, checked = function.__code__, function.__globals__, not jaxtyping.config.jaxtyping_disable
    true = FunctionType(code, names, function.__name__, function.__defaults__)
    true.__kwdefaults__ = function.__kwdefaults__
    faulty = _with_operation(function, fault.at) if fault.at else _INSTEAD
    jaxtyping.config.update("jaxtyping_disable", True)
    names["__instead__"], names["__true__"], function.__code__ = fault.instead, true, faulty
    try:
        yield
    finally:
        function.__code__ = code
        del names["__instead__"], names["__true__"]
        jaxtyping.config.update("jaxtyping_disable", not checked)


def must_be_found(fault: Fault) -> None:
    """Every guard of the fault turns red when it is planted."""
    assert fault.guards
    with planted(fault):
        assert [str(guard) for guard in fault.guards if not is_red(guard)] == []


def rows(faults: dict[str, Fault], soak: frozenset[str] = frozenset()) -> list[Any]:
    """The parameters of a test; those of `soak` are left to `make soak`."""
    assert soak <= set(faults)
    return [
        pytest.param(fault, id=name, marks=pytest.mark.soak if name in soak else ()) for name, fault in faults.items()
    ]


def is_red(guard: Callable[..., object], *arguments: object) -> bool:
    """Whether an assertion of a guard fails, or an error that it wants does not come."""
    try:
        guard(*arguments)
    except (AssertionError, pytest.fail.Exception):
        return True
    return False


def _code_of(source: ast.Module, name: str) -> CodeType:
    """The code of a function that stands alone in a module."""
    made = compile(ast.fix_missing_locations(source), f"<a fault in {name}>", "exec")
    return next(each for each in made.co_consts if isinstance(each, CodeType) and each.co_name == name)


_WHOLE = "def whole(*arguments, **options): return __instead__(__true__, *arguments, **options)"
_INSTEAD = _code_of(ast.parse(_WHOLE), "whole")


def _with_operation(function: FunctionType, operation: str) -> CodeType:
    """The code of the function with `__instead__(true operation, what it is given)` at each of these operations."""
    source = ast.parse(textwrap.dedent(inspect.getsource(function)))
    exchange = _Exchange(operation)
    source = exchange.visit(source)
    assert operation in exchange.met, f"{function.__qualname__} has no {operation}: it has {sorted(exchange.met)}"
    source.body[0].decorator_list = []
    return _code_of(source, function.__name__)


class _Exchange(ast.NodeTransformer):
    """Exchanges one operation, and notes which there are."""

    def __init__(self, operation: str) -> None:
        self.operation, self.met = operation, set[str]()

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        return self._exchanged(name, node, node.func, node.args, node.keywords)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        true = ast.BinOp(ast.Name("a", ast.Load()), node.op, ast.Name("b", ast.Load()))
        return self._operator(node, true, [node.left, node.right])

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        if len(node.ops) > 1:
            return node
        true = ast.Compare(ast.Name("a", ast.Load()), node.ops, [ast.Name("b", ast.Load())])
        return self._operator(node, true, [node.left, *node.comparators])

    def _operator(self, node: ast.AST, true: ast.expr, given: list[ast.expr]) -> ast.AST:
        symbol = ast.unparse(true).removeprefix("a ").removesuffix(" b")
        lambda_ = ast.parse("lambda a, b: ...", mode="eval").body
        assert isinstance(lambda_, ast.Lambda)
        lambda_.body = true
        return self._exchanged(symbol, node, lambda_, given, [])

    def _exchanged(
        self, name: str, node: ast.AST, true: ast.expr, given: list[ast.expr], options: list[ast.keyword]
    ) -> ast.AST:
        self.met.add(name)
        if name != self.operation:
            return node
        return ast.Call(ast.Name("__instead__", ast.Load()), [true, *given], options)

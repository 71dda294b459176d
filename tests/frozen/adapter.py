"""The only file of the harness that knows names which a redesign may move; the others type commands.

When a name here moves, this file follows, and the frozen values stay as they are.
"""

import contextlib
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import vitrail
from vitrail.cli.main import main
from vitrail.data.sets import planted


def command(*words: object) -> tuple[int, str, str]:
    """Type a command in this process: its exit code, what it printed, and its errors."""
    out, errors = io.StringIO(), io.StringIO()
    before = torch.get_num_threads()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        try:
            main([str(word) for word in words])
        except SystemExit as stop:
            code = int(stop.code or 0)
    torch.set_num_threads(before)
    return code, out.getvalue(), errors.getvalue()


def weights(run: Path) -> dict[str, Tensor]:
    """The weights of a run's model, by name."""
    return vitrail.load(run).network.state_dict()


def methods() -> dict[str, Callable[..., Any]]:
    """Every method that explains a class, by name."""
    return {name: method.function for name, method in vitrail.explain.METHODS.items()}


def explained(method: Callable[..., Any], network: nn.Module, images: Tensor, target: Tensor | None) -> dict[str, Any]:
    """What a method returns: its map, and what the map explains."""
    map_ = method(network, images, target)
    return {"values": map_.values, "target": map_.target, "logit": map_.logit, "notes": [len(n) for n in map_.notes]}


def text_map(network: nn.Module, images: Tensor, target: Tensor) -> dict[str, Any]:
    """Where a network that writes looked for each token."""
    return explained(vitrail.explain.cross_attention, network, images, target)


@contextlib.contextmanager
def small_planted(counts: dict[str, int]) -> Iterator[None]:
    """The set `planted` with fewer images: 120,000 would take longer to make than all else here."""
    before = dict(planted.COUNTS)
    planted.COUNTS.update(counts)
    try:
        yield
    finally:
        planted.COUNTS.update(before)

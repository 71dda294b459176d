"""What an explanation returns: one number per patch, what it explains, and its caveats.

In a notebook it shows itself: squares in the colours of the pages, the range that they stand for, and the caveats, as
small, static HTML without a script. The full page, with the picture below the map and the verdict beside it, is
`vitrail explain`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitrail.errors import UsageError
from vitrail.explain.target import FUNCTION, Aim, OfLogits
from vitrail.pages.colour import ROUNDING, heat_colours, value_range
from vitrail.pages.html import escape

NO_SIGNAL = "no signal"
NOT_FINITE = "not finite"

# In a notebook.
MOST_MAPS = 12
MOST_SQUARES = 8192  # in all maps; where there are more, fewer maps are shown
SIDE = 160  # pixels of the longer side of a map


@dataclass(frozen=True, eq=False)
class Heat:
    """The explanation of a batch of pictures by one method.

    Attributes:
        values: (b, rows, columns), one number per patch in the method's own unit; never rescaled per picture. For a
            network that writes, an axis of the written tokens stands before the grid: (b, t, rows, columns).
        target: (b,), index of the class that is explained, -1 where a function of the logits is; for a network that
            writes (b, t), the ids, filled up with its padding where a text is shorter.
        logit: The number that is explained, of the same shape: the target's logit, or the difference to the other's.
        method: Name of the method; for classes, a key of `vitrail.explain.METHODS`.
        signed: Whether the sign means for and against the class; otherwise a number only says how much.
        class_specific: Whether another target would give other values.
        notes: One tuple per picture: `notes[i]` holds the caveats of picture i, and is empty when there is nothing to
            say. What concerns all pictures stands with each. `"no signal"` means that the map is zero or constant, so
            it does not prefer any patch; `"not finite"` that it holds infinities or is not a number.
        rather_than: (b,), the class that the target is held against; None where it stands alone.
    """

    values: Float[Tensor, "b *t rows columns"]
    target: Int[Tensor, "b *t"]
    logit: Float[Tensor, "b *t"]
    method: str
    signed: bool
    class_specific: bool
    notes: tuple[tuple[str, ...], ...]
    rather_than: Int[Tensor, "b"] | None = None

    def _repr_html_(self) -> str:
        """The maps in colours, for a notebook."""
        shown = []
        for picture, notes in enumerate(self.notes):
            titles, values = self._titles(picture), self.values[picture].detach().cpu()
            values = values.to(torch.promote_types(values.dtype, torch.float32))
            maps = values[None] if values.dim() == 2 else values
            shown += [Shown(title, one.numpy(), notes) for title, one in zip(titles, maps, strict=True)]
        return heat_html(self.method.replace("_", " "), shown, self.signed, self.class_specific)

    def _titles(self, picture: int) -> list[str]:
        """What each map of one picture is of; a network that writes has one for each token."""
        targets, logits = self.target[picture].reshape(-1).tolist(), self.logit[picture].reshape(-1).tolist()
        if self.target.dim() > 1:
            return [f"picture {picture}, token {i}: {target}" for i, target in enumerate(targets)]
        what = "a function of the logits" if targets[0] < 0 else f"class {targets[0]}"
        against = "" if self.rather_than is None else f" rather than {int(self.rather_than[picture])}"
        return [f"picture {picture}: {what}{against} ({logits[0]:.3g})"]


def caveats(values: Float[Tensor, "b rows columns"]) -> tuple[tuple[str, ...], ...]:
    """What a map itself tells of its worth, for each picture: nothing, `"no signal"` or `"not finite"`.

    A map is constant when its values differ by rounding alone: by at most 1024 units in the last place of the
    largest (1e-4 of it in float32). Gradients that nearly cancel leave some hundreds of them on a constant map.
    """
    flat = values.flatten(1)
    finite = flat.isfinite().all(dim=1).tolist()
    spread = flat.amax(dim=1) - flat.amin(dim=1)
    constant = (spread <= ROUNDING * torch.finfo(flat.dtype).eps * flat.abs().amax(dim=1)).tolist()
    notes = []
    for is_finite, is_constant in zip(finite, constant, strict=True):
        notes.append((NOT_FINITE,) if not is_finite else (NO_SIGNAL,) if is_constant else ())
    return tuple(notes)


def no_signal_where(drowned: Bool[Tensor, "b"], values: Float[Tensor, "b rows columns"]) -> list[tuple[str, ...]]:
    """Notes on maps that hold what rounding left, as their method knows, where the values do not say so themselves."""
    found = zip(drowned.tolist(), caveats(values), strict=True)
    return [(NO_SIGNAL,) if lost and not said else () for lost, said in found]


def aim_of(heat: Heat, function: OfLogits | None = None) -> Aim:
    """What a heat explains; the function has to be given again, where it is one.

    Raises:
        UsageError: If a function is missing, or one is given for a heat that explains a class.
    """
    if bool((heat.target == FUNCTION).any()) != (function is not None):
        problem = "explains a class, and a function is given" if function else "explains a function, which is not given"
        raise UsageError(f"the heat {problem}", "function=... exactly when the target was a function")
    return Aim(heat.target, heat.rather_than, function)


class Shown(NamedTuple):
    """One map.

    Args:
        title: What it is of, such as "picture 0: class 3 (logit 8.21)".
        values: One number per square.
        notes: Its caveats.
    """

    title: str
    values: Float[np.ndarray, "rows columns"]
    notes: Sequence[str]


def heat_html(heading: str, maps: Sequence[Shown], signed: bool, class_specific: bool) -> str:
    """Maps side by side.

    Args:
        heading: Name of the method.
        maps: What to show, in order; at most a dozen are, and what is left out is counted.
        signed: Whether the sign means for and against.
        class_specific: Whether another class would give other maps.
    """
    squares = maps[0].values.size if maps else 1
    most = max(1, min(MOST_MAPS, MOST_SQUARES // max(1, squares)))
    figures = "".join(_figure(one, signed) for one in maps[:most])
    more = f"<p>{len(maps) - most} more are not shown.</p>" if len(maps) > most else ""
    blind = "" if class_specific else "<p>This method cannot tell classes apart.</p>"
    return (
        f'<div class="vitrail-heat"><p><b>{escape(heading)}</b></p>{blind}'
        f'<div style="display:flex;flex-wrap:wrap;gap:1.2em">{figures}</div>{more}</div>'
    )


def _figure(one: Shown, signed: bool) -> str:
    """One map with its range; rows and columns count from 1, as on a page."""
    (rows, columns), shown = one.values.shape, value_range(one.values, signed)
    if shown.flat:
        every = f"every square is {_number(shown.smallest)}"
        legend = f"no signal: {every if shown.missing < one.values.size else 'no square has a number'}"
    else:
        ends = ("against", "for") if signed else ("dark", "light")
        between = ", " if signed else " to "
        legend = f"{_number(shown.low)} {ends[0]}{between}{_number(shown.high)} {ends[1]}"
    colours = heat_colours(one.values, signed, shown).tolist()
    drawn = "".join(
        f'<rect x="{column}" y="{row}" width="1.02" height="1.02" fill="rgb({red},{green},{blue})">'
        f"<title>row {row + 1}, column {column + 1}: {_number(value)}</title></rect>"
        for row, line in enumerate(one.values.tolist())
        for column, (value, (red, green, blue)) in enumerate(zip(line, colours[row], strict=True))
    )
    side = SIDE / max(rows, columns)
    notes = "".join(f"<br>{escape(note)}" for note in one.notes)
    title = escape(one.title)
    return (
        f'<figure style="margin:0;max-width:{SIDE + 60}px"><figcaption>{title}</figcaption>'
        f'<svg width="{columns * side:.0f}" height="{rows * side:.0f}" viewBox="0 0 {columns} {rows}" role="img" '
        f'aria-label="{title}" shape-rendering="crispEdges">{drawn}</svg>'
        f"<div><small>{escape(legend)}{notes}</small></div></figure>"
    )


def _number(value: float) -> str:
    return f"{value:.3g}" if math.isfinite(value) else "no number"

"""Line charts as inline SVG: axes with round ticks, a legend, and every point with its value as a title.

Values that are missing or not finite leave a gap in the line. Nothing is smoothed. Colours come from the page's style
(`.series-0`, `.series-1`, ...), so that they follow light and dark; the lines also differ by dashes and marks.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from vitrail.pages.html import escape, number

WIDTH, HEIGHT = 440, 250
LEFT, RIGHT, TOP, BOTTOM = 56, 14, 12, 40


@dataclass(frozen=True)
class Series:
    """One line of a chart.

    Args:
        label: Its name in the legend.
        values: One value per x; None, NaN or infinity where there is none.
    """

    label: str
    values: Sequence[float | int | None]


@dataclass(frozen=True)
class Axis:
    """How the values of one axis lie between two ends.

    Args:
        low: Value at the first end.
        high: Value at the other end, greater than `low`.
        ticks: Values that are marked, between the ends.
        log: Whether equal steps are equal ratios.
    """

    low: float
    high: float
    ticks: tuple[float, ...] = ()
    log: bool = False

    def fraction(self, value: float | int) -> float:
        """Where a value lies: 0 at `low`, 1 at `high`."""
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


def linear_axis(values: Sequence[float | int], whole: bool = False) -> Axis:
    """An axis over finite values with ticks of 1, 2 or 5 times a power of ten.

    Args:
        values: At least one finite value.
        whole: Whether they are whole numbers, such as epochs: then only such are marked, and the axis ends at the
            values themselves instead of at the next ticks.
    """
    low, high = float(min(values)), float(max(values))
    if not high - low > 1e-9 * max(abs(low), abs(high)):
        margin = 0.5 if whole else abs(low) / 2 or 0.5
        low, high = low - margin, high + margin
    rough = (high - low) / (6 if whole else 5)  # about so many ticks
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    if whole:
        step = max(1.0, step)
        first, last = math.ceil(low / step), math.floor(high / step)
    else:
        first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = tuple(float(f"{i * step:.12g}") for i in range(first, last + 1))
    return Axis(low, high, ticks) if whole else Axis(ticks[0], ticks[-1], ticks)


def log_axis(values: Sequence[float | int]) -> Axis:
    """A logarithmic axis over positive values: powers of ten, and their doubles and fives where there are few."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    high = max(high, low + 1)
    decades = high - low
    stride = math.ceil(decades / 6)
    factors = (1, 2, 5) if decades <= 2 else (1,)
    ticks = [f * 10.0**p for p in range(low, high, stride) for f in factors] + [10.0**high]
    return Axis(10.0**low, 10.0**high, tuple(float(f"{t:.12g}") for t in ticks), log=True)


def _drawable(value: float | int | None, log: bool) -> bool:
    return value is not None and math.isfinite(value) and (value > 0 or not log)


def _frame(x: Axis, y: Axis, write: Callable[[float], str]) -> str:
    """Grid lines, ticks with their labels, and what the x axis is."""
    parts = []
    for tick in y.ticks:
        at = HEIGHT - BOTTOM - y.fraction(tick) * (HEIGHT - TOP - BOTTOM)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(
            f'<text class="tick" x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{escape(write(tick))}</text>'
        )
    for tick in x.ticks:
        at = LEFT + x.fraction(tick) * (WIDTH - LEFT - RIGHT)
        parts.append(
            f'<text class="tick" x="{at:.1f}" y="{HEIGHT - BOTTOM + 17}" text-anchor="middle">{number(tick)}</text>'
        )
    centre = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text class="axis" x="{centre}" y="{HEIGHT - 5}" text-anchor="middle">epoch</text>')
    return "".join(parts)


def line_chart(
    title: str,
    epochs: Sequence[float | int],
    series: Sequence[Series],
    *,
    log: bool = False,
    write: Callable[[float], str] = number,
) -> Markup:
    """Draw lines over epochs.

    Args:
        title: What is drawn; heading of the figure and its name for screen readers.
        epochs: Of each value.
        series: The lines; each has as many values as there are epochs. Lines without any value are left out.
        log: Whether the y axis is logarithmic; values that are not positive are then gaps.
        write: How a y value is written.

    Returns:
        A `<figure>`; where there is nothing to draw it says so.
    """
    for line in series:
        assert len(line.values) == len(epochs), f"{line.label}: {len(line.values)} values over {len(epochs)} epochs"
    shown = [line for line in series if any(_drawable(value, log) for value in line.values)]
    heading = f"<figcaption>{escape(title)}{' <small>log scale</small>' if log else ''}</figcaption>"
    if not shown:
        return Markup(f'<figure class="chart">{heading}<p class="empty">Nothing measured yet.</p></figure>')
    heights = [value for line in shown for value in line.values if value is not None and _drawable(value, log)]
    across = linear_axis(epochs, whole=True)
    up = log_axis(heights) if log else linear_axis(heights)
    lines, legend = [], []
    for index, line in enumerate(shown):
        path, marks, pen = list[str](), list[str](), "M"  # which begins a line, where L goes on
        dense = " dense" if sum(_drawable(value, log) for value in line.values) > 30 else ""
        for position, (epoch, value) in enumerate(zip(epochs, line.values, strict=True)):
            if value is None or not _drawable(value, log):
                pen = "M"
                continue
            px = LEFT + across.fraction(epoch) * (WIDTH - LEFT - RIGHT)
            py = HEIGHT - BOTTOM - up.fraction(value) * (HEIGHT - TOP - BOTTOM)
            path.append(f"{pen}{px:.1f} {py:.1f}")
            pen = "L"
            told = f"epoch {number(epoch)}, {escape(line.label)}: {escape(write(value))}"
            marks.append(
                f'<circle class="mark{dense}" data-index="{position}" cx="{px:.1f}" cy="{py:.1f}" r="3.2">'
                f"<title>{told}</title></circle>"
            )
        lines.append(f'<g class="series-{index % 6}"><path class="line" d="{"".join(path)}"/>{"".join(marks)}</g>')
        swatch = f'<svg class="swatch series-{index % 6}" viewBox="0 0 26 8" aria-hidden="true">'
        legend.append(f'<li>{swatch}<path class="line" d="M1 4H25"/></svg>{escape(line.label)}</li>')
    names = escape(f"{title}: {', '.join(line.label for line in shown)} over epoch")
    return Markup(
        f'<figure class="chart">{heading}<ul class="legend">{"".join(legend)}</ul>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{names}">'
        f"{_frame(across, up, write)}{''.join(lines)}</svg>"
        '<p class="readout" data-hint="Point or use arrow keys to read values." hidden></p></figure>'
    )

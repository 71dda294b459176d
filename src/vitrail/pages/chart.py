"""Line charts: axes with round ticks, and where each point lies; `chart.html` draws them as inline SVG.

Values that are missing or not finite leave a gap in the line. Nothing is smoothed. Colours come from the page's style
(`.series-0`, `.series-1`, ...), so that they follow light and dark; the lines also differ by dashes and marks.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vitrail.text import number

Numbers = Sequence[float | int]
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


def linear_axis(values: Numbers, whole: bool = False) -> Axis:
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


def log_axis(values: Numbers) -> Axis:
    """A logarithmic axis over positive values: powers of ten, and their doubles and fives where there are few."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    high = max(high, low + 1)
    decades = high - low
    stride = math.ceil(decades / 6)
    factors = (1, 2, 5) if decades <= 2 else (1,)
    ticks = [f * 10.0**p for p in range(low, high, stride) for f in factors] + [10.0**high]
    return Axis(10.0**low, 10.0**high, tuple(float(f"{t:.12g}") for t in ticks), log=True)


@dataclass(frozen=True)
class Chart:
    """Lines over epochs, and the axes that hold them; from `line_chart`, for the template.

    Args:
        title: What is drawn; heading of the figure and its name for screen readers.
        epochs: Of each value.
        series: The lines that have any value; None where one cannot be drawn.
        x: The axis of the epochs.
        y: The axis of the values.
        write: How a value is written.
        along: What the lines go over.
    """

    title: str
    epochs: Numbers
    series: Sequence[Series]
    x: Axis
    y: Axis
    write: Callable[[float], str]
    along: str = "epoch"

    def points(self, line: Series) -> list[tuple[int, float | int, float | int]]:
        """Position, epoch and value of each point of a line."""
        pairs = enumerate(zip(self.epochs, line.values, strict=True))
        return [(i, epoch, value) for i, (epoch, value) in pairs if value is not None]

    def across(self, epoch: float | int) -> float:
        """Where an epoch lies: its distance from the left of the drawing."""
        return LEFT + self.x.fraction(epoch) * (WIDTH - LEFT - RIGHT)

    def down(self, value: float | int) -> float:
        """Where a value lies: its distance from the top of the drawing."""
        return HEIGHT - BOTTOM - self.y.fraction(value) * (HEIGHT - TOP - BOTTOM)


def line_chart(
    title: str, epochs: Numbers, series: Sequence[Series], *, log: bool = False, write: Callable[[float], str] = number
) -> Chart:
    """Lines over epochs; see `Chart`. Lines without any value are left out; on a log axis only positive ones count."""
    shown, every = [], list[float]()
    for line in series:
        assert len(line.values) == len(epochs), f"{line.label}: {len(line.values)} values over {len(epochs)} epochs"
        values = [None if v is None or not math.isfinite(v) or (log and v <= 0) else v for v in line.values]
        if found := [value for value in values if value is not None]:
            shown.append(Series(line.label, values))
            every += found
    if not every:
        return Chart(title, epochs, (), Axis(0.0, 1.0), Axis(0.0, 1.0), write)
    y = log_axis(every) if log else linear_axis(every)
    return Chart(title, epochs, shown, linear_axis(epochs, whole=True), y, write)

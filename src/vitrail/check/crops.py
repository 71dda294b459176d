"""Images that are a part of another one: at least seven tenths of its height and of its width, at any place.

A stretch of rows and one of columns are a window, and a grid of windows lies over each thumbnail. Windows and whole
thumbnails are compared by the low frequencies of their grey, each weighed so that it counts as much as the others do.
What is alike is compared again, with the window moved and stretched a little, by more frequencies and by its light and
colours, which a part keeps. The time grows with the square of the number of images.
"""

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
from jaxtyping import Float32, Int64
from numpy.typing import NDArray

SMALLEST, LARGEST = 0.7, 0.96  # sides of windows, of a side of the image
STEP = 0.09  # of a window's side, from one window to the next
FEW, MANY, COLOURS = 7, 12, 3  # frequencies in each direction: of all windows, of those that are alike, of colour
ALIKE, SURE = 0.82, 0.88  # cosines of both greys, at least
LIGHT, COLOUR = 8, 4  # levels by which the mean of grey and the frequencies of colour may differ
MOVED, STRETCHED = (-0.025, 0.0, 0.025), (-0.035, 0.0, 0.035)  # of the image's side
BLOCK = 16  # images whose windows are compared at a time

Stretch = tuple[float, float]
"""Start and length, of a side that is 1."""

WHOLE = [(0.0, 1.0)]


def crop_pairs(
    rows: NDArray[Any], progress: Callable[[int, int], object] = lambda done, total: None
) -> Int64[np.ndarray, "m 2"]:
    """Pairs of an image and one that is a part of it, in this order.

    Args:
        rows: (n,) of a survey, none of them flat.
        progress: Called with the number of images whose windows were compared with all others, and of all.
    """
    grid, found = _grid(), list[tuple[int, int]]()
    whole = _unit(_frequencies(rows["grey"], WHOLE, WHOLE, FEW))[:, 0]
    for start in range(0, len(rows), BLOCK):
        windows = _unit(_frequencies(rows["grey"][start : start + BLOCK], grid, grid, FEW))
        for own, mine in enumerate(windows, start):
            alike = mine @ whole.T
            others = np.flatnonzero(alike.max(axis=0) >= ALIKE)
            for other in others[others != own].tolist():
                down, across = divmod(_place_of_best(alike[:, other]), len(grid))
                if _is_part(rows[own], rows[other], grid[down], grid[across]):
                    found.append((own, other))
        progress(min(start + BLOCK, len(rows)), len(rows))
    return np.array(found, np.int64).reshape(-1, 2)


def _is_part(own: Any, other: Any, down: Stretch, across: Stretch) -> bool:
    """Whether another image is what a window near this one shows."""
    rows, columns = _around(down), _around(across)
    greys = _unit(_frequencies(own["grey"][None], rows, columns, MANY))[0]
    cosines = greys @ _unit(_frequencies(other["grey"][None], WHOLE, WHOLE, MANY))[0, 0]
    row, column = divmod(_place_of_best(cosines), len(columns))

    def apart(mine: NDArray[np.uint8], theirs: NDArray[np.uint8], count: int) -> float:
        window = _frequencies(mine[None], [rows[row]], [columns[column]], count)
        return float(np.abs(window - _frequencies(theirs[None], WHOLE, WHOLE, count)).max())

    return bool(
        cosines.max() >= SURE
        and apart(own["grey"], other["grey"], 1) <= LIGHT
        and all(apart(own["colour"][..., one], other["colour"][..., one], COLOURS) <= COLOUR for one in (0, 1))
    )


def _place_of_best(values: Float32[np.ndarray, " w"]) -> int:
    """Of the highest, the first of equal ones."""
    return int(np.flatnonzero(values == values.max())[0])


def _around(stretch: Stretch) -> list[Stretch]:
    """The same, moved and stretched a little about its middle."""
    start, length = stretch
    return [(start + moved - more / 2, length + more) for moved, more in product(MOVED, STRETCHED)]


def _grid() -> list[Stretch]:
    """Those that windows are made of."""
    lengths, found = SMALLEST * (1 + 1.3 * STEP) ** np.arange(20), list[Stretch]()
    for length in lengths[lengths <= LARGEST].tolist():
        gaps = max(1, int(np.ceil((1 - length) / (STEP * length))))
        found += [(place, length) for place in np.linspace(0, 1 - length, gaps + 1).tolist()]
    return found


def _waves(stretches: list[Stretch], count: int, pixels: int) -> Float32[np.ndarray, "s k p"]:
    """What each pixel of a side adds to the first frequencies of a stretch of it, by the cosine transform."""
    edges, wave, found = np.arange(pixels + 1) / pixels, np.arange(count)[:, None], list[NDArray[np.float64]]()
    for start, length in stretches:
        place = (np.clip(edges, start, start + length) - start) / length
        found.append(np.diff(np.where(wave == 0, place, np.sin(np.pi * wave * place) / (np.pi * np.maximum(wave, 1)))))
    return np.array(found, np.float32)


def _frequencies(
    planes: NDArray[np.uint8], down: list[Stretch], across: list[Stretch], count: int
) -> Float32[np.ndarray, "n w d"]:
    """Of each window of each plane (n, p, p), mean first."""
    sides = [_waves(stretches, count, planes.shape[1]) for stretches in (down, across)]
    found = np.einsum("aky,nyx,blx->nabkl", sides[0], planes.astype(np.float32), sides[1], optimize=True)
    return found.reshape(len(planes), len(down) * len(across), count * count)


def _unit(waves: Float32[np.ndarray, "n w d"]) -> Float32[np.ndarray, "n w d"]:
    """The same but for the mean, weighed by frequency, since those of photographs fall as 1 / f, and of length 1."""
    wave = np.arange(round(waves.shape[2] ** 0.5))
    weighed = waves * np.hypot(wave[:, None], wave).astype(np.float32).ravel()
    return weighed / np.maximum(np.linalg.norm(weighed, axis=2, keepdims=True), 1e-6)

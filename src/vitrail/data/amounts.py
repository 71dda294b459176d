"""The columns of a list that hold numbers, and which of them are amounts: no numbers of classes."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vitrail.errors import DataError

if TYPE_CHECKING:
    from vitrail.data.tables import Listing

UNKNOWN = {"", "nan", "na", "n/a", "none", "null"}  # cells of a column of numbers
AMOUNTS = {"count", "score", "age"}  # names of columns of numbers that are no numbers of classes
FEW_EACH = 5  # images of a number, below which numbers are no classes
MANY = 20  # rows from which a column whose values are all different is one of ids


def numbers_in(table: "Listing", names: Sequence[str]) -> NDArray[np.float64] | None:
    """The cells of some columns as numbers, NaN where none is known, or all are 0 and 1.

    None where they are words: in more than a tenth of the cells of a column, or where the other cells are no amounts.
    """
    some = [list(map(_number, table.some(name))) for name in names]  # most are words, as these show
    if not some or any(10 * cells.count(None) > len(cells) for cells in some):
        return None
    every = [list(map(_number, table.columns[name])) for name in names]
    found = np.array(every, np.float64).T
    if np.isnan(found).all() or (any(None in cells for cells in every) and not amounts_in(names, found)):
        return None
    return None if len(names) > 1 and {*np.unique(found[~np.isnan(found)])} <= {0, 1} else found


def _number(cell: Any) -> float | None:
    """A cell as a number, NaN where none is known; None for a word."""
    try:
        return np.nan if cell is None or str(cell).strip().lower() in UNKNOWN else float(cell)
    except (TypeError, ValueError):
        return None


def refuse_others(table: "Listing", names: Sequence[str]) -> None:
    """Refuse words and infinite numbers among the cells of some columns of numbers.

    Raises:
        DataError: There are some; names the first.
    """
    for name in names:
        if wrong := [
            row for row, cell in enumerate(table.columns[name]) if (found := _number(cell)) is None or np.isinf(found)
        ]:
            more = (
                f", as {len(wrong) - 1:,} more of {len(table):,} cells are no finite numbers" if len(wrong) > 1 else ""
            )
            problem = (
                f"{table.where(wrong[0])}: the {name} is {str(table.columns[name][wrong[0]])!r}, no finite number{more}"
            )
            raise DataError(problem, table.show(wrong[0], "write a number there, or leave it empty"))


def amounts_in(names: Sequence[str], numbers: NDArray[np.float64]) -> list[str]:
    """The columns (n, names) whose numbers are amounts, and no numbers of classes.

    They are by their name, where some are not whole or below 0, and where most stand at few images.
    """
    amounts = list[str]()
    for name, own in zip(names, numbers.T, strict=True):
        known = own[np.isfinite(own)]
        odd = name.lower() in AMOUNTS or (known % 1).any() or (known < 0).any()
        if odd or len(np.unique(known)) > max(MANY, len(known) / FEW_EACH):
            amounts.append(name)
    return amounts

"""A share as a percentage, which never reads 0 or 100 unless it is exactly that: in tables, and inside sentences."""

import math


def percent(share: float | int | None, digits: int = 1) -> str:
    """For tables, where many stand below each other: so many decimals, signs at the ends, a dash for what is not known.

    97.68 %, > 99.9 %, < 0.1 %, 100 %.
    """
    if share is None or not math.isfinite(share):
        return "–"
    shown = f"{100 * share:.{digits}f}"
    nearly = 10.0**-digits
    if share < 1 and float(shown) >= 100:
        return f"> {100 - nearly:.{digits}f} %"
    if share > 0 and float(shown) == 0:
        return f"< {nearly:.{digits}f} %"
    return f"{shown} %" if share not in (0, 1) else f"{100 * share:.0f} %"


def percent_in_words(share: float) -> str:
    """For sentences: whole numbers, a decimal near 0 and 100 alone, and words at the ends.

    98 %, 99.5 %, over 99.9 %, under 0.1 %, 100 %.
    """
    if 0.01 <= share <= 0.99 or share in (0.0, 1.0):
        return f"{100 * share:.0f} %"
    if share < 0.0005:
        return "under 0.1 %"
    return "over 99.9 %" if share > 0.9995 else f"{100 * share:.1f} %"

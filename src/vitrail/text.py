"""How numbers look in tables and sentences.

A fraction as a percentage never reads 0 or 100 unless it is exactly that.

What belongs together is joined by no-break spaces, wherever it is shown: no line ends between a number and its sign.
"""

import math

JOIN = "\u00a0"  # a space at which no line breaks


def percent(fraction: float | int | None, digits: int = 1) -> str:
    """For tables, where many stand below each other: so many decimals, signs at the ends, a dash for what is not known.

    97.68 %, > 99.9 %, < 0.1 %, 100 %.
    """
    if fraction is None or not math.isfinite(fraction):
        return "–"
    shown = f"{100 * fraction:.{digits}f}"
    nearly = 10.0**-digits
    if fraction < 1 and float(shown) >= 100:
        return f">{JOIN}{100 - nearly:.{digits}f}{JOIN}%"
    if fraction > 0 and float(shown) == 0:
        return f"<{JOIN}{nearly:.{digits}f}{JOIN}%"
    return f"{shown}{JOIN}%" if fraction not in (0, 1) else f"{100 * fraction:.0f}{JOIN}%"


def percent_in_words(fraction: float) -> str:
    """For sentences: whole numbers, a decimal near 0 and 100 alone, and words at the ends.

    98 %, 99.5 %, over 99.9 %, under 0.1 %, 100 %.
    """
    if 0.01 <= fraction <= 0.99 or fraction in (0.0, 1.0):
        return f"{100 * fraction:.0f}{JOIN}%"
    if fraction < 0.0005:
        return f"under{JOIN}0.1{JOIN}%"
    return f"over{JOIN}99.9{JOIN}%" if fraction > 0.9995 else f"{100 * fraction:.1f}{JOIN}%"

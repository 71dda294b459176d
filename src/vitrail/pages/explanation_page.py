"""The page of an explanation: each picture, the model's answer, and the maps that say where it came from.

A map is shown as the model saw the picture: one colour per square, not blurred, with its real range in the legend.
What a method cannot tell is said beside its map, not in a footnote. The values stand in the page once, as a table; the
page's script reads them from there.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float, UInt8

from vitrail.pages.colour import DIVERGING, SEQUENTIAL, Range, grey, heat_colours, value_range
from vitrail.pages.html import data_uri, document, escape, number, percent, plural, write_page

# What each method is, and what it leaves out. Other methods are described by their two flags alone.
_ABOUT = {
    "raw_attention": (
        "Raw attention shows how strongly the part of the network that gives the answer attends to each square, in one "
        "block. What the squares had exchanged before, and what is done with them after, is not in it."
    ),
    "rollout": (
        "Rollout (Abnar and Zuidema, 2020) multiplies the attention of all blocks, with the skip connections added, "
        "into one map of where information could have come from. It knows nothing of the class, of the values that "
        "were passed on, or of what was done with them."
    ),
    "cross_attention": (
        "Cross-attention shows, for one written token, how the part of the network that writes shared its attention "
        "among the squares, as the mean over all blocks and heads. It says where it read; what the part that reads had "
        "brought to a square from others before is not in it."
    ),
    "generic_attention": (
        "Generic attention (Chefer, Gur and Wolf, 2021) weighs the attention of every block by how much the class's "
        "score would react to it, keeps what raises the score, and adds it up over the blocks. It shows only what "
        "speaks for the class, never what speaks against it, and it is a rule of thumb, not a sum that gives the score."
    ),
}


@dataclass(frozen=True)
class HeatView:
    """One map over one picture.

    Args:
        method: Name of the method, such as `generic_attention`.
        title: The same for people, such as `Generic attention`.
        target: Name of the class whose score is explained.
        logit: That class's score before softmax.
        values: One number per patch, in the method's own unit.
        signed: Whether the sign means for and against.
        class_specific: Whether another class would give another map.
        notes: Caveats that the method itself found.
    """

    method: str
    title: str
    target: str
    logit: float
    values: Float[np.ndarray, "rows columns"]
    signed: bool
    class_specific: bool
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ExplainedPicture:
    """One picture, the model's answer, and the maps that explain it.

    Args:
        name: Where the picture comes from, such as a file name.
        picture: (h, w) or (h, w, 3) uint8, as the model saw it, before normalisation.
        true_label: Its true class, where known.
        top: The likeliest classes with their probabilities in [0, 1], best first.
        heats: The maps.
    """

    name: str
    picture: UInt8[np.ndarray, "h w *channels"]
    true_label: str | None
    top: list[tuple[str, float]]
    heats: list[HeatView]


@dataclass(frozen=True)
class ExplanationPage:
    """Everything that an explanation page shows.

    Args:
        title: Headline of the page.
        model: Name of the model.
        command: The command line that made the page.
        pictures: What is explained.
        about_probabilities: What to know of the probabilities that the page shows, in a sentence; may be empty.
    """

    title: str
    model: str
    command: str
    pictures: list[ExplainedPicture]
    about_probabilities: str = ""


def _defs() -> str:
    """The two colour scales, as gradients for the legends."""
    gradients = []
    for name, scale in (("sequential", SEQUENTIAL), ("diverging", DIVERGING)):
        stops = "".join(
            f'<stop offset="{100 * i / (len(scale) - 1):g}%" stop-color="rgb({red},{green},{blue})"/>'
            for i, (red, green, blue) in enumerate(scale)
        )
        gradients.append(f'<linearGradient id="scale-{name}">{stops}</linearGradient>')
    return f'<svg class="defs" width="0" height="0" aria-hidden="true"><defs>{"".join(gradients)}</defs></svg>'


def _picture(picture: np.ndarray, index: int, said: str) -> str:
    """The picture as the model saw it, and once more in grey if it has colours; the maps refer to the grey one."""
    height, width = picture.shape[:2]
    small = " small" if max(height, width) <= 96 else ""
    own_name, in_grey = f' id="grey-{index}"', ""
    if picture.ndim > 2:
        own_name = ""
        in_grey = (
            '<svg class="defs" width="0" height="0" aria-hidden="true"><defs>'
            f'<image id="grey-{index}" width="{width}" height="{height}" href="{data_uri(grey(picture))}"/></defs>'
            "</svg>"
        )
    return (
        f'<svg class="stage{small}" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(said)}">'
        f'<image class="photo"{own_name} width="{width}" height="{height}" href="{data_uri(picture)}"/></svg>{in_grey}'
    )


def _grid(height: int, width: int, rows: int, columns: int) -> str:
    """The lines between squares, as one path."""
    across = "".join(f"M0 {height * i / rows:.4g}H{width}" for i in range(1, rows))
    down = "".join(f"M{width * i / columns:.4g} 0V{height}" for i in range(1, columns))
    return f'<path class="lines" d="{across}{down}"/>'


def _legend(heat: HeatView, shown: Range) -> str:
    """The colour scale with the values of its ends."""
    if heat.signed:
        ends = (f"{number(shown.low, 3)} against", "0", f"{number(shown.high, 3)} for")
        below = f"Smallest value {number(shown.smallest, 3)}, largest {number(shown.largest, 3)}."
    else:
        ends = (f"{number(shown.smallest, 3)} smallest", "", f"{number(shown.largest, 3)} largest")
        below = "Colours run from the smallest value of this map to its largest."
        if shown.smallest > 0 and shown.largest < 2 * shown.smallest:
            times = number(shown.largest / shown.smallest, 3)
            below += f" They are close: the largest is only {times} times the smallest."
    missing = f" {plural(shown.missing, 'square')} without a number, shown in grey." if shown.missing else ""
    scale = "diverging" if heat.signed else "sequential"
    named = "".join(f"<span>{end}</span>" for end in ends)
    return (
        f'<div class="scale"><svg aria-hidden="true" viewBox="0 0 100 6" preserveAspectRatio="none">'
        f'<rect width="100" height="6" fill="url(#scale-{scale})"/></svg>'
        f'<p class="ends">{named}</p><p class="range">{below}{missing}</p></div>'
    )


def _values_table(values: np.ndarray) -> str:
    """The values, four digits each: what screen readers read and what the script takes its numbers from."""
    head = "".join(f'<th scope="col">{column + 1}</th>' for column in range(values.shape[1]))
    rows = "".join(
        f'<tr><th scope="row">{row + 1}</th>{"".join(f"<td>{value:.4g}</td>" for value in line)}</tr>'
        for row, line in enumerate(values.tolist())
    )
    return (
        '<details><summary>Values as a table</summary><div class="scroll"><table class="values">'
        f'<thead><tr><td class="corner">row \\ column</td>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
        "</details>"
    )


def _sentence(heat: HeatView, answer: str | None) -> str:
    """What this map explains, in plain words, and what it cannot tell."""
    method = escape(heat.method.replace("_", " "))
    target = escape(heat.target)
    if not heat.class_specific:
        return (
            f"<p>A map by {method}. <strong>This method cannot tell classes apart</strong>: it shows where information "
            f"could flow from, not why it is <b>{target}</b>.</p>"
        )
    other = "" if answer is None or heat.target == answer else " This is not the class that the model chose."
    return f"<p>This map explains the score of <b>{target}</b> (logit {number(heat.logit, 3)}) by {method}.{other}</p>"


def _heat(heat: HeatView, explained: ExplainedPicture, index: int) -> str:
    """One map over its picture, with its legend, its sentence, its caveats and its values."""
    height, width = explained.picture.shape[:2]
    rows, columns = heat.values.shape
    shown = value_range(heat.values, heat.signed)
    small = " small" if max(height, width) <= 96 else ""
    layer = ""
    if not shown.flat:
        squares = data_uri(heat_colours(heat.values, heat.signed))
        layer = f'<image class="heat" width="{width}" height="{height}" preserveAspectRatio="none" href="{squares}"/>'
        legend = _legend(heat, shown)
    elif shown.missing == heat.values.size:
        legend = '<p class="no-signal"><strong>No signal.</strong> No square has a number.</p>'
    else:
        value = number(shown.smallest, 3)
        legend = f'<p class="no-signal"><strong>No signal.</strong> Every square has the same value, {value}.</p>'
    answer = explained.top[0][0] if explained.top else None
    notes = "".join(f"<li>{escape(note)}</li>" for note in heat.notes)
    notes = f'<ul class="notes">{notes}</ul>' if notes else ""
    said = escape(f"{heat.title} of {explained.name}: {rows} rows by {columns} columns of squares")
    return (
        f'<figure class="map"><figcaption>{escape(heat.title)}</figcaption>'
        f'<svg class="stage{small}" data-rows="{rows}" data-columns="{columns}" viewBox="0 0 {width} {height}" '
        f'role="img" aria-label="{said}"><use class="photo" href="#grey-{index}"/>'
        f"{layer}{_grid(height, width, rows, columns)}</svg>"
        '<p class="readout" data-hint="Point at a square or use arrow keys." hidden></p>'
        f"{legend}{_sentence(heat, answer)}{notes}{_values_table(heat.values)}</figure>"
    )


def _answer(explained: ExplainedPicture) -> str:
    """The model's answer in a sentence, and the likeliest classes as bars."""
    if not explained.top:
        return '<p class="verdict">The model gave no answer.</p>'
    name, probability = explained.top[0]
    verdict = f"The model says <b>{escape(name)}</b> ({percent(probability)})."
    if explained.true_label is not None:
        right = explained.true_label == name
        mark = "✓ That is its label." if right else f"✗ Its label is <b>{escape(explained.true_label)}</b>."
        verdict += f' <span class="{"right" if right else "wrong"}">{mark}</span>'
    bars = "".join(
        f'<tr><th scope="row">{escape(label)}</th><td><svg class="bar" aria-hidden="true"><rect class="track" '
        f'width="100%" height="6" rx="3"/><rect class="fill" width="{100 * min(1, max(0, share)):.2f}%" height="6" '
        f'rx="3"/></svg></td><td class="figure">{percent(share)}</td></tr>'
        for label, share in explained.top
    )
    return f'<p class="verdict">{verdict}</p><table class="top"><tbody>{bars}</tbody></table>'


def _case(explained: ExplainedPicture, index: int) -> str:
    """One picture: what it is, what the model says, and its maps."""
    height, width = explained.picture.shape[:2]
    maps = "".join(_heat(heat, explained, index) for heat in explained.heats)
    said = f"{explained.name}, as the model saw it"
    return (
        f'<section class="case"><h2>{escape(explained.name)}</h2><div class="case-body"><div class="subject">'
        f"<figure><figcaption>The picture</figcaption>{_picture(explained.picture, index, said)}"
        f'<p class="note">{width} × {height} pixels, as the model saw it.</p></figure>{_answer(explained)}</div>'
        f'<div class="maps">{maps}</div></div></section>'
    )


def _trust(page: ExplanationPage) -> str:
    """What a reader may conclude, and what not."""
    methods = {heat.method: heat for explained in page.pictures for heat in explained.heats}
    about = "".join(f"<li>{escape(_ABOUT[name])}</li>" for name in methods if name in _ABOUT)
    some_blind = any(not heat.class_specific for heat in methods.values())
    blind = (
        "<li>A map by a method that cannot tell classes apart would look the same for every class. It is no reason "
        "for the answer.</li>"
        if some_blind
        else ""
    )
    shares = f"<li>{escape(page.about_probabilities)}</li>" if page.about_probabilities else ""
    return (
        '<section class="trust"><h2>How far to trust this</h2><ul class="notes">'
        "<li><strong>No faithfulness score is computed yet in this version.</strong> Nothing on this page measures "
        "whether the bright squares are really the ones that decided; treat a map as a hint to look closer.</li>"
        f"{shares}{about}{blind}"
        "<li>A map speaks about the model, not about the world: it can show what moved this score, not what is true, "
        "and a plausible map does not make an answer right.</li>"
        "<li>Colours are scaled for each map by itself. Compare numbers between maps, not colours.</li></ul></section>"
    )


_CONTROLS = (
    '<div class="controls" hidden><label>Heat <input type="range" id="strength" min="0" max="100" value="65"> '
    '<output for="strength">65 %</output></label>'
    '<label><input type="checkbox" id="smooth"> smooth</label><label><input type="checkbox" id="numbers"> numbers'
    '</label><label><input type="checkbox" id="lines" checked> lines</label></div>'
)


def explanation_page(page: ExplanationPage) -> str:
    """The page of an explanation as text; the same values always give the same text."""
    count = plural(len(page.pictures), "picture")
    cases = "".join(_case(explained, index) for index, explained in enumerate(page.pictures))
    cases = cases or '<p class="empty">No picture.</p>'
    command = f"<section><h2>How it was made</h2><pre>{escape(page.command)}</pre></section>" if page.command else ""
    body = (
        f"{_defs()}<main><header><h1>{escape(page.title)}</h1>"
        f'<p class="interval">{count}, explained with the model <b>{escape(page.model)}</b>.</p></header>'
        f"{_CONTROLS}{cases}{_trust(page)}{command}</main>"
    )
    return document(f"{page.title} · explanation", body)


def write_explanation_page(path: Path, page: ExplanationPage) -> None:
    """Write the page of an explanation, replacing an older one in one step.

    Args:
        path: Where to; its folder is made where needed.
        page: What to show.

    Raises:
        OSError: The file cannot be written.
    """
    write_page(path, explanation_page(page))

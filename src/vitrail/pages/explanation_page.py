"""The page of an explanation: each picture, the model's answer, and the maps that say where it came from.

What a method cannot tell, and how far to trust its map, is said beside the map, not in a footnote.
"""

from pathlib import Path

import numpy as np

from vitrail.io import write_file
from vitrail.pages.colour import DIVERGING, EVEN, SEQUENTIAL, common_scale, grey
from vitrail.pages.html import bar, data_uri, document, escape, plural, small
from vitrail.pages.maps import at_a_glance, map_figure
from vitrail.pages.trust import how_tested, shared_block
from vitrail.pages.views import ExplainedPicture, ExplanationPage
from vitrail.pages.words import tests_of
from vitrail.text import joined, percent, percent_in_words

KIND = "explanation"  # by which the page is known again
FEW = 3  # maps that stand beside the picture; more stand below it


def scale_defs() -> str:
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
    own_name, in_grey = f' id="grey-{index}"', ""
    if picture.ndim > 2:
        own_name = ""
        in_grey = (
            '<svg class="defs" width="0" height="0" aria-hidden="true"><defs>'
            f'<image id="grey-{index}" width="{width}" height="{height}" href="{data_uri(grey(picture))}"/></defs>'
            "</svg>"
        )
    return (
        f'<svg class="stage{small(picture)}" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(said)}">'
        f'<image class="photo"{own_name} width="{width}" height="{height}" href="{data_uri(picture)}"/></svg>{in_grey}'
    )


def _other(explained: ExplainedPicture) -> str:
    """The other picture, where maps explain how alike both are."""
    if explained.other is None:
        return ""
    name, picture = explained.other
    height, width = picture.shape[:2]
    return (
        f'<figure><figcaption>Held against</figcaption><svg class="stage{small(picture)}" role="img" '
        f'viewBox="0 0 {width} {height}" aria-label="{escape(name)}"><image class="photo" width="{width}" '
        f'height="{height}" href="{data_uri(picture)}"/></svg><p class="note">{escape(name)}</p></figure>'
    )


def _answer(explained: ExplainedPicture) -> str:
    """The model's answer in a sentence, and the likeliest classes as bars."""
    if not explained.top:
        return f'<p class="verdict">{escape(explained.answer or "The model gave no answer.")}</p>'
    name, probability = explained.top[0]
    verdict = f"The model says <b>{escape(name)}</b> ({joined(percent_in_words(probability))})."
    if explained.true_label is not None:
        right = explained.true_label == name
        mark = "✓ That is its label." if right else f"✗ Its label is <b>{escape(explained.true_label)}</b>."
        verdict += f' <span class="{"right" if right else "wrong"}">{mark}</span>'
    bars = "".join(
        f'<tr><th scope="row">{escape(label)}{bar(share)}</th><td class="figure">{escape(percent(share))}</td></tr>'
        for label, share in explained.top
    )
    return f'<p class="verdict">{verdict}</p><table class="top"><tbody>{bars}</tbody></table>'


def _case(explained: ExplainedPicture, index: int, one_scale: bool) -> str:
    """One picture: what it is, what the model says, and its maps."""
    height, width = explained.picture.shape[:2]
    common = common_scale([heat.values for heat in explained.heats]) if one_scale and explained.heats else None
    maps = "".join(map_figure(heat, explained, index, common) for heat in explained.heats)
    alone = " alone" if len(explained.heats) == 1 else ""
    glance = at_a_glance(explained.heats) if len(explained.heats) > 1 else ""
    many = len(explained.heats) > FEW
    below, beside = (glance, "") if many else ("", glance)
    said = f"{explained.name}, as the model saw it"
    return (
        f'<section class="case"><h2>{escape(explained.name)}</h2><div class="case-body{" many" if many else ""}">'
        f'<div class="subject"><figure><figcaption>The picture</figcaption>{_picture(explained.picture, index, said)}'
        f'<p class="note">As the model saw it ({width} × {height}).</p></figure>'
        f'<div class="said">{_answer(explained)}{shared_block(explained.heats)}</div>{_other(explained)}{below}</div>'
        f'<div class="shown">{beside}<div class="maps{alone}">{maps}</div></div></div></section>'
    )


def _trust(page: ExplanationPage) -> str:
    """What a reader may conclude, and what not."""
    heats = [heat for explained in page.pictures for heat in explained.heats]
    methods = {heat.method: heat for heat in heats}
    about = "".join(f"<li>{escape(heat.about)}</li>" for heat in methods.values() if heat.about)
    blind = (
        "<li>A map by a method that cannot tell what is explained would look the same for anything else. It is no "
        "reason for the answer.</li>"
        if any(not heat.class_specific for heat in methods.values())
        else ""
    )
    shares = f"<li>{escape(page.about_probabilities)}</li>" if page.about_probabilities else ""
    if any(heat.explains in ("similarity", "number") for heat in heats):
        named = escape(heats[0].target)
        about += f"<li>Where methods speak of a class and its score, here it is <b>{named}</b> that they explain.</li>"
    trusts = tests_of(heats)
    tested = (
        how_tested(trusts, heats[0].explains)
        if trusts
        else "<li><strong>These maps were not tested.</strong> Nothing on this page measures whether the bright "
        "squares are really the ones that decided; treat a map as a hint to look closer.</li>"
    )
    colours = (
        "<li>All maps of a picture have one colour scale: each square's share of its map's total, without sign. "
        "Colours go with the square root of the share, and the last one stands for at most twice the median of the "
        "maps' largest shares, so that one sharp map does not leave all others dark.</li>"
        if page.one_scale
        else "<li>Colours are scaled for each map by itself, from zero to its largest value, or to "
        f"{EVEN} times its mean where no square has as much, so that a map that prefers nothing stays dull. Compare "
        "numbers between maps, not colours.</li>"
    )
    return (
        f'<section class="trust"><h2>How far to trust this</h2><ul class="notes">{tested}{shares}{about}{blind}'
        "<li>A map speaks about the model, not about the world: it can show what moved this score, not what is true, "
        f"and a plausible map does not make an answer right.</li>{colours}</ul></section>"
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
    cases = "".join(_case(explained, index, page.one_scale) for index, explained in enumerate(page.pictures))
    cases = cases or '<p class="empty">No picture.</p>'
    command = f"<section><h2>How it was made</h2><pre>{escape(page.command)}</pre></section>" if page.command else ""
    body = (
        f"{scale_defs()}<main><header><h1>{escape(page.title)}</h1>"
        f'<p class="interval">{count}, explained with the model <b>{escape(page.model)}</b>.</p></header>'
        f"{_CONTROLS}{cases}{_trust(page)}{command}</main>"
    )
    return document(f"{page.title} · explanation", body, KIND)


def write_explanation_page(path: Path, page: ExplanationPage) -> None:
    """Write the page of an explanation, replacing an older one in one step.

    Args:
        path: Where to; its folder is made where needed.
        page: What to show.

    Raises:
        OSError: The file cannot be written.
    """
    write_file(path, explanation_page(page))

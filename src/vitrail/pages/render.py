"""What every page is made of: templates, images as data, and how a page is known again; where it goes; and each kind.

jinja2 makes pages of the templates beside this file, with one environment for all of them. Class names, file names and
settings come from strangers. Whatever a template shows is text (`autoescape`), without the characters that cannot stand
in a page (`finalize`); a name that is not there is an error. Only what a template or a chart of this folder made is
HTML already: it is `Markup`, and nothing else may be. A page forbids by Content-Security-Policy whatever it does not
carry itself: one style and one script, both named by their SHA-256, and images given as data.

The kinds are the pages of a run, an evaluation, an explanation, the nearest images and data, and maps in a notebook.
Each is what its template makes of plain values; the same values always give the same text. Everything is in a page
without its script; the script adds reading of values by pointer or arrow keys and the sorting of the class table.
"""

import base64
import hashlib
import inspect
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib import resources
from typing import Any, cast

import numpy as np
from jaxtyping import Float, UInt8
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape as escaped
from PIL import Image

from vitrail import text as words
from vitrail.io import AUDIT, DATA, EVALUATION, EXPLANATION, SHOW, SIMILAR
from vitrail.pages import chart, colour, trust
from vitrail.pages.chart import Chart, Series, line_chart, linear_axis
from vitrail.pages.colour import ColourRange, patch_colours
from vitrail.pages.image_views import ImageView, MadeView, Rates
from vitrail.pages.run_views import RunView
from vitrail.text import number, percent

# Control characters are not allowed in HTML; a lone surrogate (an undecodable file name) cannot be written as UTF-8;
# direction marks can make `exe.gpj` read as `jpg.exe`.
_UNWRITABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069\ufffe\uffff]")


def writable(value: object) -> str:
    """Any value as text, in which the replacement character stands for what cannot stand in a page.

    That is control characters, lone surrogates and direction overrides.
    """
    return _UNWRITABLE.sub("\ufffd", str(value))


def escape(text: object) -> str:
    """Make any value safe to stand in text or inside a quoted attribute: `writable`, with `& < > " '` as entities."""
    return str(escaped(writable(text)))


def data_uri(image: UInt8[np.ndarray, "h w *channels"]) -> str:
    """Write pixels as a PNG inside a `data:` address. Only the pixels enter: no metadata of any file survives.

    Args:
        image: (h, w) grey, (h, w, 3) colour or (h, w, 4) colour with opacity, uint8.

    Returns:
        `data:image/png;base64,...`; the same pixels always give the same text.
    """
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(image)).save(buffer, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def small(image: np.ndarray) -> str:
    """The style of an image whose pixels stay squares, beside another style; nothing for a larger one."""
    return " small" if max(image.shape[:2]) <= 96 else ""


def _finalize(value: object) -> str:
    return value if isinstance(value, Markup) else writable(value)


@cache
def template_environment() -> Environment:
    """The templates of this folder, and what they may call by name: the functions of three files, and three of this."""
    made = Environment(
        loader=PackageLoader("vitrail.pages"),
        autoescape=True,
        finalize=_finalize,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    for module in (words, colour, trust):
        made.filters |= {name: each for name, each in vars(module).items() if inspect.isfunction(each)}
    made.filters |= {"data_uri": data_uri, "small": small, "setting": setting}
    names = cast(dict[str, object], made.globals)  # jinja2 types them by those that it brings itself
    names |= {
        "scales": {"sequential": colour.SEQUENTIAL, "diverging": colour.DIVERGING},
        "even": colour.EVEN,
        "chart_box": (chart.WIDTH, chart.HEIGHT, chart.LEFT, chart.RIGHT, chart.TOP, chart.BOTTOM),
    }
    return made


def asset(name: str) -> str:
    """The text of a file that lies beside this one in the package (`page.css`, `page.js`)."""
    return resources.files("vitrail.pages").joinpath(name).read_text(encoding="utf-8")


def document(
    template: str, title: str, kind: str, values: Mapping[str, object], script: str = "page.js", policy: str = ""
) -> str:
    """A whole page, which allows itself one style, one script and images given as data, and nothing else.

    Args:
        template: Name of a template that extends `page.html`.
        title: Of the window.
        kind: What the page is of, in a word, by which `is_page` knows it again.
        values: What the template shows, by name.
        script: The file of its script.
        policy: What it allows itself instead; what `policy_of` says when empty.
    """
    assets = {"style": Markup(asset("page.css")), "script": Markup(asset(script))}
    around = {"policy": policy or policy_of(script), "kind": kind, "title": title, **assets}
    return template_environment().get_template(template).render({**values, **around})


def policy_of(script: str) -> str:
    """The Content-Security-Policy of a page with this script."""
    style, own = (content_hash(asset(name)) for name in ("page.css", script))
    sources = f"img-src data:; style-src '{style}'; script-src '{own}'"
    return f"default-src 'none'; {sources}; base-uri 'none'; form-action 'none'"


def content_hash(text: str) -> str:
    """The source expression by which a Content-Security-Policy names an inline style or script."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


def in_frame(page: str) -> str:
    """A page inside another document, such as a notebook: with its own style, and none of its scripts runs."""
    return f'<iframe sandbox="" srcdoc="{escape(page)}" style="width:100%;height:32rem;border:0"></iframe>'


# ---- the page of a run

_HISTORY = {
    "epoch": ("Epoch", number),
    "training_loss": ("Training loss", number),
    "validation_loss": ("Validation loss", number),
    "training_accuracy": ("Training accuracy", lambda fraction: percent(fraction, 2)),
    "training_label_accuracy": ("Training, single labels right", lambda fraction: percent(fraction, 2)),
    "training_token_accuracy": ("Training, single tokens right", lambda fraction: percent(fraction, 2)),
    "validation_accuracy": ("Validation accuracy", lambda fraction: percent(fraction, 2)),
    "learning_rate": ("Learning rate", number),
    "seconds": ("Seconds", lambda seconds: number(seconds, 3)),
    "images_per_second": ("{unit} per second", lambda rate: number(round(rate) if rate and rate >= 10 else rate, 3)),
    "waiting_fraction": ("Waiting for data", percent),
}


def history_table(
    history: Sequence[Mapping], unit: str = "image", metric: Mapping[str, Any] = {}
) -> tuple[list[str], list[list[str]]]:
    """The numbers of every epoch, as titles and rows of the columns that occur.

    Args:
        history: One mapping per epoch.
        unit: What one sample is called.
        metric: Title and writer of the columns of the metric, by their keys.
    """
    there = dict.fromkeys(key for row in history for key in row if row[key] is not None)
    others = [key for key in there if key.startswith(("training_", "validation_")) and key not in _HISTORY]
    columns = [key for key in (*_HISTORY, *others) if key in there]
    writers = {**_HISTORY, **{key: (_title(key), number) for key in others}, **metric}
    names = [writers[key][0].replace("{unit}", f"{unit}s".capitalize()) for key in columns]
    return names, [[writers[key][1](row.get(key)) for key in columns] for row in history]


def _title(key: str) -> str:
    """What stands over a figure of the history."""
    return _HISTORY[key][0] if key in _HISTORY else key.replace("_", " ").capitalize()


def setting(value: object) -> str:
    """A setting as a person would write it in YAML."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(setting, value)) if isinstance(value, (list, tuple)) else words.short_paths(value)


def _column(history: list[dict], key: str) -> list[float | int | None]:
    return [row.get(key) for row in history]


def _charts(run: RunView) -> list[Chart]:
    """Loss, metric, what else was measured, and learning rate over epochs; none where there was no epoch."""
    history = run.history
    if not history:
        return []
    epochs = [position + 1.0 if e is None else e for position, e in enumerate(_column(history, "epoch"))]
    training, validation = _column(history, "training_loss"), _column(history, "validation_loss")
    mark = f" ({run.changed} {run.unit}s)" if run.changed else ""
    losses = [value for value in training + validation if value is not None and value > 0]

    def write(value: float) -> str:
        return f"{number(100 * value)} %" if run.fraction else number(value)

    return [
        line_chart(
            "Loss",
            epochs,
            [Series("training" + mark, training), Series(run.scored, validation)],
            log=bool(losses) and max(losses) > 30 * min(losses),
        ),
        line_chart(
            run.metric.capitalize(),
            epochs,
            [Series(label + mark * key.startswith("training_"), _column(history, key)) for label, key in run.curves]
            + ([Series(run.level[0], [run.level[1]] * len(epochs))] if run.level else []),
            write=write,
        ),
        *(
            line_chart(_title(key), epochs, [Series("training" + mark, _column(history, key))], write=write)
            for key in run.measures
        ),
        line_chart("Learning rate", epochs, [Series("learning rate", _column(history, "learning_rate"))]),
    ]


def run_page(run: RunView) -> str:
    """The page of a run, in the order of a reader's questions: how good, how learnt, where it errs, how made."""
    write = _HISTORY["validation_accuracy"][1] if run.fraction else number
    metric = {key: (f"{key.partition('_')[0].capitalize()} {run.metric}", write) for _, key in run.curves}
    values = {"run": run, "charts": _charts(run), "epochs": history_table(run.history, run.unit, metric)}
    return document("run.html", f"{words.short_paths(run.title)} · run", "run", values)


def evaluation_page(
    found: Any, heading: str = "", facts: Sequence[tuple[str, str]] = (), command: str = "", about: str = ""
) -> str:
    """The page of an evaluation by itself: what came out, what was left out, its tables and examples.

    Args:
        found: A `vitrail.tasks.Result`, whose values the template reads.
        heading: What was evaluated on what; may be empty.
        facts: Headline pairs of label and value.
        command: The command line that made the page; may be empty.
        about: What to know of the probabilities that the page shows; may be empty.
    """
    values = {"found": found, "heading": heading, "facts": facts, "command": command, "about": about}
    return document("evaluation.html", f"{heading or found.split} · evaluation", EVALUATION, values)


# ---- the page of an explanation


def explanation_page(
    model: str,
    images: Sequence[ImageView],
    command: str = "",
    about_probabilities: str = "",
    rates: Sequence[Rates] = (),
    left_out: Sequence[str] = (),
    made: MadeView | None = None,
) -> str:
    """The page of an explanation: each image, the model's answer, and the maps that show where it came from.

    What a method cannot tell, and how far to trust its map, stands beside the map, not in a footnote. A map is shown as
    the model saw the image: one colour per patch, not blurred, with its range in the legend. A map that the evidence
    does not support is drawn pale, in a hatched frame. The values stand in the page once, as a table; the page's script
    reads them from there. Of several maps, a table shows verdicts and scores at a glance, on one axis.

    Args:
        model: Name of the model; empty where it is not known.
        images: What is explained.
        command: The command line that made the page.
        about_probabilities: What to know of the probabilities that the page shows, in a sentence; may be empty.
        rates: Of several images, how many explanations are supported, by method; the images then stand in the order in
            which they are to be looked at.
        left_out: Images that were not explained, with the reason, in words.
        made: When and with what it was made.
    """
    heading = f"Explanations of {model or images[0].name}"
    values = {
        "heading": heading,
        "model": model,
        "images": images,
        "command": command,
        "about_probabilities": about_probabilities,
        "rates": rates,
        "left_out": left_out,
        "made": made or MadeView(),
    }
    return document("explanation.html", f"{heading} · explanation", EXPLANATION, values)


# ---- the page of a server

ASKING = "serve.js"  # its script


@cache
def serve_page(models: tuple[str, ...]) -> tuple[str, str]:
    """The page on which an image is sent to a server, and its Content-Security-Policy: it may ask that server.

    Args:
        models: The names of those that answer.
    """
    policy = f"{policy_of(ASKING)}; connect-src 'self'"
    title = f"{models[0]} · vitrail" if len(models) == 1 else "vitrail"
    return document("serve.html", title, "serve", {"models": models}, ASKING, policy), policy


# ---- the page of the nearest images

LEAST = 0.05  # of the scale: pairs that have less beyond the usual everywhere stay dark


def similar_page(similar: Any, model: str, data: str, command: str = "") -> str:
    """The page of the nearest images: each with its distance, and where the two agree, patch to patch.

    An image and its neighbour stand side by side, each under the agreement of its own patches; all pairs of a page have
    one colour scale. Pointing at a patch marks its partner in the other image.

    Args:
        similar: A `vitrail.features.similar.Similar`, whose values the template reads.
        model: Name of the model, as it may be typed.
        data: What the images are called among which neighbours were looked for.
        command: The command line that made the page.
    """
    neighbours = [each for one in similar.found for each in one.neighbours]
    sides = [side for each in neighbours for side in (each.here, each.there) if side is not None]
    beyond = np.concatenate([side.beyond.ravel() for side in sides]) if sides else np.zeros(1)
    high = max(float(beyond.max()), LEAST)  # the most that any patch of a pair has beyond the usual
    scale, most = ColourRange(float(beyond.min()), high, 0.0, high, 0, False), number(high, 2)
    heading = f"Nearest to {similar.found[0].name}" if len(similar.found) == 1 else "Nearest images"
    ends = "0", f"cosine {most}"
    if any(side.usual.any() for side in sides):
        ends = "0: as similar as usual", f"{most} above the usual cosine"
    values = {
        "similar": similar,
        "model": model,
        "data": data,
        "command": command,
        "heading": heading,
        "agreed": bool(sides),
        "ends": ends,
        "colours": lambda side: patch_colours(np.maximum(side.beyond, 0), False, scale),
        "tests": [similar.explain_command(one, model) for one in similar.found],
    }
    return document("similar.html", f"{heading} · vitrail", SIMILAR, values)


def audit_page(audit: Any) -> str:
    """The page of an audit, to be signed: three sentences, tables and images, and what was not asked.

    Args:
        audit: A `vitrail.audit.Audit`, whose values the template reads.
    """
    command = " ".join(words.short_paths(word, 1) for word in audit.command.split())
    return document("audit.html", f"{audit.model} on {audit.data} · audit", AUDIT, {"audit": audit, "command": command})


def data_page(report: Any, groups: Sequence[Mapping[str, Any]], command: str = "") -> str:
    """The page of what was found in data: what to do first, the images of each finding, and tables folded.

    Args:
        report: A `vitrail.check.check.DataReport`, whose values the template reads.
        groups: Of its `to_dict`: in which ways images belong together.
        command: The command line that made the page.
    """
    values: dict[str, Any] = {"report": report, "groups": groups, "command": command, "chart": None}
    if curve := report.by_model.curve if report.by_model else ():
        middles, ends = [each["middle"] for each in curve], ("95 % interval, from", "95 % interval, to")
        lines = [Series("accuracy", [each["accuracy"] for each in curve])]
        lines += [Series(name, [each["interval"][end] for each in curve]) for end, name in enumerate(ends)]
        drawn = line_chart("Accuracy outside training", middles, lines, write=words.percent_in_words)
        values["chart"] = replace(drawn, x=linear_axis(middles), along="distance to the nearest training image")
    return document("data.html", f"{words.short_paths(report.data)} · data", DATA, values)


def show_page(shown: Any, command: str = "") -> str:
    """The page of images as a network sees them, each beside what it was, with what is cut away of it.

    Args:
        shown: A `vitrail.training.show.ShownData`, whose values the template reads.
        command: The command line that made the page.
    """
    values = {"shown": shown, "reads": shown.input, "changes": shown.settings.augmentation, "command": command}
    return document("show.html", f"{words.short_paths(shown.data)} · as a network sees it", SHOW, values)


# ---- in a notebook

# what a map is of, such as "image 0: class 3 (logit 8.21)", one number per patch, and its caveats
NotebookMap = tuple[str, Float[np.ndarray, "rows columns"], Sequence[str]]
MOST_MAPS = 12
MOST_PATCHES = 8192  # in all maps; where there are more, fewer maps are shown


def facts_html(heading: str, facts: Mapping[str, str]) -> str:
    """A small table: names and what they are, below a heading."""
    macros: Any = template_environment().get_template("notebook.html").module
    return str(macros.facts(heading, facts))


def attribution_html(heading: str, maps: Sequence[NotebookMap], signed: bool, class_specific: bool) -> str:
    """Maps side by side.

    Args:
        heading: Name of the method.
        maps: What to show, in order; at most a dozen are, and what is left out is counted.
        signed: Whether the sign means for and against.
        class_specific: Whether another class would give other maps.
    """
    patches = maps[0][1].size if maps else 1
    most = max(1, min(MOST_MAPS, MOST_PATCHES // max(1, patches)))
    macros: Any = template_environment().get_template("notebook.html").module
    return str(macros.attribution(heading, maps[:most], max(0, len(maps) - most), signed, class_specific))

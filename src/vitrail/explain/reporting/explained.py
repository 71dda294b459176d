"""The work of a report: some images at a time, from pixels to attributions with their verdicts.

An image is brought to the network's size once; one forward pass gives the model's answers, what is explained and
which patches are sinks. Then it is asked for evidence: of several images all, before any map is made. Then each method
runs, and each attribution is tested (`explain/compare.py`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import UInt8
from PIL import Image
from torch import Tensor

from vitrail.arguments import typed
from vitrail.data.images import NamedImage
from vitrail.errors import UsageError, check_index
from vitrail.explain.attribution import Attribution
from vitrail.explain.compare import Comparison, FirstPass, compare, first_pass
from vitrail.explain.forward import Gridded
from vitrail.explain.methods import METHODS_OF_TEXTS, Method
from vitrail.explain.methods.method import as_options
from vitrail.explain.reporting.known_masks import mask_patches
from vitrail.explain.reporting.plan import WRITTEN, ReportPlan
from vitrail.explain.reporting.summary import BELOW, summary_of
from vitrail.explain.scores.faithfulness import Pictured
from vitrail.explain.target import Contrast, Target, choose_target
from vitrail.explain.verdict import PreparedTest, TrustOptions, precision_for, prepare
from vitrail.model import Model
from vitrail.nn.twin import wide
from vitrail.pages.colour import overlay_of
from vitrail.pages.image_views import AreasView, AttributionView, Function, ImageView, ReplacedView, TrustView
from vitrail.pages.render import explanation_page, in_frame
from vitrail.tasks import Prediction
from vitrail.tasks.target import ChosenTarget


@dataclass(frozen=True, eq=False)
class ExplainedImage:
    """One image, the model's answer, and the attributions that explain it.

    Attributes:
        prediction: The model's answer.
        classified: The same; where features before the head are explained, what the head makes of them.
        attributions: One for each method, in order, each of this image alone: values (1, rows, columns). Of a model
            that generates text one for each token. None where several images were explained, and this one holds no
            evidence.
        view: The same as a page shows it, with its verdicts.
    """

    prediction: Prediction
    classified: Prediction
    attributions: tuple[Attribution, ...]
    view: ImageView

    def __repr__(self) -> str:
        """In a line."""
        maps = ", ".join(
            f"{view.method}{f' ({view.trust.verdict})' if view.trust else ''}" for view in self.view.attributions
        )
        return f"<ExplainedImage {self.name}: {maps}>"

    @property
    def name(self) -> str:
        """Its file, or what it was called."""
        return self.view.name

    @property
    def image(self) -> UInt8[np.ndarray, "h w *c"]:
        """What the model saw of it: (h, w) or (h, w, 3)."""
        return self.view.image

    @property
    def trust(self) -> tuple[TrustView | None, ...]:
        """How far to trust each attribution: verdict, sentence and numbers; None where it was not tested."""
        return tuple(view.trust for view in self.view.attributions)

    @property
    def verdicts(self) -> tuple[str | None, ...]:
        """The verdict on each attribution, in a word or two."""
        return tuple(None if each is None else each.verdict for each in self.trust)

    @typed
    def overlay(self, number: int = 0) -> Image.Image:
        """One of its attributions over the image, as on the page and in its file: pale where no test supports it.

        Raises:
            UsageError: It has no attribution of this number, or no map, since it holds no evidence.
        """
        view = self.view.attributions[check_index("number", number, len(self.view.attributions))]
        if not view.values.size:
            raise UsageError(f"{self.name} has no map, since it holds no evidence", "full=True, which makes all maps")
        return overlay_of(view, self.view)

    def answer(self) -> dict[str, Any]:
        """The model's answer and the truth, under the names that JSON has for it."""
        found, truth = dict[str, Any](), self.view.true_label
        for one in (self.classified, self.prediction):
            found |= one.brief()
            if one.top or truth is not None:
                found |= {f"true_{next(iter(one.brief()))}": truth}
        return found

    def to_dict(self, overlays: Sequence[str] | None = None) -> dict[str, Any]:
        """Plain values, for JSON: its file, the answer, the attributions, and what else to know of the answer.

        Args:
            overlays: The file with the overlay of each attribution, where these were written; none of no map.
        """
        files = overlays or [None] * len(self.view.attributions)
        rows = [view.to_dict(file) for view, file in zip(self.view.attributions, files, strict=True)]
        return {"file": self.name, **self.answer(), "attributions": rows, "beside": self.view.facts()}

    def _repr_html_(self) -> str:
        """The page of this image alone, for a notebook."""
        return in_frame(explanation_page("", [self.view]))


@dataclass(frozen=True, eq=False)
class AskedImages:
    """Images that are explained together, and what is known of them before any map is made.

    Attributes:
        plan: What is explained, and how.
        images: As they are named.
        pixels: The same with values 0..255 (b, c, h, w).
        inputs: As the network reads them.
        first: Their pass as they are.
        chosen: What is explained of them.
        test: Whether they hold evidence, and what their maps are tested with; None where nothing is tested.
        of: The number of the image that each is: where several labels of one are explained, it stands once for each.
        notes: What to know of what is explained of each.
        mapped: Places of those of which maps are made.
    """

    plan: ReportPlan
    images: Sequence[NamedImage]
    pixels: Tensor
    inputs: Tensor
    first: FirstPass
    chosen: ChosenTarget
    test: PreparedTest | None
    of: list[int]
    notes: Sequence[tuple[str, ...]]
    mapped: list[int]

    def compare(self, rows: list[int], drawn: bool) -> Comparison:
        """The maps of some of the images with how far to trust each; blank ones where none are drawn.

        Raises:
            UsageError: A method refuses its options.
        """

        def blank(method: Method, network: Gridded, images: Tensor, target: Target) -> Attribution:
            values = torch.zeros((len(images), *network.grid(images)), device=images.device)
            about = method.name, method.signed, method.class_specific, ((),) * len(images), chosen.contrast
            return Attribution(values, chosen.target, chosen(wide(first.logits)), *about)

        plan, first = self.plan, self.first.select(rows)
        chosen = self.chosen.select(torch.tensor(rows, device=self.chosen.target.device))
        bound = plan.bound([self.images[row].name for row in rows])
        methods = bound if drawn else [replace(each, function=partial(blank, each)) for each in bound]
        test = None if self.test is None else self.test.select(rows)
        try:
            how = {"scored": test is not None, "areas": drawn and len(methods) > 1, "bump": drawn and plan.bump}
            return compare(plan.model, self.inputs[rows], methods, chosen, **how, first=first, test=test)
        except UsageError as error:  # its hint speaks Python
            raise as_options(plan.methods, error) from None


def explain_in_batches(
    images: Sequence[NamedImage],
    plan: ReportPlan,
    progress: Callable[[int, int], None] = lambda done, of: None,
    left_out: Callable[[str], None] = lambda words: None,
    evident_only: bool = False,
) -> Iterator[ExplainedImage]:
    """Each image explained, some at a time; who stops listening has those that were done.

    An image whose top class is the one that it would be held against is left out.

    Args:
        images: At least one.
        plan: What is explained, and how.
        progress: Called with images done, and all. Where maps are tested, it counts images that were asked for
            evidence, and then again, from those of which no map is made, while maps are made; of one image alone
            it counts the passes of the tests, on a processor.
        left_out: Called with a sentence on each image that is left out.
        evident_only: Whether images without evidence have no maps; unless nothing is tested, or all in full.

    Raises:
        UsageError: If a method refuses its options.
        DataError: If a mask names no patch.
    """
    total = len(images)
    progress(0, total)
    work = [(1, partial(explain_text, one, plan)) for one in images]
    if plan.methods:
        batches = ask_in_batches(images, plan, progress, left_out, evident_only)
        work = [(len({batch.of[row] for row in batch.mapped}), partial(explain_batch, batch)) for batch in batches]
    left = sum(count for count, _ in work)
    progress(total - left, total)
    for _, explain in work:
        for one in explain():
            yield one
            left -= one.view.drawn
            progress(total - left, total)


def ask_in_batches(
    images: Sequence[NamedImage],
    plan: ReportPlan,
    progress: Callable[[int, int], None],
    left_out: Callable[[str], None],
    evident_only: bool,
) -> Iterator[AskedImages]:
    """What is known before any map is made; arguments are those of `explain_in_batches`."""
    masks, model = mask_patches(images, plan.model) if plan.trust else None, plan.model
    together = plan.at_a_time if plan.others is None else min(plan.at_a_time, plan.others.fold)
    tried = not evident_only or not plan.options
    for begin in range(0, len(images), together):
        some = images[begin : begin + together]
        end, own, target = begin + len(some), None if masks is None else masks[begin : begin + together], plan.target
        pixels = torch.stack([model.preprocessing.to_uint8(one.image) for one in some])
        inputs = model.preprocessing.normalise(pixels).to(model.device)  # whose bits decide what is drawn
        if plan.trust and plan.precision == "auto":  # a verdict may differ with it, so it is one for all images
            plan = replace(plan, precision=precision_for(model, inputs))
        first, target = first_pass(model.network, inputs), target[begin:end] if isinstance(target, list) else target
        rows = of = list(range(len(some)))
        notes = [()] * len(some)
        if plan.contrast is not None:
            indices = choose_target(first.logits, target, model.output).target.tolist()
            rows = [row for row, index in enumerate(indices) if index != plan.contrast]
            for one in (some[row] for row in range(len(some)) if row not in rows):
                left_out(plan.nothing_against(one.name))
            if not rows:
                continue
            target = Contrast([indices[row] for row in rows], plan.contrast)
        elif plan.top_labels is not None:  # the pass is one for all labels of an image
            named = model.output.predicted(first.logits, plan.top_labels)
            best = choose_target(first.logits, None, model.output).target.tolist()
            pairs = [(row, label) for row, top in enumerate(best) for label in named[row] or [top]]
            rows, target = [row for row, _ in pairs], [label for _, label in pairs]
            notes = [() if named[row] else (BELOW,) for row in rows]
        if rows != of:
            some, pixels, inputs, first = [some[row] for row in rows], pixels[rows], inputs[rows], first.select(rows)
            own, of = None if own is None else own[rows], rows
        test, background = None, plan.background if plan.others is None else plan.others.besides(some)
        try:
            chosen = choose_target(first.logits, target, model.output)
            if not tried:  # what the only method does not take is refused whatever the evidence, and before it is asked
                plan.methods[0].function(model.network, inputs[:1], chosen.select(slice(0, 1)).plain, **plan.options)
                tried = True
            if plan.trust:
                how = TrustOptions(background, own, plan.precision, full=plan.full)  # pyrefly: ignore
                test = prepare(model, inputs, chosen, how, logits=wide(first.logits))
                chosen = test.masked.chosen
        except UsageError as error:  # its hint speaks Python
            raise as_options(plan.methods, error) from None
        ended = test.ended.tolist() if evident_only and test is not None else [False] * len(some)
        alive = {image for image, is_over in zip(of, ended, strict=True) if not is_over}
        mapped = [row for row, image in enumerate(of) if image in alive]
        if plan.trust:
            progress(end, len(images))
        if test is not None and len(images) == 1:  # of several the first tells how long each takes
            test = test.counting(len(plan.methods), plan.bump, progress)
        yield AskedImages(plan, some, pixels, inputs, first, chosen, test, of, notes, mapped)


def explain_batch(batch: AskedImages) -> Iterator[ExplainedImage]:
    """The images of a batch, with the maps of those of which some are made."""
    plan, model, inputs = batch.plan, batch.plan.model, batch.inputs
    answers = named = answers_of(model, batch.first.logits, inputs)
    if plan.answering is not None:
        with torch.no_grad():
            logits = plan.answering.network.readout(batch.first.tokens)
        named = answers_of(plan.answering, logits, inputs)
    other = None if plan.other is None else (plan.other[0], _array(plan.other[1]))
    every: Sequence[Sequence[int]] = [()] * len(inputs)
    if plan.top_labels is not None:
        every = model.output.predicted(batch.first.logits, model.output.outputs)
    limits = dict[str, float]()
    if plan.answering is None and model.output.limits is not None:
        limits = dict(zip(model.output.names, model.output.limits.tolist(), strict=True))
    found, at_once, images = dict[int, ExplainedImage](), plan.at_a_time, [*dict.fromkeys(batch.of)]
    # on a processor the tests of one image at a time take as long, and by the first one the time left is known
    alone = [[row for row, of in enumerate(batch.of) if of == image] for image in images]
    is_alone = batch.test is not None and model.device.type == "cpu"
    groups = alone if is_alone else [[row for rows in alone for row in rows]]
    split = [[row for row in rows if (row in batch.mapped) == drawn] for rows in groups for drawn in (True, False)]
    for rows in (some[begin : begin + at_once] for some in split for begin in range(0, len(some), at_once)):
        drawn = rows[0] in batch.mapped
        compared = batch.compare(rows, drawn)
        parts = summed_parts(inputs[rows], compared.chosen.plain, plan) if drawn else [()] * len(rows)
        for place, row in enumerate(rows):
            one, answer, label = batch.images[row], answers[row], answers[row] if named[row].notes else named[row]
            views = views_of(plan, compared, place, parts[place], dict(label.top))
            views = [replace(each, notes=(*each.notes, *batch.notes[row])) for each in views]
            if not drawn:
                views = [replace(each, values=each.values[:0, :0], seconds=None) for each in views]
            elif batch.first.sinks is not None:
                views = [replace(each, sinks=batch.first.sinks.anywhere[row].cpu().numpy()) for each in views]
            bump = None if compared.bump is None or compared.bump[place].isnan() else float(compared.bump[place])
            known, target, sure = dict(label.top), views[0].target, [*label.top]
            if plan.answering is None and model.output.predicted is not None:  # each label is right by itself
                before = known.get(target, None if views[0].trust is None else views[0].trust.before)
                sure = [] if before is None else [(target, before)]
            beside = plan.run.beside(one.fingerprint, sure, bump, views[0].named)
            shown, said = _array(batch.pixels[row]), {name: limits[name] for name in (*known, target) if name in limits}
            view = ImageView(one.name, shown, one.label, list(label.top), views, label.sentence(), other, beside)
            view = replace(view, besides=model.output.besides if plan.target is None else "")
            view = replace(view, limits=said, unexplained=max(0, len(every[row]) - (plan.top_labels or 0)))
            maps = tuple(each[place] for each in compared.attributions) if drawn else ()
            found[row] = ExplainedImage(answer, label, maps, replace(view, summary=summary_of(view)))
        while images and all(row in found for row, of in enumerate(batch.of) if of == images[0]):
            image = images.pop(0)
            yield _together([found[row] for row, of in enumerate(batch.of) if of == image])


def _together(labels: Sequence[ExplainedImage]) -> ExplainedImage:
    """The explanations of several labels of an image as those of the image; that of one as it is."""
    one, views = labels[0], tuple(each.view for each in labels)
    if len(labels) == 1:
        return one
    maps = tuple(each for own in labels for each in own.attributions)
    shown = [each for view in views for each in view.attributions]
    said = one.view.summary[:1] + tuple(words for view in views for words in view.summary[1:])
    view = replace(one.view, attributions=shown, labels=views, summary=said)
    return replace(one, attributions=maps, view=view)


def answers_of(model: Model, outputs: Any, inputs: Tensor) -> Sequence[Prediction]:
    """The model's answers, of its outputs for images as the network reads them."""
    return model.output.answer(outputs, ["image"] * len(inputs), model.facts, inputs)


def _array(pixels: UInt8[Tensor, "c h w"]) -> UInt8[np.ndarray, "h w *c"]:
    array = pixels.numpy()
    return array[0] if len(array) == 1 else np.ascontiguousarray(array.transpose(1, 2, 0))


def explain_text(one: NamedImage, plan: ReportPlan) -> Iterator[ExplainedImage]:
    """The text that the model generates for an image, and where its decoder attended for each token."""
    model, method = plan.model, METHODS_OF_TEXTS[WRITTEN]
    pixels = model.preprocessing.to_uint8(one.image)
    inputs = model.preprocessing.normalise(pixels[None]).to(model.device)
    outputs = model.task.outputs(model.network, inputs)
    (answer,), ids = answers_of(model, outputs, inputs), outputs.tokens[:, : outputs.lengths[0]]
    attributions, views = list[Attribution](), list[AttributionView]()
    if ids.numel():
        try:
            attribution = method.function(model.network, inputs, ids, **plan.options)
        except UsageError as error:  # its hint speaks Python
            raise as_options([method], error) from None
        attributions = [attribution.token(place) for place in range(ids.shape[1])]
    for place, (number, own) in enumerate(zip(ids[0].tolist(), attributions, strict=True), start=1):
        token = model.output.name(number)
        views.append(replace(_view_of(method, own, token, "token"), title=f"Token {place}: {token}"))
    beside = plan.run.beside(one.fingerprint, answer.top)
    view = ImageView(one.name, _array(pixels), one.label, list(answer.top), views, beside=beside)
    view = replace(view, summary=summary_of(view))
    yield ExplainedImage(answer, answer, tuple(attributions), view)


NO_ANSWER: Mapping[str, float] = {}  # never changed
SUMMED = "conservative"  # the method whose parts add up to what is explained

Parts = tuple[tuple[str, float], ...]


def views_of(
    plan: ReportPlan, compared: Comparison, row: int, parts: Parts = (), top: Mapping[str, float] = NO_ANSWER
) -> list[AttributionView]:
    """The attributions of one image.

    Args:
        plan: What is explained, and how.
        compared: The attributions of a batch, each with how far to trust it.
        row: The place of the image in the batch.
        parts: What the explained number is the sum of, where a method shares it out.
        top: The probabilities of the answer that stands beside them.
    """
    chosen, name, views = compared.chosen, plan.model.output.name, list[AttributionView]()
    target = plan.explained or chosen.named(row, name)
    against = None if chosen.contrast is None else name(int(chosen.contrast[row]))
    words = f"“{target}”" if against is None else f"“{target}” rather than “{against}”"
    if chosen.kind is not None:  # no class
        words = f"the {target}" if chosen.kind == "similarity" else target
    for place, (method, attributions) in enumerate(zip(plan.methods, compared.attributions, strict=True)):
        trust, areas, replaced = None, None, dict[str, Any]()
        if compared.trusts:
            tested = compared.trusts[place]
            if place == 0:  # a page shows what one map names, and no more
                replaced = _replaced(plan, tested.drops.pictured, row, chosen)
            sure = top.get(target) if against is None else None
            trust = tested.view(row, words, "" if against is None else " of the two", sure)
            if compared.random_areas is not None and trust.random:
                both = *tested.drops.areas, *compared.random_areas
                areas = AreasView(*(float(area[row]) for area in both))
        view = _view_of(method, attributions[row], target, chosen.kind)
        view = replace(view, contrast=against, trust=trust, areas=areas, cost=method.cost)
        known = chosen.in_data(row, view.logit) if chosen.unit == "data" else None
        view = replace(view, in_data=known)
        seconds, summed = compared.seconds[place] / len(attributions), parts if method.name == SUMMED else ()
        views.append(replace(view, parts=summed, seconds=seconds, **replaced))
    return views


def _replaced(plan: ReportPlan, pictured: Pictured | None, row: int, chosen: ChosenTarget) -> dict[str, Any]:
    """What the test of an image looks like, and which patches carry half of the drop; nothing where untested."""
    if pictured is None or row not in pictured.of:
        return {}
    place = pictured.of.tolist().index(row)
    masks, images, numbers, means = (each[:, place] for each in pictured[1:5])
    pixels = plan.model.preprocessing.to_pixels(images)
    opaque = torch.cat([pixels.expand(-1, 3, -1, -1), torch.full_like(pixels[:, :1], 255)], dim=1)
    patches = opaque * F.interpolate(masks[:, None].to(torch.uint8), pixels.shape[2:])
    told = ([chosen.in_data(row, value) for value in own.tolist()] for own in (means, numbers))
    each = masks.numpy(), patches.permute(0, 2, 3, 1).contiguous().numpy(), *told
    return {"replaced": tuple(map(ReplacedView, *each)), "half": pictured.half[place].numpy()}


def _view_of(method: Method, attribution: Attribution, target: str, kind: Function | None) -> AttributionView:
    """What a page shows of an attribution of one image by itself."""
    return AttributionView(
        method=method.name,
        title=method.title,
        target=target,
        logit=float(attribution.logit[0]),
        values=wide(attribution.values[0].detach()).cpu().numpy(),
        signed=attribution.signed,
        class_specific=attribution.class_specific,
        notes=attribution.notes[0],
        function=kind,
        about=method.about,
    )


def summed_parts(images: Tensor, target: Target, plan: ReportPlan) -> list[Parts]:
    """What the explained number of each image is the sum of, where a method shares it out; and what it does not."""
    if all(method.name != SUMMED for method in plan.methods):
        return [()] * len(images)
    from vitrail.explain.methods.conservative import NOT_LINEAR, balance_sheet

    sheet = balance_sheet(plan.model.network, images, target)
    shared = {"patches" if name == "pixels" else name: part.tolist() for name, part in sheet.parts.items()}
    if bool((sheet.gap.abs() > NOT_LINEAR * sheet.logit.abs()).any()):  # of a cosine
        shared["not attributed"] = sheet.gap.tolist()
    return [tuple(zip(shared, row, strict=True)) for row in zip(*shared.values(), strict=True)]

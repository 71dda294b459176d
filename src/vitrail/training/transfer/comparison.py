"""The choice of the network that becomes the model, and the gain of fine-tuning over the probe.

    best    the best checkpoint on *select*; with pretrained weights the better of it and the probe by the number of
            correct images, significant or not; a tie keeps the probe, which changed less
    tuned   the last network; the best checkpoint if the run ends by its patience
    probe   the probe

The choice is made on samples of its own (`vitrail.runs.halves`), and the gain is counted on others, image by image.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor, nn

from vitrail.data.background import settle
from vitrail.data.batches import Batches
from vitrail.data.columns import Classes
from vitrail.data.dataset import Split
from vitrail.errors import counted
from vitrail.explain.evidence import without_evidence
from vitrail.io import other_out, read_json
from vitrail.model import Model, load
from vitrail.nn import ViT
from vitrail.pages.views import Confusion, Pair, SidesView
from vitrail.runs.evaluate import BATCH, evaluate_split
from vitrail.runs.folder import RunFolder
from vitrail.runs.halves import REPORT, chosen_words
from vitrail.tasks import Result
from vitrail.text import percent
from vitrail.training.checkpoint import Row
from vitrail.training.prepared import Prepared

PROBE, TUNED = "probe", "tuned"
NO_STEP = "There was no time for a step of tuning: the model is the linear probe. A longer --max-time makes steps."
SHOWN = 12  # images that tuning won, and as many that it lost, on the page

Correct = Bool[Tensor, "n"] | Bool[np.ndarray, "n"]


@dataclass(frozen=True)
class Added:
    """The gain of a second network over a first one, on the same images.

    Attributes:
        won: Images that only the second classifies correctly.
        lost: Images that only the first does.
        images: All images.
    """

    won: int
    lost: int
    images: int

    @property
    def difference(self) -> float:
        """Of the accuracies."""
        return (self.won - self.lost) / self.images

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of it, of paired fractions (Agresti and Min, 2005: half an image added to each cell)."""
        won, lost, images = self.won + 0.5, self.lost + 0.5, self.images + 2.0
        middle = (won - lost) / images
        half = 1.959964 * math.sqrt(won + lost - (won - lost) ** 2 / images) / images
        return middle - half, middle + half

    @property
    def significant(self) -> bool:
        """Whether the interval lies on one side of zero."""
        low, high = self.interval
        return low > 0 or high < 0


def is_right(classify: Callable[[Tensor], Tensor], data: Batches) -> Bool[Tensor, "n"]:
    """Whether each image that can be read is classified correctly, in order.

    Args:
        classify: Images to logits, in eval mode.
        data: Images with their labels.
    """
    with torch.no_grad():
        batches = (batch for batch in data.in_order(BATCH) if len(batch))
        return torch.cat([classify(batch.inputs).argmax(dim=1) == batch.labels for batch in batches])


def compared(before: Correct, after: Correct) -> Added:
    """The gain from these two results, image by image."""
    return Added(int((after & ~before).sum()), int((before & ~after).sum()), len(before))


def correct(result: Result) -> Bool[np.ndarray, "n"]:
    """Whether each sample of an evaluation was classified correctly."""
    return result.truths == result.answers


@dataclass(frozen=True)
class Chosen:
    """The choice of the network that becomes the model.

    Attributes:
        model: With the chosen network, in eval mode.
        networks: `probe` and `tuned`, if there are both; `found["kept"]` is the model's.
        found: For `evaluation.json`.
        halves: The cut in `data.json`; empty if nothing was chosen.
    """

    model: Model
    networks: dict[str, nn.Module]
    found: dict[str, Any]
    halves: Any

    def evaluate(
        self,
        model: Model,
        split: Split,
        batches: Batches,
        notify: Callable[[str], None],
        evaluate: Callable[[Model, Split, Batches], Result] = evaluate_split,
    ) -> dict[str, Result]:
        """The results of the model and of the network that was not chosen, by name; the model's is first.

        Args:
            model: As it was saved.
            split: The samples.
            batches: The same as batches.
            notify: Gets a sentence on the gain of tuning.
            evaluate: Evaluates a model.
        """
        kept = self.found.get("kept", TUNED)
        results = {kept: evaluate(model, split, batches)}
        for name, network in self.networks.items():
            if name != kept:
                results[name] = evaluate(replace(model, network=network), split, batches)
        if len(results) == 2:
            gain = compared(correct(results[PROBE]), correct(results[TUNED]))
            more = {"difference": gain.difference, "interval": list(gain.interval)}
            self.found[TUNED] = {"split": split.split, **vars(gain), **more}
            mark = " (on images that chose)" if chosen_words(split.split, self.halves) else ""
            notify(f"{gain_words(gain, f'{split.split} image')}{mark}")
        return results

    def words(self, split: str) -> str:
        """Sentences on the network that is the model, and on the samples of its figure; empty if there was no choice.

        Args:
            split: Of the figure.
        """
        found, chosen, words = self.found, self.found.get("chosen_on"), list[str]()
        if found.get("kept") == PROBE:
            words.append("The model is the probe: the pretrained weights with a head on their features.")
        elif chosen is not None:
            epoch = found["best"]["epoch"]
            words.append(f"The model is the network after epoch {epoch}, the best on {chosen['split']}.")
        elif "kept" in found:
            words.append("The model is the network after the last step.")
        if choice := found.get("choice"):
            gain = Added(choice["won"], choice["lost"], choice["images"])
            words.append(f"It was chosen on {choice['split']}: {choice_words(gain)}.")
        if split == REPORT:
            clean, whole = self.halves[REPORT], sum(self.halves.values())
            words.append(f"Its figure is of {split}, the {clean} of {whole} validation samples that chose nothing.")
            if "probe" in found:
                of_probe = f"The {percent(found['probe']['accuracy'])} of the linear probe below"
                words.append(f"{of_probe} is of all {whole}, {whole - clean} of which chose between the networks.")
        return " ".join(words)


def choose_model(
    folder: RunFolder, prepared: Prepared, trained: Model, best: Row | None, steps: int, notify: Callable[[str], None]
) -> Chosen:
    """Choose the network that becomes the model.

    Args:
        folder: Of the run, in which the probe lies.
        prepared: The run.
        trained: With the best checkpoint or the last network, in eval mode.
        best: The epoch of the best checkpoint; None if there is none.
        steps: Number of steps; without any there is only the probe.
        notify: Gets sentences on the choice.
    """
    settings, facts, found = prepared.settings, dict(trained.facts), dict[str, Any]()
    halves = None if prepared.halves is None else prepared.halves.to_dict()
    if best is not None:
        split, held_out = prepared.scored
        found["best"] = {"epoch": best["epoch"]}
        found["chosen_on"] = {"split": split.split, "images": len(held_out)}
        facts |= {"epoch": best["epoch"], "chosen_on": f"{counted(len(held_out), 'sample')} of the split {split.split}"}
        notify(f"the network after epoch {best['epoch']} is the best on {split.split}")
    if settings.initial is None:
        return Chosen(replace(trained, facts=facts), {}, found, halves)
    found["probe"] = read_json(folder.path / "probe.json", other_out(folder.path))
    networks = {PROBE: load(folder.probe, device=trained.device).network, TUNED: trained.network}
    chosen = settings.selected
    if settings.fits_head or not steps:
        del networks[TUNED]
        chosen = PROBE
        if not settings.fits_head:
            notify(NO_STEP)
    elif chosen == "best":
        split, held_out = prepared.scored
        gain = compared(*(is_right(networks[name], held_out) for name in (PROBE, TUNED)))
        chosen = TUNED if gain.won > gain.lost else PROBE
        found["choice"] = {"split": split.split, **vars(gain)}
        kept = "the tuned network" if chosen == TUNED else "the probe"
        notify(f"{kept} is kept: on {split.split}, where that is chosen, {choice_words(gain)}")
    if chosen == PROBE:  # which no epoch has changed
        facts.pop("epoch", None)
        facts["epochs"] = 0
    found["kept"] = chosen
    model = replace(trained, network=networks[chosen], facts={**facts, "kept": chosen})
    return Chosen(model, networks, found, halves)


def sides_of(chosen: Chosen, results: dict[str, Result], prepared: Prepared) -> SidesView | None:
    """The comparison of probe and tuned network for the page; None if there is only one of them."""
    output = prepared.model.output
    if len(results) < 2 or not isinstance(output, Classes):
        return None
    before, after = results[PROBE], results[TUNED]
    names, first, second = output.names, correct(before), correct(after)
    gain = compared(first, second)
    samples = prepared.final[0].samples

    def pairs(chosen: Bool[np.ndarray, " n"]) -> tuple[Pair, ...]:
        found = []
        for row in np.flatnonzero(chosen)[:SHOWN].tolist():
            place = int(before.ids[row])
            image = prepared.model.preprocessing.to_array(samples.images.open(place))
            answers = [names[int(each[row])] for each in (before.truths, before.answers, after.answers)]
            found.append(Pair(image, samples.name(place), *answers))
        return tuple(found)

    both = {PROBE: before, TUNED: after}
    confusions = {name: each for name, one in both.items() for each in one.tables if isinstance(each, Confusion)}
    about = chosen_words(before.split, chosen.halves)
    return SidesView(
        kept=chosen.found["kept"],
        sentence=gain_words(gain, f"{before.split} image") + (f". {about.removesuffix('.')}" if about else ""),
        values={name: one.metric.shown(one.value) for name, one in both.items()},
        confusions=confusions,
        won=pairs(second & ~first),
        lost=pairs(first & ~second),
        counts=(gain.won, gain.lost),
    )


def choice_words(gain: Added) -> str:
    """A sentence on the counts by which the network was chosen."""
    by = "a tie keeps the probe" if gain.won == gain.lost else "the better count decides"
    close = "" if gain.significant else f"; the 95 % interval includes 0: not significant, and {by}"
    return f"tuning won {gain.won} and lost {gain.lost} of {counted(gain.images, 'image')}{close}"


def gain_words(gain: Added, unit: str) -> str:
    """A sentence on the gain of tuning."""
    low, high = gain.interval
    return (
        f"tuning won {gain.won} and lost {gain.lost} of {counted(gain.images, unit)} against the probe: "
        f"{100 * gain.difference:+.1f} points (95 %: {100 * low:+.1f} to {100 * high:+.1f})"
        + ("" if gain.significant else ", which includes 0: not significant")
    )


def with_background(model: Model) -> Model:
    """A trained model whose background has no patches that are evidence for its own classes."""
    if model.background is None or model.background_images is None or not isinstance(model.network, ViT):
        return model
    pixels = without_evidence(model.network, model.background_images, model.background)
    return replace(model, background=settle(pixels, model.network.config.patch))

"""The choice of the network that becomes the model, and the gain of fine-tuning over the probe.

    best    the best checkpoint on *select*; with pretrained weights the better of it and the probe by the number of
            correct images, significant or not; a tie keeps the probe, which changed less
    tuned   the last network; the best checkpoint if the run ends by its patience
    probe   the probe

The choice is made on samples of its own (`vitrail.runs.data`), and the gain is counted on others, image by image.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from vitrail.data.background import settle
from vitrail.data.batches import Batches
from vitrail.data.dataset import Split
from vitrail.errors import counted
from vitrail.explain.evidence import without_evidence
from vitrail.io import other_out, read_json
from vitrail.model import Model, load
from vitrail.nn import ViT
from vitrail.pages.views import Confusion, Pair, SidesView
from vitrail.runs.data import REPORT, chosen_words
from vitrail.runs.evaluate import BATCH, evaluate_split
from vitrail.runs.folder import RunFolder
from vitrail.tasks import Result
from vitrail.tasks.codec import Gain, gain
from vitrail.training.checkpoint import Row
from vitrail.training.prepared import Prepared

PROBE, TUNED = "probe", "tuned"
NO_STEP = "There was no time for a step of tuning: the model is the linear probe. A longer --max-time makes steps."
SHOWN = 12  # images that tuning won, and as many that it lost, on the page


def errors_of(
    error: Callable[[Tensor, Tensor], Tensor], answer: Callable[[Tensor], Any], data: Batches
) -> Float[Tensor, " n"]:
    """How wrong each image that can be read is answered, in order.

    Args:
        error: As of `Codec.error`.
        answer: Images to outputs, in eval mode.
        data: Images with their targets.
    """
    with torch.no_grad():
        batches = (batch for batch in data.in_order(BATCH) if len(batch))
        return torch.cat([error(answer(batch.inputs), batch.labels).cpu() for batch in batches])


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
        if (won := gain_of(results, model.output.is_wrong)) is not None:
            self.found[TUNED] = {"split": split.split, **vars(won), "interval": list(won.interval)}
            mark = " (on images that chose)" if chosen_words(split.split, self.halves) else ""
            notify(f"{gain_words(won, f'{split.split} image', model.output.is_wrong)}{mark}")
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
            low, high = choice["interval"]
            won = Gain(choice["won"], choice["lost"], choice["images"], choice["difference"], (low, high))
            words.append(f"It was chosen on {choice['split']}: {choice_words(won)}.")
        if split == REPORT:
            clean, whole = self.halves[REPORT], sum(self.halves.values())
            words.append(f"Its figure is of {split}, the {clean} of {whole} validation samples that chose nothing.")
            if found.get("probe"):
                of_probe = f"The {self.model.output.shown(found['probe']['accuracy'])} of the linear probe below"
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
    error, output, chosen = trained.output.error, trained.output, settings.selected
    if prepared.probed is None and not (folder.path / "probe.json").is_file():  # the task has none
        return Chosen(replace(trained, facts={**facts, "kept": TUNED}), {}, {**found, "kept": TUNED}, halves)
    found["probe"] = read_json(folder.path / "probe.json", other_out(folder.path))
    networks = {PROBE: load(folder.probe, task=trained.task, device=trained.device).network, TUNED: trained.network}
    if settings.fits_head or not steps:
        del networks[TUNED]
        chosen = PROBE
        if not settings.fits_head:
            notify(NO_STEP)
    elif chosen == "best":
        split, held_out = prepared.scored
        before, after = (
            errors_of(error, partial(trained.task.outputs, networks[name]), prepared.seen.others(held_out))
            for name in (PROBE, TUNED)
        )
        won = gain(before, after, output.is_wrong)
        chosen = TUNED if won.better else PROBE
        found["choice"] = {"split": split.split, **vars(won), "interval": list(won.interval)}
        kept = "the tuned network" if chosen == TUNED else "the probe"
        notify(f"{kept} is kept: on {split.split}, where that is chosen, {choice_words(won)}")
    if chosen == PROBE:  # which no epoch has changed
        facts.pop("epoch", None)
        facts["epochs"] = 0
    found["kept"] = chosen
    model = replace(trained, network=networks[chosen], facts={**facts, "kept": chosen})
    return Chosen(model, networks, found, halves)


def compare_sides(chosen: Chosen, results: dict[str, Result], prepared: Prepared) -> SidesView | None:
    """The comparison of probe and tuned network for the page; None if there is only one of them."""
    won = gain_of(results, prepared.model.output.is_wrong)
    if won is None:
        return None
    before, after = results[PROBE], results[TUNED]
    samples = prepared.final[0].samples

    def pairs(chosen: Bool[np.ndarray, " n"]) -> tuple[Pair, ...]:
        found, known = [], (before.ids, before.truths, before.answers, after.answers)
        if any(len(each) != len(before.errors) for each in known):  # a task of one's own may have errors alone
            return ()
        for row in np.flatnonzero(chosen)[:SHOWN].tolist():
            place = int(before.ids[row])
            image = prepared.model.preprocessing.to_array(samples.images.open(place))
            answers = [str(each[row]) for each in (before.truths, before.answers, after.answers)]
            found.append(Pair(image, samples.name(place), *answers))
        return tuple(found)

    both = {PROBE: before, TUNED: after}
    confusions = {name: each for name, one in both.items() for each in one.tables if isinstance(each, Confusion)}
    about = chosen_words(before.split, chosen.halves)
    sentence = gain_words(won, f"{before.split} image", prepared.model.output.is_wrong)
    return SidesView(
        kept=chosen.found["kept"],
        sentence=f"{sentence}. {about.removesuffix('.')}" if about else sentence,
        values={name: one.metric.shown(one.value) for name, one in both.items()},
        confusions=confusions,
        won=pairs(after.errors < before.errors),
        lost=pairs(before.errors < after.errors),
        counts=(won.won, won.lost),
    )


def gain_of(results: Mapping[str, Result], is_wrong: bool) -> Gain | None:
    """The gain of the tuned network over the probe; None if there is only one of them, or the task has no errors."""
    if len(results) < 2:
        return None
    before, after = (torch.from_numpy(results[name].errors) for name in (PROBE, TUNED))
    return gain(before, after, is_wrong) if len(before) == len(after) > 0 else None


def choice_words(won: Gain) -> str:
    """A sentence on the counts by which the network was chosen."""
    by = "a tie keeps the probe" if won.difference == 0 else "the better one is kept"
    close = "" if won.significant else f"; the 95 % interval includes 0: not significant, and {by}"
    return f"tuning won {won.won} and lost {won.lost} of {counted(won.images, 'image')}{close}"


def gain_words(won: Gain, unit: str, is_wrong: bool) -> str:
    """A sentence on the gain of tuning: in points of accuracy, or in the mean error."""
    low, high = won.interval
    of = counted(won.images, unit)
    values = f"{100 * won.difference:+.1f} points (95 %: {100 * low:+.1f} to {100 * high:+.1f})"
    if not is_wrong:
        values = f"mean error {-won.difference:+.3g} (95 %: {-high:+.3g} to {-low:+.3g})"
    close = "" if won.significant else ", which includes 0: not significant"
    return f"tuning won {won.won} and lost {won.lost} of {of} against the probe: {values}{close}"


def with_background(model: Model) -> Model:
    """A trained model whose background has no patches that are evidence for its own classes."""
    if model.background is None or model.background_images is None or not isinstance(model.network, ViT):
        return model
    pixels = without_evidence(model.network, model.background_images, model.background)
    return replace(model, background=settle(pixels, model.network.config.patch))

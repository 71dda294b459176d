"""What a run knows that helps to judge an answer of its model; it stands below the maps of an explanation.

How often the model was right in its own evaluation when it was as sure, whether it was trained on this very image, and
which of its training images are nearest. Weights from elsewhere have no run, so nothing of it is known.
"""

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8

from vitrail.data.columns import TRAIN, RawDataset
from vitrail.data.loader import no_contents, of_hashes
from vitrail.errors import DataError, UsageError, VitrailError, counted, remove
from vitrail.features.embed import embed_samples, identity
from vitrail.features.file import FeatureSet
from vitrail.features.similar import KnownImages, Neighbour, evenly_by_class, nearest_training, open_known
from vitrail.io import read_json, to_json, user_cache
from vitrail.jobs.parts import Progress
from vitrail.model import Model
from vitrail.nn import ViT
from vitrail.nn.networks import weights_hash
from vitrail.pages.image_views import BesideView, Sureness
from vitrail.runs.data import chosen_words, open_for, run_of
from vitrail.runs.folder import RunFolder
from vitrail.runs.known import EVALUATED, TrainedOn
from vitrail.statistics import wilson_interval

LEAST = 30  # answers from which a fraction is made, where there are as many
MOST_LISTED = 100_000  # training images of which some are embedded; to list more takes too long for a page
AUTO, NONE = "auto", "none"  # beside a file: where the nearest training images are looked for


class RunKnowledge:
    """What the run of a model knows of its answers; nothing where there is no run.

    Args:
        model: That answers.

    Raises:
        DataError: A file of the run is damaged.
    """

    def __init__(self, model: Model) -> None:
        run = run_of(model)
        file = RunFolder(run.path).evaluation
        found = read_json(file, remove(file)) if run.name is not None and file.is_file() else {}
        is_own = bool(found) and found.get("weights") == weights_hash(model.network)  # of others it says nothing
        self.evaluation, self.parts = found if is_own else {}, run.facts.get("parts")
        self.trained, self.evaluated = TrainedOn(run.trained_on), TrainedOn(run.contents.get(EVALUATED, no_contents(0)))

    def beside(
        self, fingerprint: str, top: Sequence[tuple[str, float]], bump: float | None = None, named: str = ""
    ) -> BesideView:
        """What to know of an answer besides its maps; arguments are those of `BesideView` and `ImageView`.

        Args:
            fingerprint: Of the image.
            top: Of its answer; of one label of several the label alone.
            bump: The drop of one.
            named: The number that is explained, where it is one of the data.
        """
        own = of_hashes([bytes.fromhex(fingerprint)])
        sure = sureness(self.evaluation, top[0][1] if top else None, self.parts, named)
        learnt = bool(self.trained.has(own)[0])
        if sure is not None and not learnt and self.evaluated.has(own)[0]:  # the figure is of images not learnt
            sure = replace(sure, note=f"{sure.note} This very image is one of those evaluated.".strip())
        return BesideView(fingerprint, bump, sure, learnt)


# ---- the nearest training images


class TrainingImages:
    """The training images among which the nearest are looked for.

    Args:
        model: Of a run.
        file: A file of features, which is read at once; `auto`: some of the run's own images, as many of each class as
            can be, which are embedded when they are needed; `none` for none.
        data_root: The folder of named sets.

    Attributes:
        words: What they are, or why none is shown; empty as long as that is not known.

    Raises:
        DataError: The file cannot be read, or holds features of another model.
        UsageError: The network has none.
    """

    def __init__(self, model: Model, file: str | Path, data_root: Path | None = None) -> None:
        self.model, self.data_root, self.embeds = model, data_root, file == AUTO
        self.known: KnownImages | None = None
        self.words = ""
        if file in (AUTO, NONE):
            return
        known = open_known(file, None, model)
        if rows := [row for row, split in enumerate(known.features.splits) if split == TRAIN]:
            known = replace(known, features=known.features.select(rows))
        self.known = known
        self.words = f"among {counted(len(known.features), 'image')} whose features are in {Path(file).name}"

    def nearest(
        self, images: Sequence[UInt8[np.ndarray, "h w *c"]], progress: Progress = lambda done, total: None
    ) -> list[list[Neighbour]]:
        """The nearest to each of some images; nothing where there are none.

        Args:
            images: As the model sees them, with values 0..255.
            progress: Called with training images that are embedded, and all.
        """
        if self.embeds:
            self.embeds = False
            self._embed(progress)
        return [[] for _ in images] if self.known is None else nearest_training(self.model, images, self.known)

    def _embed(self, progress: Progress) -> None:
        """Some of the run's own images; their features are kept in the user's cache from one call to the next."""
        model, run = self.model, run_of(self.model)
        count = run.facts.get("images", {}).get(TRAIN, 0)
        if count > MOST_LISTED:
            self.words = f"No training image is shown, since {count:,} are too many to look through."
        if not 0 < count <= MOST_LISTED or not isinstance(model.network, ViT):
            return
        try:
            split = open_for(model, run, None, self.data_root, TRAIN)
            raw = RawDataset(split.name, {TRAIN: evenly_by_class(split.samples)}, name=split.name)
            self.known = KnownImages(_features_of(raw, model, progress), raw)
        except (DataError, UsageError, OSError):  # of a reader of one's own, too
            self.words = "No training image is shown, since they are not at hand."
            return
        some = "" if len(self.known.features) == count else f"{len(self.known.features)}, spread evenly, of "
        self.words = f"among {some}its {counted(count, 'training image')}"


def _features_of(raw: RawDataset, model: Model, progress: Progress) -> FeatureSet:
    """The features of these images: as they were stored, or computed now and stored from then on."""
    key = to_json({**identity(model), "data": raw.name, "images": raw.digest()}).encode()
    file = user_cache() / "nearest" / f"{hashlib.blake2b(key, digest_size=16).hexdigest()}.npz"
    with suppress(VitrailError, OSError):  # no home, a full disk, or a damaged file: they are computed again
        file.parent.mkdir(parents=True, exist_ok=True)
        return embed_samples(raw, model, target=file, progress=progress)
    return embed_samples(raw, model, progress=progress)


# ---- how often it is right when it is this sure


def sureness(
    evaluation: Mapping[str, Any], probability: float | None, parts: Any = None, named: str = ""
) -> Sureness | None:
    """How often a model was right when it was about this sure; None where that is not known.

    Of the ranges that it counts, the one of this probability, and those beside it until there are 30 answers. An answer
    may be one label of an image, or a number, which is right within its interval.

    Args:
        evaluation: Content of `evaluation.json`.
        probability: Of the answer; None of a number.
        parts: The cut in `data.json`.
        named: The number.
    """
    rows = [row for row in evaluation.get("calibration") or () if row.get("name", named) == named]
    first = last = max(0, sum(row["from"] <= (probability or 0) for row in rows) - 1)
    while sum(row["images"] for row in rows[first : last + 1]) < LEAST and last - first + 1 < len(rows):
        first, last = max(0, first - 1), min(len(rows) - 1, last + 1)
    images, right = (sum(row[name] for row in rows[first : last + 1]) for name in ("images", "right"))
    if not images or (probability is None) != ("off" in rows[0]):
        return None
    ends, own = (rows[first]["from"], rows[last]["to"]), (evaluation["split"], _note(evaluation, images, parts))
    more = rows[0].get("of", "image"), rows[0].get("off")
    return Sureness(*ends, right, images, wilson_interval(right, images), *own, *more)


def _note(evaluation: Mapping[str, Any], images: int, parts: Any) -> str:
    """What else to know of a figure of so many images."""
    learnt = evaluation.get("trained_on", {}).get("images")
    if learnt == images:
        return "The model was trained on these images, so this says nothing about others."
    return chosen_words(evaluation["split"], parts)

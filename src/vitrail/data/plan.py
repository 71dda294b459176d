"""In which order images are seen, and every random number of a training: pure functions of seed, epoch and id.

Nothing here is a stream that has to be saved or that workers share: the number that belongs to image 17 in epoch 3 is
a hash of (seed, epoch, 17). So the count of workers, of processes and of resumes cannot change it.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
Balance = tuple[Ids, Ids] | None  # classes and units of `balanced`, where classes come equally often

# streams of random numbers, so that two uses of the same (seed, epoch, id) are independent
ORDER, GEOMETRY, COLOUR, ERASING, CUTTING, MIXING, BACKGROUND, TURN = range(8)


def _mix_bits(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64 (Steele, Lea and Flood, 2014): every input bit reaches every output bit."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def uniforms(ids: Ids, columns: int, *, seed: int, epoch: int, stream: int) -> NDArray[np.float64]:
    """Random numbers in [0, 1), `columns` for each id, by a counter-based hash.

    Args:
        ids: (n,) sample ids.
        columns: Numbers per id.
        seed: Of the run.
        epoch: Counted from 0.
        stream: What the numbers are for (`ORDER`, `GEOMETRY`, ...).

    Returns:
        (n, columns) float64.
    """
    golden = np.uint64(0x9E3779B97F4A7C15)
    key = np.zeros(1, np.uint64)
    for word in (seed, epoch, stream):
        key = _mix_bits(key + golden + np.array([word], np.int64).view(np.uint64))
    rows = _mix_bits(key + golden * (ids.astype(np.uint64)[:, None] + np.uint64(1)))
    words = _mix_bits(rows + golden * np.arange(1, columns + 1, dtype=np.uint64))
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


@dataclass(frozen=True)
class EpochPlan:
    """The plan of one epoch: what stands in each place of its order.

    Attributes:
        ids: (n,) which image; n more for each time that the epoch had it before, so that it is augmented anew.
        partners: (n,) which of these it is mixed with; itself where nothing is mixed.
        weights: (n,) float64, the image's own weight in the mixture, in (0, 1]; 1 where nothing is mixed.
        cut: (n,) True where a box of the partner is pasted (CutMix), False where both are blended (mixup).
    """

    ids: Ids
    partners: Ids
    weights: NDArray[np.float64]
    cut: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, places: slice) -> "EpochPlan":
        return EpochPlan(self.ids[places], self.partners[places], self.weights[places], self.cut[places])


class Share(NamedTuple):
    """Which part of each batch one of several processes computes; what a batch holds does not depend on it.

    Attributes:
        index: Of the process, from 0.
        of: How many processes there are.
    """

    index: int = 0
    of: int = 1

    def part(self, place: slice) -> slice:
        """Its part of some places: those of all processes cover each place once, and are alike in length within one."""
        first, count = place.start, place.stop - place.start
        return slice(first + self.index * count // self.of, first + (self.index + 1) * count // self.of)


WHOLE = Share()


def balanced(seed: int, epoch: int, classes: Ids, units: Ids) -> Ids:
    """The images of an epoch in which every class comes equally often, class by class.

    All draws of a class, over all epochs, are one sequence of rounds. In a round each of its units has one turn, in an
    order of that round, and gives its next image. An epoch begins where the one before ended, and takes from each class
    floor((n (epoch + 1) + place) / k) - floor((n epoch + place) / k), where the k classes have the places 0 to k - 1:
    n in all, so that counts differ by at most one, in an epoch and over all epochs.

    Args:
        seed: Of the run.
        epoch: Counted from 0.
        classes: (n,) the class of each image.
        units: (n,) images of one number (a recording) take turns; each image is one where all differ.

    Returns:
        (n,) images.
    """
    count, (names, counts) = len(classes), np.unique(classes, return_counts=True)
    order = np.lexsort((uniforms(np.arange(count), 1, seed=seed, epoch=0, stream=TURN)[:, 0], units, classes))
    places = np.argsort(np.argsort(uniforms(names, 1, seed=seed, epoch=-1, stream=TURN)[:, 0], kind="stable"))
    drawn = list[Ids]()
    for name, place, mine in zip(names.tolist(), places.tolist(), np.split(order, np.cumsum(counts)[:-1]), strict=True):
        _, first, sizes = np.unique(units[mine], return_index=True, return_counts=True)
        wide = len(sizes)
        turns = np.arange(*((count * end + place) // len(names) for end in (epoch, epoch + 1)))
        rounds = np.arange(turns[0] // wide, turns[-1] // wide + 1)[:, None]
        keys = uniforms((rounds * wide + np.arange(wide)).ravel(), 1, seed=seed, epoch=1 + name, stream=TURN)
        unit = np.argsort(keys.reshape(-1, wide), axis=1, kind="stable").ravel()[turns - rounds[0] * wide]
        drawn.append(mine[first[unit] + turns // wide % sizes[unit]])
    return np.concatenate(drawn)


def plan(
    seed: int, epoch: int, count: int, *, mixup: float = 0.0, cutmix: float = 0.0, balance: Balance = None
) -> EpochPlan:
    """The order of one epoch, and who is mixed with whom.

    Neighbours in the order are each other's partners. Weights follow Beta(alpha, alpha), as in "mixup" (2017) and
    "CutMix" (2019); where both are on, each slot throws a fair coin.

    Args:
        seed: Of the run.
        epoch: Counted from 0.
        count: Number of images, whose ids are 0 to count - 1.
        mixup: Alpha of mixup; 0 for none.
        cutmix: Alpha of CutMix; 0 for none.
        balance: What every class comes equally often by; None for every image once.
    """
    everyone = np.arange(count, dtype=np.int64)
    ids = np.argsort(uniforms(everyone, 1, seed=seed, epoch=epoch, stream=ORDER)[:, 0], kind="stable").astype(np.int64)
    if balance is not None:
        ids = balanced(seed, epoch, *balance)[ids]
        alike = np.argsort(ids, kind="stable")
        ids[alike] += count * (everyone - np.searchsorted(ids[alike], ids[alike]))
    if not (mixup or cutmix):
        return EpochPlan(ids, ids, np.ones(count), np.zeros(count, np.bool_))
    beside = everyone ^ 1
    partners = ids[np.where(beside < count, beside, np.maximum(everyone - 1, 0))]
    coin = uniforms(everyone, 1, seed=seed, epoch=epoch, stream=MIXING)[:, 0] < 0.5
    cut = coin if mixup and cutmix else np.full(count, bool(cutmix))
    draws = np.random.Generator(np.random.Philox(key=np.array([seed, epoch], np.int64).view(np.uint64)))
    blends = draws.beta(mixup or 1.0, mixup or 1.0, count)
    pastes = draws.beta(cutmix or 1.0, cutmix or 1.0, count)
    return EpochPlan(ids, partners, np.where(cut, pastes, blends), cut)

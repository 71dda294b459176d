"""Can a map be made to please the verdict? `python -m benchmarks.optimised_maps`.

Maps are optimised against the score that the verdict goes by, with full knowledge of network, background, seed and code
(as MDA does with deletion and insertion), and tested twice: with the seed that they were made for, and with another.

    random      an order of patches at random: nothing is optimised
    ordered     by the fall of the number when a patch is masked alone, mean over the background's visible fills
    climbed     from there by hill climbing: swaps in the order, kept where the score itself grows
    gradient    from there by the gradient of that score with soft masks
    re-rolled   `random` with the order changed where it changes no mask, until the verdict with the visible seed calls
                the map faithful, or the tries are used up: it must change nothing
    nudged      the same with one patch of each step in the place of one behind it: nearly the same masks

    empty       images without a digit, the twelve networks of the lab
    shuffled    images of a digit, networks with the numbers of every parameter in random order
    drawn anew  images of a digit, networks with random weights
    avoiding    images of a digit, classified right; the maps name the digit's patches last, so none is ever masked
    evident     the same without that, and `random` alone: an optimised map of these may be right

"Supported" needs evidence, which no map can change: in the first three only images with evidence by either seed have to
be attacked to know the rate of all. How often maps are faithful is told of the first images of each network, with
evidence or without. In the last two both are known of all images.
"""

import argparse
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

import vitrail
from benchmarks.measure import machine
from benchmarks.planted_networks import NAMES, PLACE
from benchmarks.trust_power import NETWORKS, shuffled_weights
from tests.data.lab import digit_patches
from vitrail.data.sets.planted import planted_digits
from vitrail.explain.attribution import Attribution
from vitrail.explain.sanity_check import scramble
from vitrail.explain.scores.faithfulness import FAITHFUL, STEPS, MaskedImages
from vitrail.explain.scores.perturb import composite, explained_number, seed_of, stream
from vitrail.explain.target import choose_target
from vitrail.explain.verdict import PreparedTest, Trust, TrustOptions, prepare
from vitrail.model import Model
from vitrail.nn.twin import wide
from vitrail.statistics import wilson_interval

VISIBLE, UNSEEN = 0, 1  # seeds
CONDITIONS = ("empty", "shuffled", "drawn anew", "avoiding", "evident")
WITH_EVIDENCE = CONDITIONS[3:]
ATTACKS = ("random", "ordered", "climbed", "gradient", "random, re-rolled", "random, nudged")
EVALUATIONS = 200  # of the score, by hill climbing
TRIES = 10  # verdicts that a re-rolled or nudged map may take
ITERATIONS = 20  # of the gradient
SCRAMBLES = 5  # networks with other weights, for each trained one

Maps = Float[Tensor, "b rows columns"]


class Attacked(NamedTuple):
    """Images, and which of their patches a map may name first."""

    test: PreparedTest
    allowed: Bool[Tensor, "b rows columns"]

    @property
    def masked(self) -> MaskedImages:
        return self.test.masked

    def confined(self, values: Maps) -> Maps:
        """The maps with all patches that may not be named behind the others."""
        lowest = values.flatten(1).amin(dim=1)[:, None, None] - 1
        return torch.where(self.allowed, values, lowest)

    def fall(self, values: Maps) -> Float[Tensor, " b"]:
        """The score of the verdict: the mean fall over all steps and fills."""
        masked = self.masked
        every = masked.masks(values[None])[None, :, 0].expand(STEPS, -1, -1, -1, -1)
        (numbers,) = masked.numbers_under(every, ("centred",))
        return (masked.before - numbers).mean(dim=(0, 1))

    def evaluate(self, values: Maps, tested: Bool[Tensor, " b"] | None = None) -> Trust:
        """The real verdict."""
        chosen, notes = self.masked.chosen, ((),) * len(values)
        attribution = Attribution(values, chosen.target, self.masked.before, "optimised", False, True, notes)
        return (self.test if tested is None else replace(self.test, tested=tested)).evaluate(attribution)


def order_of(values: Maps) -> Int[Tensor, "b p"]:
    """Patches from the first to the last that a map names."""
    return values.flatten(1).argsort(dim=1, descending=True, stable=True)


def map_of(order: Int[Tensor, "b p"], like: Maps) -> Maps:
    """A map that names patches in this order."""
    places = torch.arange(order.shape[1], 0, -1).to(like).expand_as(order)
    return torch.empty_like(like).flatten(1).scatter_(1, order, places).view_as(like)


def at_random(attacked: Attacked, random: torch.Generator) -> Maps:
    """Any order of the patches that may be named."""
    return attacked.confined(torch.rand(attacked.allowed.shape, generator=random))


@torch.no_grad()
def ordered(attacked: Attacked) -> Maps:
    """Each patch by the mean fall when it is masked alone."""
    masked, (count, rows, columns) = attacked.masked, attacked.allowed.shape
    alone = torch.eye(rows * columns, dtype=torch.bool).view(-1, 1, rows, columns).expand(-1, count, -1, -1)
    (numbers,) = masked.numbers_under(alone, ("centred",))
    falls = masked.before - numbers.mean(dim=0)  # (p, b)
    return attacked.confined(falls.T.reshape(count, rows, columns))


@torch.no_grad()
def climbed(attacked: Attacked, start: Maps, evaluations: int, random: torch.Generator) -> Maps:
    """Hill climbing on the score: two patches of the order change places, where that makes it larger."""
    order, every = order_of(start), torch.arange(len(start))
    best, may = attacked.fall(map_of(order, start)), attacked.allowed.flatten(1).sum(dim=1)
    masked_at_all = attacked.masked.steps[-1]
    for _ in range(evaluations):
        chance = torch.rand(2, len(start), generator=random)
        first, other = (chance[0] * masked_at_all).long(), (chance[1] * may).long()
        changed = order.clone()
        changed[every, first], changed[every, other] = order[every, other], order[every, first]
        fall = attacked.fall(map_of(changed, start))
        better = fall > best
        order, best = torch.where(better[:, None], changed, order), torch.where(better, fall, best)
    return map_of(order, start)


def by_gradient(attacked: Attacked, start: Maps, iterations: int, width: float = 0.3) -> Maps:
    """Adam on the number under soft masks of every step, each with another of the fills."""
    masked, flat, patch = attacked.masked, start.flatten(1), attacked.masked.network.config.patch
    values = ((flat - flat.mean(dim=1, keepdim=True)) / flat.std(dim=1, keepdim=True)).view_as(start)
    values = values.clone().requires_grad_()
    steps = torch.optim.Adam([values], lr=0.1)
    for _ in range(iterations):
        named = attacked.confined(values)
        sorted_ = named.detach().flatten(1).sort(dim=1, descending=True).values
        total = torch.zeros(())
        for fill, step in zip(masked.fills, masked.steps, strict=True):
            limit = sorted_[:, step - 1 : step + 1].mean(dim=1)[:, None, None]
            soft = ((named - limit) / width).sigmoid()
            logits = masked.network(composite(masked.images, fill, soft, patch))
            total = total + explained_number(logits, masked.chosen).sum()
        (values.grad,) = torch.autograd.grad(total, [values])
        steps.step()
    return attacked.confined(values.detach())


def shuffled_within(row: Int[Tensor, " p"], bounds: Sequence[int], random: torch.Generator) -> None:
    """An order with patches in other places between the same steps: the same masks."""
    for low, high in pairwise(bounds):
        row[low:high] = row[low:high][torch.randperm(high - low, generator=random)]


def nudged_across(row: Int[Tensor, " p"], bounds: Sequence[int], random: torch.Generator) -> None:
    """An order in which one patch of each step has the place of one of the next."""
    for low, middle, high in zip(bounds, bounds[1:], bounds[2:], strict=False):
        one, other = (int(torch.randint(*ends, (1,), generator=random)) for ends in ((low, middle), (middle, high)))
        row[[one, other]] = row[[other, one]]


@torch.no_grad()
def tried(
    attacked: Attacked, start: Maps, tries: int, random: torch.Generator, change: Callable = shuffled_within
) -> Maps:
    """Of so many maps that are changed from this one the first that the verdict calls faithful, or the last."""
    order, bounds = order_of(start), [0, *attacked.masked.steps]
    pending, found = torch.ones(len(start), dtype=torch.bool), start.clone()
    for _ in range(tries):
        changed = order.clone()
        for row, may in zip(changed, attacked.allowed.flatten(1).sum(dim=1).tolist(), strict=True):
            change(row, [*bounds, may], random)
        values = map_of(changed, start)
        found = torch.where(pending[:, None, None], values, found)
        pending &= ~(attacked.evaluate(values, pending).drops.faithful <= FAITHFUL)
        if not pending.any():
            break
    return found


def attacks(attacked: Attacked, evaluations: int, tries: int, seed: int, optimise: bool) -> Iterator[tuple[str, Maps]]:
    """Maps of all kinds, in the order of `ATTACKS`, or the random ones alone."""
    random = stream(seed, "attacks")
    chance = at_random(attacked, random)
    again = tuple(tried(attacked, chance, tries, random, change) for change in (shuffled_within, nudged_across))
    if not optimise:
        yield from zip((ATTACKS[0], *ATTACKS[4:]), (chance, *again), strict=True)
        return
    start = ordered(attacked)
    climb = climbed(attacked, start, evaluations, random)
    made = (chance, start, climb, by_gradient(attacked, start, ITERATIONS))
    yield from zip(ATTACKS, (*made, *again), strict=True)


def parts_of(condition: str, count: int, place: Path, seed: int) -> Iterator[tuple[Model, Tensor, Tensor]]:
    """Networks of a condition, each with images and the patches that maps may name first."""
    names = NAMES if condition == "empty" else NETWORKS
    ways: dict[str, Callable] = {"shuffled": shuffled_weights, "drawn anew": scramble}
    many = len(names) * (SCRAMBLES if condition in ways else 1)
    for number in range(many):
        model, each = vitrail.load(place / names[number % len(names)]), -(-count // many)
        assert isinstance(model, Model)
        made = planted_digits("test", 2 * each, "empty" if condition == "empty" else "single", seed=seed + number)
        images = model.preprocessing.normalise(torch.from_numpy(made.pixels)[:, None])
        allowed = torch.ones(len(images), *model.network.grid(images), dtype=torch.bool)
        if condition in ways:
            model = replace(model, network=ways[condition](model.network, seed + number))
        if condition in WITH_EVIDENCE:
            right = model.network(images).detach().argmax(dim=1) == torch.from_numpy(made.labels[:, 0])
            if condition == "avoiding":
                allowed &= ~torch.from_numpy(digit_patches(made, model.network.config.patch))[:, 0]
            images, allowed = images[right], allowed[right]
        yield model, images[:each], allowed[:each]


class Row:
    """What was counted of one attack, for each seed."""

    def __init__(self) -> None:
        self.words: dict[int, Counter[str]] = {VISIBLE: Counter(), UNSEEN: Counter()}
        self.faithful: dict[int, list[bool]] = {VISIBLE: [], UNSEEN: []}
        self.beyond: dict[int, list[float]] = {VISIBLE: [], UNSEEN: []}


def measure(condition: str, given: argparse.Namespace) -> tuple[Counter, int, dict[str, Row]]:
    """How many images have evidence by each seed, and for any class by the visible one; of how many; and the rows."""
    rows: dict[str, Row] = defaultdict(Row)
    evidence, n = Counter(), 0
    count = given.with_evidence if condition in WITH_EVIDENCE else given.count
    parts = list(parts_of(condition, count, given.place, given.seed))
    for number, (model, images, allowed) in enumerate(parts):
        logits = wide(model.network(images).detach())
        chosen, n = choose_target(logits, None), n + len(images)
        tests = {seed: prepare(model, images, chosen, TrustOptions(seed=seed)) for seed in (VISIBLE, UNSEEN)}
        found = {seed: test.evidence.found for seed, test in tests.items()}
        classes = [choose_target(logits, target) for target in range(logits.shape[1])]
        of_any = torch.stack(
            [prepare(model, images, one, TrustOptions(seed=VISIBLE)).evidence.found for one in classes]
        ).any(dim=0)
        evidence.update({**{seed: int(some.sum()) for seed, some in found.items()}, "any class": int(of_any.sum())})
        fair = given.first // len(parts) + (number < given.first % len(parts))
        told = len(images) if condition in WITH_EVIDENCE else fair
        sample = torch.arange(len(images)) < told
        some = (sample | found[VISIBLE] | found[UNSEEN]).nonzero()[:, 0]
        if not len(some):
            continue
        picked = {
            seed: Attacked(
                prepare(model, images[some], chosen.select(some), TrustOptions(seed=seed, full=True)), allowed[some]
            )
            for seed in tests
        }
        own = seed_of(given.seed, condition, number)
        optimise = condition != "evident"
        for name, values in attacks(picked[VISIBLE], given.evaluations, given.tries, own, optimise):
            for seed, attacked in picked.items():
                held, row = attacked.evaluate(values), rows[name]
                row.words[seed].update(held.verdict)
                row.faithful[seed] += (held.drops.faithful <= FAITHFUL)[sample[some]].tolist()
                row.beyond[seed] += (held.drops.score - held.drops.random.nanmean(dim=1))[sample[some]].tolist()
    return evidence, n, rows


def share(found: int, of: int) -> str:
    """A rate with its 95 % interval (Wilson)."""
    low, high = wilson_interval(found, of)
    return f"{found / of:.1%} ({100 * low:.1f} to {100 * high:.1f}; {found} of {of})"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print, for every condition and attack, how often the verdict is "supported" with either seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--conditions", nargs="*", default=CONDITIONS)
    parser.add_argument("--count", type=int, default=1020, help="images of each condition without evidence")
    parser.add_argument("--with-evidence", type=int, default=120, help="images of each condition with it")
    parser.add_argument("--first", type=int, default=60, help="images for which the second question is told")
    parser.add_argument("--evaluations", type=int, default=EVALUATIONS)
    parser.add_argument("--tries", type=int, default=TRIES)
    parser.add_argument("--seed", type=int, default=11, help="of the images, of the weights and of the attacks")
    parser.add_argument("--place", type=Path, default=PLACE)
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    for condition in given.conditions:
        evidence, n, rows = measure(condition, given)
        kinds = (("visible seed", VISIBLE), ("unseen", UNSEEN), ("for any class, visible seed", "any class"))
        told = ", ".join(f"{name} {share(evidence[which], n)}" for name, which in kinds)
        print(f"\n{condition}: evidence, whatever the map: {told}", flush=True)
        for name, row in rows.items():
            for what, seed in (("visible", VISIBLE), ("unseen", UNSEEN)):
                words, faithful = row.words[seed], row.faithful[seed]
                tiny, beyond = words["supported, tiny"], torch.tensor(row.beyond[seed])
                print(
                    f"  {name:<20}{what:<8} supported {share(words['supported'] + tiny, n)}, {tiny} of these tiny; "
                    f"faithful {share(sum(faithful), len(faithful))}; "
                    f"falls beyond random maps by {beyond.median():.2g} (median)",
                    flush=True,
                )
    print(machine())


if __name__ == "__main__":
    main()

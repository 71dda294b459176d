"""Checks of a whole package of scores, run on it as it is and with planted faults (test_mutants.py)."""

import itertools
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from tests.explain import reference as explain_reference
from tests.explain.scores import reference
from tests.explain.scores.reference import CLASSES, GRID, PATCH, make_images, make_maps, make_network
from vitrail.explain import Attribution, generic_attention
from vitrail.explain.scores.perturb import composite, ranks_of, stream
from vitrail.explain.target import Target
from vitrail.nn import ViT

TARGETS = [2, 0, 3]


def background(count: int = 5) -> Tensor:
    return make_images(count, seed=7)


def close(one: Tensor, two: object, tolerance: float = 1e-12) -> None:
    wanted = np.asarray(two)
    assert one.shape == wanted.shape
    assert np.abs(one.numpy() - wanted).max() <= tolerance


def background_patches_keep_their_position(scores: ModuleType) -> None:
    images, given = make_images(), background()
    filler = scores.from_background(given).make(images, PATCH, 200, 0)
    assert filler.shape == (200, *images.shape)
    cut = given.numpy().reshape(5, 2, GRID[0], PATCH[0], GRID[1], PATCH[1])
    made = filler.numpy().reshape(200, 3, 2, GRID[0], PATCH[0], GRID[1], PATCH[1])
    source = np.full((200, 3, *GRID), -1)
    for row, column in np.ndindex(GRID):
        for index in range(5):
            same = (made[:, :, :, row, :, column] == cut[index, :, row, :, column]).all(axis=(2, 3, 4))
            source[same, row, column] = index
    assert source.min() == 0, "a patch that is of no reference at this position"
    counts = np.stack([(source[:, 0] == index).sum(axis=0) for index in range(5)])
    assert (np.abs(counts - 40) < 28).all()  # 5 standard deviations of 200 draws among 5
    neighbours = (source[:, 0, :, 1:] == source[:, 0, :, :-1]).mean()
    assert abs(neighbours - 0.2) < 0.05, "every position draws for itself"


def own_patches_come_from_elsewhere_in_the_image(scores: ModuleType) -> None:
    images = make_images()
    filler = scores.own_patches().make(images, PATCH, 60, 0)
    assert filler.shape == (60, *images.shape)
    cut = images.numpy().reshape(3, 2, GRID[0], PATCH[0], GRID[1], PATCH[1])
    made = filler.numpy().reshape(60, 3, 2, GRID[0], PATCH[0], GRID[1], PATCH[1])
    places = list(np.ndindex(GRID))
    for image, (row, column) in itertools.product(range(3), places):
        stands = made[:, image, :, row, :, column]
        found = [(stands == cut[image, :, there[0], :, there[1]]).all(axis=(1, 2, 3)) for there in places]
        assert (np.sum(found, axis=0) == 1).all()
        assert not found[places.index((row, column))].any()
        assert np.sum([one.any() for one in found]) >= 8


def composites_are_exact(scores: ModuleType) -> None:
    images, fillers = make_images(), make_images(6, seed=3).unflatten(0, (2, 3))
    generator = torch.Generator().manual_seed(0)
    masked = torch.rand(2, 3, *GRID, generator=generator) < 0.5
    made = composite(images, fillers, masked, PATCH)
    single = composite(images, fillers[:1], masked[0], PATCH)
    broad = composite(images, fillers, masked[:1], PATCH)
    for draw, image in np.ndindex(2, 3):
        for result, mask in ((made, masked[draw, image]), (broad, masked[0, image])):
            patches = mask.flatten().nonzero()[:, 0].tolist()
            wanted = reference.replaced(images[image].numpy(), fillers[draw, image].numpy(), patches, GRID)
            close(result[draw, image], wanted, 0)
    close(single, made[:1].numpy(), 0)


def curves_are_exact(scores: ModuleType) -> None:
    """Deletion, insertion, AOPC and SaCo as numpy loops give them."""
    network, images, values = make_network(), make_images(), make_maps()
    fill, places = scores.from_background(background()), [count / 12 for count in range(13)]
    fillers = fill.make(images, PATCH, 4, 5).numpy()
    for measure in ("probability", "logit"):
        masking = scores.Masking(fill, draws=4, seed=5, measure=measure, batch_size=7)
        given = (network, images, values, torch.tensor(TARGETS), masking)
        deleted, inserted, dropped = scores.deletion(*given), scores.insertion(*given), scores.aopc(*given, steps=5)
        grouped = scores.saco(*given, groups=5)
        for image, target in enumerate(TARGETS):

            def left(patches: list[int], image: int = image, target: int = target, measure: str = measure) -> float:
                pixels, fills = images[image].numpy(), fillers[:, image]
                return reference.measured_with(network, pixels, fills, patches, GRID, target, measure)

            order = reference.order_of(values[image].numpy())
            away, shown = [left(order[:count]) for count in range(13)], [left(order[count:]) for count in range(13)]
            close(deleted.points[image], away)
            close(inserted.points[image], shown)
            close(deleted.score[image], reference.area(away, places))
            close(inserted.score[image], reference.area(shown, places))
            close(dropped.score[image], sum(away[0] - away[count] for count in range(6)) / 6)
            groups = [order[0:2], order[2:5], order[5:7], order[7:10], order[10:12]]
            salience = [sum(values[image].flatten()[patch].item() for patch in group) for group in groups]
            drops = [left([]) - left(group) for group in groups]
            close(grouped.points[image], drops)
            above = below = 0.0
            for i, j in itertools.combinations(range(5), 2):
                weight = salience[i] - salience[j]
                above += weight if drops[i] >= drops[j] else -weight
                below += abs(weight)
            close(grouped.score[image], above / below)
        close(deleted.fractions, places)


def fewer_steps_are_points_of_the_curve(scores: ModuleType) -> None:
    network, images, values = make_network(), make_images(), make_maps()
    given = (
        network,
        images,
        values,
        torch.tensor(TARGETS),
        scores.Masking(scores.from_background(background()), draws=2),
    )
    for score in (scores.deletion, scores.insertion):
        every, some = score(*given), score(*given, steps=5)
        close(some.points, every.points[:, [0, 2, 5, 7, 10, 12]].numpy())
        close(some.fractions, [0, 2 / 12, 5 / 12, 7 / 12, 10 / 12, 1])
        close(score(*given, steps=100).points, every.points.numpy(), 0)


def perturbation_is_exact(scores: ModuleType) -> None:
    """On maps as fine as the images, where no pixels are equal."""
    network, images = make_network(), make_images()
    height, width = images.shape[2:]
    generator = torch.Generator().manual_seed(0)
    values = torch.rand(3, height, width, generator=generator, dtype=torch.float64)
    fill = scores.from_background(background())
    masking = scores.Masking(fill, draws=6, seed=1)
    fillers = fill.make(images, (1, 1), 6, 1).numpy()
    tops = network(images).argmax(dim=1)
    for first, name in (("most", "positive"), ("least", "negative")):
        found = scores.perturbation(network, images, values, tops, masking, first=first)
        assert (found.metric, found.unit, found.measure) == (f"{name} perturbation", "pixel", "top-1")
        assert found.better == ("lower" if first == "most" else "higher")
        for image in range(3):
            order, points = reference.order_of(values[image].numpy()), []
            order = order if first == "most" else order[::-1]
            for tenth in range(1, 10):
                pixels = order[: height * width * tenth // 10]
                made = [
                    reference.replaced(images[image].numpy(), filler[image], pixels, (height, width))
                    for filler in fillers
                ]
                points.append(np.mean([reference.logits_of(network, one).argmax() == tops[image] for one in made]))
            close(found.points[image], points)
            close(found.score[image], reference.area(points, [tenth / 10 for tenth in range(1, 10)]))
        assert 0 < found.points.mean() < 1


def perturbation_masks_the_upsampled_map(scores: ModuleType) -> None:
    """What the network is shown: so many pixels, and none that is left has more of the map than one that is masked."""
    images, values, seen = make_images(), make_maps(), []

    class Spy(torch.nn.Module):
        def forward(self, shown: Tensor) -> Tensor:
            seen.extend(shown)
            return shown.flatten(1)[:, :CLASSES]

    masking = scores.Masking(scores.grey(99.0), batch_size=1)
    for first in ("most", "least"):
        seen.clear()
        scores.perturbation(Spy().eval(), images, values, 0, masking, first=first)
        masked = (torch.stack(seen)[3:] == 99.0).view(3, 9, *images.shape[1:])  # the first 3 are as they were
        assert (masked == masked[:, :, :1]).all()
        for image, step in np.ndindex(3, 9):
            mask = masked[image, step, 0].numpy()
            smooth = reference.bilinear(values[image].numpy(), *mask.shape) * (1 if first == "most" else -1)
            assert mask.sum() == mask.size * (step + 1) // 10
            assert smooth[mask].min() >= smooth[~mask].max() - 1e-9


def a_contrast_and_a_function_are_measured(scores: ModuleType) -> None:
    network, images, values = make_network(), make_images(), make_maps()
    fill = scores.from_background(background())
    fillers = fill.make(images, PATCH, 2, 0)
    ends = network(fillers.flatten(0, 1)).unflatten(0, (2, 3)).detach()
    gap, logits = ends[..., 2] - ends[..., 1], ends[..., 0] + ends[..., 3]
    for target, measure, wanted in (
        ((2, 1), "logit", gap),
        ((2, 1), "probability", 1 / (1 + (-gap).exp())),
        (lambda rows: rows[:, 0] + rows[:, 3], "logit", logits),
    ):
        found = scores.deletion(network, images, values, target, scores.Masking(fill, draws=2, measure=measure))
        close(found.points[:, -1], wanted.mean(dim=0).numpy())


def the_same_in_every_batch(scores: ModuleType) -> None:
    """T17: images together or one by one, in chunks of any size; equal values too."""
    network, images, values = make_network(), make_images(), make_maps().round(decimals=-1)
    fills = (scores.from_background(background()), scores.own_patches(), scores.grey(0.3), scores.mean_of_image())
    for fill in (*fills, scores.blur(0.7)):
        for score in (scores.deletion, scores.insertion, scores.aopc, scores.saco, scores.perturbation):
            masking = scores.Masking(fill, draws=3, seed=4)
            together = score(network, images, values, torch.tensor(TARGETS), masking).score
            chunked = scores.Masking(fill, draws=3, seed=4, batch_size=5)
            close(score(network, images, values, torch.tensor(TARGETS), chunked).score, together.numpy())
            for one in range(3):
                part = slice(one, one + 1)
                close(score(network, images[part], values[part], TARGETS[one], masking).score, together[part].numpy())


def equal_values_come_in_random_order(scores: ModuleType) -> None:
    """Every position is as often first as last, and the larger values still come before them."""
    values = torch.zeros(1, *GRID)
    values[0, 1, 2] = 1.0
    ranks = ranks_of(values, 3000, 0, [5])
    assert (ranks[:, 0, 1, 2] == 0).all()
    others = ranks.flatten(2)[:, 0, torch.arange(12) != 6].double()
    assert (others.sort(dim=1).values == torch.arange(1, 12)).all()
    assert (others.mean(dim=0) - 6).abs().max() < 0.3  # 5 standard deviations
    assert ((others == 1).double().mean(dim=0) - 1 / 11).abs().max() < 0.03
    keys = scores.keys_of(make_images()[[0, 1, 0]])
    assert keys[0] == keys[2] != keys[1]
    first, second, again = ranks_of(values.expand(3, -1, -1), 4, 0, keys).transpose(0, 1)
    assert torch.equal(first, again)
    assert not torch.equal(first, second)


def the_true_order_is_the_best_of_all(scores: ModuleType) -> None:
    """On a network that adds up patches, every one of the 720 orders, with a fill that is drawn."""
    generator = torch.Generator().manual_seed(0)
    network = reference.Linear(torch.randn(CLASSES, 1, 4, 9, generator=generator, dtype=torch.float64)).eval()
    images = torch.randn(1, 1, 4, 9, generator=generator, dtype=torch.float64)
    fill = scores.from_background(torch.randn(6, 1, 4, 9, generator=generator, dtype=torch.float64))
    true = network.contributions(images, fill.make(images, PATCH, 3, 0).mean(dim=0), 1, PATCH)
    orders = torch.tensor(list(itertools.permutations(range(6))), dtype=torch.float64).view(-1, 2, 3)
    maps, many = torch.cat([true, -true, orders]), images.expand(722, -1, -1, -1)
    masking = scores.Masking(fill, draws=3, measure="logit", batch_size=4096)
    deleted, inserted, dropped = (
        score(network, many, maps, 1, masking).score for score in (scores.deletion, scores.insertion, scores.aopc)
    )
    for found, sign in ((deleted, -1), (inserted, 1), (dropped, 1)):
        assert sign * found[0] >= (sign * found).max() - 1e-12
        assert sign * found[1] <= (sign * found).min() + 1e-12
        assert found.max() - found.min() > 0.1
    grouped = scores.saco(network, many[:2], maps[:2], 1, masking, groups=6).score
    close(grouped, [1.0, -1.0])


def random_maps_hold_the_same_values(scores: ModuleType) -> None:
    generator = torch.Generator().manual_seed(0)
    for shape in ((3, 8, 8), (2, 4, 6), (2, 1, 9), (2, 7, 1), (1, 1, 1), (1, 2, 2)):
        for values in (torch.randn(shape, generator=generator), torch.randn(shape, generator=generator).clamp_min(0)):
            found = scores.random_maps(values, 5, 0)
            assert found.shape == (5, *shape)
            assert found.dtype == values.dtype
            wanted = values.flatten(1).sort(dim=1).values.expand(5, -1, -1)
            assert torch.equal(found.flatten(2).sort(dim=2).values, wanted)


def spots(count: int, grid: tuple[int, int], noise: float, seed: int = 0) -> Tensor:
    """Maps with one round spot somewhere."""
    generator = torch.Generator().manual_seed(seed)
    centre = torch.rand(count, 2, 1, 1, generator=generator) * torch.tensor(grid)[:, None, None]
    rows, columns = torch.arange(grid[0])[:, None], torch.arange(grid[1])
    spot = torch.exp(-((rows - centre[:, 0]) ** 2 + (columns - centre[:, 1]) ** 2) / 2)
    return spot + noise * torch.rand(spot.shape, generator=generator)


def autocorrelation(maps: Tensor, down: int, right: int) -> float:
    """The mean over maps of the correlation of each patch with the one so far away, on a torus."""
    deviation = maps - maps.mean(dim=(-2, -1), keepdim=True)
    moved = deviation.roll((down, right), dims=(-2, -1))
    return float(((deviation * moved).sum(dim=(-2, -1)) / (deviation**2).sum(dim=(-2, -1))).mean())


def random_maps_are_as_smooth(scores: ModuleType) -> None:
    generator = torch.Generator().manual_seed(1)
    waves = torch.arange(9).mul(2 * torch.pi / 9).sin() + 0.3 * torch.randn(60, 6, 9, generator=generator)
    for values, tolerance in (
        (spots(60, (8, 8), 0.0), 0.010),
        (spots(60, (8, 8), 0.1), 0.035),
        (spots(60, (8, 12), 0.1), 0.040),
        ((spots(60, (8, 8), 0.0) - 0.3).clamp_min(0), 0.012),
        (waves, 0.012),
        (torch.randn(60, 8, 8, generator=generator), 0.003),
    ):
        found = scores.random_maps(values, 20, 0)
        for step in ((0, 1), (1, 0), (1, 1), (0, 2), (2, 0)):
            most = min(tolerance, 0.012) if sum(step) == 1 else tolerance
            assert abs(autocorrelation(values, *step) - autocorrelation(found, *step)) <= most


def random_maps_lie_anywhere(scores: ModuleType) -> None:
    """The largest value is at every place alike, wherever the map has it, and on average a random map is unlike it."""
    values = spots(1, (5, 8), 0.1)
    found = scores.random_maps(values, 4000, 0)[:, 0].flatten(1)
    for places in (found.argmax(dim=1), found.argmin(dim=1)):
        assert (torch.bincount(places, minlength=40) - 100).abs().max() <= 45  # 4.5 standard deviations
    agreement = [np.corrcoef(values.flatten(), one)[0, 1] for one in found]
    assert abs(np.mean(agreement)) < 0.02


def make_masked(count: int = 40, grid: tuple[int, int] = (4, 5), seed: int = 0) -> tuple[Tensor, Tensor]:
    """Maps of both signs without equal values, and masks of 2 x 2 patches."""
    generator = torch.Generator().manual_seed(seed)
    masks = torch.zeros(count, *grid, dtype=torch.bool)
    for mask in masks:
        row, column = (int(torch.randint(side - 1, (), generator=generator)) for side in grid)
        mask[row : row + 2, column : column + 2] = True
    return torch.randn(count, *grid, generator=generator, dtype=torch.float64) + masks, masks


def localisation_is_exact(scores: ModuleType) -> None:
    values, masks = make_masked()
    pointed, mass, rank = (
        score(values, masks) for score in (scores.pointing_game, scores.relevance_mass, scores.relevance_rank)
    )
    for index, (value, mask) in enumerate(zip(values.numpy(), masks.numpy(), strict=True)):
        order = reference.order_of(value)
        assert pointed[index] == mask.flat[order[0]]
        assert abs(rank[index] - np.mean([mask.flat[patch] for patch in order[: mask.sum()]])) <= 1e-6
        inside = sum(max(number, 0) for number, is_in in zip(value.flat, mask.flat, strict=True) if is_in)
        assert abs(mass[index] - inside / sum(max(number, 0) for number in value.flat)) <= 1e-12
    assert 0 < pointed.mean() < 1


def a_constant_map_points_by_chance(scores: ModuleType) -> None:
    _, masks = make_masked()
    flat = torch.full(masks.shape, 0.3)
    for score in (scores.pointing_game, scores.relevance_mass, scores.relevance_rank):
        assert (score(flat, masks) - 4 / 20).abs().max() <= 1e-6
    assert abs(scores.segmentation(flat, masks).mean_average_precision - 0.5) <= 1e-12


def segmentation_accumulates(scores: ModuleType) -> None:
    """Of two images, in one of which all is inside: intersections and unions are added before they are divided."""
    values = torch.tensor([[[5.0, 2.0], [0.0, 0.0]], [[2.0, 0.0], [0.0, 0.0]]])
    masks = torch.tensor([[[True, True], [True, True]], [[True, True], [False, False]]])
    # above the means 1.75 and 0.5: two pixels and one; inside 3 of 6, outside 2 of 5; right 2 and 3 of 8
    found = scores.segmentation(values, masks)
    assert (found.pixel_accuracy, found.mean_iou) == (5 / 8, (3 / 6 + 2 / 5) / 2)


def a_blind_map_has_one_half(scores: ModuleType) -> None:
    """T10, also where both objects get the same."""
    generator = torch.Generator().manual_seed(0)
    masks = torch.zeros(30, 2, 3, 5, dtype=torch.bool)
    masks[:, 0, 0, :2] = masks[:, 1, 2, 3:] = True
    values = torch.randn(30, 3, 5, generator=generator)
    values[:5] = 0.0
    found = scores.class_discrimination(values, values, masks)
    assert (found.sum(dim=1) == 1).all()
    one, two = masks[:, 0].double(), masks[:, 1].double()
    assert (scores.class_discrimination(one, two, masks) == 1).all()
    assert (scores.class_discrimination(two, one, masks) == 0).all()


def scrambled_networks_have_maps_of_the_same_class(scores: ModuleType) -> None:
    """A head of zeros would give maps of zeros, which are like nothing; another target would explain another thing."""
    network, asked = explain_reference.make_network(explain_reference.PLAIN), []
    images = explain_reference.make_images(explain_reference.PLAIN, 6)

    def method(given: ViT, images: Tensor, target: Target) -> Attribution:
        attribution = generic_attention(given, images, target)
        asked.append(attribution.target)
        assert attribution.notes == ((),) * 6
        return attribution

    state = torch.get_rng_state()
    found = scores.mprt(network, images, method)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(asked[0], asked[1])
    assert found.signed.isfinite().all()
    assert (found.signed < 0.999).all()
    assert torch.equal(asked[0], network(images).argmax(dim=1))


def the_largest_change_counts(scores: ModuleType) -> None:
    """Max-sensitivity on a map that is linear in the image: the noise itself, relative to the map."""
    network = explain_reference.make_network(explain_reference.PLAIN)
    images = torch.ones(2, 2, 12, 10, dtype=torch.float64)

    def means(given: ViT, images: Tensor, target: Target) -> Attribution:
        values = images.mean(dim=1).unflatten(2, (5, 2)).unflatten(1, (3, 4)).mean(dim=(2, 4))
        return Attribution(values, torch.zeros(2, dtype=torch.long), torch.zeros(2), "means", True, True, ((), ()))

    for seed in range(4):
        found = scores.max_sensitivity(network, images, means, radius=0.5, samples=7, seed=seed)
        generator, worst = stream(seed, "max-sensitivity"), 0.0
        for _ in range(7):
            noise = torch.rand(2, 12, 10, generator=generator, dtype=torch.float64).numpy() - 0.5
            patches = noise.reshape(2, 3, 4, 5, 2).mean(axis=(0, 2, 4))
            worst = max(worst, float(np.sqrt((patches**2).sum() / 15)))
        close(found, [worst, worst])


CHECKS = (
    background_patches_keep_their_position,
    own_patches_come_from_elsewhere_in_the_image,
    composites_are_exact,
    curves_are_exact,
    fewer_steps_are_points_of_the_curve,
    perturbation_is_exact,
    perturbation_masks_the_upsampled_map,
    a_contrast_and_a_function_are_measured,
    the_same_in_every_batch,
    equal_values_come_in_random_order,
    the_true_order_is_the_best_of_all,
    random_maps_hold_the_same_values,
    random_maps_are_as_smooth,
    random_maps_lie_anywhere,
    localisation_is_exact,
    a_constant_map_points_by_chance,
    segmentation_accumulates,
    a_blind_map_has_one_half,
    scrambled_networks_have_maps_of_the_same_class,
    the_largest_change_counts,
)

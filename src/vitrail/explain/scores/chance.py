"""Random maps, which a map must do better than: as smooth as the map, of the same values, elsewhere.

Fourier surrogates: the amplitudes at each frequency are kept, and the phases are drawn anew. Images without evidence
are made alike (`explain/evidence.py`).
"""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from vitrail.explain.forward import to_float64
from vitrail.explain.scores.perturb import stream

REFINEMENTS = 10  # more change the autocorrelation by less than 0.01
SWAPS = 24  # that are tried for each patch, up to `MOST_SWAPS`
MOST_SWAPS = 2000
LIKE_ENOUGH = 0.005  # of the autocorrelation: swaps end here


@torch.no_grad()
def random_maps(
    values: Float[Tensor, "b rows columns"], count: int, seed: int, keys: Sequence[int] | None = None
) -> Float[Tensor, "count b rows columns"]:
    """Random maps that are as smooth as each map and hold the same values: what a map must do better than.

    A map of white noise is easily beaten: digits and dogs lie in one piece, and any smooth map covers more of a piece
    than scattered patches do. So a map is held against random maps that differ from it in one thing only, the place.
    They are Fourier surrogates of two dimensions. The start is amplitude-adjusted (Theiler, Eubank, Longtin, Galdrikian
    and Farmer, "Testing for nonlinearity in time series: the method of surrogate data", Physica D 1992):

        z = the Gaussian numbers that have the ranks of the map's values
        s = Re F^-1(e^(i phase) F z)           phases at random, those of a real map; F the Fourier transform
        r = the map's own values, put in the order of s

    r has the map's values but is rougher than the map where few values stand out, as they do in most maps. So it is
    refined by turns (Schreiber and Schmitz, "Improved surrogate data for nonlinearity tests", Physical Review Letters
    1996):

        s = Re F^-1(|F map| e^(i phase of F r))     the power of the map at each frequency, hence its autocorrelation
        r = the map's own values, put in the order of s

    On a grid of few patches, and where few values stand out, r is still rougher than the map, and a map that is
    smoother than all of its random maps beats them for that alone: of random maps, 7 in 100 then passed for the best of
    40 (2 in 40 is 5). So pairs of values are swapped, at random, where that brings the likeness of neighbours, along
    rows and along columns, nearer to the map's.

    All of it sees the map on a torus: a spot may lie across the edge, half of it on either side. Maps are small, so
    they are made on the CPU: in float64, and the same on every machine.

    Measured on the lab's maps (8 x 8 patches; generic attention, rollout, conservative propagation): the mean
    autocorrelation of neighbours is that of the map within 0.02. Maps of two values only come out rougher (one spot of
    2 x 2 patches in 8 x 8): order carries little about them.

    Args:
        values: Maps on any grid.
        count: How many for each map.
        seed: Decides the phases, with the keys.
        keys: A number for each map, such as `keys_of(images)`, which gives each image its own phases, the same in
            every batch. Without keys all maps get the same phases: right for a single map, but over many images the
            random maps then succeed and fail together. Of 200 maps with one spot on 8 x 8 patches, one of 39 phases
            left the peak where it was in 17 to 21 % (in 1.6 % by chance); with keys in 3 % at most.

    Returns:
        (count, b, rows, columns): each holds exactly the values of its map. A constant map stays as it is.
    """
    given, values, grid = values, values.cpu(), values.shape[1:]
    drawn = [
        torch.randn((count, *grid), generator=stream(seed, "random maps", key), dtype=torch.float64, device="cpu")
        for key in (keys or [0])
    ]
    noise = torch.stack(drawn, dim=1)  # (count, b or 1, rows, columns)
    own = values.flatten(1).sort(dim=1).values.expand(count, -1, -1)
    map_ = to_float64(values)
    middle = twice_ranks(map_.flatten(1)) / (2 * own.shape[2])  # equal values share the middle of their ranks
    gaussian, power = torch.special.ndtri(middle.double()).unflatten(1, grid), torch.fft.fft2(map_).abs()
    found = in_order_of(turn_phases(gaussian, noise), own)
    for _ in range(REFINEMENTS):
        phases = torch.fft.fft2(found.double()).sgn()
        found = in_order_of(torch.fft.ifft2(power * phases).real, own)
    return _swap_pairs(found, values, stream(seed, "swaps")).to(given.device)


def _swap_pairs(
    maps: Float[Tensor, "m b rows columns"], like: Float[Tensor, "b rows columns"], random: torch.Generator
) -> Float[Tensor, "m b rows columns"]:
    """The maps with pairs of values swapped, as long as that makes neighbours more nearly as alike as in `like`.

    A swap of a at i and d at j changes the sum over neighbours along an axis by (d - a) (n_i - n_j + k (a - d)): n is
    the sum of the two neighbours, and k tells how often i and j are neighbours themselves.
    """
    (rows, columns), count = like.shape[1:], maps.shape[0]
    places = torch.arange(rows * columns, device="cpu").view(rows, columns)
    beside = torch.stack([places.roll((one, two), (0, 1)) for one, two in ((1, 0), (-1, 0), (0, 1), (0, -1))])
    beside = beside.flatten(1)  # (4, p): two along the rows' axis, two along the columns'
    values, wanted = maps.double().flatten(2), like.double().flatten(1)
    size = (wanted - wanted.mean(dim=1, keepdim=True)).square().sum(dim=1).clamp(min=torch.finfo(torch.float64).tiny)
    off = (_neighbour_products(values, beside) - _neighbour_products(wanted, beside)) / size[:, None]  # (m, b, 2)
    tries = min(MOST_SWAPS, SWAPS * rows * columns)
    pairs = torch.randint(rows * columns, (tries, 2, count), generator=random, device="cpu")
    near = beside[:, pairs]  # (4, tries, 2, m)
    links = (near[:, :, 0] == pairs[:, 1]).unflatten(0, (2, 2)).sum(dim=1).movedim(0, 1)  # (tries, 2, m)
    around = torch.cat([pairs, *near.permute(2, 1, 0, 3)], dim=1)[..., None].numpy()  # (tries, 2 + 4 + 4, m, 1)
    # thousands of steps over few numbers: NumPy takes a fifth of torch's time, to the same bits
    mixed, apart, scale = values.numpy().copy(), off.movedim(2, 0).numpy(), size.numpy()
    whose = np.arange(count)[:, None], np.arange(values.shape[1])
    with np.errstate(all="ignore"):  # a map that is not finite stays so
        for at, link in zip(around, links[..., None].numpy(), strict=True):
            rough = np.abs(apart).max(axis=0) > LIKE_ENOUGH
            if not rough.any():
                break
            a, d, *both = mixed[*whose, at]
            near_a, near_d = (np.stack([four[0] + four[1], four[2] + four[3]]) for four in (both[:4], both[4:]))
            moved = apart + (d - a) * (near_a - near_d + link * (a - d)) / scale
            better = (np.square(moved).sum(axis=0) < np.square(apart).sum(axis=0)) & rough
            mixed[*whose, at[0]], mixed[*whose, at[1]] = np.where(better, d, a), np.where(better, a, d)
            apart = np.where(better, moved, apart)
    return torch.from_numpy(mixed).view_as(maps).to(maps)


def _neighbour_products(values: Float[Tensor, "*m p"], beside: Int[Tensor, "4 p"]) -> Float[Tensor, "*m 2"]:
    """Sums of products of neighbours, along the rows' axis and along the columns'."""
    return torch.stack([(values * values[..., beside[axis]]).sum(dim=-1) for axis in (0, 2)], dim=-1)


def turn_phases(
    whole: Float[Tensor, "*some rows columns"], noise: Float[Tensor, "*more rows columns"]
) -> Float[Tensor, "*all rows columns"]:
    """What has the amplitudes of `whole` at each frequency, and its phases turned by those of noise."""
    turn = torch.fft.fft2(noise).sgn()  # phases of real numbers: opposite frequencies turn oppositely
    turn[..., 0, 0] = 1.0
    return torch.fft.ifft2(torch.fft.fft2(whole) * turn).real


def in_order_of(maps: Float[Tensor, "m b rows columns"], own: Float[Tensor, "m b p"]) -> Float[Tensor, "m b r c"]:
    """The values `own`, from the least to the largest, put where `maps` has its least to its largest."""
    flat = maps.flatten(2)
    # on a processor NumPy sorts in a fifth of torch's time
    order = torch.from_numpy(flat.numpy().argsort(axis=2)) if flat.device.type == "cpu" else flat.argsort(dim=2)
    return torch.empty_like(own, memory_format=torch.contiguous_format).scatter_(2, order, own).view(maps.shape)


def twice_ranks(rows: Float[Tensor, "b p"]) -> Int[Tensor, "b p"]:
    """Twice the rank of each value of a row, so that it is whole where equal values share the middle of theirs."""
    in_order, rows = rows.sort(dim=1).values, rows.contiguous()
    below, not_above = (torch.searchsorted(in_order, rows, right=right) for right in (False, True))
    return below + not_above

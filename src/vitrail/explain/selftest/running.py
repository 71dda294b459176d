"""All checks of a model, one after the other."""

import copy
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce

import torch

from vitrail.errors import UsageError
from vitrail.explain.explainable import Explainable, check_model
from vitrail.explain.methods.held import check_rules
from vitrail.explain.readout import check
from vitrail.explain.selftest import all_methods, attention, attention_gradients, covering, pixels, views, whole
from vitrail.explain.selftest.report import Check, SelfTest
from vitrail.explain.selftest.witness import Promise, witnesses_of
from vitrail.nn import ViT
from vitrail.nn.vit import Images

PICTURES = 4
PROMISES: tuple[Promise, ...] = (
    *attention.PROMISES,
    *attention_gradients.PROMISES,
    *pixels.PROMISES,
    *covering.PROMISES,
    *all_methods.PROMISES,
    *views.PROMISES,
)


@torch.inference_mode(False)
def selftest(model: Explainable, images: Images | None = None, seed: int = 0) -> SelfTest:
    """Check the explanations of a model.

    While it runs, torch computes on one thread, in the whole process. The number of threads is restored in the end,
    also after an error, and so is the state of torch's random numbers.

    Args:
        model: A network in eval mode, of the standard parts. One in half precision is checked in float32, with the same
            weights: the checks need digits.
        images: (b, c, h, w), as the network reads them; at most 4 are used. Left out, the model's references are, or
            noise where it has none.
        seed: Of noise and of scrambled weights.

    Raises:
        UsageError: If the network is in training mode or has a part that is not standard, or if the images do not fit.
    """
    check_model(model)
    began, network = time.perf_counter(), model.network
    pictures = (_pictures(model, seed) if images is None else images[:PICTURES]).detach().clone()
    if pictures.dim() != 4 or not len(pictures):
        raise UsageError(
            f"a self-test needs at least one picture (b, c, h, w), got {tuple(pictures.shape)}", "images=None for noise"
        )
    precision = reduce(torch.promote_types, (one.dtype for one in network.parameters()), torch.float32)
    if any(one.dtype != precision for one in network.parameters()):
        network = copy.deepcopy(network).to(precision)
    pictures = pictures.to(precision) if pictures.is_floating_point() else pictures
    check(network, pictures, True)
    check_rules(network)
    with _one_thread(), torch.random.fork_rng(devices=[]), torch.device("cpu"):  # parts that are made anew draw
        checks = (*whole.checks(network, pictures, seed), *_asked(network, pictures))
    return SelfTest(checks, time.perf_counter() - began)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Torch on one thread: most checks are small, and several threads of a busy machine take ten times as long."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@torch.enable_grad()
def _asked(network: ViT, images: Images) -> Iterator[Check]:
    witnesses = witnesses_of(network, images)
    for promise in PROMISES:
        yield promise.asked(witnesses)


def _pictures(model: Explainable, seed: int) -> Images:
    network, donors = model.network, model.donors
    if donors is not None:
        return donors[:PICTURES]
    weight = next(network.parameters())
    shape = (PICTURES, network.config.channels, *network.config.image)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), device="cpu").to(weight)

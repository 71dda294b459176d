"""Evidence of images among composites of a background, all of them computed here."""

from torch import Tensor

from vitrail.data.background import FEW
from vitrail.explain.evidence import Evidence, composites_of, find_evidence, n_distinct
from vitrail.explain.scores.faithfulness import MaskedImages
from vitrail.explain.scores.perturb import at_a_time, compute_logits, own_patches
from vitrail.explain.target import Target, choose_target
from vitrail.nn import ViT


def evidence_among(network: ViT, images: Tensor, target: Target, background: Tensor | None, seed: int = 0) -> Evidence:
    """As a verdict has it, but for the composites that are stored."""
    logits = compute_logits(network, len(images), images.__getitem__, at_a_time(images))
    chosen, without, distinct = (
        choose_target(logits, target),
        None,
        0 if background is None else n_distinct(background),
    )
    if background is not None and distinct >= FEW:
        without = composites_of(network, background, seed)
    return find_evidence(MaskedImages(network, images, chosen, logits, own_patches(), seed), without, distinct)

"""The gain of one network over another, from counts."""

import torch

from vitrail.tasks.codec import Gain, gain


def added(won: int, lost: int, images: int) -> Gain:
    """Of a network that is right on so many images where the first is wrong, and the other way round."""
    before, after = torch.zeros(images), torch.zeros(images)
    before[:won], after[won : won + lost] = 1, 1
    return gain(before, after, is_wrong=True)

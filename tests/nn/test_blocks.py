"""The block is the two equations of the paper, and noise acts only in training and leaves the mean alone."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.nn.reference import redraw, some_images
from vitrail.nn import MLP, SILENT, EncoderBlock, LayerScale, Parts, Record, StochasticDepth, ViTConfig


class Affine(nn.Module):
    """A stand-in for any part, so that the order of the parts shows."""

    def __init__(self, factor: float, offset: float) -> None:
        super().__init__()
        self.factor, self.offset = factor, offset

    def forward(self, tokens: Tensor, record=SILENT) -> Tensor:
        return tokens * self.factor + self.offset


def test_a_block_is_two_residual_branches_each_of_a_norm_a_part_and_a_scale():
    norms, scales = iter([Affine(2, 1), Affine(3, -1)]), iter([Affine(0.5, 0), Affine(0.25, 0)])
    parts = Parts(
        norm=lambda config: next(norms),
        attention=lambda config: Affine(5, 2),
        mlp=lambda config, activation: Affine(7, 3),
        scale=lambda config: next(scales),
    )
    block = EncoderBlock(ViTConfig(), parts)
    x = some_images(1, 2, 4, 6)[0]
    x1 = x + 0.5 * (5 * (2 * x + 1) + 2)
    x2 = x1 + 0.25 * (7 * (3 * x1 - 1) + 3)
    record = Record()
    torch.testing.assert_close(block(x, record), x2)
    assert list(record) == ["input", "norm1", "attn_out", "mlp", "output"]
    torch.testing.assert_close(record["norm1"], 2 * x + 1)
    torch.testing.assert_close(record["attn_out"], x1 - x)
    torch.testing.assert_close(record["mlp"], x2 - x1)
    with pytest.raises(AssertionError):  # the planted fault: norm after the branch
        torch.testing.assert_close(x + 0.5 * (2 * (5 * x + 2) + 1), x1)


@pytest.mark.parametrize(("make", "formula"), [(nn.GELU, F.gelu), (nn.ReLU, torch.relu)])
def test_the_mlp_is_two_linear_maps_around_the_activation(make, formula):
    mlp = MLP(6, 10, make)
    redraw(mlp)
    x = some_images(1, 2, 4, 6)[0]
    hidden = formula(x @ mlp.fc1.weight.T + mlp.fc1.bias)
    torch.testing.assert_close(mlp(x), hidden @ mlp.fc2.weight.T + mlp.fc2.bias)
    torch.testing.assert_close(mlp(x)[:, 2], mlp(x[:, 2:3])[:, 0])  # each token on its own


def test_layer_scale_is_one_factor_per_channel():
    scale = LayerScale(6, 1e-4)
    x = some_images(1, 2, 4, 6)[0]
    torch.testing.assert_close(scale(x), x * 1e-4)
    redraw(scale)
    torch.testing.assert_close(scale(x), x * scale.gamma.view(1, 1, 6))


@pytest.mark.parametrize("probability", [0.0, 0.3, 0.9])
def test_stochastic_depth_drops_whole_images_in_training_and_keeps_the_mean(probability: float):
    torch.manual_seed(0)
    module, branch = StochasticDepth(probability), some_images(1, 1, 3, 4)[0].expand(40_000, -1, -1)
    assert module.eval()(branch) is branch
    dropped = module.train()(branch)
    whole = (dropped == branch / (1 - probability)).all(dim=(1, 2))
    nothing = (dropped == 0).all(dim=(1, 2))
    assert (whole ^ nothing).all()
    assert nothing.float().mean().item() == pytest.approx(probability, abs=0.01)
    tolerance = 5 * (probability / (1 - probability) / 40_000) ** 0.5
    torch.testing.assert_close(dropped.mean(dim=0), branch[0], rtol=tolerance + 1e-4, atol=1e-4)


def test_each_branch_of_a_block_is_dropped_by_itself():
    torch.manual_seed(0)
    parts = Parts(
        norm=lambda config: nn.Identity(),
        attention=lambda config: Affine(0, 1),
        mlp=lambda config, activation: Affine(0, 10),
    )
    block = EncoderBlock(ViTConfig(), parts, stochastic_depth=0.5)
    added = block.train()(torch.zeros(4_000, 1, 1)).flatten()
    values, counts = added.unique(return_counts=True)
    assert values.tolist() == [0.0, 2.0, 20.0, 22.0]
    assert counts.min() > 850
    assert block.eval()(torch.zeros(2, 1, 1)).flatten().tolist() == [11.0, 11.0]


def test_dropout_of_the_mlp_acts_only_in_training_and_keeps_the_mean():
    torch.manual_seed(0)
    mlp = MLP(6, 64, nn.Identity, dropout=0.2)
    x = some_images(1, 1, 2, 6)[0]
    calm = mlp.eval()(x)
    assert torch.equal(mlp(x), calm)
    with torch.no_grad():
        noisy = mlp.train()(x.expand(30_000, -1, -1))
    assert not torch.equal(noisy[0], noisy[1])
    torch.testing.assert_close(noisy.mean(dim=0), calm[0], rtol=0, atol=0.02)

"""The rivals of the benchmarks are the described networks, and they learn."""

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from benchmarks.documents import d0_loop, d2_lab, mnist_arrays
from vitrail.errors import DataError, UsageError


def trained_numbers(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def striped_digits(count: int) -> tuple[Tensor, Tensor]:
    """Images whose bright pair of rows tells the class, with noise."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(10, (count,), generator=generator)
    images = 0.2 * torch.rand(count, 1, 28, 28, generator=generator)
    for image, label in zip(images, labels.tolist(), strict=True):
        image[:, 2 * label + 4 : 2 * label + 6] += 0.8
    return images, labels


def sliced_reference(tokens: Tensor, attention: d0_loop.LoopedAttention | d2_lab.ListedAttention) -> Tensor:
    """Each head's attention by torch's own kernel, over the whole batch."""
    heads = []
    for index, part in enumerate(tokens.split(attention.head_dim, dim=-1)):
        query, key, value = (maps[index](part) for maps in (attention.queries, attention.keys, attention.values))
        heads.append(nn.functional.scaled_dot_product_attention(query, key, value))
    return torch.cat(heads, dim=-1)


def closed_form_positions(tokens: int, width: int) -> Tensor:
    rates = 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = torch.arange(tokens, dtype=torch.float64)[:, None] * rates
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1).float()


def test_the_documents_numbers_are_met() -> None:
    assert trained_numbers(d0_loop.build(0)) == 1642
    lab = d2_lab.build(0)
    assert trained_numbers(lab) == 4990
    assert trained_numbers(lab.norm1) + trained_numbers(lab.norm2) == 4000
    maps = [*lab.attention.queries, *lab.attention.keys, *lab.attention.values]
    assert sum(trained_numbers(linear) for linear in maps) == 660


@pytest.mark.parametrize("network", [d0_loop.build(0), d2_lab.build(0), d2_lab.build(0, per_image=True)])
def test_both_give_ten_probabilities(network: nn.Module) -> None:
    probabilities = network(torch.rand(3, 1, 28, 28))
    assert probabilities.shape == (3, 10)
    torch.testing.assert_close(probabilities.sum(-1), torch.ones(3))


def test_d0_patches_are_squares_row_by_row() -> None:
    images = torch.rand(2, 1, 28, 28)
    expected = nn.functional.unfold(images, kernel_size=4, stride=4).transpose(1, 2)
    assert torch.equal(d0_loop.cut_patches(images), expected)
    assert not torch.equal(images.reshape(2, 49, 16), expected), "the lab's reshape must not pass for squares"


@pytest.mark.parametrize(("table", "width"), [(d0_loop.position_table(50, 8), 8), (d2_lab.position_table(), 20)])
def test_positions_are_the_closed_form(table: Tensor, width: int) -> None:
    torch.testing.assert_close(table, closed_form_positions(50, width), atol=1e-6, rtol=0)


def test_looped_attention_is_attention() -> None:
    attention = d0_loop.LoopedAttention()
    tokens = torch.randn(3, 50, 8)
    torch.testing.assert_close(attention(tokens), sliced_reference(tokens, attention))
    swapped = tokens.flip(-1)
    assert (attention(swapped) - sliced_reference(tokens, attention)).abs().max() > 1e-3


@pytest.mark.parametrize("per_image", [False, True])
def test_listed_attention_is_attention(per_image: bool) -> None:
    attention = d2_lab.ListedAttention(per_image)
    tokens = torch.randn(3, 50, 20)
    torch.testing.assert_close(attention(tokens), sliced_reference(tokens, attention))


def test_the_lab_computes_attention_twice() -> None:
    network, calls = d2_lab.build(0), []
    network.attention.register_forward_hook(lambda *_: calls.append(1))
    network(torch.rand(2, 1, 28, 28))
    assert len(calls) == 2


def test_the_lab_never_trains_its_heads_though_gradients_reach_them() -> None:
    images, labels = striped_digits(64)
    network = d2_lab.build(0)
    heads = network.attention.queries[0].weight
    before, head_before = heads.detach().clone(), network.head.weight.detach().clone()
    for _ in d2_lab.train(network, images, labels, seed=0, epochs=1):
        pass
    assert heads.grad is not None
    assert heads.grad.abs().max() > 0
    assert torch.equal(heads, before)
    assert not torch.equal(network.head.weight, head_before)


def test_d0_learns_and_cannot_pass_its_floor() -> None:
    images, labels = striped_digits(64)
    losses = list(d0_loop.train(d0_loop.build(0), images, labels, epochs=10, seed=0))
    assert len(losses) == 10
    assert losses[-1] < losses[0] - 0.005
    floor = nn.functional.cross_entropy(torch.eye(10), torch.arange(10)).item()
    assert floor == pytest.approx(1.4612, abs=1e-4)
    assert min(losses) > floor


def test_the_lab_learns_and_divides_its_loss_twice() -> None:
    images, labels = striped_digits(320)
    network = d2_lab.build(0)
    losses = list(d2_lab.train(network, images, labels, seed=0, epochs=4))
    assert len(losses) == 80
    assert losses[0] == pytest.approx(2.3 / 16, abs=0.01)
    assert sum(losses[-20:]) < sum(losses[:20]) - 0.2
    assert d2_lab.accuracy(network, images, labels) > 0.5 > d2_lab.accuracy(d2_lab.build(0), images, labels)


def test_a_seed_gives_the_same_training_and_leaves_the_global_generator() -> None:
    images, labels = striped_digits(64)
    state = torch.get_rng_state()
    first, second, other = (
        list(d2_lab.train(d2_lab.build(seed), images, labels, seed, epochs=1)) for seed in (0, 0, 1)
    )
    assert first == second != other
    assert torch.equal(torch.get_rng_state(), state)


def test_the_rate_is_positive_and_wants_enough_images() -> None:
    images, labels = striped_digits(256)
    assert d0_loop.train_images_per_second(images, labels, steps=1, warmup=1) > 0
    with pytest.raises(UsageError, match=r"384.*256"):
        d0_loop.train_images_per_second(images, labels, steps=2, warmup=1)


def test_idx_files_are_read_and_damage_is_named(tmp_path: Path) -> None:
    values = np.arange(12, dtype=np.uint8).reshape(3, 2, 2)
    header = b"\x00\x00\x08\x03" + np.array(values.shape, dtype=">i4").tobytes()
    path = tmp_path / "values.gz"
    path.write_bytes(gzip.compress(header + values.tobytes()))
    assert np.array_equal(mnist_arrays.read_idx(path), values)
    whole = path.read_bytes()
    for damaged in (gzip.compress(header + values.tobytes()[:-1]), gzip.compress(b"GIF89a"), whole[:-9], b"plain"):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=r"values\.gz"):
            mnist_arrays.read_idx(path)
    with pytest.raises(DataError, match=r"absent\.gz"):
        mnist_arrays.read_idx(tmp_path / "absent.gz")


def test_real_mnist(mnist_root: Path) -> None:
    digits = mnist_arrays.load_digits(mnist_root, "test")
    assert digits.images.shape == (10000, 1, 28, 28)
    assert digits.images.dtype == torch.float32
    assert (digits.images.min(), digits.images.max()) == (0, 1)
    assert digits.labels[:5].tolist() == [7, 2, 1, 0, 4]

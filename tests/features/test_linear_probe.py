"""What features are worth, against scikit-learn; and that the probe is really what the network's head says."""

import math

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_score
from sklearn.neighbors import KNeighborsClassifier

from tests.errors import must_raise
from tests.paired import added
from vitrail.errors import UsageError
from vitrail.features.linear_probe import put_into_heads
from vitrail.features.poolings import LabelledFeatures, heads_of
from vitrail.features.similar import nearest_vote
from vitrail.nn import ViT, ViTConfig
from vitrail.runs.settings import Optimization
from vitrail.tasks import Classes
from vitrail.tasks.linear import PENALTIES, choose_penalty, linear_map
from vitrail.training.finish import gain_words

TEN, TWO = Classes(tuple("0123456789")), Classes(("a", "b"))
TINY = ViTConfig(image_size=8, patch_size=4, classes=3, width=12, depth=1, heads=2, mlp_dim=16, channels=1)


def digits() -> tuple[LabelledFeatures, LabelledFeatures]:
    """Pixels as features: 900 to learn from, 897 held out; standardised but for pixels that are always black."""
    x, y = load_digits(return_X_y=True)
    values, labels = torch.from_numpy(x).float(), torch.from_numpy(y).long()
    values = (values - values[:900].mean(dim=0)) / values[:900].std(dim=0).clamp(min=1e-3)
    return LabelledFeatures(values[:900], labels[:900]), LabelledFeatures(values[900:], labels[900:])


@pytest.mark.parametrize("penalty", [1.0, 1e-2, 1e-4])
def test_the_linear_map_is_scikit_learns(penalty: float) -> None:
    train, held_out = digits()
    found = linear_map(TEN, train.values, train.labels, penalty)
    theirs = LogisticRegression(C=1 / (penalty * len(train.labels)), max_iter=5000, tol=1e-10)
    theirs.fit(train.values.double().numpy(), train.labels.numpy())
    ours = held_out.values.double() @ found[:, :-1].T + found[:, -1]
    wanted = torch.from_numpy(theirs.decision_function(held_out.values.double().numpy()))
    ours, wanted = (each - each.mean(dim=1, keepdim=True) for each in (ours, wanted))  # what softmax does not see
    assert (ours - wanted).abs().max() <= 2e-3 * wanted.abs().max()
    assert float((ours.argmax(dim=1) == wanted.argmax(dim=1)).double().mean()) >= 0.995


def test_the_penalty_that_is_chosen_is_hardly_beaten() -> None:
    """Held-out images that chose nothing: within half a point of the best of all penalties."""
    train, held_out = digits()
    chosen, outputs = choose_penalty(TEN, train.values, train.labels)
    told = TEN.score(TEN.error(outputs, train.labels))

    def share(penalty: float) -> float:
        found = linear_map(TEN, train.values, train.labels, penalty)
        said = (held_out.values.double() @ found[:, :-1].T + found[:, -1]).argmax(dim=1)
        return float((said == held_out.labels).double().mean())

    shares = {penalty: share(penalty) for penalty in PENALTIES}
    assert shares[chosen] >= max(shares.values()) - 0.005
    assert min(shares.values()) < shares[chosen]  # the choice matters here
    theirs = LogisticRegression(C=1 / (chosen * 0.8 * len(train.labels)), max_iter=5000)
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    expected = cross_val_score(theirs, train.values.double().numpy(), train.labels.numpy(), cv=folds).mean()
    assert told == pytest.approx(expected, abs=0.02)


def test_neighbours_are_scikit_learns() -> None:
    train, held_out = digits()
    theirs = KNeighborsClassifier(5, metric="cosine").fit(train.values.numpy(), train.labels.numpy())
    votes = theirs.predict_proba(held_out.values.numpy())
    clear = np.sort(votes, axis=1)[:, -1] > np.sort(votes, axis=1)[:, -2]  # no two classes are as frequent
    assert clear.mean() > 0.95
    found = nearest_vote(TEN.vote, train, held_out).argmax(dim=1).numpy()
    assert (found[clear] == votes.argmax(axis=1)[clear]).all()


def test_of_two_classes_as_frequent_the_nearer_wins() -> None:
    train = LabelledFeatures(torch.tensor([[1.0, 0.0], [1.0, 0.2], [1.0, 0.4], [1.0, 0.6]]), torch.tensor([1, 0, 0, 1]))
    near_first, near_middle = torch.tensor([[1.0, -0.5]]), torch.tensor([[1.0, 0.3]])
    assert nearest_vote(TWO.vote, train, LabelledFeatures(near_first, train.labels[:1]), 2).argmax(dim=1).tolist() == [
        1
    ]  # 1 and 0
    assert nearest_vote(TWO.vote, train, LabelledFeatures(near_middle, train.labels[:1]), 4).argmax(dim=1).tolist() == [
        0
    ]


@pytest.mark.parametrize("distilled", [False, True])
def test_the_heads_say_what_the_map_says(distilled: bool) -> None:
    network = ViT(ViTConfig.from_dict({**vars(TINY), "distillation_token": distilled})).eval()
    maps, seen = heads_of(network), []
    hooks = [one.register_forward_pre_hook(lambda _, given: seen.append(given[0])) for one in maps]
    both = torch.randn(3, sum(one.in_features for one in maps) + 1, dtype=torch.float64)
    put_into_heads(network, both)
    with torch.no_grad():
        logits = network(torch.randn(5, 1, 8, 8))
    for hook in hooks:
        hook.remove()
    wanted = torch.cat(seen, dim=1).double() @ both[:, :-1].T + both[:, -1]
    assert len(maps) == 1 + distilled
    assert (logits - wanted).abs().max() <= 1e-5


def test_a_head_that_is_no_map_is_refused() -> None:
    network = ViT(TINY)
    network.head = torch.nn.Identity()
    with must_raise(UsageError):
        heads_of(network)


def test_the_interval_of_a_paired_difference_covers_it() -> None:
    """Of 40 images, drawn again and again: 95 % of the intervals hold the true difference, about."""
    rng = np.random.default_rng(0)
    for won, lost in ((0.2, 0.1), (0.1, 0.1), (0.4, 0.05)):
        held = 0
        for one, other, _ in rng.multinomial(40, [won, lost, 1 - won - lost], size=2000):
            low, high = added(int(one), int(other), 40).interval
            held += low <= won - lost <= high
        assert 0.925 <= held / 2000 <= 0.985
    assert added(3, 1, 100).difference == pytest.approx(0.02)
    assert added(0, 0, 10).interval[1] > 0  # nothing seen is not nothing known


def test_two_are_told_apart_where_the_interval_has_no_zero() -> None:
    """And only then is a difference stated without a doubt; one image decides nothing."""
    shown = {}
    for won, lost in ((1, 0), (2, 4), (0, 0), (0, 9), (9, 0), (30, 5)):
        found = added(won, lost, 76)
        low, high = found.interval
        assert found.significant == (not low <= 0 <= high)
        shown[won, lost] = found.significant
        assert ("not significant" in gain_words(found, "image", is_wrong=True)) == (not found.significant)
    assert [pair for pair, apart in shown.items() if apart] == [(0, 9), (9, 0), (30, 5)]


def test_layers_of_a_decayed_rate() -> None:
    from vitrail.training.optimizer import groups_of, layer_of, parameter_rules

    network = ViT(ViTConfig.from_dict({**vars(TINY), "depth": 3}))
    names = {id(parameter): name for name, parameter in network.named_parameters()}

    def scales(decay: float) -> dict[str, float]:
        groups = groups_of(network, parameter_rules(network, Optimization(layer_decay=decay)))
        return {names[id(each)]: group["scale"] for group in groups for each in group["params"]}

    found = scales(0.5)
    assert found.keys() == set(names.values())
    by_hand = {"cls_token": 4, "pos_embed": 4, "patch_embed.proj.weight": 4, "norm.weight": 0, "head.weight": 0}
    by_hand |= {f"blocks.{index}.attn.qkv.weight": 3 - index for index in range(3)}
    for name, power in by_hand.items():
        assert found[name] == pytest.approx(0.5**power), name
    assert set(scales(1.0).values()) == {1.0}
    assert len(parameter_rules(network, Optimization())) == 2
    assert layer_of("head_dist.bias", 3) == 4


def test_a_class_with_one_image_does_not_spoil_the_choice() -> None:
    labels = torch.tensor([0, 0, 0, 0, 0, 1])
    assert math.isfinite(choose_penalty(TWO, torch.randn(6, 3), labels)[0])

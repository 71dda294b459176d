"""What a test of maps found, image by image, as plain values."""

import torch

from vitrail.explain import Trust
from vitrail.explain.evidence import Evidence
from vitrail.explain.scores.faithfulness import Areas, Drops
from vitrail.pages import TrustView

NAN = torch.nan


def test_the_values_of_one_image_are_plain() -> None:
    pair = torch.tensor
    evidence = Evidence(
        p=pair([0.5, NAN]),
        composites=pair([99, 0]),
        surrogates=pair([59, 0]),
        effect=pair([7.5, NAN]),
        minimum_effect=pair([2.5, 2.5]),
        effect_unit="nats",
        reached=pair([29, 0]),
        reached_itself=pair([3, 0]),
    )
    drops = Drops(
        score=pair([1.5, NAN]),
        interval=pair([[1.0, 2.0], [NAN, NAN]]),
        random=pair([[0.25, 0.5, 0.75, NAN], [NAN, NAN, NAN, NAN]]),
        faithful=pair([0.025, NAN]),
        random_maps=pair([3, 0]),
        masked=pair([0.5, NAN]),
        masked_random=pair([0.625, NAN]),
        patches=pair([3, 1]),
        areas=Areas(pair([0.1, NAN]), pair([0.9, NAN])),
        random_areas=Areas(pair([0.3, NAN]), pair([0.7, NAN])),
    )
    trust = Trust(
        verdict=("supported", "cannot tell"),
        reason=("a", "b"),
        evidence=evidence,
        drops=drops,
        oracle=None,
        passes=pair([95, 1]),
        before=pair([0.75, NAN]),
        fill="background",
        precision="bf16",
    )
    first, second = trust.view(0, "it"), trust.view(1, "it")
    assert first == TrustView(
        verdict="supported",
        reason="a",
        sentence=trust.sentence(0, "it"),
        score=1.5,
        interval=(1.0, 2.0),
        random=(0.25, 0.5, 0.75),
        oracle=None,
        evidence=0.5,
        effect=7.5,
        minimum_effect=2.5,
        effect_unit="nats",
        faithful=0.02500000037252903,  # the nearest in single precision
        random_maps=3,
        passes=95,
        before=0.75,
        masked=0.5,
        masked_random=0.625,
        patches=3,
        composites=99,
        surrogates=59,
        fill="background",
        precision="bf16",
        reached=29,
        reached_itself=3,
    )
    assert not {"random", "reached", "reached_itself"} & set(first.to_dict())
    assert type(first.patches) is int
    assert {name for name, value in vars(second).items() if value is None} == {
        "score",
        "interval",
        "oracle",
        "evidence",
        "effect",
        "faithful",
        "before",
        "masked",
        "masked_random",
    }
    assert second.random == ()

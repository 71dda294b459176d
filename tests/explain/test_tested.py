"""What a test of maps found, image by image, as plain values."""

import torch

from vitrail.explain import Trust

NAN = torch.nan


def test_the_values_of_one_image_are_plain() -> None:
    pair = torch.tensor
    trust = Trust(
        verdict=("supported", "cannot tell"),
        reason=("a", "b"),
        score=pair([1.5, NAN]),
        interval=pair([[1.0, 2.0], [NAN, NAN]]),
        random=pair([[0.25, 0.5, 0.75, NAN], [NAN, NAN, NAN, NAN]]),
        oracle=None,
        evidence=pair([0.5, NAN]),
        effect=pair([7.5, NAN]),
        minimum_effect=2.5,
        effect_unit="nats",
        faithful=pair([0.025, NAN]),
        random_maps=pair([3, 0]),
        passes=pair([95, 1]),
        before=pair([0.75, NAN]),
        masked=pair([0.5, NAN]),
        masked_random=pair([0.625, NAN]),
        patches=pair([3, 1]),
        composites=pair([99, 0]),
        surrogates=pair([59, 0]),
        fill="background",
        precision="bf16",
    )
    first, second = trust.of(0), trust.of(1)
    assert first == {
        "verdict": "supported",
        "reason": "a",
        "score": 1.5,
        "interval": (1.0, 2.0),
        "random": (0.25, 0.5, 0.75),
        "oracle": None,
        "evidence": 0.5,
        "effect": 7.5,
        "minimum_effect": 2.5,
        "effect_unit": "nats",
        "faithful": 0.02500000037252903,  # the nearest in single precision
        "random_maps": 3,
        "passes": 95,
        "before": 0.75,
        "masked": 0.5,
        "masked_random": 0.625,
        "patches": 3,
        "composites": 99,
        "surrogates": 59,
        "fill": "background",
        "precision": "bf16",
    }
    assert type(first["patches"]) is int
    assert {name for name, value in second.items() if value is None} == {
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
    assert second["random"] == ()

"""A model in Python: its methods are the functions, it reads pixels and iterables, and a notebook shows it."""

import importlib.metadata
import inspect
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

import vitrail
from tests.errors import must_raise
from tests.sequence_models import text_model
from vitrail.errors import DataError, UsageError, VitrailError

DRAW = np.random.default_rng(0)
COLOURS = DRAW.integers(0, 255, (5, 20, 24, 3), dtype=np.uint8)


def made(names: tuple[str, ...] = ("a", "b", "c"), channels: int = 3) -> vitrail.Model:
    config = {"width": 16, "depth": 1, "heads": 2, "mlp_dim": 32, "image_size": 16, "patch_size": 8}
    network = vitrail.ViT(vitrail.ViTConfig(**config, channels=channels, classes=len(names))).eval()
    generator = torch.Generator().manual_seed(0)
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.3, generator=generator)
    numbers = {"mean": (0.5,) * channels, "std": (0.5,) * channels}
    return vitrail.Model(network, vitrail.Preprocessing((16, 16), channels=channels, **numbers), vitrail.Classes(names))


MODEL = made()
SHOWN = [Image.fromarray(one) for one in COLOURS]


def test_a_method_is_the_function(tmp_path: Path) -> None:
    for number, image in enumerate(SHOWN):
        (tmp_path / "photos" / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
        image.save(tmp_path / "photos" / "ab"[number % 2] / f"{number}.png")
    photos, one = tmp_path / "photos", tmp_path / "photos" / "a" / "0.png"
    functions = {name: getattr(vitrail, name) for name in ("embed", "evaluate", "similar", "save")}
    for name, function in {**functions, "explain": vitrail.explain.report}.items():
        assert getattr(vitrail.Model, name) is function
        _, *others = inspect.signature(function).parameters.values()
        assert list(inspect.signature(getattr(MODEL, name)).parameters.values()) == others
    assert np.array_equal(MODEL.embed(photos).values["class"], vitrail.embed(MODEL, photos).values["class"])
    assert MODEL.similar(one, photos).to_dict() == vitrail.similar(MODEL, one, photos).to_dict()
    assert MODEL.evaluate(photos).to_dict() == vitrail.evaluate(MODEL, photos).to_dict()
    report = MODEL.explain(COLOURS[0], target="b", trust=False)
    wanted = vitrail.explain.report(MODEL, SHOWN[0], target=1, trust=False)
    assert torch.equal(report[0].attributions[0].values, wanted[0].attributions[0].values)
    loaded = vitrail.load(MODEL.save(tmp_path / "model"))
    assert loaded.to("cpu") is loaded
    assert loaded.predict(SHOWN) == MODEL.predict(SHOWN)
    with must_raise(UsageError, "nowhere"):
        loaded.to("nowhere")
    for model in (MODEL, tmp_path / "model"):  # in the order of before, when data came first
        with must_raise(VitrailError, r"embed\(model, data\)"):
            vitrail.embed(photos, model)  # pyrefly: ignore[bad-argument-type]
        with must_raise(VitrailError, r"similar\(model, images, data\)"):
            vitrail.similar(photos, photos, model)  # pyrefly: ignore[bad-argument-type]


def test_pixels_are_read_like_the_image_of_them() -> None:
    wanted, last = MODEL.predict(SHOWN, batch_size=2), COLOURS[..., ::-1]
    colours, tensors = list(COLOURS), torch.from_numpy(COLOURS).movedim(-1, 1)
    for given in (COLOURS, colours, iter(colours), (each for each in colours), tensors, list(tensors), tuple(tensors)):
        assert MODEL.predict(given, batch_size=2) == wanted
    assert MODEL.predict(COLOURS[0]) == MODEL.predict(tensors[0]) == MODEL.predict(SHOWN[0])
    assert MODEL.predict(last) == MODEL.predict([Image.fromarray(np.ascontiguousarray(one)) for one in last]) != wanted
    assert torch.equal(MODEL.tensor(COLOURS), MODEL.tensor(SHOWN))
    assert torch.equal(MODEL.preprocessing(COLOURS[1]), MODEL.preprocessing(SHOWN[1]))
    alpha = np.concatenate([COLOURS[0], DRAW.integers(0, 255, (20, 24, 1), dtype=np.uint8)], axis=2)
    assert MODEL.predict(alpha) == MODEL.predict(Image.fromarray(alpha, "RGBA"))
    grey, deep = made(channels=1), DRAW.integers(0, 65535, (20, 24), dtype=np.uint16)
    assert grey.predict(deep) == grey.predict(Image.fromarray(deep))
    plane = COLOURS[0, :, :, 0]
    assert grey.predict(plane) == grey.predict(plane[:, :, None]) == grey.predict(torch.from_numpy(plane)[None])
    assert MODEL.predict(np.array([], dtype=np.uint8)) == []
    for wrong in (
        *(COLOURS[0] / 255, COLOURS[0].astype(np.float32), COLOURS[0].astype(int), tensors[0].float()),
        *(
            tensors[0].bfloat16(),
            COLOURS[0] > 7,
            COLOURS[0].transpose(2, 0, 1),
            COLOURS[0][:0],
            [COLOURS],
            deep[..., None][..., [0, 0, 0]],
        ),
    ):
        shape = (
            str(tuple(np.shape(wrong[0] if isinstance(wrong, list) else wrong))).replace("(", r"\(").replace(")", r"\)")
        )
        with must_raise(UsageError, shape):
            MODEL.predict(wrong)


def test_a_generator_is_read_once_and_a_batch_at_a_time() -> None:
    alive, most = set[int](), 0

    def images() -> Iterator[Image.Image]:
        nonlocal most
        for number in range(60):
            image = Image.new("RGB", (16, 16), (number, 0, 0))
            alive.add(number)
            weakref.finalize(image, alive.discard, number)
            most = max(most, len(alive))
            yield image

    source = images()
    assert len(MODEL.predict(source, batch_size=4)) == 60
    assert next(source, None) is None
    assert most <= 2 * 4 + 1, "no more than a batch and the one before it"
    words = iter(["ab", "", "c"])
    with must_raise(DataError, "2"):
        text_model().predict(words)
    with must_raise(DataError, "gone.png"):
        MODEL.predict(Path(name) for name in ("gone.png",))


def test_a_model_shows_itself_in_a_notebook() -> None:
    model = made(("<script>alert(1)</script>", "b&w", *map(str, range(1000))))
    page = model._repr_html_()
    assert len(page) < 2000
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    for row in repr(model).splitlines()[1:]:
        assert f">{row.split()[0]}</th>" in page


def test_the_version_is_that_of_the_package() -> None:
    assert vitrail.__version__ == importlib.metadata.version("vitrail")
    assert "__version__" not in vitrail.__all__

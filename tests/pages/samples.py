"""Small pages with known values, for the tests of the pages."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from vitrail.check.check import DataReport
from vitrail.check.findings import Finding, Picture
from vitrail.check.groups import Grouping
from vitrail.check.suspects import ByModel
from vitrail.data.augmentation import Augmentation
from vitrail.data.layout import Layout
from vitrail.data.preprocessing import Preprocessing
from vitrail.features.similar import Neighbour, PatchAgreement, Similar, SimilarImages
from vitrail.nn import ViTConfig
from vitrail.pages import (
    AttributionView,
    ClassTable,
    Confusion,
    ImageView,
    RunView,
    Table,
    TrustView,
)
from vitrail.pages.image_views import AreasView, BesideView, MadeView, ReplacedView, Sureness
from vitrail.pages.render import evaluation_page, explanation_page, run_page
from vitrail.runs.settings import Settings
from vitrail.tasks import Example, Result
from vitrail.tasks.task import Metric
from vitrail.training.show import SeenImage, ShownData


def an_image(height: int = 12, width: int = 12, colour: bool = False) -> np.ndarray:
    shape = (height, width, 3) if colour else (height, width)
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def history(epochs: int) -> list[dict]:
    return [
        {
            "epoch": epoch + 1,
            "training_loss": 2.0 / (epoch + 1),
            "validation_loss": 2.2 / (epoch + 1),
            "training_accuracy": 1 - 0.5 / (epoch + 1),
            "validation_accuracy": 1 - 0.6 / (epoch + 1),
            "learning_rate": 1e-3 / (epoch + 1),
            "seconds": 1.5,
            "images_per_second": 1234.5,
            "waiting_fraction": 0.01,
        }
        for epoch in range(epochs)
    ]


def confusion_of(k: int) -> np.ndarray:
    """Counts of k classes; rows are the true ones."""
    return np.random.default_rng(1).integers(0, 4, (k, k)) + 20 * np.eye(k, dtype=np.int64)


def class_rows(confusion: np.ndarray, classes: tuple[str, ...]) -> list[dict]:
    right = np.diag(confusion)
    return [
        {
            "class": name,
            "images": int(confusion[i].sum()),
            "precision": right[i] / confusion[:, i].sum(),
            "recall": right[i] / confusion[i].sum(),
            "f1": None,
        }
        for i, name in enumerate(classes)
    ]


def evaluation(classes: tuple[str, ...], text: str = "plain") -> Result:
    confusion = confusion_of(len(classes))
    return Result(
        Metric("accuracy", text),
        value=0.8765,
        count=int(confusion.sum()),
        loss=0.25,
        details={},
        sentence=text,
        split=text,
        about=(text, text),
        tables=(
            Confusion(text, confusion, classes),
            ClassTable(text, tuple(class_rows(confusion, classes))),
            Table(text, (text, text), ((text, text),)),
        ),
        unknown={text: 3},
        unreadable=(text,),
        notes=(text,),
        examples=(
            Example(0, text, text, f"{text}1", 0.8, an_image()),
            Example(1, text, text, text, 0.6, an_image(8, 10, colour=True)),
        ),
    )


def run(text: str = "plain", k: int = 4, epochs: int = 5) -> RunView:
    """A run in which every text that may come from a stranger is `text`."""
    return RunView(
        title=text,
        state="finished",
        facts=[(text, text)],
        history=history(epochs),
        metric=text,
        evaluation=evaluation(tuple(f"{text}{i}" for i in range(k)), text),
        settings={text: {text: text, "list": [text]}},
        environment={text: text},
        notes=[text],
        command=text,
        badge=text,
        scored=text,
        changed=text,
        nothing=((text, 3, 0.5, 0.75),),
        about=text,
        rates=text,
        about_probabilities=text,
    )


def trust(verdict: str = "supported", text: str = "plain") -> TrustView:
    """What a test of a map says; its sentence and reason hold `text`."""
    return TrustView(
        verdict=verdict,
        reason=f"because {text}",
        sentence=f"Masking the 4 highest-ranked patches drops {text} from 91% to 8%: {verdict}.",
        score=2.25,
        interval=(2.0, 2.5),
        random=tuple(np.linspace(-0.5, 1.5, 39).tolist()),
        oracle=3.0,
        evidence=0.01,
        effect=11.5,
        minimum_effect=6.9,
        effect_unit="nats",
        faithful=0.025,
        random_maps=39,
        passes=249,
        before=0.91,
        masked=0.08,
        masked_random=0.86,
        patches=4,
        composites=99,
        surrogates=59,
        fill="background",
        precision="fp32",
    )


def replaced(values: np.ndarray, value: float) -> ReplacedView:
    mask = values > np.median(values)
    pieces = np.kron(mask, np.ones((4, 3), bool))[..., None] * np.array([200, 100, 50, 255])
    return ReplacedView(mask, pieces.astype(np.uint8), value, value + 0.01)


def attributions(text: str = "plain", rows: int = 3, columns: int = 4) -> list[AttributionView]:
    values = np.random.default_rng(2).normal(size=(rows, columns))
    return [
        AttributionView(
            text,
            text,
            text,
            2.5,
            np.abs(values),
            signed=False,
            class_specific=True,
            notes=(text,),
            contrast=text,
            trust=trust("supported", text),
            areas=AreasView(0.12, 0.88, 0.45, 0.46),
            seconds=0.02,
            replaced=(replaced(values, 0.08), replaced(-values, 0.86)),
            half=np.abs(values) > 1,
        ),
        AttributionView(
            "rollout", "Rollout", text, 2.5, values, signed=True, class_specific=False, trust=trust(text, text)
        ),
        AttributionView("raw_attention", "Raw", text, 2.5, np.full((rows, columns), 0.25), False, False),
    ]


def explained(text: str = "plain", rows: int = 3, columns: int = 4) -> list[ImageView]:
    """Images explained, in which every text that may come from a stranger is `text`."""
    near = (Neighbour(text, "train", text, 0.125, image=an_image()), Neighbour(text, "train", None, 0.25))
    beside = BesideView(text, 1.5, Sureness(0.9, 0.95, 27, 30, (0.74, 0.97), text, text), True, near)
    maps, top = attributions(text, rows, columns), [(text, 0.9), (text, 0.1)]
    return [
        ImageView(text, an_image(), text, top, maps, beside=beside, summary=(text,)),
        ImageView(text, an_image(9, 16, colour=True), f"{text}!", top[:1], maps),
    ]


def explanation(text: str = "plain", rows: int = 3, columns: int = 4) -> str:
    """Their page."""
    return explanation_page(text, explained(text, rows, columns), text, made=MadeView(text, {text: text}, text, text))


def side(seed: int, rows: int = 3, columns: int = 4) -> PatchAgreement:
    draw = np.random.default_rng(seed)
    cosines = draw.uniform(0.3, 0.9, (rows, columns))
    return PatchAgreement(draw.permutation(rows * columns).reshape(rows, columns), cosines, cosines - 0.2)


def similar_page(text: str = "a.png", shown: bool = True) -> str:
    """Two images, the second not at hand, each with two neighbours; every text of a stranger holds `text`."""
    image = np.random.default_rng(0).integers(0, 256, (30, 40, 3), dtype=np.uint8) if shown else None
    here, there = (side(1), side(2)) if shown else (None, None)
    pairs = tuple(
        Neighbour(f"{text}{i}", "train", text, 0.125 + i, here, there, image, Path(f"{text}{i}")) for i in range(2)
    )
    queries = SimilarImages(text, text, pairs, text, image, Path(text)), SimilarImages("q", None, pairs)
    similar = Similar("class", True, True, 398, queries, (f"note {text}",))
    return similar.page(f"model {text}", text, f"vitrail similar {text}")


def data_page(text: str = "a.png") -> str:
    """Findings with images that are shown, not shown and not to be read, in two splits; text of strangers likewise."""
    shown = Picture(f"{text}0", "train", text, "", an_image(colour=True))
    others = Picture(f"{text}1", "test", text), Picture(f"{text}2", "test", "", f"{text}2: is empty")
    findings = (
        Finding("labels", f"labels {text}", f"advice {text}", ((shown, others[0]), (shown, shown)), f"x {text}", True),
        Finding("unreadable", f"unreadable {text}", "", ((others[1],),)),
    )
    files = {"read": 3, "modes": {text: 3}, "formats": {"PNG": 3}, "bits_of_16": {"12": 1}, "turned": 0}
    files |= {key: {"least": 1.25, "middle": 2, "most": 3456} for key in ("width", "height", "aspect")}
    groups = Grouping("names", (text, text, "", ""), 0.75, f"reason {text}", Layout(group_pattern="(.+)_"))
    copies = {"exact": 7, "near": 8, "mirrored": 9, "part": 10, "near_looked_for": True}
    splits, classes = {"train": 2, "test": 1}, {text: {"train": 2, "test": 1}}
    notes = (f"note {text}",)
    told = {"suggested": f"rather {text}", "probability": 0.96, "label_probability": 0.012, "slip": 0.9}
    far = Picture(f"{text}3", "test", text, "", an_image(), {"distance": 0.4567, "right": False})
    curve = [{"from": 0.1, "to": 0.2, "middle": 0.15, "images": 41, "accuracy": 0.81, "interval": [0.66, 0.91]}] * 2
    found = ByModel((), 0.8, "probe", curve, ((far, Picture("near", "train", text, "", an_image(), told)),))
    report = DataReport(text, splits, classes, True, files, findings, (groups,), copies, found, notes, None)
    return report.page(f"vitrail data check {text}")


def show_page(text: str = "a.png", classes: bool = True) -> str:
    """Two images as a network sees them, in an evaluation and two epochs; text of strangers likewise."""
    views = (an_image(colour=True),) * 3
    images = (
        SeenImage(f"{text}0", f"{text} class", (0.25, 0.0, 0.75, 1.0), an_image(12, 24), views),
        SeenImage(f"{text}1", "", (0.0, 0.0, 1.0, 1.0), an_image(), views),
    )
    changes = Augmentation(mixup=0.25, flip=0.5)
    settings = Settings(data=text, recipe=text, seed=7, network=ViTConfig(), augmentation=changes)
    lost, counts = {"of": 1234, "tenth": 56, "third": 7}, {f"{text} class": 3, "": 2} if classes else {}
    shown = ShownData(text, settings, Preprocessing((32, 48), crop_pct=0.875), counts, images, lost, (text,))
    return shown.page(f"vitrail data show {text}")


PAGES: dict[str, Callable[[str], str]] = {
    "run": lambda text: run_page(run(text)),
    "explanation": explanation,
    "evaluation": lambda text: evaluation_page(evaluation((text,), text), text, [(text, text)], text, text),
    "similar": similar_page,
    "data": data_page,
    "show": show_page,
}
"""Every kind of page, with a text of a stranger wherever one may stand."""

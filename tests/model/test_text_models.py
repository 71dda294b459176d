"""A model that generates text: a text for each source, the same in any company, with its probability and its doubts."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

import vitrail
from tests.errors import must_raise
from tests.sequence_models import DIGITS, LETTERS, MODELS, READER, SHAPE, image_model, put_sources, text_model
from vitrail.errors import DataError, UsageError
from vitrail.model import Model, save
from vitrail.nn import Beam, Sampling, Transformer, ViT
from vitrail.tasks import Classes, TextCodec


@pytest.fixture
def sources(tmp_path: Path) -> list:
    return put_sources(tmp_path)


@pytest.mark.parametrize("name", MODELS)
def test_a_text_does_not_depend_on_its_company(name: str, sources: list) -> None:
    model = MODELS[name]()
    some = sources[not model.reads_text]
    together, alone = model.predict(some), [model.predict(one)[0] for one in some]
    assert [one.text for one in together] == [one.text for one in alone]
    assert [one.text for one in model.predict(some, batch_size=2)] == [one.text for one in together]
    for one, other in zip(together, alone, strict=True):
        assert one.probability == pytest.approx(other.probability, rel=1e-4)
        assert 0 < one.probability <= 1
        assert model.output.vocabulary.decode(one.ids) == one.text
    assert [one.name for one in together] == [str(source) for source in some]


def test_the_probability_is_that_of_the_text() -> None:
    """The product of the softmax of each id, the end included, in a run without a cache."""
    model = text_model()
    (written,) = model.predict("abcd")
    ids = [1, *written.ids, *([2] if len(written.ids) < 7 else [])]
    logits = model.network(model.tensor(["abcd"]), torch.tensor([ids[:-1]]))
    shares = logits.double().log_softmax(-1)[0, range(len(ids) - 1), ids[1:]]
    assert written.probability == pytest.approx(float(shares.sum().exp().detach()), rel=1e-4)


def test_searches() -> None:
    model = text_model()
    greedy, beam = model.predict("abc")[0], model.predict("abc", search=Beam(width=4, length_penalty=0.0))[0]
    assert beam.probability >= greedy.probability * 0.999
    assert model.predict("abc", search=Beam(width=1))[0].text == greedy.text
    one, again = (model.predict("abc", search=Sampling(seed=5))[0].text for _ in range(2))
    assert one == again


def test_images_may_be_opened_already(sources: list) -> None:
    model = image_model()
    by_file, by_image = model.predict(sources[1][0])[0], model.predict(Image.open(sources[1][0]))[0]
    assert by_image.text == by_file.text
    assert by_image.name != by_file.name


def test_wrong_sources_are_named(sources: list, tmp_path: Path) -> None:
    with must_raise(DataError, "'abx'.*'x'.*3"):
        text_model().predict(["abc", "abx"])
    with must_raise(DataError, "2"):
        text_model().predict(["abc", "", "abd"])
    with must_raise(DataError, "66"):  # of all, not of its batch
        text_model().predict([*["a"] * 65, ""], batch_size=64)
    with must_raise(DataError, "2 of 2"):
        LETTERS.rows(["abc", ""], framed=True)
    with must_raise(UsageError, "PosixPath"):
        text_model().predict(sources[1])
    with must_raise(DataError, r"no\.png"):
        image_model().predict(tmp_path / "no.png")


def test_a_source_longer_than_all_of_training_is_doubted(tmp_path: Path) -> None:
    model = replace(text_model(), facts={"longest_source": 3})
    again = vitrail.load(save(model, tmp_path / "model"))
    for each in (model, again):
        short, long = each.predict(["abc", "abcd"])
        assert len(long.notes) == len(short.notes) + 1
        assert "3" in long.notes[0]
    assert text_model().predict("abcd")[0].notes == short.notes


def test_what_smoothing_leaves_of_certainty(tmp_path: Path) -> None:
    """The least loss of an id is reached at 1 - e + e / v, found here by descent and not by that formula."""
    model = vitrail.load(save(replace(image_model(), facts={"label_smoothing": 0.2}), tmp_path / "model"))
    logits = torch.zeros(1, DIGITS.outputs, dtype=torch.float64, requires_grad=True)
    descent = torch.optim.LBFGS([logits], max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> float:
        descent.zero_grad()
        value = torch.nn.functional.cross_entropy(logits, torch.tensor([5]), label_smoothing=0.2)
        value.backward()
        return value

    descent.step(loss)  # pyrefly: ignore[bad-argument-type]
    assert f"{100 * float(logits.detach().softmax(-1)[0, 5]):.3g} %" in model.about
    assert image_model().about == ""


def test_an_empty_text_is_seen() -> None:
    written = text_model().predict("a")[0]
    assert replace(written, text="").shown
    assert replace(written, text="7").shown == "7"


def test_parts_that_do_not_belong_together() -> None:
    texts, images = text_model(), image_model()
    network = Transformer(replace(texts.network.config, eos_id=3))
    for model, change, named in (
        (texts, {"output": TextCodec(LETTERS)}, "8.*13"),
        (texts, {"input": DIGITS}, "8.*13"),
        (texts, {"input": SHAPE}, "8"),
        (images, {"input": LETTERS}, "1"),
        (images, {"input": replace(SHAPE, channels=3, mean=(0.0,) * 3, std=(1.0,) * 3)}, "3.*1"),
        (texts, {"network": network}, "3"),
    ):
        with must_raise(UsageError, named):
            replace(model, **change)


def test_a_search_is_for_models_that_write() -> None:
    classifier = Model(ViT(replace(READER, classes=2)).eval(), SHAPE, Classes(("a", "b")))
    with must_raise(UsageError, "classify"):
        classifier.predict([Image.new("L", (24, 16))], search=Beam(width=2))

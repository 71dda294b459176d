"""A model that writes: a text for each source, the same in any company, with its probability and its doubts."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import nn
from vitrail.sequence_model import SequenceModel

import vitrail
from tests.sequence_models import DIGITS, LETTERS, MODELS, READER, SHAPE, picture_model, put_sources, text_model
from vitrail.errors import DataError, UsageError
from vitrail.model import Model, save
from vitrail.nn import Beam, Sampling, Transformer, ViT


@pytest.fixture
def sources(tmp_path: Path) -> list:
    return put_sources(tmp_path)


@pytest.mark.parametrize("name", MODELS)
def test_a_text_does_not_depend_on_its_company(name: str, sources: list) -> None:
    model = MODELS[name]()
    some = sources[model.reads_pictures]
    together, alone = model.generate(some), [model.generate(one)[0] for one in some]
    assert [one.text for one in together] == [one.text for one in alone]
    assert [one.text for one in model.generate(some, batch_size=2)] == [one.text for one in together]
    for one, other in zip(together, alone, strict=True):
        assert one.probability == pytest.approx(other.probability, rel=1e-4)
        assert 0 < one.probability <= 1
        assert model.vocabulary.decode(one.ids) == one.text
    assert [one.name for one in together] == [str(source) for source in some]


def test_the_probability_is_that_of_the_text() -> None:
    """The product of the softmax of each id, the end included, in a run without a cache."""
    model = text_model()
    (written,) = model.generate("abcd")
    ids = [1, *written.ids, *([2] if len(written.ids) < 7 else [])]
    logits = model.network(model.tensor(["abcd"]), torch.tensor([ids[:-1]]))
    shares = logits.double().log_softmax(-1)[0, range(len(ids) - 1), ids[1:]]
    assert written.probability == pytest.approx(float(shares.sum().exp().detach()), rel=1e-4)


def test_searches() -> None:
    model = text_model()
    greedy, beam = model.generate("abc")[0], model.generate("abc", Beam(width=4, length_penalty=0.0))[0]
    assert beam.probability >= greedy.probability * 0.999
    assert model.generate("abc", Beam(width=1))[0].text == greedy.text
    one, again = (model.generate("abc", Sampling(seed=5))[0].text for _ in range(2))
    assert one == again


def test_pictures_may_be_opened_already(sources: list) -> None:
    model = picture_model()
    by_file, by_picture = model.generate(sources[1][0])[0], model.generate(Image.open(sources[1][0]))[0]
    assert by_picture.text == by_file.text
    assert by_picture.name == "picture"


def test_wrong_sources_are_said(sources: list, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="'abx' has the unknown token 'x' at place 3"):
        text_model().generate(["abc", "abx"])
    with pytest.raises(DataError, match="text 2 of 3 is empty"):
        text_model().generate(["abc", "", "abd"])
    with pytest.raises(DataError, match="text 66 of 66 is empty"):  # of all, not of its batch
        text_model().generate([*["a"] * 65, ""], batch_size=64)
    with pytest.raises(DataError, match="text 2 of 2 is empty"):
        LETTERS.rows(["abc", ""], framed=True)
    with pytest.raises(UsageError, match="this model reads texts, got PosixPath"):
        text_model().generate(sources[1])
    with pytest.raises(DataError, match="does not exist"):
        picture_model().generate(tmp_path / "no.png")


def test_a_source_longer_than_all_of_training_is_doubted(tmp_path: Path) -> None:
    model = replace(text_model(), longest_source=3)
    again = vitrail.load(save(model, tmp_path / "model"))
    assert isinstance(again, SequenceModel)
    for each in (model, again):
        short, long = each.generate(["abc", "abcd"])
        assert short.notes == ()
        assert long.notes == ("longer than the longest of training (3 tokens): expect errors",)
    assert replace(model, longest_source=1).generate("ab")[0].notes[0].count("(1 token)") == 1


def test_what_smoothing_leaves_of_certainty(tmp_path: Path) -> None:
    """The least loss of an id is reached at 1 - e + e / v, found here by descent and not by that formula."""
    model = vitrail.load(save(replace(picture_model(), label_smoothing=0.2), tmp_path / "model"))
    assert isinstance(model, SequenceModel)
    logits = torch.zeros(1, len(DIGITS), dtype=torch.float64, requires_grad=True)
    descent = torch.optim.LBFGS([logits], max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        descent.zero_grad()
        value = nn.functional.cross_entropy(logits, torch.tensor([5]), label_smoothing=0.2)
        value.backward()
        return value

    descent.step(loss)  # pyrefly: ignore[bad-argument-type]
    assert model.certainty == pytest.approx(float(logits.detach().softmax(-1)[0, 5]), abs=1e-5)
    assert "label smoothing 0.2, so even a certain token gets at most about 81.5 %;" in model.about_probabilities
    assert picture_model().about_probabilities == ""


def test_an_empty_text_is_seen() -> None:
    written = text_model().generate("a")[0]
    assert written._replace(text="").shown == "(empty)"
    assert written._replace(text="7").shown == "7"


def test_parts_that_do_not_belong_together() -> None:
    texts, pictures = text_model(), picture_model()
    with pytest.raises(UsageError, match="longest_source -1 cannot be"):
        replace(texts, longest_source=-1)
    with pytest.raises(UsageError, match=r"label_smoothing 1\.5 and"):
        replace(pictures, label_smoothing=1.5)
    with pytest.raises(UsageError, match="vocabulary has 8 ids, the network wants 13"):
        replace(texts, vocabulary=LETTERS)
    with pytest.raises(UsageError, match="source_vocabulary has None ids"):
        replace(texts, source_vocabulary=None)
    with pytest.raises(UsageError, match="the preprocessing makes none"):
        replace(pictures, preprocessing=None)
    with pytest.raises(UsageError, match="the preprocessing makes 3"):
        replace(pictures, preprocessing=replace(SHAPE, channels=3, mean=(0.0,) * 3, std=(1.0,) * 3))
    other = Transformer(replace(texts.network.config, end=3))
    with pytest.raises(UsageError, match="special ids 0, 1, 3"):
        replace(texts, network=other)


@pytest.mark.parametrize("name", ["texts", "pictures"])
def test_what_a_model_cannot_do_names_what_it_can(name: str) -> None:
    writer = MODELS[name]()
    with pytest.raises(UsageError, match=r"this model writes texts, and predict is for classes\ntry: model.generate"):
        writer.predict(["0.png"])
    network = ViT(replace(READER, classes=2))
    with pytest.raises(UsageError, match=r"says classes, and generate is for models that write\ntry: model.predict"):
        Model(network, SHAPE, ("a", "b")).generate(["0.png"])

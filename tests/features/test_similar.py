"""The nearest images: against scikit-learn and a plain loop, by whatever way the features come."""

import json
import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.neighbors import NearestNeighbors

import vitrail
from tests.cli.command import call
from tests.errors import must_raise
from tests.features.test_embed import CLASSES, CONFIG, model_of
from tests.photographs import make_photographs
from vitrail.data.layout import Layout
from vitrail.errors import DataError, UsageError
from vitrail.explain.target import similarity
from vitrail.features.file import read_about
from vitrail.features.poolings import answer_by_features
from vitrail.features.similar import Similar, agreement, nearest_rows
from vitrail.io import SIMILAR, is_page
from vitrail.nn import ViT, features
from vitrail.tasks.attributes import Attributes
from vitrail.tasks.multilabel import MultiLabels
from vitrail.tasks.regression import Standardized


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("similar")
    make_photographs(root / "photos", CLASSES, per_class=5, seed=0)
    make_photographs(root / "asked", ("b",), per_class=1, seed=7)
    return root


def answers(found: Similar) -> list[list[tuple[str, float]]]:
    return [[(each.name, each.distance) for each in one.neighbours] for one in found.found]


def test_neighbours_are_scikit_learns() -> None:
    draw = torch.Generator().manual_seed(0)
    known, asked = torch.randn(2500, 12, generator=draw), torch.randn(1100, 12, generator=draw)
    cosines, places = nearest_rows(known, asked, 7)
    distances, rows = NearestNeighbors(n_neighbors=7, metric="cosine").fit(known.numpy()).kneighbors(asked.numpy())
    assert (places.numpy() == rows).mean() >= 0.9999  # but for ties in the last bit
    assert np.abs(1 - cosines.numpy() - distances).max() <= 1e-6
    assert nearest_rows(known[:3], asked, 7)[1].shape == (1100, 3)


def test_the_nearest_are_those_of_a_plain_loop(photos: Path) -> None:
    model, asked = model_of(), photos / "asked" / "b" / "b_000.jpg"
    files = sorted((photos / "photos").rglob("*.*"))
    with torch.no_grad():
        own = features(model.network, model.tensor([asked])).class_token
        vectors = features(model.network, model.tensor(files)).class_token
    cosines = torch.nn.functional.cosine_similarity(own, vectors)
    order = cosines.argsort(descending=True)[:4].tolist()
    found = vitrail.similar(model, asked, photos / "photos", neighbours=4)
    assert found.pooling == "class"
    assert found.head
    (one,) = answers(found)
    assert [name for name, _ in one] == [files[row].relative_to(photos / "photos").as_posix() for row in order]
    assert np.allclose([distance for _, distance in one], 1 - cosines[order].numpy(), atol=1e-5)
    assert [each.label for each in found.found[0].neighbours] == [files[row].parent.name for row in order]


def test_files_of_features_serve_on_both_sides(photos: Path, tmp_path: Path) -> None:
    model, folder = model_of(), photos / "photos"
    for name in ("x.npz", "x.parquet"):
        vitrail.embed(model, folder, out=tmp_path / name)
    wanted = vitrail.similar(model, folder, folder, queries=3)
    assert [one.name for one in wanted.found] == ["a/a_000.jpg", "b/b_000.jpg", "c/c_000.jpg"]
    for asked, known in ((folder, "x.npz"), (tmp_path / "x.npz", "x.parquet"), (tmp_path / "x.parquet", "x.npz")):
        found = vitrail.similar(model, asked, tmp_path / known, queries=3)
        for ours, theirs in zip(answers(found), answers(wanted), strict=True):
            assert [name for name, _ in ours] == [name for name, _ in theirs]
            assert np.allclose([each for _, each in ours], [each for _, each in theirs], atol=1e-5)
        assert all(each.here is not None for one in found.found for each in one.neighbours)
    for one in wanted.found:  # an image is no neighbour of its own
        assert one.name not in [each.name for each in one.neighbours]
        assert len(one.neighbours) == 5


def test_features_of_another_model_are_refused(photos: Path, tmp_path: Path) -> None:
    folder, out = photos / "photos", tmp_path / "x.npz"
    vitrail.embed(model_of(), folder, out=out)
    squashed = replace(model_of(), input=replace(model_of().preprocessing, resize="squash"))
    for other in (model_of(seed=1), model_of(norm_eps=1e-3), squashed):
        for asked, known in ((folder, out), (out, folder)):
            with must_raise(DataError, named="x.npz"):
                vitrail.similar(other, asked, known)
    vitrail.save(model_of(seed=1), tmp_path / "my model")
    words = ["similar", tmp_path / "my model", folder, out, "--neighbours", "1", "--out", tmp_path / "page.html"]
    refused = call(*words)
    assert refused.code == 3
    typed = shlex.split(str(refused.hint))  # as it stands, with what was typed; and what it writes serves
    assert call(*typed[1:]).code == 0
    words[3] = typed[typed.index("--out") + 1]
    assert words[3] == str(tmp_path / "x-2.npz")
    assert call(*words).code == 0
    content = bytearray(out.read_bytes())
    content[len(content) // 3] ^= 255
    (tmp_path / "y.npz").write_bytes(bytes(content))
    with must_raise(DataError, named="y.npz"):
        vitrail.similar(model_of(), folder, tmp_path / "y.npz")


def test_a_file_serves_every_head_on_the_network_that_made_it(photos: Path, tmp_path: Path) -> None:
    """A head of other classes, without a bias, or none; and whatever happens in training alone."""
    folder, out, made = photos / "photos", tmp_path / "x.npz", model_of()
    vitrail.embed(made, folder, out=out)
    wanted, about = answers(vitrail.similar(made, folder, out, queries=2)), read_about(out)
    numbers = {name: tensor for name, tensor in made.network.state_dict().items() if not name.startswith("head.")}
    others = [answer_by_features(made)]
    for names, changes in (("abcdefg", {"head_bias": False}), ("ab", {"stochastic_depth": 0.2, "dropout": 0.1})):
        network = ViT(replace(CONFIG, classes=len(names), **changes))
        assert not network.load_state_dict(numbers, strict=False).unexpected_keys
        others.append(vitrail.Model(network.eval(), made.input, vitrail.Classes(tuple(names))))
    for other in others:
        assert answers(vitrail.similar(other, folder, out, queries=2)) == wanted
        assert vitrail.embed(other, folder, out=out).about == about, "which is there"
    with torch.no_grad():
        made.network.norm.weight[0] += 1e-3  # the last thing in front of the head, which is shared with the headless
    for other in (made, others[0]):
        with must_raise(DataError, named="x.npz"):
            vitrail.similar(other, folder, out)


def test_columns_that_are_named(photos: Path, tmp_path: Path) -> None:
    """Two columns name images, and two could be labels: `embed` and `similar` read those that are named."""
    files = sorted((photos / "photos").rglob("*.*"))
    rows = [f"{each},{files[-1 - row]},{each.parent.name},{row % 2},{row % 3}" for row, each in enumerate(files)]
    (tmp_path / "list.csv").write_text("\n".join(["one,other,kind,eye,part", *rows]))
    how = Layout(path_column="other", label_column="eye")
    model, asked, data = model_of(), photos / "asked" / "b" / "b_000.jpg", tmp_path / "list.csv"
    embedded = vitrail.embed(model, data, layout=how, out=tmp_path / "x.npz")
    assert list(map(Path, embedded.ids)) == files[::-1]
    assert embedded.labels == tuple(str(row % 2) for row in range(len(files)))
    found = vitrail.similar(model, asked, data, layout=how)  # the image asked is none of a list, and has no columns
    for one in (vitrail.similar(model, asked, tmp_path / "x.npz"), vitrail.similar(model, data, asked, layout=how)):
        assert all(each.here is not None for query in one.found for each in query.neighbours)  # they are at hand
    assert [one.label for one in vitrail.similar(model, data, tmp_path / "x.npz", queries=3, layout=how).found] == list(
        "010"
    )
    label = {str(files[-1 - row]): str(row % 2) for row in range(len(files))}
    assert [each.label for each in found.found[0].neighbours] == [
        label[each.name] for each in found.found[0].neighbours
    ]
    for refused in (photos / "photos", tmp_path / "x.npz"):
        with pytest.raises(UsageError, match="path_column"):
            vitrail.similar(model, asked, refused, layout=how)
    with pytest.raises(UsageError, match="path_column"):
        vitrail.embed(model, asked, layout=how)


def test_images_that_have_gone_are_not_shown(photos: Path, tmp_path: Path) -> None:
    mine = shutil.copytree(photos / "photos", tmp_path / "mine")
    vitrail.embed(model_of(), mine, out=tmp_path / "x.npz")
    before = answers(vitrail.similar(model_of(), photos / "asked", tmp_path / "x.npz"))
    shutil.rmtree(mine)
    found = vitrail.similar(model_of(), photos / "asked", tmp_path / "x.npz")
    assert answers(found) == before
    assert any("x.npz" in note for note in found.notes)
    assert all(each.here is None and each.image is None for each in found.found[0].neighbours)
    assert before[0][0][0] in found.page("m", "x.npz")


def test_agreement_is_that_of_a_plain_loop() -> None:
    """And a token that is the same in every image agrees with nothing, however high its cosine."""
    draw = torch.Generator().manual_seed(0)
    own, other, *others = (torch.randn(3, 4, 8, generator=draw) for _ in range(5))
    for each in (own, other, *others):
        each[0, 0] = 5.0
    found = agreement(own, other, others)
    alike = torch.nn.functional.cosine_similarity

    def best(patch: torch.Tensor, image: torch.Tensor) -> tuple[float, int]:
        cosines = [float(alike(patch, each, dim=0)) for each in image.flatten(0, 1)]
        return max(cosines), int(np.argmax(cosines))

    for row in range(3):
        for column in range(4):
            cosine, partner = best(own[row, column], other)
            usual = np.median([best(own[row, column], each)[0] for each in others])
            assert found.partners[row, column] == partner
            assert found.cosines[row, column] == pytest.approx(cosine, abs=1e-6)
            assert found.usual[row, column] == pytest.approx(usual, abs=1e-6)
    assert found.cosines[0, 0] == pytest.approx(1)
    assert found.beyond[0, 0] == pytest.approx(0, abs=1e-6)
    assert not agreement(own, other).usual.any()


def test_what_the_page_tells_to_type_explains_this_very_number(photos: Path, tmp_path: Path) -> None:
    model, asked = model_of(), photos / "asked" / "b" / "b_000.jpg"
    vitrail.save(model, tmp_path / "model")
    page = tmp_path / "page.html"
    words = ("similar", tmp_path / "model", asked, photos / "photos", "--out", page, "--json")
    answer = call(*words)
    assert answer.code == 0, answer.err
    told = json.loads(answer.out)
    nearest = told["queries"][0]["neighbours"][0]
    assert is_page(page.read_text(), SIMILAR)
    typed = f"vitrail explain {tmp_path / 'model'} {asked} --similar-to {photos / 'photos' / nearest['file']}"
    assert typed in page.read_text()
    explained = call(*typed.split()[1:], "--no-trust", "--out", tmp_path / "e.html", "--json")
    assert explained.code == 0, explained.err
    (row,) = json.loads(explained.out)["images"]
    assert row["attributions"][0]["logit"] == pytest.approx(1 - nearest["distance"], abs=1e-5)
    again = call(*words)  # a page of ours is written over
    assert again.code == 0, again.err


def test_without_its_head_a_model_says_what_the_head_reads(photos: Path) -> None:
    for slots, changes in (({}, {}), ({}, {"distillation_token": True}), ({"pooling": "mean_then_norm"}, {})):
        model = model_of(0, slots, **changes)
        before = {name: value.clone() for name, value in model.network.state_dict().items()}
        images = model.tensor(sorted((photos / "photos" / "a").glob("*.*")))
        with torch.no_grad():
            logits, record = vitrail.run_with_record(model.network, images, "pooled")
            assert torch.equal(answer_by_features(model).network(images), record["pooled"])
            assert torch.equal(model.network(images), logits)
        assert answer_by_features(model).background is model.background, "what it borrows is said where it is used"
        assert all(torch.equal(value, before[name]) for name, value in model.network.state_dict().items())
        cosines = similarity(record["pooled"][0])(record["pooled"])
        assert float(cosines[0]) == pytest.approx(1, abs=1e-5)
    with must_raise(UsageError, named="64"):
        answer_by_features(model_of(0, {"pooling": "class_and_mean", "head": "of_two"}))


def test_what_neighbours_have_is_said_by_the_codec() -> None:
    """Labels are counted each, numbers averaged, columns apart; what is not known counts for nothing."""
    every = [{"labels": each} for each in ("clock|chair", "chair", "", "clock|chair|tv")]
    assert MultiLabels(("chair",)).among([*every, {}]) == "chair 3 of 4, clock 2 of 4, tv 1 of 4"
    numbers = Standardized(("count", "age"), (0.0, 0.0), (1.0, 1.0))
    rows = [{"count": "1", "age": ""}, {"count": "4", "age": "30"}, {"count": "10", "age": ""}]
    assert re.findall(r"[\d.]+", numbers.among(rows)) == ["5", "1", "10", "30", "30", "30"]
    columns = [{"colour": "red", "shape": "round"}, {"colour": "blue", "shape": ""}, {"colour": "red", "shape": ""}]
    codec = Attributes(("colour", "shape"), (("blue", "red"), ("round", "square")))
    assert codec.among(columns) == "colour: red 2 of 3, blue 1 of 3; shape: round 1 of 1"
    assert vitrail.Classes(("a", "b")).among([{"label": "b"}, {"label": "z"}, {}]) == "b 1 of 2, z 1 of 2"

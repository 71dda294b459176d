"""A report in Python: the page, the JSON and the overlays of the command, from one decoding and one shared pass."""

import copy
import dataclasses
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from tests.cli.command import Cli
from tests.explain.planted_lab import load_planted
from tests.pages.structure import Structure
from tests.sequence_models import image_model
from vitrail.data.images import NamedImage, open_image
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.sets.planted import planted_digits
from vitrail.errors import DataError, UsageError, VitrailError
from vitrail.explain import METHODS, Method, Report, generic_attention, report, trust
from vitrail.explain.attribution import Attribution
from vitrail.explain.reporting import explained, plan
from vitrail.explain.reporting.plan import ReportOptions, plan_report
from vitrail.explain.reporting.report import ORDER, explain_images, write_overlays
from vitrail.explain.target import Target
from vitrail.explain.verdict import prepare
from vitrail.model import Model
from vitrail.nn import ViT
from vitrail.pages import ImageView
from vitrail.pages.colour import overlay_pixels
from vitrail.pages.render import escape
from vitrail.statistics import wilson_interval


@pytest.fixture(scope="module")
def model() -> Model:
    return load_planted("mean-0")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("images")
    for number, pixels in enumerate(planted_digits("test", 3).pixels):
        Image.fromarray(pixels).save(folder / f"{number}.png")
    return sorted(folder.iterdir())


@pytest.fixture(scope="module")
def made(model: Model, files: list[Path]) -> Report:
    return report(model, files, ["generic_attention", "rollout"])


@pytest.mark.parametrize(("length", "value", "wanted"), [(30, 1.0, 1), (30, -1.0, 0), (1, 1.0, 0)])
def test_a_planted_sink_that_is_decisive_is_counted(
    model: Model, files: list[Path], length: float, value: float, wanted: int
) -> None:
    """One token is made so many times as long by its position, and a map ranks its patch first or last."""
    network = copy.deepcopy(model.network)
    with torch.no_grad():
        network.pos_embed[:, network.config.prefix + 5] *= length

    def by_hand(network: ViT, images: torch.Tensor, target: Target = None) -> Attribution:
        found = generic_attention(network, images, target)
        values = torch.rand(found.values.shape, generator=torch.Generator().manual_seed(0)) / 2
        values.flatten(1)[:, 5] = value
        return dataclasses.replace(found, values=values)

    (one,) = report(dataclasses.replace(model, network=network), files[:1], by_hand, full=True)
    (view,) = one.view.attributions
    assert view.replaced is not None
    assert view.replaced[0].mask.flat[5] == (value > 0)
    assert view.decisive_sinks[0] == wanted
    assert view.replaced[0].mask.sum() <= view.decisive_sinks[1] < view.values.size


def test_the_call_makes_the_page_of_the_command(
    cli: Cli, model: Model, made: Report, files: list[Path], tmp_path: Path
) -> None:
    words = ("--compare", "--methods", "generic_attention,rollout", "--out", tmp_path / "command.html")
    typed = cli("explain", model.loaded_from, *files, *words, "--json")
    assert typed.code == 0, typed.err
    said = cli("explain", model.loaded_from, *files, *words).out
    assert all(f"{rates.title}: {rates.words}" in said for rates in made.rates)
    saved = made.save(tmp_path / "call.html")
    pages = [(tmp_path / f"{name}.html").read_text() for name in ("command", "call")]
    without = [re.sub(r"<section[^>]*>\s*<h2>How it was made.*?</section>", "", each, flags=re.S) for each in pages]
    assert all(len(short) < len(whole) for short, whole in zip(without, pages, strict=True))
    assert without[0].split() == without[1].split()
    mine, theirs = made.to_dict(saved), json.loads(typed.out)
    assert [Path(each.pop("page")).name for each in (mine, theirs)] == ["call.html", "command.html"]
    for name, empty in (("command", True), ("date", False)):  # of what a call has, too, the time may be another
        assert (mine["made"].pop(name) == "") == empty
        assert theirs["made"].pop(name)
    for one, other in zip(mine["images"], theirs["images"], strict=True):
        for ours, printed in zip(one["attributions"], other["attributions"], strict=True):
            assert (ours["values"] is None) == (ours["overlay"] is None) == (printed["seconds"] is None)
            if ours["values"] is not None:
                assert Path(ours.pop("overlay")).read_bytes() == Path(printed.pop("overlay")).read_bytes()
                assert min(ours.pop("seconds"), printed.pop("seconds")) > 0
    assert json.loads(json.dumps(vitrail.io.plain(mine))) == theirs


def test_what_it_holds_is_what_the_functions_return(model: Model, made: Report, files: list[Path]) -> None:
    images = model.tensor(files)
    attribution = generic_attention(model.network, images)
    verdicts = trust(model, images, attribution).verdict
    assert len(made) == len(files)
    for row, one in enumerate(made):
        assert one.prediction.label == model.classes[int(attribution.target[row])]
        assert one.verdicts[0] == verdicts[row]
        np.testing.assert_array_equal(one.image, np.asarray(Image.open(files[row])))
        if not one.view.drawn:  # it holds no evidence
            assert (one.attributions, set(one.verdicts)) == ((), {"cannot tell"})
            continue
        first, _ = one.attributions
        assert (first.method, tuple(first.values.shape), first.signed) == ("generic_attention", (1, 8, 8), False)
        torch.testing.assert_close(first.values[0], attribution.values[row])
        assert int(first.target) == int(attribution.target[row])
    assert "<iframe" in made._repr_html_()
    for one in made:
        (page,) = Structure(one._repr_html_()).attribute("iframe", "srcdoc")
        assert f"Prediction: <b>{one.prediction.label}</b>" in page
        assert page.count('class="frame hatched"') == sum(view.pale for view in one.view.attributions if one.view.drawn)
        text = "".join(Structure(page).text)
        assert all(verdict in text.lower() for verdict in one.verdicts)


def counted(patch: pytest.MonkeyPatch, owner: Any, name: str) -> list[str]:
    """A list that grows by one with each call of a function."""
    real, calls = getattr(owner, name), list[str]()
    patch.setattr(owner, name, lambda *values, **more: calls.append(name) or real(*values, **more))
    return calls


@pytest.mark.parametrize("what", ["top class", "contrast", "similarity"])
def test_an_image_is_prepared_once_and_one_pass_is_shared(
    model: Model, files: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, what: str
) -> None:
    """A pass for answers, targets and sinks, and one with gradients for the method; the other image has its own."""
    other = tmp_path / "other.png"
    Image.fromarray(planted_digits("test", 4).pixels[3]).save(other)
    top = [one.label for one in model.predict(files)]
    more = {"contrast": {"contrast": top[0]}, "similarity": {"similar_to": other}}.get(what, {})
    passes, left_out = [], []
    handle = model.network.register_forward_hook(lambda *values: passes.append(1))
    with monkeypatch.context() as patch:
        decoded, prepared = counted(patch, Image, "open"), counted(patch, Preprocessing, "to_uint8")
        found = report(model, files, trust=False, notify=left_out.append, **more)
    handle.remove()
    others = int(what == "similarity")
    assert len(decoded) == len(prepared) == len(files) + others
    assert len(passes) == 2 + others
    assert len(left_out) == len(files) - len(found) == (top.count(top[0]) if what == "contrast" else 0)
    assert [one.answer()["label"] for one in found] == [label for label in top if what != "contrast" or label != top[0]]
    assert len(set(top)) > 1


def test_the_top_class_rather_than_another_is_tested_as_if_it_were_named(model: Model) -> None:
    """Images whose top class is the other are left out of a group after its first pass, which changes no other."""
    several = [NamedImage(f"digit {i}", Image.fromarray(one)) for i, one in enumerate(planted_digits("test", 9).pixels)]
    top = [one.label for one in model.predict([each.image for each in several])]
    rest = [place for place, label in enumerate(top) if label != top[0]]
    assert 2 < len(rest) < len(several)
    words, methods = list[str](), ["generic_attention", "saliency"]
    found = report(model, several, methods, contrast=top[0], notify=words.append)
    named = report(model, [several[i] for i in rest], methods, target=[top[i] for i in rest], contrast=top[0])
    left = [one.name for one, label in zip(several, top, strict=True) if label == top[0]]
    for said in (words, found.left_out):
        assert [name in each and f"'{top[0]}'" in each for name, each in zip(left, said, strict=True)] == [True] * len(
            left
        )
    assert [one.name for one in found] == [several[i].name for i in rest]
    for one, other in zip(found, named, strict=True):
        assert (one.verdicts, one.prediction.label) == (other.verdicts, other.prediction.label)
        for mine, theirs in zip(one.attributions, other.attributions, strict=True):
            torch.testing.assert_close(mine.values, theirs.values)
            assert (mine.target, mine.contrast, mine.notes) == (theirs.target, theirs.contrast, theirs.notes)


def test_targets_of_every_kind(model: Model, files: list[Path]) -> None:
    def of(target: Any = None, contrast: Any = None) -> Report:
        return report(model, files, target=target, contrast=contrast, trust=False)

    images = model.tensor(files)
    for given, wanted in ((3, 3), ("3", 3), ([0, "1", 2], [0, 1, 2])):
        expected = generic_attention(model.network, images, wanted)
        found = of(given)
        assert [int(one.attributions[0].target) for one in found] == expected.target.tolist()
        torch.testing.assert_close(torch.cat([one.attributions[0].values for one in found]), expected.values)
    (first, *_) = of(3, "5")
    assert first.attributions[0].contrast is not None
    assert int(first.attributions[0].contrast) == 5
    torch.testing.assert_close(
        first.attributions[0].values, generic_attention(model.network, images[:1], (3, 5)).values
    )
    second = of(lambda logits: logits[:, 4])[0]
    assert second.view.attributions[0].explains == "number"
    torch.testing.assert_close(second.attributions[0].values, generic_attention(model.network, images[:1], 4).values)


def test_a_method_of_ones_own_has_its_title_and_its_cost_in_the_page(model: Model, files: list[Path]) -> None:
    words = {"title": "A method of mine", "about": "It is mine.", "cost": "77"}

    def with_a_graph(network: ViT, images: torch.Tensor, target: Target = None) -> Attribution:
        found = generic_attention(network, images, target)
        return dataclasses.replace(found, values=found.values.clone().requires_grad_(), method="mine")

    own = dataclasses.replace(METHODS["generic_attention"], name="mine", function=with_a_graph, **words)
    found = report(model, files[0], own, trust=False)
    assert "A method of mine" in found.page()
    assert "It is mine." in found.page()
    (row,) = found.to_dict()["images"]
    assert row["attributions"][0]["cost"] == "77"
    assert isinstance(own, Method)


def judged(view: ImageView, verdicts: list[str]) -> ImageView:
    """The same image with a map for each of these verdicts."""
    of = view.attributions[0]
    tests = [dataclasses.replace(trust, verdict=each) for each in verdicts if (trust := of.trust)]
    return dataclasses.replace(view, attributions=[dataclasses.replace(of, trust=each) for each in tests])


def test_a_report_of_several_images_counts_verdicts_and_begins_with_those_not_to_be_trusted(made: Report) -> None:
    for place, rates in enumerate(made.rates):
        verdicts = [one.verdicts[place] for one in made]
        assert rates.counts == {word: verdicts.count(word) for word in set(verdicts)}
        assert rates.supported == verdicts.count("supported")
        assert rates.interval == wilson_interval(rates.supported, len(made))
        for each in rates.classes:
            own = [one.verdicts[place] for one in made if one.prediction.label == each.name]
            assert each.counts == {word: own.count(word) for word in set(own)}
    ranked = [[ORDER.index(each) for each in one.verdicts if each] for one in made.least_trusted_first]
    order = [(ranks.count(len(ORDER) - 1), min(ranks)) for ranks in ranked]
    assert order == sorted(order)
    pairs = [(1, 1), (0, 4), (0, 2), (4, 4)]
    mixed = [dataclasses.replace(made[0], view=judged(made[0].view, [ORDER[each] for each in pair])) for pair in pairs]
    assert Report(tuple(mixed), "m").least_trusted_first == [mixed[place] for place in (2, 0, 1, 3)]
    page = made.page()
    places = [page.index(f"<h2>{Path(one.name).name}</h2>") for one in made.least_trusted_first]
    assert places == sorted(places)
    listed = re.findall(r'<li><a href="#image-\d+">(.*?)</a>(.*?)</li>', page, re.S)
    assert [name for name, _ in listed] == [Path(one.name).name for one in made.least_trusted_first]
    for one, (_, words) in zip(made.least_trusted_first, listed, strict=True):  # how often each verdict was found
        found = dict(re.findall(r"> ([a-z, ]+)</span>:&nbsp;(\d+)", words))
        assert {word: int(count) for word, count in found.items()} == Counter(one.verdicts)
    rows = made.to_dict()["rates"]
    assert [row["method"] for row in rows] == [each["method"] for each in made.to_dict()["images"][0]["attributions"]]
    assert [row["supported"] for row in rows] == [rates.supported for rates in made.rates]
    assert all(f">{rates.title}</th>" in page for rates in made.rates)
    (untested,) = report(load_planted("mean-0"), made[0].name, trust=False)
    without_maps = dataclasses.replace(
        untested, attributions=(), view=dataclasses.replace(untested.view, attributions=[])
    )
    assert Report((untested, without_maps), "m").rates == ()  # as for a text without tokens


def test_weak_is_the_best_that_is_possible_only_where_evidence_was_looked_for_and_no_least_effect_is_known(
    made: Report,
) -> None:
    for evidence, least, bounded in ((0.01, None, True), (0.01, 9.0, False), (None, None, False)):
        of = made[0].view.attributions[0]
        assert of.trust is not None
        trust = dataclasses.replace(of.trust, evidence=evidence, minimum_effect=least)
        view = dataclasses.replace(made[0].view, attributions=[dataclasses.replace(of, trust=trust)])
        (rates,) = Report((dataclasses.replace(made[0], view=view),), "m").rates
        assert rates.bounded is bounded, (evidence, least)


def test_what_cannot_be_read_is_left_out_and_said(model: Model, files: list[Path], tmp_path: Path) -> None:
    broken = tmp_path / "broken.png"
    broken.write_bytes(files[0].read_bytes()[:40])
    first, second = (NamedImage(str(file), open_image(file), label) for file, label in zip(files, "13", strict=False))
    found = report(model, [first, broken, second], target=[1, 2, 3], trust=False)
    assert [(one.name, int(one.attributions[0].target)) for one in found] == [(str(files[0]), 1), (str(files[1]), 3)]
    assert [one.view.true_label for one in found] == ["1", "3"]
    assert str(broken) in found.left_out[0]
    assert escape(found.left_out[0].replace(f"{tmp_path}/", "")) in found.page()
    with pytest.raises(DataError):
        report(model, broken)


def test_an_image_is_preprocessed_once(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """The choice of a precision took another one of it; and whoever shows the progress sees its end."""
    several = [Image.fromarray(pixels) for pixels in planted_digits("test", 9).pixels]
    prepared = counted(monkeypatch, Preprocessing, "to_uint8")
    seen = list[tuple[int, ...]]()

    def progress(*images: int) -> None:
        seen.append(images)

    assert len(report(model, several, ["rollout", "generic_attention"], progress=progress)) == 9
    assert len(prepared) == 9
    assert (seen[0], seen[-1]) == ((0, 9), (9, 9))
    texts = report(image_model(), several[:2], progress=progress)
    assert [one.prediction.text != "" for one in texts] == [True, True]
    assert len(prepared) == 11
    assert seen[-3:] == [(0, 2), (1, 2), (2, 2)]


def test_images_serve_each_other_where_a_model_has_no_background(model: Model) -> None:
    bare = dataclasses.replace(model, background=None)
    several = [Image.fromarray(pixels) for pixels in planted_digits("test", 30).pixels]
    assert {one.verdicts[0] for one in report(bare, several[:2])} == {"cannot tell"}
    found = report(bare, [NamedImage(f"digit {i}", one) for i, one in enumerate(several)])
    assert "supported" in {one.verdicts[0] for one in found}
    assert found[3].name == "digit 3"


@pytest.mark.parametrize(
    "given",
    [
        {"images": []},
        {"images": None},
        {"images": [np.zeros((32, 32))]},
        {"methods": []},
        {"methods": "gradcam"},
        {"methods": ["rollout"], "contrast": 3},
        {"target": "cat"},
        {"target": 10},
        {"target": [1, 2]},
        {"target": [1]},
        {"target": 3, "contrast": "3"},
        {"target": lambda logits: logits[:, 0], "contrast": 3},
        {"options": {"layer": "x"}, "methods": "raw_attention"},
        {"options": {"layers": 1}},
        {"options": {"layer": 1}, "methods": ["raw_attention", "rollout"]},
        {"trust": False, "full": True},
        {"trust": False, "background": "nowhere"},
        {"similar_to": "a.png", "target": 1},
        {"precision": "fp16"},
        {"methods": len},
        {"methods": 3},
        {"methods": "cross_attention"},
        {"target": -1},
        {"target": 2.0},
        {"target": np.array([1, 2])},
        {"target": torch.tensor(2.5)},
        {"target": lambda logits: (logits[:, 0] - logits[:, 0].max() - 1).log()},  # NaN for every image
    ],
    ids=range(27),
)
@pytest.mark.usefixtures("as_a_user")
def test_what_does_not_fit_is_refused(model: Model, files: list[Path], given: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as refused:
        report(model, **{"images": files, **given})
    assert str(refused.value.hint)
    assert model.network.training is False


def test_a_target_may_be_a_number_of_numpy_or_torch_and_a_method_its_function(model: Model, files: list[Path]) -> None:
    def targets_of(target: Any, methods: Any = vitrail.explain.rollout) -> list[int]:
        found = report(model, files, methods, target=target, trust=False)
        assert {one.attributions[0].method for one in found} == {"rollout"}
        return [int(one.attributions[0].target) for one in found]

    for target in (np.int64(3), torch.tensor(3), torch.tensor([3]), np.array(3)):
        assert targets_of(target) == [3, 3, 3]
    for target in (torch.tensor([1, 2, 3]), np.array([1, 2, 3]), [np.int64(1), "2", torch.tensor(3)]):
        assert targets_of(target, [vitrail.explain.rollout]) == [1, 2, 3]


@pytest.mark.usefixtures("as_a_user")
def test_images_and_masks_that_do_not_fit_are_refused(model: Model, files: list[Path]) -> None:
    broken = Image.fromarray(np.full((32, 32), np.nan, np.float32))
    black, small = Image.new("L", (32, 32), 0), Image.new("L", (3, 3), 255)
    with pytest.raises(DataError):
        NamedImage("a.png", open_image(files[0]), mask=small)
    array = np.zeros((32, 32))
    for values in ((array,), (black, None, array), (None,)):
        with pytest.raises(UsageError):
            NamedImage("a.png", *values)
    with pytest.raises(DataError):
        report(model, files[0].parent / "nothing.png")
    with pytest.raises(UsageError) as nowhere:
        report(model, files[0], trust=False).save(files[0] / "x.html")
    assert "--" not in str(nowhere.value)
    assert nowhere.value.hint.flags == {"out": str(Path.home() / "x.html")}
    left_out = report(model, [files[0], broken, Image.new("L", (0, 0))], trust=False).left_out
    assert len(left_out) == 2
    for given in (
        {"images": broken},
        {"images": Image.new("L", (0, 0))},
        {"images": [NamedImage(file.name, open_image(file), mask=black) for file in files]},
        {"images": files, "background": torch.zeros(12, 1, 28, 28)},
        {"images": files, "background": "/nowhere"},
    ):
        with pytest.raises(VitrailError):
            report(model, **given)
    assert len(repr(report(model, files, trust=False))) < 100


@pytest.mark.usefixtures("as_a_user")
def test_an_overlay_is_the_map_over_the_image(made: Report, tmp_path: Path) -> None:
    one = made[0]
    small = overlay_pixels(one.image, one.attributions[0].values[0].numpy(), False)
    large = np.asarray(one.attributions[0].overlay(one.image))
    assert large.shape == (448, 448, 3)
    np.testing.assert_array_equal(large[7::14, 7::14], small)
    Image.fromarray(one.image).save(tmp_path / "seen.png")
    assert np.array_equal(np.asarray(one.attributions[0].overlay(tmp_path / "seen.png")), large)
    for wrong in (torch.zeros(3, 4, 4), np.zeros((4, 4)), None):
        with pytest.raises(UsageError):
            one.attributions[0].overlay(wrong)
    alone = report(load_planted("mean-0"), one.name, "generic_attention")[0]
    plain = alone.attributions[0].overlay(alone.image)
    assert (alone.overlay() == plain) == (alone.verdicts[0] not in ("cannot tell", "no better than random"))
    for found in (made, [alone]):  # on the scale of the page, which all methods share
        for number, one in enumerate(found):
            for place, file in enumerate(write_overlays(number, one.view, tmp_path / "overlays")):
                assert np.array_equal(np.asarray(one.overlay(place)), np.asarray(Image.open(file)))


def test_an_attribution_is_upsampled_and_saved(made: Report, tmp_path: Path) -> None:
    values = torch.arange(6.0).reshape(1, 2, 3)
    attribution = Attribution(values, torch.tensor([4]), torch.tensor([2.0]), "rollout", False, False, (("a note",),))
    wanted = torch.nn.functional.interpolate(values[None], size=(8, 9), mode="bilinear", align_corners=False)[0]
    torch.testing.assert_close(attribution.upsampled((8, 9)), wanted)
    assert attribution.upsampled((4, 6), "nearest")[0, :2, :2].unique().tolist() == [0.0]
    attribution.save(tmp_path / "a.npz")
    attribution.save(tmp_path / "a.json")
    attribution.save(tmp_path / "a.png", np.zeros((20, 30), np.uint8))
    with np.load(tmp_path / "a.npz") as stored:
        np.testing.assert_array_equal(stored["values"], values.numpy())
        facts = json.loads(str(stored["facts"]))
    read = json.loads((tmp_path / "a.json").read_text())
    assert read.pop("values") == values.tolist()
    assert read == facts
    assert (facts["method"], facts["target"], facts["notes"]) == ("rollout", [4], [["a note"]])
    with Image.open(tmp_path / "a.png") as drawn:
        assert drawn.size == (450, 300)
    for path, image in (("a.tiff", None), ("a.png", None)):
        with pytest.raises(UsageError):
            attribution.save(tmp_path / path, image)
    two = Attribution(
        values.expand(2, 2, 3), torch.tensor([4, 5]), torch.tensor([2.0, 1]), "x", False, False, ((), ("b",))
    )
    with pytest.raises(UsageError):
        two.overlay(np.zeros((20, 30), np.uint8))
    assert (len(two), two[1].target.tolist(), two[-1].notes) == (2, [5], (("b",),))
    assert len(list(two)) == 2


def test_of_several_images_only_those_with_evidence_have_maps(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """All are asked before any map is made, and no figure is another than by itself, or with maps of all."""
    empty, whole = planted_digits("test", 1, "empty").pixels, planted_digits("test", 3).pixels
    images = [NamedImage(f"{i}", Image.fromarray(one)) for i, one in enumerate(np.concatenate([whole, empty]))]
    happened, counts, methods = list[str](), list[tuple[int, int]](), ["generic_attention", "rollout"]

    def seen(name: str) -> Method:
        def own(network: ViT, images: torch.Tensor, target: Target = None) -> Attribution:
            happened.append(f"{len(images)} maps")
            return METHODS[name].function(network, images, target)

        return dataclasses.replace(METHODS[name], function=own)

    def asked(*given: Any, **more: Any) -> Any:
        happened.append("asked")
        return prepare(*given, **more)

    monkeypatch.setattr(explained, "prepare", asked)
    monkeypatch.setattr(plan, "BATCH", 4)
    shown = list[int]()
    found = explain_images(
        images,
        plan_report(model, ReportOptions(methods=[seen(name) for name in methods])),
        progress=lambda done, of: counts.append((done, of)),
        show=lambda so_far: shown.append(len(so_far)),
    )
    monkeypatch.undo()
    full = report(model, images, methods, full=True)
    drawn = [one for one in found if one.view.drawn]
    assert 1 < len(drawn) < len(found) == len(images)
    assert happened[: happened.count("asked")] == ["asked"] * happened.count("asked")
    assert sum(int(each.split()[0]) for each in happened if "maps" in each) == len(drawn) * len(methods)
    assert shown == list(range(1, len(images) + 1))
    without = len(images) - len(drawn)
    asked_all = counts.index((len(images), len(images)))
    assert counts[asked_all + 1] == (without, len(images))
    assert {done for done, _ in counts[asked_all + 1 :]} == {*range(without, len(images) + 1)}, (
        "one image after another"
    )
    assert counts[-1] == (len(images), len(images))
    assert [each.to_dict() for each in found.rates] == [each.to_dict() for each in full.rates]
    for one, other in zip(found, full, strict=True):
        assert (one.verdicts, one.prediction.label) == (other.verdicts, other.prediction.label)
        assert [each.trust.sentence for each in one.view.attributions if each.trust] == [
            each.trust.sentence for each in other.view.attributions if each.trust
        ]
        assert [view.logit for view in one.view.attributions] == pytest.approx(
            [view.logit for view in other.view.attributions], abs=1e-5
        )
        if one.view.drawn:
            for mine, theirs in zip(one.to_dict()["attributions"], other.to_dict()["attributions"], strict=True):
                for name in ("seconds", "random_deletion", "random_insertion"):
                    mine.pop(name), theirs.pop(name)
                assert_alike(mine, theirs)
            continue
        assert one.attributions == ()
        assert set(one.verdicts) == {"cannot tell"}
        with pytest.raises(UsageError):
            one.overlay()
        rows = one.to_dict()["attributions"]
        assert [row["method"] for row in rows] == methods
        assert all(row["values"] is row["overlay"] is None for row in rows)
    assert all(f"<h2>{one.name}</h2>" in found.page() for one in found)
    (alone,) = report(model, [images[[one.view.drawn for one in found].index(False)]], methods)
    assert alone.view.drawn, "a page of one image shows what was asked for"


def assert_alike(one: Any, other: Any) -> None:
    """Equal values; numbers but for rounding, since images that go through a network together differ."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        one, other = list(one.values()), list(other.values())
    if isinstance(one, list | tuple):
        assert len(one) == len(other)
        for mine, theirs in zip(one, other, strict=True):
            assert_alike(mine, theirs)
    else:
        assert one == pytest.approx(other, abs=1e-4) if isinstance(one, float) else one == other

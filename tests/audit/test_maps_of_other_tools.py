"""Maps that other tools computed, in folders of arrays, are audited like those of a method, and side by side."""

import importlib
import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from shutil import copytree, rmtree

import numpy as np
import pytest
import torch
from captum.attr import Saliency
from pytorch_grad_cam import GradCAM
from torch import Tensor

from tests.audit.marked import EACH, digits, honest
from tests.errors import must_raise
from vitrail.audit import EDITS, Audit, Edit, audit
from vitrail.data.images import open_image
from vitrail.errors import DataError, UsageError
from vitrail.explain import Attribution, generic_attention, report, saliency, trust

FEW = tuple(edit for edit in EDITS if edit.name == "upper-left")
MODEL, COUNT = honest(), 4
GENERIC = "generic_attention"


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Digits in folders of their classes, the same names in each; too few to look for shortcuts, which need no map."""
    folder = tmp_path_factory.mktemp("photos")
    for number, (image, label) in enumerate(digits(marked=False)):
        if number % EACH < 4:
            (folder / label).mkdir(exist_ok=True)
            image.save(folder / label / f"{number % EACH}.png")
    return folder


def maps_of(photos: Path, folder: Path, explain: Callable[[Tensor], np.ndarray], ending: str = ".png.npy") -> Path:
    """A folder with the map of each image, under the image's own folder and name."""
    for file in sorted(photos.rglob("*.png")):
        place = folder / file.parent.name / f"{file.stem}{ending}"
        place.parent.mkdir(parents=True, exist_ok=True)
        np.save(place, explain(MODEL.tensor([open_image(file)])))
    return folder


def generic(image: Tensor) -> np.ndarray:
    return generic_attention(MODEL.network, image).values[0].numpy()


def by_captum(image: Tensor) -> np.ndarray:
    """(h, w), of pixels."""
    target = MODEL.network(image).argmax(dim=1)
    return (
        Saliency(MODEL.network).attribute(image.clone().requires_grad_(), target=target)[0].sum(dim=0).detach().numpy()
    )


def by_grad_cam(image: Tensor) -> np.ndarray:
    """(h, w), of pixels, smooth."""
    prefix = MODEL.network.config.prefix

    def on_grid(tokens: Tensor) -> Tensor:
        return tokens[:, prefix:].unflatten(1, (8, 8)).movedim(3, 1)

    with GradCAM(MODEL.network, [MODEL.network.blocks[-1].norm1], reshape_transform=on_grid) as cam:
        return cam(image.clone(), None)[0]


def audited(photos: Path, method: str | Path, folder: Path | None = None, count: int = COUNT) -> Audit:
    return audit(MODEL, str(photos), count=count, method=str(method), edits=FEW, folder=folder)


def found_by(one: Audit) -> dict[str, object]:
    """What depends on maps."""
    whole = one.to_dict()
    return {key: whole[key] for key in ("verdicts", "areas", "figures")}


def test_vitrails_own_maps_in_a_folder_get_the_same_verdicts_and_areas(photos: Path, tmp_path: Path) -> None:
    folder = maps_of(photos, tmp_path / "own", generic)
    by_name, by_folder = audited(photos, GENERIC), audited(photos, folder, tmp_path / "parts")
    assert found_by(by_folder) == found_by(by_name)
    assert by_folder.supported.supported >= 2  # of equal figures that say something
    assert [note for note in by_folder.notes if note not in by_name.notes] == [
        report(MODEL, str(photos / "1" / "0.png"), str(folder), trust=False)[0].view.attributions[0].about
    ]
    assert "own" in by_folder.notes[0]
    # turned round, the same maps say the opposite
    turned = maps_of(photos, tmp_path / "turned", lambda image: -generic(image), ".npy")
    assert "supported" not in report(MODEL, str(photos / "7"), str(turned)).rates[0].counts


def test_a_stopped_audit_goes_on_with_these_maps_and_no_others(photos: Path, tmp_path: Path) -> None:
    folder = maps_of(photos, tmp_path / "maps", by_captum)
    first = audited(photos, folder, tmp_path / "parts", count=2)
    assert first.asked == {}
    lines = (tmp_path / "parts" / "maps.jsonl").read_bytes()
    (tmp_path / "parts" / "maps.jsonl").unlink()
    rmtree(tmp_path / "parts" / "maps")
    assert found_by(audited(photos, folder, tmp_path / "parts", count=2)) == found_by(first)
    assert (tmp_path / "parts" / "maps.jsonl").read_bytes() == lines
    file = folder / "7" / "0.png.npy"
    np.save(file, np.load(file) + 1)
    with must_raise(UsageError, "maps"):
        audited(photos, folder, tmp_path / "parts", count=2)


def test_a_stopped_audit_refuses_what_has_changed_under_the_same_names(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A person's own method and part, masks and a background: as they were it goes on, and else it names what differs.

    As of two commands, of which each imports the method anew.
    """
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    method, masks, background = tmp_path / "own_method_of_audit.py", tmp_path / "masks", tmp_path / "background"
    copytree(photos, masks)  # a digit is bright, all else is black
    copytree(photos / "7", background)
    for number in range(10):
        digits(marked=False)[number][0].save(background / f"more {number}.png")
    method.write_text("def mine(network, images, target=None):\n    return images.abs().sum(dim=1)\n")

    def stated(edits: tuple[Edit, ...]) -> Audit:
        monkeypatch.delitem(sys.modules, method.stem, raising=False)
        importlib.invalidate_caches()
        return audit(
            MODEL,
            str(photos),
            masks=masks,
            count=2,
            method=f"{method.stem}:mine",
            edits=edits,
            background=background,
            folder=tmp_path / "parts",
        )

    own = Edit("bright", "what is bright", exchange=lambda receivers, donors: torch.maximum(receivers, donors))
    first = stated((*FEW, own))
    lines = (tmp_path / "parts" / "maps.jsonl").read_bytes()
    explained = json.loads(lines.splitlines()[0])["file"]  # the masks of others are not read
    file, mask, image = masks / explained, (masks / explained).read_bytes(), background / "0.png"
    assert found_by(stated((*FEW, own))) == found_by(first)
    other = replace(own, exchange=lambda receivers, donors: torch.minimum(receivers, donors))
    for edits in ((*FEW, other), (*FEW, replace(own, expected=True))):
        with must_raise(UsageError, "parts"):
            stated(edits)
    for place, content, named in (
        (method, method.read_bytes().replace(b"images.abs", b"-images.abs"), "method"),
        (image, (background / "more 1.png").read_bytes(), "background"),
        (file, mask[:-1] + b"x", "masks"),
    ):
        before, when = place.read_bytes(), place.stat()
        place.write_bytes(content)
        with must_raise(UsageError, rf"other {named}$|other {named}\n"):
            stated((*FEW, own))
        place.write_bytes(before)
        os.utime(place, ns=(when.st_atime_ns, when.st_mtime_ns))
    assert found_by(stated((*FEW, own))) == found_by(first)
    assert (tmp_path / "parts" / "maps.jsonl").read_bytes() == lines


def test_a_function_is_audited_like_a_method_by_its_name(photos: Path, tmp_path: Path) -> None:
    by_name = audited(photos, GENERIC, count=2)
    by_function = audit(MODEL, str(photos), count=2, method=generic_attention, edits=FEW, folder=tmp_path / "parts")
    assert found_by(by_function) == found_by(by_name)
    again = audited(photos, GENERIC, tmp_path / "parts", count=2)
    assert found_by(again) == found_by(by_name)


def test_an_image_without_a_map_is_a_line_with_a_problem_and_counted(photos: Path, tmp_path: Path) -> None:
    folder = copytree(maps_of(photos, tmp_path / "all", by_captum), tmp_path / "maps")
    whole = audited(photos, folder, tmp_path / "whole")
    assert whole.supported.images == COUNT
    for file in folder.rglob("*.npy"):
        if int(file.name.split(".")[0]) % 2:
            file.unlink()
    some = audited(photos, folder, tmp_path / "some")
    lines = (tmp_path / "some" / "maps.jsonl").read_text().splitlines()
    missing = sum('"problem"' in line for line in lines)
    assert 0 < missing < len(lines) == COUNT
    assert some.supported.images == COUNT - missing
    assert any(str(missing) in note and "maps" in note for note in some.notes)
    with must_raise(DataError, "others"):
        audited(photos, maps_of(photos / "1", tmp_path / "others", by_captum, "-another.npy"))


def test_captum_and_grad_cam_side_by_side(photos: Path, tmp_path: Path) -> None:
    """Each map is its tool's; the verdict on it is that on the same numbers, passed by hand."""
    tools = {"captum": by_captum, "grad_cam": by_grad_cam}
    folders = [str(maps_of(photos, tmp_path / name, explain)) for name, explain in tools.items()]
    files = [photos / label / "3.png" for label in ("1", "7")]
    found = report(MODEL, files, [*folders, "saliency"], precision="fp32")
    assert [each.method for each in found[0].view.attributions] == ["captum", "maps_grad_cam", "saliency"]
    background = MODEL.background_images
    for file, one in zip(files, found, strict=True):
        image = MODEL.tensor([open_image(file)])
        ours = saliency(MODEL.network, image).values
        torch.testing.assert_close(one.attributions[0].values, ours, rtol=1e-4, atol=1e-6)
        for place, explain in enumerate(tools.values()):
            by_hand = Attribution.of_pixels(explain(image), image, MODEL)
            torch.testing.assert_close(one.attributions[place].values, by_hand.values, rtol=1e-4, atol=1e-6)
            wanted = trust(MODEL, image, by_hand, background=background, precision="fp32")
            assert one.verdicts[place] == wanted.verdict[0], (file, place)
    assert all(one.view.drawn for one in found)
    page = found.page()
    assert all(f"folder {Path(folder).name}," in page for folder in folders)
    assert str(tmp_path) not in page

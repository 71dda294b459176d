"""Finding: each name and path goes to the reader that fits, and what is not there names what is."""

from pathlib import Path

import pytest

from tests.errors import figures
from tests.photographs import make_photographs
from vitrail.data import sources
from vitrail.data.columns import RawDataset
from vitrail.data.readers.folder import image_files
from vitrail.data.sources import FORMATS, NAMED, format_of, is_named, overview, read
from vitrail.errors import DataError, UsageError, look_at


def test_a_path_is_read_by_the_reader_that_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that bears the name of a known set is read where it is written as a path, and only there."""
    make_photographs(tmp_path / "mnist", ("a", "b"), 2, 0)
    monkeypatch.chdir(tmp_path)
    found = read("./mnist")
    assert sorted(found.splits["all"].column("label").counts().items()) == [("a", 2), ("b", 2)]
    files = [Path(found.root) / found.splits["all"].name(index) for index in range(4)]
    for ending, head, line in (
        (".csv", ["path,label"], "{0},{1}"),
        (".tsv", ["Path\tLabel"], "{0}\t{1}"),
        (".jsonl", [], '{{"path": "{0}", "label": "{1}"}}'),
    ):
        rows = head + [line.format(file, file.parent.name) for file in files]
        manifest = tmp_path / f"labels{ending.upper()}"
        manifest.write_text("\n".join(rows))
        assert read(str(manifest)).splits["all"].column("label").counts() == {"a": 2, "b": 2}
    with pytest.raises(DataError, match="nowhere"):
        read("mnist", tmp_path / "nowhere")


def test_help_and_messages_are_made_from_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row more is opened by its name and by its suffix, and is in every list, without a change anywhere else."""
    assert all(each.name in overview() for each in FORMATS if each.is_set)
    assert all(suffix in overview() for each in FORMATS for suffix in each.suffixes)
    assert not any(each.name in overview(texts=False) for each in FORMATS if each.texts)
    seen = []
    row = sources.Format(
        "shapes",
        "circles and crosses",
        lambda *given: seen.append(given) or RawDataset("/root", {}),
        True,
        suffixes=(".shapes",),
        marks=("index.shapes",),
    )
    monkeypatch.setattr(sources, "FORMATS", (row, *FORMATS))
    file = tmp_path / "a.SHAPES"
    file.touch()
    assert read("shapes", tmp_path).name == "shapes"
    assert read(str(file)).name == "/root"
    assert format_of(str(tmp_path)) is not row
    (tmp_path / "index.shapes").touch()
    assert format_of(str(tmp_path)) is row
    assert seen == [("shapes", tmp_path), (str(file), None)]
    assert "shapes" in overview()


def test_names_are_known() -> None:
    assert all(is_named(name) for name in (*NAMED, "planted:mnist,2x3"))
    assert not any(is_named(name) for name in ("./mnist", "MNIST", "photos", "labels.csv"))


def test_names_and_paths_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "opt").mkdir()
    with pytest.raises(DataError) as caught:
        read(str(tmp_path / "photo"))
    assert str(caught.value.hint) == str(tmp_path / "photos")
    with pytest.raises(DataError) as caught:
        read(str(tmp_path / "a" / "b"))
    assert caught.value.hint == look_at(tmp_path)  # the nearest that is there
    with pytest.raises(DataError) as caught:
        read(str(tmp_path / "nope"))
    assert caught.value.hint == look_at(tmp_path)
    monkeypatch.chdir(tmp_path)
    for wrong, right in (("minst", "mnist"), ("fashion_mnist", "fashion-mnist"), ("Digits", "digits")):
        with pytest.raises(UsageError) as usage:
            read(wrong)
        assert str(usage.value.hint) == right
        assert usage.value.exit_code == 2
    with pytest.raises(UsageError) as usage:
        read("zzzz")
    assert all(name in usage.value.problem for name in NAMED)
    assert usage.value.hint == look_at(".")
    with pytest.raises(DataError) as caught:
        read("photoz")
    assert str(caught.value.hint) == "photos"
    Path("file.txt").write_text("x")
    with pytest.raises(DataError, match=r"file\.txt"):
        read("file.txt")
    Path("a.tar.gz").write_bytes(b"")
    with pytest.raises(DataError) as caught:
        read("a.tar.gz")
    assert "tar -xf a.tar.gz" in str(caught.value.hint)


def test_image_files_are_listed_once_and_a_folder_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    make_photographs(tmp_path / "a", ("x",), 2, 0)
    (tmp_path / "a" / "again").symlink_to(tmp_path / "a")
    assert len(image_files(tmp_path / "a")[0]) == 2, "a link to the folder itself is not followed"
    with pytest.raises(DataError, match="nowhere"):
        image_files(tmp_path / "nowhere")


def test_a_link_that_leads_nowhere_is_an_image_that_cannot_be_read(tmp_path: Path) -> None:
    """It is listed, with its name and its reason; and the state of a folder changes when it is mended."""
    folder = tmp_path / "photos"
    files = make_photographs(folder, ("x", "y"), 2, 0)
    (folder / "x" / "0117.jpg").symlink_to(tmp_path / "gone.jpg")
    (folder / "y" / "round.PNG").symlink_to("round.PNG")
    (folder / "y" / "notes.txt").symlink_to(tmp_path / "gone.txt")
    listed, _ = image_files(folder)
    assert sorted({*listed} - {*files}) == [folder / "x" / "0117.jpg", folder / "y" / "round.PNG"]
    raw = read(str(folder))
    images = raw.splits["all"].inputs
    assert len(images) == 6
    (note,) = raw.notes
    assert ".txt (1)" in note
    for index in range(6):
        if images.name(index) in ("x/0117.jpg", "y/round.PNG"):
            with pytest.raises(DataError, match=images.name(index)):
                images.open(index)
        else:
            images.open(index)
    before = images.digest()
    (tmp_path / "gone.jpg").write_bytes(files[0].read_bytes())
    assert images.digest() != before


def test_a_source_in_three_splits_is_one(tmp_path: Path) -> None:
    file = tmp_path / "pairs.tsv"
    lines = [f"{source}\tx\t{split}\n" for split in ("train", "val", "test") for source in (split, "same")]
    file.write_text("".join(lines))
    assert list(map(figures, read(str(file)).notes)) == [["1"]]

"""Lists as people have them: any names, separators, encodings; which column is what; and what no list may hold."""

import json
import shlex
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitrail.data.columns import RawDataset
from vitrail.data.layout import Layout
from vitrail.data.multiple import LabelSets
from vitrail.data.sources import read
from vitrail.errors import DataError, Hint, UsageError, VitrailError
from vitrail.tasks.choice import choose_task, unlabelled

NUMBERS = range(24)
SPECIES = [("bee", "ant", "cat")[number % 3] for number in NUMBERS]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 images in a folder `images`."""
    root = tmp_path_factory.mktemp("listed")
    (root / "images").mkdir()
    for number in NUMBERS:
        Image.fromarray(np.full((4, 4), 10 * number, np.uint8)).save(root / f"images/p{number:02d}.png")
    return root


def write(root: Path, name: str, rows: list[str], encoding: str = "utf-8") -> str:
    path = root / name
    path.write_bytes("\n".join(rows).encode(encoding))
    return str(path)


def files(form: str = "images/p{:02d}.png") -> list[str]:
    return [form.format(number) for number in NUMBERS]


def labels_by_file(raw: RawDataset) -> dict[str, str]:
    """The label of each image, in all splits."""
    found = dict[str, str]()
    for samples in raw.splits.values():
        assert samples.labels is not None
        found |= dict(zip(samples.inputs.names(), samples.labels, strict=True))
    return found


def table(header: str, form: str, between: str = ",") -> list[str]:
    """A header, and a line for each image: its file, number and species."""
    lines = [form.format(file=file, n=n, s=s) for n, (file, s) in enumerate(zip(files(), SPECIES, strict=True))]
    return [line.replace(",", between) for line in [header, *lines]]


@pytest.mark.parametrize(
    ("name", "rows", "encoding"),
    [
        ("a.csv", table("path,label", "{file},{s}"), "utf-8"),
        ("b.csv", table("img,species", "{file},{s}"), "utf-8"),
        ("c.csv", table("id,width,height,x,y,species,url", "{n},4,4,{n},{n},{s},u{n}").copy(), "utf-8"),
        ("d.csv", table("file_name,species", "{file},{s}", ";"), "utf-16"),
        ("e.csv", table("foto,class,number", "{file},{s},{n}", "\t"), "latin-1"),
        ("f.txt", table("", "{file} {s}")[1:], "utf-8"),
        ("g.txt", table("", "{file},{s}")[1:], "utf-8-sig"),
        ("h.csv", table("", "{file},{s}")[1:], "utf-8"),
        ("i.tsv", table("species,patient_id,image_path", "{s},{n},{file}", "\t"), "utf-8"),
        (
            "j.csv",
            [line.replace("images/", r"images\\").replace("\\\\", "\\") for line in table("path,Label", "{file},{s}")],
            "utf-8",
        ),
        ("k.csv", table("image_id,target", "p{n:02d},{s}"), "utf-8"),
        ("o.csv", table("Bild Nr,Art,lat,number", "p{n:02d},{s},48.{n},{n}", "\t"), "utf-16"),
        ("p.csv", table("id,Kommentar,Schl\u00fcssel,species", "{n},text {n},p{n:02d},{s}"), "utf-8"),
        ("l.csv", table("Unnamed: 0,path,animal,weight", "{n},{file},{s},{n}.5"), "utf-8"),
    ],
)
def test_a_list_is_read_whatever_its_columns_are_called(
    photos: Path, name: str, rows: list[str], encoding: str
) -> None:
    if name == "c.csv":  # ids that are no stems: the paths stand in a column of any name
        rows = [f"{line},{file}" for line, file in zip(rows, ["where", *files()], strict=True)]
    found = labels_by_file(read(write(photos, name, rows, encoding)))
    assert found == dict(zip(files(), SPECIES, strict=True))


def test_several_labels_are_seen(photos: Path) -> None:
    """As `a|b`, as lists, and as columns of 0 and 1, of which exactly one in each row is a class."""
    sets = [
        {"bee"} | ({"wet"} if number % 2 else set()) - ({"bee"} if number % 5 == 0 else set()) for number in NUMBERS
    ]
    expected = [sorted(each) for each in sets]
    joined = [f"{file},{'|'.join(sorted(each))}" for file, each in zip(files(), sets, strict=True)]
    listed = [json.dumps({"image": file, "tags": [*each]}) for file, each in zip(files(), sets, strict=True)]
    flags = [f"{file},{int('bee' in each)},{int('wet' in each)}" for file, each in zip(files(), sets, strict=True)]
    for name, rows in (
        ("m.csv", ["path,labels", *joined]),
        ("m.jsonl", listed),
        ("n.csv", ["filename,bee,wet", *flags]),
    ):
        column = (
            read(write(photos, name, rows), layout=Layout(label_column="tags" if name == "m.jsonl" else ""))
            .splits["all"]
            .column("labels")
        )
        assert isinstance(column, LabelSets)
        assert column.names == ("bee", "wet")
        assert [[column.names[i] for i in np.flatnonzero(row)] for row in column.values] == expected, name
    one = [
        f"{file},{int(s == 'ant')},{int(s == 'bee')},{int(s == 'cat')}"
        for file, s in zip(files(), SPECIES, strict=True)
    ]
    assert labels_by_file(read(write(photos, "o.csv", ["path,ant,bee,cat", *one]))) == dict(
        zip(files(), SPECIES, strict=True)
    )


def test_columns_that_are_named_decide_the_task(photos: Path) -> None:
    """Whatever else the list has, also columns of usual names; a note names both, and other tasks say what is there."""
    rows = table("path,colour,shape,labels,objects,text", "{file},c{n},{s},{s}|x,1{n}.5,words {n}")
    path = write(photos, "all.csv", [line.replace(f",c{n - 1},", f",c{n % 2},") for n, line in enumerate(rows)])
    for named, task in {
        "colour": "classify",
        "shape": "classify",
        "colour,shape": "attributes",
        "labels": "multilabel",
        "objects": "regression",
    }.items():
        raw = read(path, layout=Layout(label_column=named))
        assert choose_task(path, raw.columns()).name == task
        (note,) = raw.notes
        taken, left = note.split("not ")
        assert all((one in taken) == (one in named.split(",")) for one in ("colour", "shape", "labels", "objects"))
        assert all((one in left) != (one in named.split(",")) for one in ("colour", "shape", "labels", "objects"))
        other = "multilabel" if task == "classify" else "sequences"
        with pytest.raises(DataError, match=other) as caught:
            choose_task(path, raw.columns(), other)
        assert isinstance(caught.value.hint, Hint)
        assert choose_task(path, raw.columns(), caught.value.hint.flags["task"]).name == task


def test_words_among_numbers_are_named_where_numbers_are_read(photos: Path) -> None:
    for words, task in ((2, "regression"), (3, "classify")):  # of 24 cells: up to a tenth
        cells = ["many" if n < words else f"{n}.5" for n in NUMBERS]
        raw = read(write(photos, "w.csv", ["path,count", *map(",".join, zip(files(), cells, strict=True))]))
        assert choose_task("w.csv", raw.columns()).name == task
        if task == "regression":
            with pytest.raises(DataError, match=r"w\.csv, line 2: .*count.*many.* 1 .*24"):
                raw.splits["all"].column("number")
        assert raw.splits["all"].labels == tuple(cells), "as classes they are what they are"


def test_splits_by_flags_and_folds(photos: Path) -> None:
    for header, cell, sizes in (
        ("is_valid", lambda n: n % 4 == 0, (18, 6)),
        ("fold", lambda n: n % 3, (16, 8)),
        ("Subset", lambda n: ("train", "valid")[n % 2], (12, 12)),
    ):
        rows = [f"path,label,{header}", *(f"{file},{SPECIES[n]},{cell(n)}" for n, file in enumerate(files()))]
        raw = read(write(photos, "s.csv", rows))
        assert (len(raw.splits["train"]), len(raw.splits["validation"])) == sizes, header


def test_pixels_in_a_table(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for shape in ((28, 28), (8, 8, 3)):
        pixels = rng.integers(0, 256, (6, *shape))
        header = ",".join(["label", *(f"pixel{n}" for n in range(pixels[0].size))])
        lines = [",".join(map(str, [number % 2, *each.ravel()])) for number, each in enumerate(pixels)]
        samples = read(write(tmp_path, "train.csv", [header, *lines])).splits["all"]
        assert samples.labels == ("0", "1") * 3
        for number in range(6):
            np.testing.assert_array_equal(np.asarray(samples.images.open(number)), pixels[number])


def test_of_two_columns_that_could_be_learnt_the_one_that_is_left_is_named(photos: Path) -> None:
    (note,) = read(write(photos, "two.csv", table("path,label,class", "{file},{s},{n}"))).notes
    assert "class" in note
    with pytest.raises(DataError, match="foo"):
        read(write(photos, "none.csv", ["foo,label", "x,ant", "y,bee"]))


def test_what_a_person_names_is_taken(photos: Path) -> None:
    rows = table("a,b,colour,species,visit", "{file},{file},red,{s},v{n}")
    path = write(photos, "two.csv", rows)
    with pytest.raises(UsageError, match=r"a.*b"):
        read(path)
    with pytest.raises(UsageError, match=r"colour.*species"):
        read(path, layout=Layout(path_column="b"))
    layout = Layout(path_column="b", label_column="species", group_column="visit")
    raw = read(path, layout=layout)
    assert labels_by_file(raw) == dict(zip(files(), SPECIES, strict=True))
    groups = raw.splits["all"].column("group")
    assert groups.word(3) == "v3"
    with pytest.raises(UsageError, match="kind"):
        read(path, layout=Layout(path_column="b", label_column="kind"))


@pytest.mark.parametrize(
    ("rows", "kind", "reason"),
    [
        (
            ["path,label", *(f"{file},{'x' * (n % 2)}" for n, file in enumerate(files()))],
            DataError,
            "line 2.*label.*11",
        ),
        (["width,height", "1,2"], DataError, "width, height"),
        (["path,label", "images/none.png,x"], DataError, r"1 of 1 .*none\.png"),
        (["path,a,b", "images/p00.png,0,1", "images/p01.png,2,1"], UsageError, "a.*b"),
        (["label,pixel0,pixel1", "1,2,3"], DataError, "2 columns"),
        (["label,pixel0,pixel1,pixel2,pixel3", "1,2,3,4,300"], DataError, "255"),
    ],
)
def test_what_no_list_may_hold(photos: Path, rows: list[str], kind: type[VitrailError], reason: str) -> None:
    with pytest.raises(kind, match=reason):
        read(write(photos, "bad.csv", rows)).splits["all"].column("label")


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_are_counted_however_they_end(photos: Path, end: str) -> None:
    """Also behind a cell of two lines, and behind more rows than are sorted at a time."""
    wanted = [f"images/p{number % 24:02d}.png" for number in range(5000)]
    rows = ["path,label,said", f'{wanted[0]},ant,"two{end}lines"', *(f"{name},bee,x" for name in wanted[1:])]
    path = photos / "ends.csv"
    path.write_bytes(end.join([*rows, ""]).encode())
    samples = read(str(path)).splits["all"]
    assert samples.inputs.names() == wanted
    assert samples.labels == ("ant", *["bee"] * 4999)
    assert samples.column("said").word(0) == f"two{end}lines"
    path.write_bytes(end.join([*rows, "images/p01.png,,x"]).encode())
    with pytest.raises(DataError, match="line 5003"):
        read(str(path)).splits["all"].labels  # noqa: B018


def test_ids_are_known_by_what_lies_beside_where_one_column_has_them(photos: Path, tmp_path: Path) -> None:
    notes = read(write(photos, "odd.csv", table("Bild Nr,Art", "p{n:02d},{s}"))).notes
    assert any("Bild Nr" in note and "Art" in note for note in notes)
    with pytest.raises(UsageError, match=r"one.*two"):
        read(write(photos, "twice.csv", table("one,two,label", "p{n:02d},p{n:02d},{s}")))
    with pytest.raises(DataError, match="Bild Nr"):  # one is no stem
        read(write(photos, "less.csv", [*table("Bild Nr,label", "p{n:02d},{s}"), "p99,ant"]))
    (tmp_path / "below").mkdir()
    for number in range(4):  # numbers of files and of classes
        Image.fromarray(np.full((4, 4), number, np.uint8)).save(tmp_path / f"below/{number}.png")
    raw = read(write(tmp_path, "numbers.csv", ["Nr,Art", *(f"{number},{number % 2}" for number in range(4))]))
    assert labels_by_file(raw) == {f"below/{number}.png": str(number % 2) for number in range(4)}


def test_a_column_without_paths_is_named_with_the_one_that_has_them(photos: Path) -> None:
    colours = table("Bild,Farbe,label", "{file},red{n},{s}")
    for name, rows in (("c.csv", colours), ("i.csv", table("Bild,Farbe,label", "p{n:02d},red{n},{s}"))):
        with pytest.raises(DataError, match=r"Farbe.*red0") as caught:
            read(write(photos, name, rows), layout=Layout(path_column="Farbe"))
        assert isinstance(caught.value.hint, Hint)
        assert caught.value.hint.flags == {"path_column": "Bild"}
    paths = {"Bild": [str(photos / file) for file in files()], "Farbe": [f"red{n}" for n in NUMBERS], "label": SPECIES}
    with pytest.raises(DataError, match=r"Farbe.*red0") as caught:
        read(paths, layout=Layout(path_column="Farbe"))
    assert isinstance(caught.value.hint, Hint)
    assert caught.value.hint.flags == {"path_column": "Bild"}
    with pytest.raises(DataError, match=r"image.*red0"):  # by its usual name, and no other has them
        read(write(photos, "none.csv", table("image,label", "red{n},{s}")))


def test_what_to_try_shows_the_fault_when_it_is_typed(photos: Path) -> None:
    """The line that is wrong, where a missing file lies, the columns; or the same command with another option."""
    half = ["path,label", *(f"{file},{'x' * (n != 4)}" for n, file in enumerate(files()))]
    for rows, layout, shown in (
        (half, Layout(), half[5]),
        (["path,label", "p03.png,x"], Layout(), str(photos / "images/p03.png")),
        (["path,label", "images/p00.png,x"], Layout(label_column="zzzz"), None),
        (["Bild,Art", "x,y"], Layout(), "Bild,Art"),
    ):
        with pytest.raises(VitrailError) as caught:
            read(write(photos, "bad.csv", rows), layout=layout).splits["all"].column("label")
        hint = caught.value.hint
        if isinstance(shown, str):
            typed = shlex.split(hint.text, comments=True)
            assert shown in subprocess.run(typed, capture_output=True, text=True, check=True).stdout.splitlines()
        else:
            assert (dict(hint.flags), list(hint.drop)) == ({}, ["label_column"])
    listed = str(write(photos, "bad.csv", ["path", "images/p00.png"]))
    typed = shlex.split(unlabelled(listed).text, comments=True)
    assert subprocess.run(typed, capture_output=True, text=True, check=True).stdout.split() == [
        "path",
        "images/p00.png",
    ]
    assert "#" not in str(unlabelled(str(photos)))


def test_an_id_of_two_files(tmp_path: Path) -> None:
    for folder in "ab":
        (tmp_path / folder).mkdir()
        Image.new("L", (4, 4)).save(tmp_path / folder / "same.png")
    with pytest.raises(DataError, match=r"same.*a/same\.png.*b/same\.png") as caught:
        read(write(tmp_path, "ids.csv", ["id,label", "same,x"]))
    typed = shlex.split(caught.value.hint.text, comments=True)
    assert subprocess.run(typed, capture_output=True, text=True, check=True).stdout.strip() == "same,x"

"""`vitrail data pack`: what it prints, what the other verbs do with its shards, and how it refuses."""

import errno
import json
import os
from pathlib import Path

import pytest

from tests.cli.command import DATA, USAGE, Cli, call, must_be_understood, must_refuse, retyped
from vitrail.data.sources import read


def test_what_is_packed_is_said_and_every_verb_opens_it(
    cli: Cli, photo_run: Path, photographs: Path, tmp_path: Path
) -> None:
    out = tmp_path / "packed"
    source = photographs / "abc" / "val"
    answer = cli("data", "pack", source, "--out", out, "--shorter-side", 40, "--json")
    assert answer.code == 0, answer.err
    told = json.loads(answer.out)
    found = read(str(out)).splits["all"]
    assert told["images"] == {"all": len(found)}
    assert told["bytes"] == sum(path.stat().st_size for path in out.glob("*.tar"))
    assert (told["shards"], told["shorter_side"], told["left_out"]) == (1, 40, [])
    assert min(found.inputs.open(0).size) == 40

    evaluated = json.loads(cli("evaluate", photo_run, out, "--json").out)
    assert evaluated["images"] == len(found)
    features = cli("embed", photo_run, out, "--out", tmp_path / "x.npz", "--workers", 1, "--json")
    assert features.code == 0, features.err
    page = tmp_path / "page.html"
    words = ("explain", photo_run, out, "--count", 1, "--no-trust", "--method", "rollout", "--out", page)
    explained = cli(*words)
    assert explained.code == 0, explained.err


def test_images_that_cannot_be_read_are_named(tmp_path: Path, photographs: Path, cli: Cli) -> None:
    copy = tmp_path / "copy" / "a"
    copy.mkdir(parents=True)
    for number, file in enumerate(sorted((photographs / "abc" / "val").rglob("*.jpg"))[:3]):
        (copy / f"{number}.jpg").write_bytes(file.read_bytes()[: 200 if number == 1 else None])
    answer = cli("data", "pack", copy.parent, "--out", tmp_path / "out")
    assert answer.code == 0
    assert [line for line in answer.err.splitlines() if "a/1.jpg" in line]
    assert read(str(tmp_path / "out")).splits["all"].inputs.names() == ["a/0.jpg", "a/2.jpg"]


def test_what_cannot_be_packed(photographs: Path, tmp_path: Path) -> None:
    source, there = photographs / "abc" / "val", tmp_path / "there"
    there.mkdir()
    (there / "mine.txt").touch()
    pack = ("data", "pack", str(source))
    for words, code, given in (
        (("data", "chek", str(source), "--out", str(tmp_path / "x")), USAGE, "chek"),
        (pack, USAGE, "--out"),
        ((*pack, "--out", str(there)), USAGE, "there"),
        ((*pack, "--out", str(source / "in")), USAGE, "in"),
        ((*pack, "--out", str(tmp_path / "x"), "--shorter-side", "0"), USAGE, "shorter-side 0"),
        ((*pack, "--out", str(tmp_path / "x"), "--quality", "90"), USAGE, "--quality"),
        ((*pack, "--out", str(tmp_path / "x"), "--shorter-side", "9", "--quality", "101"), USAGE, "101"),
        ((*pack, "--out", str(tmp_path / "x"), "--shard-size", "0"), USAGE, "0"),
        ((*pack, "--out", str(tmp_path / "x"), "--data-root", str(tmp_path)), USAGE, "--data-root"),
        (("data", "pack", str(tmp_path / "none"), "--out", str(tmp_path / "x")), DATA, "none"),
        (("data", "pack", "sort-digits", "--out", str(tmp_path / "x")), DATA, "sort-digits"),
    ):
        answer = call(*words)
        must_refuse(answer, code, given)
        again = retyped(words, answer)
        if again is not None:
            must_be_understood(again)
    assert [path.name for path in there.iterdir()] == ["mine.txt"]
    assert not (tmp_path / "x").exists()


def test_a_full_disk_names_the_command_that_goes_on(
    photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words, sync = ("data", "pack", str(photographs / "abc" / "val"), "--out", str(tmp_path / "out")), os.fsync

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    answer = call(*words)
    must_refuse(answer, 1, str(tmp_path))
    monkeypatch.setattr(os, "fsync", sync)
    again = retyped(words, answer)
    assert again is not None
    assert call(*[word for word in again if word != "#"][: len(words)]).code == 0
    assert (tmp_path / "out" / "shards.json").is_file()

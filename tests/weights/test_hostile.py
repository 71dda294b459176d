"""Files of weights from strangers: each is read, or refused in one line, and nothing else happens."""

import os
import shlex
import socket
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

import vitrail
from tests.errors import must_raise
from tests.weights import hostile
from vitrail.data import Preprocessing
from vitrail.data.tensor_files import read_tensors
from vitrail.errors import DataError, VitrailError
from vitrail.model import loading
from vitrail.weights import files
from vitrail.weights.files import another_copy, read_weights

pytestmark = pytest.mark.usefixtures("as_a_user", "own_cache")


@pytest.fixture(autouse=True)
def a_process_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a user's (see tests/spared.py)."""
    monkeypatch.setattr(files, "subprocess", subprocess)


PLAIN = Preprocessing((8, 8))
TWELVE = (
    "pickle-os_system",
    "pickle-named_safetensors",
    "config-deep_lists",
    "config-heads_1e309",
    "own-depth_1e+09",
    "own-width_2e+06",
    "index-above",
    "index-link_out",
    "npz-objects",
    "npz-bomb",
    "safetensors-shape_overflows",
    "safetensors-block_9999",
)


def test_a_pointer_of_git_lfs_is_called_one(tmp_path: Path) -> None:
    """A hub that was cloned without it: nothing is damaged, and what to do is a command."""
    for name in ("weights.safetensors", "weights.npz", "weights.pth"):
        (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
        with must_raise(DataError, "git-lfs") as caught:
            read_weights(tmp_path / name)
        assert caught.value.hint.text == "git lfs pull"


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the user that only this test has."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def must_be_refused(case: hostile.Case, root: Path) -> VitrailError:
    """Opened, the files of a case are refused in one line, and nothing outside of them is touched."""
    folder, outside = hostile.fresh(root)
    path = case(folder, outside)
    before = sorted(folder.rglob("*"))
    with must_raise(VitrailError) as caught:
        vitrail.load(path, **hostile.assumptions_of(path))
    assert caught.value.exit_code in (2, 3)
    assert len(str(caught.value)) < 5000
    assert hostile.left(outside) == {"kept": hostile.KEPT}
    assert sorted(folder.rglob("*")) == before
    assert not list(root.rglob("cache/**/*.safetensors")), "nothing of it is kept"
    return caught.value


@pytest.mark.parametrize("name", TWELVE)
def test_hostile_files_are_refused(name: str, tmp_path: Path) -> None:
    must_be_refused(hostile.CASES[name], tmp_path)


@pytest.mark.parametrize(
    "name", ["timm", "two_files", "npz", "npz_whose_directory_lies", "keys_that_ran_code", "transformers"]
)
def test_the_same_files_without_the_harm_open(name: str, tmp_path: Path) -> None:
    folder, outside = hostile.fresh(tmp_path)
    path = hostile.HARMLESS[name](folder, outside)
    model = vitrail.load(path, **hostile.assumptions_of(path))
    state, wanted = model.network.state_dict(), hostile.tensors()
    assert state.keys() == wanted.keys()
    assert all(torch.equal(state[key], wanted[key]) for key in wanted)
    assert hostile.left(outside) == {"kept": hostile.KEPT}


# ---- damage


def check_damaged(content: bytes, seed: int, file: Path) -> bool:
    """A damaged file is refused in one line that names it, or gives a network that is whole and finite; whether so."""
    file.write_bytes(hostile.mutated(content, seed))
    model, said = None, ""
    try:
        model = vitrail.load(file, assume={"heads": 2}, preprocessing=PLAIN)
    except VitrailError as error:
        said = str(error)
    if model is None:
        assert said.count("\n") == 1, seed
        assert file.name in said, seed
        return False
    assert all(bool(tensor.isfinite().all()) for tensor in model.network.state_dict().values()), seed
    assert model.network.config.depth == 2, seed
    return True


def test_damaged_safetensors_files(tmp_path: Path) -> None:
    content = safetensors.torch.save(hostile.tensors())
    opened = [check_damaged(content, seed, tmp_path / "weights.safetensors") for seed in range(200)]
    assert 5 < sum(opened) < 60, "some damage is to numbers only, and most is not"


# ---- sizes, before memory is taken


def test_another_copy_comes_from_where_the_damaged_one_did(tmp_path: Path) -> None:
    """A hub's is fetched once more; any other is held against what its publisher states."""
    hub = tmp_path / "hub" / "models--some--vit-b" / "snapshots" / "1" / "model.safetensors"
    for file, typed in ((tmp_path / "my file.npz", "sha256sum"), (hub, "hf download some/vit-b")):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"damaged")
        with must_raise(DataError, file.name) as caught:
            read_weights(file)
        assert caught.value.hint.text.startswith(typed)
    assert shlex.split(another_copy(tmp_path / "my file.npz"), comments=True) == [
        "sha256sum",
        f"{tmp_path}/my file.npz",
    ]


def test_a_file_larger_than_memory_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = {"a": torch.ones(1000, dtype=torch.float16)}
    safetensors.torch.save_file(state, tmp_path / "a.safetensors")
    (tmp_path / "a.npz").write_bytes(hostile.arrays()(tmp_path))
    for free, file in ((7000, "a.safetensors"), (7000, "a.npz")):
        monkeypatch.setattr("vitrail.data.tensor_files.free_memory", lambda device, free=free: free)
        with must_raise(DataError, file):
            read_weights(tmp_path / file)
    monkeypatch.setattr("vitrail.data.tensor_files.free_memory", lambda device: 8100)  # as fp32, half of what is free
    assert read_weights(tmp_path / "a.safetensors").keys() == {"a"}


def test_files_of_one_index_are_counted_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, outside = hostile.fresh(tmp_path)
    hostile.TWO(folder, outside)
    sizes = [file.stat().st_size for file in folder.glob("*.safetensors")]
    assert len(sizes) == 2
    monkeypatch.setattr("vitrail.data.tensor_files.free_memory", lambda device: 2 * max(sizes) + 100)
    with must_raise(DataError, "index"):
        read_weights(folder / "model.safetensors.index.json")


@pytest.mark.parametrize("name", ["block_9999", "9999_blocks", "a_block_left_out"])
def test_no_network_is_built_for_blocks_that_are_not_there(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = []
    monkeypatch.setattr("vitrail.weights.infer.ViT", lambda config, parts: built.append(config))
    must_be_refused(hostile.SAFETENSORS[name], tmp_path)
    assert built == []


@pytest.mark.parametrize("name", ["width_2e+04", "classes", "registers", "depth_1e+04"])
def test_no_memory_is_taken_for_what_a_configuration_asks_for(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, places = loading.build_network, []

    def build(config: Any, parts: Any) -> Any:
        places.append(torch.get_default_device().type)
        if places[-1] != "meta":
            raise MemoryError("the planted fault would take gigabytes")
        return real(config, parts)

    monkeypatch.setattr(loading, "build_network", build)
    must_be_refused(hostile.OWN[name], tmp_path)
    assert places == (["meta"] if not name.startswith("depth") else [])


# ---- what is read stays what it was


def test_a_file_that_changes_later_does_not_change_the_network(tmp_path: Path) -> None:
    file = tmp_path / "weights.safetensors"
    safetensors.torch.save_file(hostile.tensors(), file)
    model = vitrail.load(file, assume={"heads": 2}, preprocessing=PLAIN)
    with file.open("r+b") as handle:
        handle.seek(8 + struct.unpack("<Q", handle.read(8))[0])
        handle.write(b"\0" * 1000)
    assert any(not torch.equal(one, hostile.tensors()[name]) for name, one in read_weights(file).items())
    assert all(torch.equal(one, hostile.tensors()[name]) for name, one in model.network.state_dict().items())


def test_a_checksum_is_held(tmp_path: Path) -> None:
    file = tmp_path / "weights.safetensors"
    for kept in ("0", None):
        metadata = {"format": "pt", **({"sha256": kept} if kept else {})}
        safetensors.torch.save_file({"a": torch.ones(2)}, file, metadata=metadata)
        if kept:
            with must_raise(DataError, "weights"):
                read_tensors(file, "another")
        else:
            assert read_tensors(file, "another")["a"].tolist() == [1, 1]


# ---- pickles


def test_a_pickle_is_read_once_by_a_process_of_its_own_and_that_is_said(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"state_dict": hostile.tensors(), "epoch": 3}, "weights.pth")
    model = vitrail.load("weights.pth", assume={"heads": 2}, preprocessing=PLAIN)  # a path from here
    assert all(torch.equal(one, hostile.tensors()[name]) for name, one in model.network.state_dict().items())
    assert "pickle" in model.facts["origin"]
    (kept,) = (own_cache / "vitrail" / "unpickled").iterdir()
    monkeypatch.setattr(files.subprocess, "run", None)
    again = vitrail.load("weights.pth", assume={"heads": 2}, preprocessing=PLAIN)
    assert all(torch.equal(one, hostile.tensors()[name]) for name, one in again.network.state_dict().items())
    kept.write_bytes(b"noise")
    with must_raise(DataError, "weights"):  # it would be made again
        read_weights(Path("weights.pth"))


def test_a_pickle_that_takes_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "SECONDS", 0.05)
    torch.save(hostile.tensors(), tmp_path / "weights.pth")
    with must_raise(DataError, "weights"):
        read_weights(tmp_path / "weights.pth")


def test_weights_that_are_read_make_no_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no(*arguments: object, **named: object) -> None:
        raise AssertionError("a connection")

    monkeypatch.setattr(socket, "socket", no)
    folder, outside = hostile.fresh(tmp_path)
    assert vitrail.load(hostile.HARMLESS["timm"](folder, outside)).classes == ("0", "1", "2")


def test_the_guard_sees_what_it_guards_against(tmp_path: Path) -> None:
    """The planted fault: read carelessly, the canary is touched."""
    folder, outside = hostile.fresh(tmp_path)
    torch.load(hostile.CASES["pickle-os_system"](folder, outside), weights_only=False)
    assert hostile.left(outside).keys() == {"kept", "canary"}
    os.remove(outside / "canary")
    (folder / "link").symlink_to(outside / "kept")
    assert (folder / "link").read_text() == hostile.KEPT

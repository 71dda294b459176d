"""`--init auto`: of the networks in the caches that whose features tell the images apart; nothing is fetched."""

import json
import shutil
import socket
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
from huggingface_hub import constants

import vitrail
from tests.errors import must_raise
from tests.training.test_initial import OPTIONS, source, tuned
from tests.training.tiny import AGAIN
from vitrail.errors import UsageError
from vitrail.training.configuration.request import Request
from vitrail.training.events import Event
from vitrail.training.setup import new_run
from vitrail.weights.names import list_cached

pytestmark = pytest.mark.usefixtures("few_penalties", "as_a_user")
REVISION = "0" * 40


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache that is empty, and no network."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    for name in ("create_connection", "getaddrinfo"):
        monkeypatch.setattr(socket, name, lambda *given, **named: pytest.fail("a connection was asked for"))
    return tmp_path / "hub"


def put(hub: Path, repository: str) -> Path:
    """Somebody's network as huggingface_hub keeps it; the folder with its files."""
    own = hub / f"models--{repository.replace('/', '--')}"
    (own / "refs").mkdir(parents=True)
    (own / "refs" / "main").write_text(REVISION)
    shutil.copytree(source(), own / "snapshots" / REVISION)
    return own / "snapshots" / REVISION


def test_the_network_that_sees_is_taken(hub: Path) -> None:
    """Of one that sees nothing, one that cannot be opened, and one that sees: what each is worth is said."""
    blind = put(hub, "lab/blind") / "model.safetensors"
    tensors = safetensors.torch.load_file(blind)
    tensors["patch_embed.proj.weight"].zero_()
    safetensors.torch.save_file(tensors, blind)
    (put(hub, "lab/broken") / "model.safetensors").write_bytes(b"nothing")
    put(hub, "lab/seeing")
    assert list_cached() == ("hf:lab/blind", "hf:lab/broken", "hf:lab/seeing")
    said: list[Event] = []
    prepared = new_run(Request(data="digits", options=replace(OPTIONS, init="auto")), said.append)
    assert prepared.settings.initial is not None
    assert prepared.settings.initial.source == "hf:lab/seeing"
    (chosen,) = [event for event in said if isinstance(event, str) and event.startswith("--init hf:lab/seeing")]
    assert "hf:lab/blind" in chosen
    assert [event for event in said if isinstance(event, str) and "hf:lab/broken" in event]


def test_without_any_it_is_refused(hub: Path, tmp_path: Path) -> None:
    with must_raise(UsageError) as caught:
        vitrail.train("digits", tmp_path / "run", replace(OPTIONS, init="auto"))
    assert str(hub) in caught.value.problem
    place, name = str(caught.value.hint).split()[-1].split("/")  # what is fetched would be found
    architecture, tag = name.split(".")
    table = json.loads((Path(vitrail.__file__).parent / "weights" / "timm_table.json").read_text())
    assert table[architecture]["tags"][tag]["hub"] == f"{place}/{name}"
    assert not (tmp_path / "run").exists()


def test_a_run_that_goes_on_keeps_what_it_began_with(hub: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(tuned(), run)
    before = (run / "config.yaml").read_text()
    vitrail.train("digits", run, replace(AGAIN, init="auto", verdicts=0))
    assert (run / "config.yaml").read_text() == before

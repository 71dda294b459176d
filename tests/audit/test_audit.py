"""An audit as a whole: what hangs on a mark is named, what does not is not, and a stopped audit goes on."""

import json
from pathlib import Path

import pytest

import vitrail
from tests.audit.marked import MARKED, digits, hanging, honest
from vitrail.audit import EDITS, Audit
from vitrail.audit.shortcuts import LEVEL
from vitrail.errors import UsageError

FEW = tuple(edit for edit in EDITS if edit.name in ("upper-left", "lower-right", "top", "centre"))


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[Audit, Path]:
    folder = tmp_path_factory.mktemp("audit") / "parts"
    model = hanging()
    return audited(model, True, folder), folder


def audited(model: vitrail.Model, marked: bool, folder: Path | None = None, count: int = 7) -> Audit:
    return vitrail.audit.audit(model, digits(marked), count=count, method="occlusion", edits=FEW, folder=folder)


def test_the_mark_is_named_where_the_network_hangs_on_it(found: tuple[Audit, Path]) -> None:
    audit, _ = found
    (one,) = audit.named
    assert (one.label, one.part) == (str(MARKED), "upper-left")
    # put on 18 logits, taken out 18 logits, where the class is alone; what is left of that in odds is more than 10
    assert one.effect > 10 > LEVEL > one.adjusted
    assert one.recall == one.elsewhere == 1 > one.without
    assert audit.parts[str(MARKED)]["upper-left"] > 10 > 2 > abs(audit.parts["1"]["lower-right"])
    proofs = one.to_dict(audit.names.__getitem__)["proofs"]
    assert [each["put_on"] > 0 < each["taken_out"] for each in proofs] == [True] * 10
    assert [one.words in sentence for sentence in audit.sentences] == [False, False, True]
    page = audit.page()
    assert page.count("<img") == 2 * len(proofs)
    assert one.words in page


def test_nothing_is_named_of_an_honest_network() -> None:
    audit = audited(honest(), marked=False)
    assert (audit.named, len(audit.asked), audit.supported.images) == ((), 3, 7)


def test_it_goes_on_where_it_was_stopped_and_refuses_another(found: tuple[Audit, Path]) -> None:
    audit, folder = found
    lines = {file.name: file.read_bytes() for file in folder.glob("*.jsonl")}
    assert set(lines) == {"maps.jsonl", "first.jsonl", "second.jsonl"}
    (folder / "second.jsonl").unlink()
    model = hanging()
    again = audited(model, True, folder)
    same = [{key: value for key, value in each.to_dict().items() if key != "made"} for each in (audit, again)]
    assert json.dumps(same[0]) == json.dumps(same[1])
    assert {file.name: file.read_bytes() for file in folder.glob("*.jsonl")} == lines
    with pytest.raises(UsageError):
        audited(model, True, folder, count=8)
    with pytest.raises(UsageError):
        audited(honest(), True, folder)

"""How far to trust a map: figures, signs and one line; and the table of all maps of an image."""

import dataclasses
import math
import re

import numpy as np
import pytest

from tests.pages import samples
from tests.pages.shown import constant, glance_table, how_tested_list, macro, shared_block, trust_block
from tests.pages.structure import Structure
from vitrail.explain import verdict
from vitrail.pages import AttributionView
from vitrail.pages.image_views import AreasView
from vitrail.pages.trust import verdict_words

VERDICTS = ("supported", "supported, tiny", "weak", "no better than random", "cannot tell")
ATTRIBUTION = AttributionView(
    "generic_attention", "Generic attention", "7", 8.2, np.eye(2), False, True, trust=samples.trust()
)


def attributions(*verdicts: str) -> list[AttributionView]:
    return [dataclasses.replace(ATTRIBUTION, trust=samples.trust(verdict)) for verdict in verdicts]


def test_what_holds_for_all_maps_stands_once_for_a_page() -> None:
    block, whole = trust_block(samples.trust()), how_tested_list([samples.trust()] * 3)
    one_step, values = (constant("trust.html", name) for name in ("one_step", "values"))
    assert one_step not in block
    assert whole.count(one_step) == 1
    assert len({trust_block(samples.trust(), each) for each in values}) == len(values) == 5


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_score_that_is_no_number_has_no_line(value: float) -> None:
    trust = dataclasses.replace(samples.trust("cannot tell"), score=value, faithful=None, evidence=None)
    block = trust_block(dataclasses.replace(trust, reason="the map prefers no patch"))
    assert 'viewBox="0 0 320 46"' in trust_block(samples.trust())
    assert 'viewBox="0 0 320 46"' not in block
    assert "the map prefers no patch" in block
    assert Structure(block).open == []


def test_a_map_that_was_not_tested_has_no_figures_and_the_page_does_not_say_it_was() -> None:
    falls = {"score": None, "interval": None, "random": (), "random_maps": 0, "faithful": None}
    untested = dataclasses.replace(samples.trust("cannot tell"), **falls, masked=None, masked_random=None, patches=0)
    block, whole = trust_block(untested), how_tested_list([untested])
    assert "<figure" not in block
    assert "None" not in block + whole
    assert "nan" not in (block + whole).lower().replace("explanation", "")
    assert "--full" in block
    assert "--full" in whole
    assert whole not in how_tested_list([untested, samples.trust()])
    assert Structure(block).open == []


def test_a_verdict_is_told_by_word_and_shape_and_not_by_colour_alone() -> None:
    sign = macro("trust.html", "sign")
    assert len({sign(each) for each in VERDICTS}) == len(VERDICTS)
    for each in VERDICTS:
        assert f"<strong>{each[0].upper()}{each[1:]}</strong>" in trust_block(samples.trust(each))
    assert sign("something else") == sign("cannot tell")


def test_the_rule_in_words_is_the_rule() -> None:
    """Whoever changes the limits must change what the page says of them."""
    said = re.sub(r"<.*?>", "", how_tested_list([samples.trust()]))
    assert (verdict.EVIDENCE, verdict.FAITHFUL, verdict.WEAK) == (0.05, 0.05, 0.20)
    assert said.count("0.05") == 2
    assert "0.20" in said
    tiny = {unit: float(limit) for unit, limit in constant("trust.html", "tiny").items()}
    assert tiny == verdict.TINY
    for unit, other in (("nats", "0.01 "), ("cosine", "0.1 ")):
        said = how_tested_list([dataclasses.replace(samples.trust(), effect_unit=unit)])
        assert f"{tiny[unit]} " in said
        assert other not in said
    for word in VERDICTS:
        assert f"<b>{word.capitalize()}</b>" in how_tested_list([samples.trust()])


def test_a_p_value_stands_with_what_it_is_made_of() -> None:
    """k + 1 of n + 1: "how often random maps do as well" was untrue where none did."""
    found = dataclasses.replace(samples.trust(), faithful=1 / 25, random_maps=24, composites=499)
    for p, surrogates, said in (
        (1 / 30, 29, "(0 + 1) / (29 + 1) = 0.033: 0 of 29 surrogates"),
        (3 / 60, 59, "(2 + 1) / (59 + 1) = 0.05: 2 of 59 surrogates"),
        (20 / 500, 29, "(19 + 1) / (499 + 1) = 0.04: 19 of 499 composites"),
        (100 / 500, 0, "(99 + 1) / (499 + 1) = 0.2: 99 of 499 composites"),
    ):
        block = trust_block(dataclasses.replace(found, evidence=p, surrogates=surrogates))
        assert said in block
        assert "(0 + 1) / (24 + 1) = 0.04: 0 of 24 random maps" in block


def test_one_of_several_maps_is_told_in_short() -> None:
    """No line, which stands in the table of all; nothing that is told of all; why it is supported stands below all."""
    trust = samples.trust("weak")
    reason, block = verdict_words(trust)[-1], trust_block(trust, shared=[])
    assert 'class="score"' not in block
    assert reason in block
    assert reason not in trust_block(trust, shared=[reason])
    assert verdict_words(trust)[0] in trust_block(trust, shared=[reason])
    assert reason not in trust_block(samples.trust("supported"), shared=[])
    assert reason in trust_block(samples.trust("supported"))


def test_how_many_images_without_evidence_there_were() -> None:
    few, many = (dataclasses.replace(samples.trust(), composites=count) for count in (99, 4999))
    settled = dataclasses.replace(few, surrogates=0)
    for trusts, there, absent in (
        ([few, few], ("99 ", "59 "), ()),
        ([many, few], ("99 to 4\u202f999",), ()),
        ([settled, few], ("59 ",), ()),
        ([settled], ("99 ",), ("59 ",)),
    ):
        said = how_tested_list(trusts)
        assert all(count in said for count in there)
        assert not any(count in said for count in absent)


def test_every_fill_has_words() -> None:
    assert set(constant("trust.html", "fills")) >= {"background", "own patches", "grey", "mean", "blur"}
    assert "somehow" in trust_block(dataclasses.replace(samples.trust(), fill="somehow"))


def test_a_row_for_each_tested_map_with_a_line() -> None:
    table = glance_table([*attributions("supported", "weak"), dataclasses.replace(ATTRIBUTION, trust=None)])
    rows = re.findall(
        r"<tr class=\"trusted-row (.*?)\">.*?</svg>([a-z ]+)</td>.*?<td>([^<]*)</td><td>(.*?)</td>", table
    )
    assert rows == [("supported", "supported", "2.25", "0.50"), ("weak", "weak", "2.25", "0.50")]
    assert table.count('role="img"') == 2
    contrast = [dataclasses.replace(attribution, contrast="1") for attribution in attributions("weak", "weak")]
    assert glance_table(contrast) != glance_table(attributions("weak", "weak"))
    without = [
        dataclasses.replace(each, trust=dataclasses.replace(samples.trust("cannot tell"), score=None, random=()))
        for each in attributions("weak", "weak")
    ]
    ended = glance_table(without)  # with the image, which holds no evidence: no legend, no column, no cell is empty
    assert ended.count("cannot tell") == 2
    assert "<svg" not in ended.split("<tbody>")[0]
    assert not re.search(r"<t[dh][^>]*>(<span[^>]*>[^<]*</span>)?</t", ended)
    assert Structure(table).open == []
    assert shared_block([]) == ""


def test_deletion_and_insertion_stand_above_those_of_a_random_order() -> None:
    areas = AreasView(deletion=0.12, insertion=0.88, random_deletion=0.45, random_insertion=0.46)
    table = glance_table(
        [dataclasses.replace(attribution, areas=areas) for attribution in attributions("supported", "weak")]
    )
    assert table.count("<td>0.12</td><td>0.88</td>") == 2
    assert re.search(r"(<td></td>){4}<td>0.45</td><td>0.46</td></tr>\s*</tbody>", table)
    assert "0.12" not in glance_table(attributions("supported", "weak"))
    assert Structure(table).open == []


def test_what_is_told_of_all_maps_has_their_verdict() -> None:
    reason = verdict_words(samples.trust("weak"))[-1]
    alike, mixed = (
        shared_block(attributions("cannot tell", "cannot tell")),
        shared_block(attributions("cannot tell", "weak")),
    )
    assert "<strong>Cannot tell</strong>" in alike
    assert "<strong>" not in mixed
    assert f"<p>{reason}</p>" in alike
    assert f"<p>{reason}</p>" in mixed
    assert shared_block(attributions("weak")) == ""

"""All maps of a picture in one table."""

import dataclasses
import re

import numpy as np

from tests.pages import samples
from tests.pages.structure import Structure
from vitrail.pages import HeatView
from vitrail.pages.glance import at_a_glance, shared_block
from vitrail.pages.views import AreasView

HEAT = HeatView("generic_attention", "Generic attention", "7", 8.2, np.eye(2), False, True, trust=samples.trust())


def heats(*verdicts: str) -> list[HeatView]:
    return [dataclasses.replace(HEAT, trust=samples.trust(verdict)) for verdict in verdicts]


def test_a_row_for_each_tested_map_with_a_line() -> None:
    table = at_a_glance([*heats("supported", "weak"), dataclasses.replace(HEAT, trust=None)])
    rows = re.findall(
        r"<tr class=\"trusted-row (.*?)\">.*?</svg>([a-z ]+)</td>.*?<td>([^<]*)</td><td>(.*?)</td>", table
    )
    assert rows == [("supported", "supported", "2.12", "0.50"), ("weak", "weak", "2.12", "0.50")]
    assert table.count('role="img"') == 2
    assert "2 maps were tested. " in table
    assert "in the order of each map, in logits, counted from the mean of all classes" in table
    contrast = at_a_glance([dataclasses.replace(heat, rather_than="1") for heat in heats("weak", "weak")])
    assert "in logits, as the difference of two classes" in contrast
    Structure(table)


def test_deletion_and_insertion_stand_above_those_of_a_random_order() -> None:
    areas = AreasView(deletion=0.12, insertion=0.88, random_deletion=0.45, random_insertion=0.46)
    table = at_a_glance([dataclasses.replace(heat, areas=areas) for heat in heats("supported", "weak")])
    assert table.count("<td>0.12</td><td>0.88</td>") == 2
    assert re.search("A random order</th>(<td></td>){4}<td>0.45</td><td>0.46</td></tr></tbody>", table)
    assert "low deletion and high insertion are good" in table
    assert "Deletion" not in at_a_glance(heats("supported", "weak"))
    Structure(table)


def test_without_a_test_there_is_no_table() -> None:
    assert at_a_glance([dataclasses.replace(HEAT, trust=None)] * 2) == shared_block([]) == ""


def test_what_is_told_of_all_maps_has_their_verdict() -> None:
    block = shared_block(heats("cannot tell", "cannot tell"))
    assert "<strong>Cannot tell</strong>" in block
    assert "<p>Because plain.</p>" in block
    mixed = shared_block(heats("cannot tell", "weak"))
    assert "<strong>" not in mixed
    assert "<p>Because plain.</p>" in mixed
    assert shared_block(heats("weak")) == ""

import dataclasses
import math
import re

import numpy as np
import pytest

from tests.pages import samples
from tests.pages.structure import Structure
from vitrail.pages import EvaluationSummary, RunSummary, write_run_page
from vitrail.pages.run_page import WrittenSummary, run_page
from vitrail.pages.tables import confusion_table, confusions_list, most_confused, settings_table


def text_of(page: str) -> str:
    return re.sub(r"\s+", " ", " ".join(Structure(page).text))


def test_a_run_that_has_just_started():
    page = run_page(RunSummary("new run"))
    shown = text_of(page)
    assert "Not evaluated yet" in shown
    assert "No epoch has ended yet" in shown
    assert "reload it to see more" in shown
    assert "nan" not in shown.lower().split()


@pytest.mark.parametrize("state", ["running", "finished", "stopped"])
def test_the_state_is_said(state):
    page = run_page(dataclasses.replace(samples.run(), state=state))
    assert f"<span>{state}</span>" in page
    assert ("reload" in text_of(page)) == (state == "running")


def test_accuracy_and_interval_stand_in_the_headline():
    evaluation = EvaluationSummary("test", 1000, 0.9876, (0.9786, 0.9929), 0.0412, np.diag([500, 500]))
    shown = text_of(run_page(RunSummary("x", evaluation=evaluation, classes=("a", "b"))))
    assert "98.76 % of 1 000 pictures of the test split are classified correctly." in shown
    assert "between 97.86 % and 99.29 %" in shown
    assert "No picture was given a wrong class." in shown


def test_every_count_of_the_confusion_matrix_is_in_the_page():
    run = samples.run(k=5)
    page = run_page(run)
    cells = [int(n) for n in re.findall(r'<td class="(?:right|wrong) step-\d" [^>]*>(\d+)<?', page)]
    np.testing.assert_array_equal(np.array(cells).reshape(5, 5), run.evaluation.confusion)
    assert page.count('tabindex="0"') == 1


def test_rows_are_the_true_class():
    table = confusion_table(np.array([[7, 3], [0, 10]]), ["cat", "dog"])
    assert "cat was taken for dog 3 of 10 times (30.0 %)" in table
    assert "dog was taken for cat 0 of 10 times (0 %)" in table


def test_a_class_without_pictures_has_no_percentage_of_nothing():
    table = confusion_table(np.array([[0, 0], [1, 1]]), ["none", "some"])
    assert "nan" not in table
    assert "none was taken for some 0 of 0 times" in table


def test_two_hundred_classes_show_thirty_and_rows_still_add_up():
    run = samples.run(k=200)
    confusion = run.evaluation.confusion
    page = run_page(run)
    assert "Only the 30 classes with most mistakes are shown, of 200" in text_of(page)
    cells = [int(n) for n in re.findall(r'<td class="(?:right|wrong) step-\d" [^>]*>(\d+)<?', page)]
    shown = np.array(cells).reshape(30, 31)
    kept = most_confused(confusion)
    np.testing.assert_array_equal(shown[:, :30], confusion[np.ix_(kept, kept)])
    np.testing.assert_array_equal(shown.sum(1), confusion[kept].sum(1))
    assert len(page) < 1_000_000


def test_most_confused_counts_both_directions_and_keeps_the_order():
    confusion = np.diag([50, 50, 50, 50])
    confusion[3, 1] = 9
    confusion[0, 2] = 2
    assert most_confused(confusion, 2).tolist() == [1, 3]
    assert most_confused(confusion, 9).tolist() == [0, 1, 2, 3]


def test_most_frequent_mistakes_in_order():
    items = re.findall(r"<li>(.*?)</li>", confusions_list(np.array([[5, 1, 0], [4, 5, 0], [0, 2, 5]]), ["a", "b", "c"]))
    assert items == [
        "<b>b</b> taken for <b>a</b>: 4 of 9",
        "<b>c</b> taken for <b>b</b>: 2 of 7",
        "<b>a</b> taken for <b>b</b>: 1 of 6",
    ]


@pytest.mark.parametrize("k", [0, 1, 2])
def test_few_classes(k):
    Structure(run_page(samples.run(k=k)))


def test_missing_and_unfinite_measures():
    rows = [
        {"epoch": 1, "training_loss": math.nan},
        {"training_loss": None},
        {"epoch": 3, "training_loss": math.inf},
        {},
    ]
    page = run_page(RunSummary("x", history=rows))
    assert "Nothing measured yet" in page
    assert "nan" not in re.sub(r"(?s)<(style|script)>.*?</\1>", "", page).lower()


def test_history_table_holds_only_what_was_measured():
    page = run_page(
        RunSummary("x", history=[{"epoch": 1, "training_loss": 0.51234}, {"epoch": 2, "training_loss": 0.25}])
    )
    table = re.search(r'<table class="numbers">.*?</table>', page).group()
    assert re.findall(r"<th scope=\"col\">(.*?)</th>", table) == ["Epoch", "Training loss"]
    assert re.findall(r"<td>(.*?)</td>", table) == ["1", "0.5123", "2", "0.25"]


@pytest.mark.parametrize(("unit", "heading"), [("picture", "Pictures per second"), ("pair", "Pairs per second")])
def test_the_rate_is_of_what_was_fed(unit, heading):
    page = run_page(RunSummary("x", history=[{"epoch": 1, "images_per_second": 50.0}], unit=unit))
    assert f'<th scope="col">{heading}</th>' in page


def written(**changes):
    found = WrittenSummary("test", 10, 0.8, (0.5, 0.95), 0.3, 40, 3, [{"length": 4, "sequences": 10, "exact": 8}])
    return RunSummary("x", state="finished", written=dataclasses.replace(found, **changes))


def test_the_token_error_rate_is_called_so():
    shown = text_of(run_page(written()))
    assert "Token error rate 7.50 % (edit distance / length: 3 / 40)" in shown
    assert "tokens are wrong" not in shown


def test_what_to_know_of_probabilities_stands_where_they_are_shown():
    about = "so even a certain token gets at most about 91 %"
    texts = dataclasses.replace(written(examples=[("12", "12", "12", 0.8)]), about_probabilities=about)
    pictures = dataclasses.replace(written(), examples=(samples.run().examples[0],), about_probabilities=about)
    for run in (texts, pictures):
        assert run_page(run).count(about) == 1
    assert about not in run_page(dataclasses.replace(written(), about_probabilities=about))  # no probability, no word


def test_a_document_s_figure_stands_beside_a_result_only():
    stated = dataclasses.replace(samples.run(), beside="document D2 states 91.45 %")
    assert "Beside it: document D2 states 91.45 %." in text_of(run_page(stated))
    assert "91.45" not in run_page(dataclasses.replace(stated, evaluation=None))


def test_one_is_one():
    one = EvaluationSummary("test", 1, 1.0, (0.2, 1.0), 0.1, np.diag([1, 0]))
    assert "of 1 picture of the test split is classified" in text_of(
        run_page(RunSummary("x", evaluation=one, classes="ab"))
    )
    assert "of 1 text of the test split is written" in text_of(run_page(written(sequences=1)))


def test_large_ratios_of_loss_are_drawn_on_a_log_scale():
    assert "log scale" in run_page(RunSummary("x", history=[{"training_loss": 2.3}, {"training_loss": 0.01}]))
    assert "log scale" not in run_page(RunSummary("x", history=[{"training_loss": 2.3}, {"training_loss": 0.5}]))


def test_mistakes_come_first_and_the_surest_mistake_before_all():
    run = samples.run()
    wrong, right = run.examples
    surer = dataclasses.replace(wrong, name="surer", probability=0.99)
    unsure = dataclasses.replace(right, name="unsure", probability=0.2)
    page = run_page(dataclasses.replace(run, examples=(right, wrong, surer, unsure)))
    probabilities = re.findall(r'class="answer">. .*? <small>(.*?) %</small>', page)
    assert probabilities == ["99.0", "80.0", "60.0", "20.0"]


def test_settings_are_flattened_in_order():
    table = settings_table({"a": {"b": 1, "c": {"d": [1, 2], "e": None}}, "f": True, "g": {}, "h": ""})
    rows = re.findall(r'<th scope="row">(.*?)</th><td>(.*?)</td>', table)
    assert rows == [("a.b", "1"), ("a.c.d", "1, 2"), ("a.c.e", "none"), ("f", "yes"), ("g", "none"), ("h", "none")]


def test_same_summary_same_bytes_and_small(tmp_path):
    for name in ("one.html", "two.html"):
        write_run_page(tmp_path / name, samples.run(k=10, epochs=100))
    one = (tmp_path / "one.html").read_bytes()
    assert one == (tmp_path / "two.html").read_bytes()
    assert len(one) < 250_000

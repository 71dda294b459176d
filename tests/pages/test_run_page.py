"""The page of a run shows the values that it is given, and stands before there are any."""

import dataclasses
import math
import re

import numpy as np
import pytest

from tests.errors import figures
from tests.pages import samples
from tests.pages.shown import confusion_table, mistakes_list, settings_table
from tests.pages.structure import Structure
from vitrail.pages import Confusion, RunView, Table, evaluation_page, run_page
from vitrail.pages.run_views import Pair, SidesView
from vitrail.tasks import Result
from vitrail.tasks.task import Metric
from vitrail.text import short_paths

ACCURACY = Metric("accuracy", "accuracy")


def text_of(page: str) -> str:
    return re.sub(r"\s+", " ", " ".join(Structure(page).text))


def counts_of(page: str, rows: int) -> np.ndarray:
    """The counts of the confusion matrix that a page shows."""
    cells = [int(n) for n in re.findall(r'<td class="(?:right|wrong) step-\d" [^>]*>(\d+)<?', page)]
    return np.array(cells).reshape(rows, -1)


def test_a_run_that_has_just_started_and_one_without_measures():
    page = run_page(RunView("new run"))
    assert "new run" in text_of(page)
    assert "<title>epoch" not in page
    rows = [
        {"epoch": 1, "training_loss": math.nan},
        {"training_loss": None},
        {"epoch": 3, "training_loss": math.inf},
        {},
    ]
    for shown in (page, run_page(RunView("x", history=rows))):
        assert "nan" not in re.sub(r"(?s)<(style|script)>.*?</\1>", "", shown).lower()


@pytest.mark.parametrize("state", ["running", "finished", "stopped"])
def test_the_state_is_shown(state):
    page = run_page(dataclasses.replace(samples.run(), state=state, badge=""))
    assert f"<span>{state}</span>" in page
    others = {run_page(dataclasses.replace(samples.run(), state=other)) for other in ("running", "finished", "stopped")}
    assert len(others) == 3


def test_the_headline_holds_the_value_what_it_says_and_of_how_many():
    about = ("are classified correctly", "about it")
    found = Result(ACCURACY, 0.9876, 1000, 0.0412, {}, "", about, split="test")
    shown = text_of(run_page(RunView("x", evaluation=found)))
    for each in ("98.76 %", "1 000 images", "test", "are classified correctly", "about it", "0.0412"):
        assert each in shown
    named = dataclasses.replace(
        found, about=("", ""), metric=Metric("error", "mean error", False), value=0.12, count=1, unit="bar"
    )
    shown = text_of(run_page(RunView("x", evaluation=named)))
    for each in ("Mean error", "0.12", "1 bar "):
        assert each in shown
    assert "nan" not in text_of(run_page(RunView("x", evaluation=dataclasses.replace(found, count=0)))).split()


def test_every_count_of_the_confusion_matrix_is_in_the_page():
    page = run_page(samples.run(k=5))
    np.testing.assert_array_equal(counts_of(page, 5), samples.confusion_of(5))
    assert page.count('tabindex="0"') == 1


def test_rows_are_the_true_class_and_none_is_a_percentage_of_nothing():
    table = confusion_table(np.array([[7, 3], [0, 10]]), ["cat", "dog"])
    np.testing.assert_array_equal(counts_of(table, 2), [[7, 3], [0, 10]])
    assert re.search(r"cat [^>]*dog 3 of 10 [^>]*30\.0 %", table)
    assert "nan" not in confusion_table(np.array([[0, 0], [1, 1]]), ["none", "some"])


def test_two_hundred_classes_show_thirty_and_rows_still_add_up():
    confusion = samples.confusion_of(200)
    page = run_page(samples.run(k=200))
    shown, kept = counts_of(page, 30), Confusion("", confusion, tuple(map(str, range(200)))).most_confused()
    np.testing.assert_array_equal(shown[:, :30], confusion[np.ix_(kept, kept)])
    np.testing.assert_array_equal(shown.sum(1), confusion[kept].sum(1))
    assert len(page) < 1_000_000


def test_most_confused_counts_both_directions_and_keeps_the_order():
    confusion = np.diag([50, 50, 50, 50])
    confusion[3, 1] = 9
    confusion[0, 2] = 2
    shown = Confusion("", confusion, tuple("abcd"))
    assert shown.most_confused(2) == [1, 3]
    assert shown.most_confused(9) == [0, 1, 2, 3]


def test_most_frequent_mistakes_in_order():
    items = re.findall(r"<li>(.*?)</li>", mistakes_list(np.array([[5, 1, 0], [4, 5, 0], [0, 2, 5]]), ["a", "b", "c"]))
    told = [(*re.findall("<b>(.*?)</b>", item), *re.findall(r"\d+", item)) for item in items]
    assert told == [("b", "a", "4", "9"), ("c", "b", "2", "7"), ("a", "b", "1", "6")]
    assert "<li>" not in mistakes_list(np.diag([5, 5]), ["a", "b"])


@pytest.mark.parametrize("k", [0, 1, 2])
def test_few_classes(k):
    assert Structure(run_page(samples.run(k=k))).open == []


def test_history_table_holds_what_was_measured_and_nothing_else():
    rows = [
        {"epoch": 1, "training_loss": 0.51234, "validation_mean_error": 0.5},
        {"epoch": 2, "training_loss": 0.25, "images_per_second": None},
    ]
    page = run_page(RunView("x", history=rows, unit="pair"))
    table = re.search(r'<table class="numbers">.*?</table>', page).group()
    assert re.findall(r"<td>(.*?)</td>", table) == ["1", "0.5123", "0.5", "2", "0.25", "–"]
    page = run_page(RunView("x", history=[{"epoch": 1, "images_per_second": 50.0}], unit="pair"))
    assert re.search(r'<th scope="col">Pairs ', page)


def test_the_chart_of_the_metric_holds_nothing_else():
    """Its title is what the task measures, in the table as well; what else was measured has a chart of its own."""
    row = {"epoch": 1, "training_loss": 0.5, "validation_f": 0.25, "training_f": 0.125, "training_own_words": 0.75}
    run = RunView("x", history=[row], metric="exact qwx", curves=(("training", "training_f"), ("half", "validation_f")))
    page = run_page(dataclasses.replace(run, measures=("training_own_words", "training_label_accuracy")))
    charts = re.findall('(?s)<figure class="chart"><figcaption>(.*?)</figcaption>(.*?)</figure>', page)
    values = {title: re.findall("<title>epoch 1, (.*?): (.*?)</title>", drawn) for title, drawn in charts}
    assert values["Exact qwx"] == [("training", "12.5 %"), ("half", "25 %")]
    assert values["Training own words"] == [("training", "75 %")]
    table = re.search(r'<table class="numbers">.*?</table>', page).group()
    titles, cells = (re.findall(f"<{tag}.*?>(.*?)</{tag[:2]}>", table) for tag in ('th scope="col"', "td"))
    found = dict(zip(titles, cells, strict=True))
    assert (found["Training exact qwx"], found["Validation exact qwx"]) == ("12.50 %", "25.00 %")
    amount = run_page(dataclasses.replace(run, fraction=False))
    assert "<td>0.25</td>" in amount
    assert "25.00 %" not in amount


@pytest.mark.parametrize("kept", ["probe", "tuned"])
def test_of_the_model_one_confusion_matrix_is_shown_and_that_of_another_says_whose_it_is(kept: str) -> None:
    found = samples.run().evaluation
    (matrix,) = (each for each in found.tables if isinstance(each, Confusion))
    other = dataclasses.replace(matrix, counts=matrix.counts[::-1, ::-1].copy())
    both = {kept: matrix, {"probe": "tuned", "tuned": "probe"}[kept]: other}
    sides = SidesView(kept, "both", {"probe": "0.5", "tuned": "0.75"}, both, (), (), (0, 0))
    run = dataclasses.replace(samples.run(), sides=sides)
    shown = counts_of(run_page(run), 2).reshape(2, 4, 4)
    np.testing.assert_array_equal(shown, [other.counts, matrix.counts])
    whole = run_page(run)
    (named,) = re.findall(r'<p class="note">([^<]*)</p>\s*<p class="note">Rows', whole)
    assert {"probe": "tuned", "tuned": "probe"}[kept] in named
    for bare in (None, dataclasses.replace(found, tables=())):  # where it stands nowhere else
        page = run_page(dataclasses.replace(run, evaluation=bare))
        np.testing.assert_array_equal(counts_of(page, 2).reshape(2, 4, 4).sum(0), matrix.counts + other.counts)


def test_a_table_of_any_task_is_shown():
    table = Table("Length by length", ("length", "exact"), (("4", "80.0 %"), ("5", "70.0 %")))
    page = run_page(RunView("x", evaluation=Result(ACCURACY, 0.8, 10, 0.0, {}, "", tables=(table,))))
    assert "Length by length" in page
    assert re.findall(r"<td>(.*?)</td>", page) == ["4", "80.0 %", "5", "70.0 %"]


def test_what_to_know_of_probabilities_stands_where_there_is_a_result():
    about = "so even a certain token gets at most about 91 %"
    run = dataclasses.replace(samples.run(), about_probabilities=about)
    assert run_page(run).count(about) == 1
    without = dataclasses.replace(run.evaluation, examples=())
    assert run_page(dataclasses.replace(run, evaluation=without)).count(about) == 1
    nothing = run_page(dataclasses.replace(run, evaluation=None))
    assert about not in nothing


def test_large_ratios_of_loss_are_drawn_on_a_log_scale():
    assert "log scale" in run_page(RunView("x", history=[{"training_loss": 2.3}, {"training_loss": 0.01}]))
    assert "log scale" not in run_page(RunView("x", history=[{"training_loss": 2.3}, {"training_loss": 0.5}]))


def test_a_metric_that_is_no_fraction_is_not_shown_in_percent():
    run = RunView("x", history=[{"epoch": 1, "training_e": 1.5}], metric="e", curves=[("training", "training_e")])
    assert re.search(r"<title>epoch 1, training: 150 %</title>", run_page(run))
    assert re.search(r"<title>epoch 1, training: 1.5</title>", run_page(dataclasses.replace(run, fraction=False)))


def test_mistakes_come_first_and_both_kinds_in_their_order():
    """Of a run and of an evaluation alike; those without an image are left out, and texts are rows of a table."""
    run = samples.run()
    wrong, right = run.evaluation.examples
    surer = dataclasses.replace(wrong, probability=0.99)
    unsure, unseen = (
        dataclasses.replace(right, probability=share, image=shown) for share, shown in ((0.2, right.image), (0.3, None))
    )
    found = dataclasses.replace(run.evaluation, examples=(unsure, surer, unseen, right, wrong))
    for page in (run_page(dataclasses.replace(run, evaluation=found)), evaluation_page(found)):
        probabilities = re.findall(r'class="answer">. .*? <small>(.*?) %</small>', page)
        assert probabilities == ["99.0", "80.0", "20.0", "60.0"]
    texts = evaluation_page(dataclasses.replace(found, unit="sequence"))
    assert "<img" not in texts
    assert re.findall(r"<td>(\d\d\.0) %</td>", texts) == ["99.0", "80.0", "20.0", "30.0", "60.0"]


def test_what_was_measured_on_mixed_images_is_marked_and_nothing_else():
    curves = (("training", "training_accuracy"), ("held out", "validation_accuracy"))
    rows = [
        {
            "epoch": 1,
            "training_loss": 0.5,
            "validation_loss": 0.25,
            "training_accuracy": 0.5,
            "validation_accuracy": 0.75,
        }
    ]
    run = RunView("x", history=rows, curves=curves, scored="held out")
    plain, marked = (run_page(dataclasses.replace(run, changed=each)) for each in ("", "qwx"))
    assert "qwx" not in plain
    points = [re.findall("<title>epoch 1, (.*?): (.*?)</title>", page)[:4] for page in (plain, marked)]
    assert [value for _, value in points[0]] == [value for _, value in points[1]] == ["0.5", "0.25", "50 %", "75 %"]
    assert ["qwx" in label for label, _ in points[1]] == [True, False, True, False]


@pytest.mark.parametrize(
    ("split", "scored", "explained"), [("report", "select", 2), ("test", "select", 1), ("test", "validation", 0)]
)
def test_halves_are_explained_where_they_stand(split: str, scored: str, explained: int):
    found = dataclasses.replace(samples.run().evaluation, split=split, tables=(), examples=())
    page = run_page(RunView("x", history=samples.history(1), scored=scored, evaluation=found))
    assert page.count("part of the validation") == explained
    (lead,) = re.findall('(?s)<p class="lead">.*?<dl|<p class="lead">.*?</header>', page)
    assert ("part of the validation" in lead) == (split == "report")


def test_answers_to_nothing_are_counted():
    nothing = [(f"c{number}", 20 - number, 0.25, 0.5 + number / 100) for number in range(12)]
    section = re.search("(?s)<h2>What the model says.*?</section>", run_page(RunView("x", nothing=nothing))).group()
    words = figures(re.sub("(?s)<table.*</table>|<.*?>", " ", section).replace("\u00a0", " "))
    assert words[:4] == ["174", "11", "0", "61"], (
        "images, the most frequent answer's fraction (of class c0), the surest"
    )
    assert section.count('<th scope="row">') == 10
    assert "What the model says" not in run_page(RunView("x"))


def test_absolute_paths_are_short_but_for_the_command():
    path = "/home/anna/secret/photos/bees"
    found = dataclasses.replace(samples.evaluation(("a",)), unreadable=(f"{path}/1.jpg is empty",))
    run = RunView(
        path, facts=[("data", path)], notes=[f"left out: {path}/2.jpg"], settings={"data": path}, evaluation=found
    )
    page = run_page(dataclasses.replace(run, about=f"saved in {path}"))
    assert "secret" not in page
    for each in ("…/photos/bees", "…/bees/1.jpg is", "left out: …/bees/2.jpg"):
        assert each in page
    assert run_page(dataclasses.replace(run, command=f"vitrail train {path}")).count(path) == 1
    for same in ("http://a.b/c/d/e", "1/2/3/4", "runs/a/b/c", "/work/x"):
        assert short_paths(same) == same


def test_settings_are_flattened_in_order():
    table = settings_table({"a": {"b": 1, "c": {"d": [1, 2], "e": None}}, "f": True, "g": {}, "h": ""})
    rows = re.findall(r'<th scope="row">(.*?)</th><td>(.*?)</td>', table)
    assert rows == [("a.b", "1"), ("a.c.d", "1, 2"), ("f", "yes")]  # what is left empty is left out


def test_same_values_same_bytes_and_small():
    one, two = (run_page(samples.run(k=10, epochs=100)) for _ in range(2))
    assert one == two
    assert len(one.encode()) < 250_000


@pytest.mark.parametrize("is_wrong", [True, False])
def test_an_answer_that_is_a_distance_is_neither_right_nor_wrong(is_wrong: bool) -> None:
    """The truth stands beside both answers; only classes are marked."""
    one = Pair(np.zeros((8, 8), np.uint8), "a.png", "120", "100", "119")
    sides = SidesView("tuned", "both", {"probe": "20", "tuned": "1"}, {}, (one,), (), (1, 0), is_wrong)
    page = run_page(RunView("x", sides=sides))
    assert ('class="example wrong"' in page) == is_wrong
    assert ("Images that are right" in text_of(page)) == is_wrong
    for each in ("120", "100", "119"):
        assert re.search(rf'<span class="answer">[a-z]+: {each}</span>', page)

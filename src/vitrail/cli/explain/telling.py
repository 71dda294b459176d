"""What the terminal says of explained pictures: the answers, the verdicts, and a table for a comparison."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vitrail.cli.args import Explain

if TYPE_CHECKING:
    from vitrail.cli.explain.maps import Result
    from vitrail.pages.views import ExplainedPicture


def tell(typed: Explain, results: Sequence["Result"]) -> None:
    """The answers and the verdicts: those of a comparison in a table, others as sentences below the answers."""
    from vitrail.cli.output import print_table, say, warn
    from vitrail.pages.words import parts_words, several_words
    from vitrail.text import percent

    explained = [one for _, one in results]
    rows, sentences = [], []
    for prediction, one in results:
        truth = "" if one.true_label in (None, prediction.label) else f"(it is {one.true_label})"
        rows.append((one.name, prediction.label, percent(prediction.probability), truth))
        sentences += [f"{one.name}: {view.trust.sentence}" for view in one.heats if view.trust is not None]
    if typed.target is not None or typed.rather_than is not None:
        against = "" if typed.rather_than is None else f" rather than {typed.rather_than}"
        say(f"explained: {typed.target or 'the class that the model chose'}{against}")
    several = several_words(explained[0].heats)
    if several:
        say(several)
    print_table(rows, left=2)
    if typed.compare:
        for one in explained:
            _tell_comparison(one)
    else:
        for sentence in ["", *sentences] if sentences else []:
            say(sentence)
    summed = [f"{one.name}: {parts_words(view)}" for one in explained for view in one.heats if view.parts]
    for sentence in ["", *summed] if summed else []:
        say(sentence)
    if any(view.trust is not None and view.trust.fill != "donor" for one in explained for view in one.heats):
        warn(f"{typed.run} carries no reference pictures, so nothing can be told; --reference DIR names some")


def _tell_comparison(one: "ExplainedPicture") -> None:
    """The maps of one picture in a table, with what random orders of squares have, and what is told of all of them."""
    from vitrail.cli.output import print_table, say
    from vitrail.pages.score_line import middle
    from vitrail.pages.words import fall_words, reach_of, shared_words

    reach = reach_of([view.trust for view in one.heats if view.trust is not None])
    rows, head = [], ("", "", "verdict", "fall", "deletion", "insertion", "time")
    for view in one.heats:
        tested = ("", "") if view.trust is None else (view.trust.verdict, fall_words(view.trust.paired, reach))
        curves = ("", "") if view.areas is None else (f"{view.areas.deletion:.2f}", f"{view.areas.insertion:.2f}")
        seconds = "" if view.seconds is None else f"{view.seconds:.2g} s"
        rows.append((view.title, "" if view.class_specific else "class-blind", *tested, *curves, seconds))
    first = one.heats[0]
    if first.trust is not None and first.areas is not None:
        curves = (f"{first.areas.random_deletion:.2f}", f"{first.areas.random_insertion:.2f}")
        rows.append(("A random order", "", "", fall_words(middle(first.trust.random), reach), *curves, ""))
    if first.trust is None:
        rows, head = [(title, blind, seconds) for title, blind, *_, seconds in rows], ("", "", "time")
    say("")
    say(one.name)
    print_table(rows, head, left=3 if first.trust is not None else 2)
    for words in shared_words(one.heats):
        say(words)

"""What outputs mean stands in codecs: nobody else takes a softmax or an argmax of them, or asks which codec there is.

Read from the syntax of the files. `nn/` is left out, whose attention is made of softmax, and `tasks/`, where they are.
"""

import ast
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "vitrail"
OUTSIDE = {str(path.relative_to(SOURCE)): path.read_text() for path in sorted(SOURCE.rglob("*.py"))}
OUTSIDE = {name: text for name, text in OUTSIDE.items() if name.partition("/")[0] not in ("nn", "tasks")}

OF_OUTPUTS = {"softmax", "log_softmax", "logsumexp", "argmax", "sigmoid", "logsigmoid", "softmin", "topk"}
NO_OUTPUTS = {  # of what is no output: places, by file
    "explain/scores/faithfulness.py": 3,  # the steps where masking shows most, and the first with half of that
    "explain/methods/head_view.py": 1,  # the last of the largest weights of a row of attention
    "explain/inside/tokens.py": 1,  # the largest coordinate of a direction, which decides its sign
    "explain/inside/heads.py": 1,  # the strongest heads
    "features/similar.py": 1,  # the nearest images, by their cosines
    "explain/sanity_check.py": 1,  # any two outputs of a bare network, which are to have different maps
}

CODECS = {"Codec", "Classes", "Numbers", "TextCodec"}
PREDICTIONS = {"Prediction", "ClassPrediction", "FeaturePrediction", "TextPrediction"}
COLUMNS = {"Column", "Labels", "Texts", "Values"}
INPUTS = {"Preprocessing", "Vocabulary", "Images", "FileImages", "ArrayImages"}
NETWORKS = {
    *("ViT", "ViTConfig", "Transformer", "TransformerConfig", "ImageToSequence", "ImageToSequenceConfig"),
    "SequenceConfig",
}
MOST_COLUMNS, MOST_OF_ALL = 4, 75
TASKS = {"classify", "sequences", "features"}


@cache
def calls_of_outputs(text: str) -> list[str]:
    """What is called that makes answers of outputs."""
    calls = [node.func for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    names = [ast.unparse(call).rpartition(".")[2] for call in calls]
    return [name for name in names if name in OF_OUTPUTS]


@cache
def classes_asked(text: str) -> Counter[str]:
    """Which of the classes above a file asks for, by isinstance, `match`, or a comparison of types or their names."""
    every, found = CODECS | PREDICTIONS | COLUMNS | INPUTS | NETWORKS, Counter[str]()
    for node in ast.walk(ast.parse(text)):
        asked: list[ast.AST] = []
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "issubclass"):
            asked = [node.args[1]]
        elif isinstance(node, ast.MatchClass):
            asked = [node.cls]
        elif isinstance(node, ast.Compare) and "type(" in ast.unparse(node):
            asked = [node]
        for each in (inner for one in asked for inner in ast.walk(one)):
            named = {ast.Name: "id", ast.Attribute: "attr", ast.Constant: "value"}.get(type(each))
            if named is not None and getattr(each, named) in every:
                found[getattr(each, named)] += 1
    return found


@cache
def tasks_compared(text: str) -> list[str]:
    """The names of tasks of the library that something is compared with."""
    compared = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Compare)]
    inside = [each for node in compared for each in ast.walk(node) if isinstance(each, ast.Constant)]
    return [each.value for each in inside if each.value in TASKS]


def faults(files: dict[str, str]) -> list[str]:
    """What these files do that only codecs may, in words."""
    found, asked = list[str](), {name: classes_asked(text) for name, text in files.items()}
    for name, text in files.items():
        calls = calls_of_outputs(text)
        if len(calls) > NO_OUTPUTS.get(name, 0):
            found.append(f"{name}: {', '.join(calls)} of outputs")
        found += [f"{name}: the task '{task}' by its name" for task in tasks_compared(text)]
        found += [f"{name}: asks for {kind}" for kind in asked[name].keys() & (CODECS | PREDICTIONS)]
    above = [asked[name] for name in files if not name.startswith("data/")]
    columns = sum(counts[kind] for counts in above for kind in COLUMNS)
    if columns > MOST_COLUMNS:
        found.append(f"{columns} places above data/ ask for a column")
    whole = sum(sum(counts.values()) for name, counts in asked.items() if name != "data/columns.py")
    if whole > MOST_OF_ALL:
        found.append(f"{whole} places ask for a codec, column, input or network")
    return found


def test_only_codecs_know_what_outputs_mean() -> None:
    assert faults(OUTSIDE) == []


def test_what_is_left_out_is_there() -> None:
    """An exception that nothing needs any more is none."""
    assert {name: len(calls_of_outputs(OUTSIDE[name])) for name in NO_OUTPUTS} == NO_OUTPUTS


PLANTED = {
    "a probability": ("explain/verdict.py", "sure = logits.softmax(dim=1)"),
    "a function of torch": ("jobs/precision.py", "best = torch.argmax(outputs, dim=1)"),
    "one more where one is allowed": ("explain/inside/tokens.py", "best = logits.argmax(dim=1)"),
    "a codec": ("features/similar.py", "if isinstance(model.output, list | Numbers): pass"),
    "a codec with its module": ("features/similar.py", "if isinstance(model.output, tasks.Classes): pass"),
    "a codec in a match": ("explain/verdict.py", "match codec:\n    case Classes(names=names): pass"),
    "a prediction": ("cli/predict.py", "if isinstance(one, ClassPrediction): pass"),
    "a type": ("model/saving.py", "if type(model.output) is Classes: pass"),
    "the name of a type": ("model/saving.py", "if type(model.output).__name__ == 'Classes': pass"),
    "the name of a task": ("training/setup.py", "if settings.task == 'classify': pass"),
    "columns": ("runs/data.py", "\n".join(["isinstance(column, Labels)"] * (1 + MOST_COLUMNS))),
    "networks": ("cli/models.py", "\n".join(["isinstance(network, ViT)"] * (1 + MOST_OF_ALL))),
}


@pytest.mark.parametrize(("name", "more"), PLANTED.values(), ids=list(PLANTED))
def test_a_planted_fault_is_found(name: str, more: str) -> None:
    assert len(faults({**OUTSIDE, name: f"{OUTSIDE[name]}\n{more}\n"})) == 1

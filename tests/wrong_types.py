"""Every public function with arguments of wrong types, to be called without the checks of tests (`as_a_user`)."""

import contextlib
import inspect
import io
from collections.abc import Callable
from functools import reduce
from itertools import islice
from pathlib import Path
from typing import Any, get_origin

import numpy as np
import torch
from PIL import Image
from torch import nn
from torchvision.models import VisionTransformer

import vitrail
from tests.sequence_models import LETTERS, READER, image_model, text_model
from tests.training.lab import CHOICES, EXECUTION, cross_entropy, fresh, tiny_set
from vitrail import data, explain, tasks
from vitrail.errors import VitrailError
from vitrail.explain import inside, scores

CONFIG = vitrail.ViTConfig(width=16, depth=2, heads=2, mlp_dim=32, image_size=16, patch_size=8, classes=2)
CALLED_BACK = {"listen", "progress", "notify", "note", "command", "cluster", "first"}  # looked at late, or not at all
LATE = {"out", "folder", "path"}  # where something may be written
FAST = {"masks": 4, "samples": 32}  # options of methods that take hundreds of passes
# What other calls make, or a codec, which hold what they are given and do nothing with it
HELD = {
    "nn": {"Generated", "ImageFeatures", "Memory", "Rotation"},
    "data": {"Dataset", "Match", "Packed", "Split"},
    "tasks": {
        "Agreement",
        "AttributesPrediction",
        "ClassPrediction",
        "Example",
        "FeaturePrediction",
        "Hub",
        "MultiLabelPrediction",
        "NumberPrediction",
        "OutputTarget",
        "Result",
        "TextPrediction",
    },
    "explain": {"Balance", "Comparison", "Contrast", "ExplainedImage", "Report", "SanityReport", "Trust"},
    "explain.inside": {
        *("AttentionDistance", "DirectAttribution", "HeadAblation", "HeadSources", "PatchFilters", "Sinks"),
    },
    "explain.scores": set(),
}


def is_asked(public: Any) -> bool:
    """Whether it takes anything: constants, unions, abstract classes and what has no arguments do not."""
    kept = get_origin(public) is not None or inspect.isabstract(public) or getattr(public, "_is_protocol", False)
    return callable(public) and not kept and len(inspect.signature(public).parameters) > 0


def wrong() -> dict[str, Any]:
    """Values of every kind; which of them are right, a function says itself."""
    values = [None, "what", object(), [object()], np.zeros((2, 2)), [], 3.5, b"x", {"a": object()}, iter((1, 2))]
    return {repr(value)[:20]: value for value in values}


def calls() -> dict[str, tuple[Callable[..., Any], dict[str, Any]]]:
    """Public functions with arguments that are right."""
    torch.manual_seed(0)
    network = vitrail.ViT(CONFIG).eval()
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.3)
    for number in range(16):
        file = Path("images") / "ab"[number % 2] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 255, (16, 16, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(file)
    model = vitrail.Model(network, vitrail.Preprocessing((16, 16)), vitrail.Classes(("a", "b")))
    photo, images, ids = "images/a/0.png", torch.randn(2, 3, 16, 16), torch.tensor([[3, 4]])
    texts, reader, heads = text_model(), image_model(), torch.zeros(1, 2, 5, 8)
    vitrail.save(model, "model")
    one, record = explain.saliency(network, images), vitrail.run_with_record(network, images)[1]
    explained = explain.report(model, photo, trust=False)
    both, text_map = {"network": network, "images": images}, explain.cross_attention(reader.network, SEEN, ids)
    Path("tiny.yaml").write_text("network: {patch_size: 8, width: 8, depth: 1, heads: 2, mlp_dim: 16}")
    fast = {"epochs": 1, "threads": 1, "precision": "fp32", "device": "cpu", "background": False, "image_size": 16}
    tiny = vitrail.TrainOptions(**fast, config=Path("tiny.yaml"))
    square, labels = Image.new("RGB", (16, 16)), data.Labels(np.array([0, 1]), ("a", "b"))
    return {
        "load": (vitrail.load, {"path": "model"}),
        "save": (vitrail.save, {"model": model, "folder": "saved"}),
        "convert": (
            vitrail.convert,
            {"module": VisionTransformer(16, 8, 1, 2, 16, 32), "assume": {"mean": 0.5, "std": 0.5}},
        ),
        "train": (vitrail.train, {"data": "images", "options": tiny}),
        "distill": (vitrail.distill, {"data": "images", "teacher": "model", "options": vitrail.DistillOptions(**fast)}),
        "evaluate": (vitrail.evaluate, {"model": model, "data": "images"}),
        "embed": (vitrail.embed, {"model": model, "data": "images"}),
        "export": (vitrail.export, {"model": model, "to": "timm", "out": "folder"}),
        "similar": (vitrail.similar, {"model": model, "images": photo, "data": "images"}),
        "check_data": (vitrail.check_data, {"data": "images"}),
        "show_data": (vitrail.show_data, {"data": "images", "options": tiny, "images": 1}),
        "Model": (vitrail.Model, {"network": network, "input": model.input, "output": model.output}),
        "Model.predict": (model.predict, {"sources": [photo]}),
        "Model.tensor": (model.tensor, {"sources": [photo]}),
        "Model.to": (model.to, {"device": "cpu"}),
        "Model.explain": (model.explain, {"images": photo, "trust": False}),
        "Preprocessing": (vitrail.Preprocessing, {"size": (16, 16)}),
        "Preprocessing()": (model.preprocessing.__call__, {"image": square}),
        "Preprocessing.to_uint8": (model.preprocessing.to_uint8, {"image": square}),
        "Preprocessing.normalise": (model.preprocessing.normalise, {"pixels": torch.zeros(1, 3, 2, 2).byte()}),
        "Classes": (vitrail.Classes, {"names": ("a", "b")}),
        "Classes.index": (model.output.index, {"word": "a"}),
        "Attributes": (tasks.Attributes, {"columns": ("a", "b"), "classes": (("x", "y"), ("z", "w"))}),
        "MultiLabels": (tasks.MultiLabels, {"names": ("a", "b")}),
        "Standardized": (tasks.Standardized, {"names": ("a",), "means": (0.0,), "deviations": (1.0,)}),
        "Vocabulary": (vitrail.Vocabulary, {"tokens": ("a", "b")}),
        "ViTConfig": (vitrail.ViTConfig, {}),
        "nn.Rotary": (vitrail.nn.Rotary, {}),
        "ViT": (vitrail.ViT, {"config": CONFIG}),
        "TransformerConfig": (vitrail.TransformerConfig, {"source_vocab_size": 5, "target_vocab_size": 5}),
        "Transformer": (vitrail.Transformer, {"config": texts.network.config}),
        "ImageToSequenceConfig": (vitrail.ImageToSequenceConfig, {"encoder": READER, "vocab_size": 5}),
        "ImageToSequence": (vitrail.ImageToSequence, {"config": reader.network.config}),
        "Teacher": (vitrail.Teacher, {"network": network, "preprocessing": model.input, "classes": ("a", "b")}),
        "run_with_record": (vitrail.run_with_record, {"network": network, "inputs": images}),
        "Record": (record.__getitem__, {"name": "pooled"}),
        "TrainOptions": (vitrail.TrainOptions, {}),
        "DistillOptions": (vitrail.DistillOptions, {}),
        "train_loop": (
            vitrail.train_loop,
            {
                "state": fresh(),
                "data": tiny_set(),
                "objective": cross_entropy,
                "optimization": CHOICES,
                "execution": EXECUTION,
            },
        ),
        "ViT.forward": (lambda images: network(images), {"images": images}),
        "Transformer.forward": (lambda source: texts.network(source, ids), {"source": ids}),
        "nn.Attention": (vitrail.nn.Attention, {"width": 16, "heads": 2}),
        "nn.MLP": (vitrail.nn.MLP, {"width": 16, "hidden": 32, "activation": nn.GELU}),
        "nn.LayerScale": (vitrail.nn.LayerScale, {"width": 16, "start": 0.1}),
        "nn.StochasticDepth": (vitrail.nn.StochasticDepth, {"probability": 0.1}),
        "nn.PatchEmbedding": (vitrail.nn.PatchEmbedding, {"channels": 3, "width": 16, "patch_size": (8, 8)}),
        "nn.TokenEmbedding": (vitrail.nn.TokenEmbedding, {"vocab_size": 5, "width": 16, "max_length": 8}),
        **{
            f"nn.{name}": (getattr(vitrail.nn, name), {"config": CONFIG})
            for name in ("Branches", "EncoderBlock", "PostNormBlock")
        },
        **{
            f"nn.{name}": (getattr(vitrail.nn, name), {"config": texts.network.config})
            for name in ("Decoder", "DecoderBlock", "Encoder", "PostNormDecoderBlock")
        },
        "nn.Parts": (vitrail.nn.Parts, {}),
        "nn.SequenceConfig": (vitrail.nn.SequenceConfig, {}),
        "nn.attend": (vitrail.nn.attend, {"queries": heads, "keys": heads, "values": heads}),
        "nn.attention_weights": (vitrail.nn.attention_weights, {"queries": heads, "keys": heads}),
        "nn.causal_mask": (vitrail.nn.causal_mask, {"queries": 2, "keys": 2}),
        "nn.grid_of": (vitrail.nn.grid_of, {"image_size": (16, 16), "patch_size": (8, 8)}),
        "nn.resize_positions": (
            vitrail.nn.resize_positions,
            {"positions": torch.zeros(1, 5, 16), "prefix": 1, "old": (2, 2), "new": (3, 3)},
        ),
        "nn.sinusoids": (vitrail.nn.sinusoids, {"length": 4, "width": 8}),
        "nn.sinusoids_2d": (vitrail.nn.sinusoids_2d, {"grid": (2, 2), "width": 8}),
        "nn.Beam": (vitrail.nn.Beam, {}),
        "nn.Sampling": (vitrail.nn.Sampling, {}),
        "nn.check_parts": (vitrail.nn.check_parts, {"config": CONFIG, "parts": vitrail.nn.STANDARD}),
        "nn.detached": (vitrail.nn.detached, {"part": network}),
        "nn.evaluating": (lambda network: vitrail.nn.evaluating(network).__enter__(), {"network": network}),
        "nn.features": (vitrail.nn.features, both),
        "nn.generate": (vitrail.nn.generate, {"network": texts.network, "inputs": ids}),
        "nn.in_bf16": (vitrail.nn.in_bf16, {"network": network}),
        "nn.names_of": (vitrail.nn.names_of, {"parts": vitrail.nn.STANDARD}),
        "nn.parts_of": (vitrail.nn.parts_of, {"names": {}}),
        "nn.resize_network": (vitrail.nn.resize_network, {"network": network, "image_size": 32}),
        "nn.twin": (vitrail.nn.twin, {"network": network, "parts": {}}),
        "data.read": (data.read, {"what": "images"}),
        "data.pack": (data.pack, {"data": "images", "out": "packed"}),
        "data.Layout": (data.Layout, {}),
        "data.Labels": (data.Labels, {"values": np.array([0, 1]), "names": ("a", "b")}),
        "data.Texts": (data.Texts, {"values": ("a",)}),
        "data.ArrayImages": (data.ArrayImages, {"pixels": np.zeros((2, 4, 4), np.uint8)}),
        "data.FileImages": (data.FileImages, {"paths": [Path(photo)]}),
        "data.load_resident": (
            data.load_resident,
            {"images": data.FileImages([Path(photo)]), "preprocessing": model.input, "threads": 1},
        ),
        "data.Values": (data.Values, {"values": np.zeros(2)}),
        "data.Samples": (data.Samples, {"inputs": data.Texts(("a",)), "columns": {}}),
        "data.RawDataset": (data.RawDataset, {"root": "x", "splits": {}}),
        "tasks.Metric": (tasks.Metric, {"key": "x", "label": "x"}),
        "tasks.Numbers": (tasks.Numbers, {"count": 3}),
        "tasks.TextCodec": (tasks.TextCodec, {"vocabulary": LETTERS}),
        "tasks.check_column": (tasks.check_column, {"data": "x", "columns": ["label"], "task": model.task}),
        "tasks.choose_task": (tasks.choose_task, {"data": "x", "columns": ["label"]}),
        "Classes.match": (model.output.match, {"column": labels}),
        "explain.report": (explain.report, {"model": model, "images": photo, "trust": False}),
        "explain.compare": (explain.compare, {"model": model, "images": images, "methods": ["saliency"]}),
        "explain.trust": (explain.trust, {"model": model, "images": images, "attribution": one}),
        "explain.sanity_check": (explain.sanity_check, {"model": model, "images": images}),
        "explain.balance_sheet": (explain.balance_sheet, both),
        "explain.cross_attention": (
            explain.cross_attention,
            {"network": reader.network, "images": SEEN, "target": ids},
        ),
        "explain.Option": (explain.Option, {"default": 1, "help": "x"}),
        "explain.scores.Fill": (scores.Fill, {"name": "x", "make": scores.own_patches().make}),
        "explain.Gridded": (explain.Gridded, {"network": network, "sides": (2, 2)}),
        "explain.Method": (
            explain.Method,
            {
                "function": explain.saliency,
                "title": "",
                "signed": True,
                "class_specific": True,
                "summary": "",
                "about": "",
            },
        ),
        **{
            f"explain.{name}": (
                method.function,
                {**both, "target": 0, **{k: FAST[k] for k in FAST if k in method.options}},
            )
            for name, method in explain.METHODS.items()
            if method.cost != "many"
        },
        "explain.Attribution": (explain.Attribution, vars(one)),
        "Attribution.of_pixels": (
            explain.Attribution.of_pixels,
            {"pixels": images, "images": images, "network": model},
        ),
        "Report.save": (explained.save, {"out": "page.html"}),
        "ExplainedImage.overlay": (explained[0].overlay, {"number": 0}),
        "ViTConfig.from_size": (vitrail.ViTConfig.from_size, {"size": "S/16"}),
        "ViTConfig.from_dict": (vitrail.ViTConfig.from_dict, {"values": {}}),
        "Vocabulary.encode": (LETTERS.encode, {"text": "a"}),
        "Vocabulary.decode": (LETTERS.decode, {"ids": [3]}),
        "Record.attention": (record.attention, {"name": "blocks.0"}),
        "Preprocessing.to_pixels": (model.preprocessing.to_pixels, {"images": images}),
        "Attribution.upsampled": (one.upsampled, {"size": (16, 16)}),
        "Attribution.overlay": (one[0].overlay, {"image": np.zeros((16, 16, 3), np.uint8)}),
        "Attribution.save": (one.save, {"path": "map.json"}),
        "Attribution.token": (text_map.token, {"index": 0}),
        **{
            f"explain.inside.{name}": (getattr(inside, name), both)
            for name in ("attention_distance", "find_sinks", "head_sources", "logit_lens", "patch_lens")
        },
        "explain.inside.direct_attribution": (inside.direct_attribution, both),
        "explain.inside.head_ablation": (
            inside.head_ablation,
            {**both, "background": images, "layers": [0], "heads": [0]},
        ),
        "explain.inside.patch_filters": (inside.patch_filters, {"network": network}),
        "explain.inside.position_similarity": (inside.position_similarity, {"network": network}),
        "explain.inside.uniform_distance": (inside.uniform_distance, {"grid": (2, 2), "patch": (8, 8)}),
        "explain.inside.with_sink_notes": (
            inside.with_sink_notes,
            {"attribution": one, "sinks": inside.find_sinks(network, images)},
        ),
        "explain.scores.from_background": (scores.from_background, {"background": images}),
        "explain.scores.grey": (scores.grey, {"level": 0.5}),
        "explain.scores.keys_of": (scores.keys_of, {"images": images}),
        "explain.scores.random_maps": (scores.random_maps, {"values": one.values, "count": 2, "seed": 0}),
    }


SEEN = torch.zeros(1, 1, 16, 24)  # an image for the network that writes
LONG = {  # of what each call takes long, values of three kinds are enough
    *(
        "explain.sanity_check",
        "explain.rise",
        "explain.inside.head_ablation",
        "explain.inside.direct_attribution",
        "Attribution.of_pixels",
    ),
    *("explain.balance_sheet", "explain.scores.random_maps", "explain.smooth_grad", "train", "distill"),
}


def refused() -> dict[str, Callable[[], Any]]:
    """Calls that must not be accepted, though nothing in them would break, or another error would come first."""
    network = vitrail.ViT(CONFIG).eval()
    model = vitrail.Model(network, vitrail.Preprocessing((16, 16)), vitrail.Classes(("a", "b")))
    loop = {"data": tiny_set(), "optimization": CHOICES, "execution": EXECUTION}
    return {
        "Record(5)": lambda: vitrail.Record(5),
        "a name that no network has": lambda: vitrail.run_with_record(
            network, torch.zeros(1, 3, 16, 16), "blocks.99.*"
        ),
        "Model(1, 2, 3)": lambda: vitrail.Model(1, 2, 3),
        "a network that is none": lambda: vitrail.Model("x", model.input, model.output),
        "a task that is none": lambda: vitrail.Model(model.network, model.input, model.output, 3),
        "a word for True": lambda: explain.report(model, "images/a/0.png", trust="x"),
        "TrainOptions(epoch=3)": lambda: vitrail.TrainOptions(epoch=3),
        "TrainOptions(epochs='x')": lambda: vitrail.TrainOptions(epochs="x"),
        "DistillOptions(alpha='x')": lambda: vitrail.DistillOptions(alpha="x"),
        "train_loop(3)": lambda: vitrail.train_loop(3),
        "an objective that is none": lambda: vitrail.train_loop(fresh(), objective="x", **loop),
        "Attention('a')": lambda: vitrail.nn.Attention("a"),
        "StochasticDepth('a')": lambda: vitrail.nn.StochasticDepth("a"),
        "attention_weights(3, 4)": lambda: vitrail.nn.attention_weights(3, 4),
        "an array for a tensor": lambda: network(np.zeros((1, 3, 16, 16), np.float32)),
        "Parts(norm=3)": lambda: vitrail.nn.Parts(norm=3),
        "Classes('abc')": lambda: vitrail.Classes("abc"),
        "Vocabulary('abc')": lambda: vitrail.Vocabulary("abc"),
        "Texts('abc')": lambda: data.Texts("abc"),
        "Labels(names='ab')": lambda: data.Labels(np.array([0, 1]), "ab"),
    }


def call_all(every_nth: int = 1) -> tuple[int, list[str]]:
    """Call each with one wrong argument at a time, and with one that it does not have, in an empty folder.

    Args:
        every_nth: Of these calls, so that each function and each kind of value is among them.

    Returns:
        How many calls there were, and each error that is none of two lines.
    """
    count, turn, faults, every = 0, 0, list[str](), calls()
    for words, call in refused().items():
        try:
            faults.append(f"{words} is accepted: {call()}")
        except VitrailError:
            count += 1
    for name, (function, right) in every.items():
        if function is reduce(lambda at, part: getattr(at, part, None), name.split("."), vitrail):
            try:
                faults.append(f"{name}(nonsense=1) is accepted: {function(**right, nonsense=1)}")
            except VitrailError:
                count += 1
    for name, (function, right) in every.items():
        for parameter in inspect.signature(function).parameters.values():
            if parameter.kind is parameter.VAR_POSITIONAL or parameter.name in CALLED_BACK:
                continue
            for words, value in islice(wrong().items(), 3 if name in LONG else 6 if "." in name else None):
                turn += 1
                if turn % every_nth:
                    continue
                if parameter.annotation is bool or (parameter.name in LATE and isinstance(value, str)):
                    continue
                try:
                    count += 1
                    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                        function(**{**right, parameter.name: value})
                except VitrailError as error:
                    if str(error).count("\n") != 1:
                        faults.append(f"{name}({parameter.name}={words}): {error}")
                except Exception as error:  # what should not be
                    faults.append(f"{name}({parameter.name}={words}): {type(error).__name__}: {str(error)[:80]}")
    return count, faults

"""Our network as transformers and torchvision have it: what loading reads of theirs, read backwards.

Each kind of network there is tried by the `config.json` that it would have: what loading reads in that has to be what
this network is. What is always there and not here is filled with what changes no number: zeros as biases, ones as
LayerScale. A kind that differs in anything else cannot express the network, and the nearest says in what it differs.
"""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, NamedTuple

import torch

from vitrail.errors import Hint, UsageError, as_word
from vitrail.nn import ViT, ViTConfig, names_of
from vitrail.nn.networks import without_numbers
from vitrail.weights.family import SHOWN, Facts, NameRule, Tensors, names_back, rename_rules, side_of
from vitrail.weights.infer import shown_by
from vitrail.weights.saved import EXPRESSIBLE, timm_misfit
from vitrail.weights.torchvision import ARGUMENTS, TORCHVISION
from vitrail.weights.transformers import ACTIVATIONS, CLASSIFIER, FIELDS, TEACHER, of_config
from vitrail.weights.transformers_names import FILE, GATED, NAMED

COMPARED = (*SHOWN, "image_size", "patch_size", "heads", "norm_eps", "activation", "distillation_token", "pooling")
NEUTRAL = ("embed_bias", "qkv_bias", "out_bias", "mlp_bias", "head_bias", "layer_scale", "positions")
FIRST = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}  # the first name of each activation
OF_TWO = ("pooling", "class_and_mean"), ("head", "of_two")


class NativeKind(NamedTuple):
    """A network of transformers.

    Attributes:
        name: Its class.
        model: Its `model_type`.
        pooling: What its head reads, or what it returns where it has none.
        head: What its tensors call the head; empty for none.
        last_norm: Whether what is pooled has been through the last norm.
    """

    name: str
    model: str
    pooling: str = "class"
    head: str = ""
    last_norm: bool = True

    @property
    def tower(self) -> bool:
        """Whether it is half of a network for images and texts."""
        return self.model.startswith(("clip", "siglip"))

    @property
    def prefix(self) -> str:
        """Before the names of all tensors but those of the head."""
        return "vision_model." if self.tower else f"{self.model}." * bool(self.head)

    def rules(self, gated: bool) -> tuple[NameRule, ...]:
        """Of its files, whose MLP is SwiGLU or not."""
        named = {"head.*": f"{self.head}.*", "head_dist.*": "distillation_classifier.*"}
        return (*rename_rules(named), *rename_rules(GATED if gated else {}, FILE), *NAMED[self.model.partition("_")[0]])


LABELLED = "classifier"
KINDS = (
    NativeKind("ViTForImageClassification", "vit", head=LABELLED),
    NativeKind("DeiTForImageClassification", "deit", head=LABELLED),
    NativeKind(TEACHER, "deit", head="cls_classifier"),
    NativeKind("Dinov2ForImageClassification", "dinov2", "class_and_mean", LABELLED),
    NativeKind("Dinov2WithRegistersForImageClassification", "dinov2_with_registers", "class_and_mean", LABELLED),
    NativeKind("CLIPForImageClassification", "clip", "mean", LABELLED, last_norm=False),
    NativeKind("SiglipForImageClassification", "siglip", "mean", LABELLED),
    NativeKind("CLIPVisionModelWithProjection", "clip_vision_model", head="visual_projection"),
    NativeKind("ViTModel", "vit"),
    NativeKind("DeiTModel", "deit"),
    NativeKind("Dinov2Model", "dinov2"),
    NativeKind("Dinov2WithRegistersModel", "dinov2_with_registers"),
    NativeKind("CLIPVisionModel", "clip_vision_model"),
    NativeKind("SiglipVisionModel", "siglip_vision_model", "attention"),
)


class Native(NamedTuple):
    """A network as another library has it: its class there, `config.json`, tensors, and what is to be known of it."""

    kind: str
    config: dict[str, Any]
    tensors: Tensors
    notes: tuple[str, ...]


def as_transformers(network: ViT, names: tuple[str, ...], problem: str) -> Native:
    """The network as the first of transformers' that can express it.

    Args:
        network: On the CPU.
        names: Of its outputs; none where they have none.
        problem: The `problem_type` there.

    Raises:
        UsageError: None can: in what the nearest differs.
    """
    own = _facts_of(network, "transformers")
    kind, made, facts, differing = _nearest(network.config, own, names, problem)
    if differing:
        raise _refusal("transformers", kind.name, differing, facts, own, network)
    tensors, notes = _filled(network, facts)
    config, width = network.config, network.config.width
    if kind.pooling != own["pooling"]:  # of two tokens one is read
        halves = [tensors["head.weight"], torch.zeros(config.classes, width)]
        tensors["head.weight"] = torch.cat(halves if own["pooling"] == "class" else halves[::-1], dim=1)
        notes += (f"its head there reads the class token and the mean; {own['pooling']} is read here, the rest is 0",)
    front = int(config.class_token) + (kind.model == "deit")  # tokens that have a position there
    if config.prefix > front:
        positions = tensors["pos_embed"]
        tensors["reg_token"] = tensors["reg_token"] + positions[:, front : config.prefix]
        tensors["pos_embed"] = torch.cat([positions[:, :front], positions[:, config.prefix :]], dim=1)
    if kind.model == "deit" and "reg_token" in tensors:
        tensors["dist_token"] = tensors.pop("reg_token")
    if not kind.last_norm:  # which is there all the same
        tensors |= {"norm.weight": torch.ones(width), "norm.bias": torch.zeros(width)}
    heads = [name for name in tensors if name.startswith("head")]
    named = kind.rules(own["gated_mlp"])
    found = names_back(named, {name: tensors[name] for name in heads})
    body = names_back(named, {name: tensor for name, tensor in tensors.items() if name not in heads})
    if kind.model.startswith("dinov2"):
        body["embeddings.mask_token"] = torch.zeros(1, width)
    if kind.name in ("ViTModel", "DeiTModel"):  # whose pooler would be drawn: it gives what it reads
        body |= {"pooler.dense.weight": torch.eye(width), "pooler.dense.bias": torch.zeros(width)}
    if facts["position_resize"] != config.position_resize and config.positions == "learned":
        rules = facts["position_resize"], config.position_resize
        notes += ("at another image size positions are resized there by the rule {}, not by {}".format(*rules),)
    return Native(kind.name, made, found | {kind.prefix + name: each for name, each in body.items()}, notes)


def as_torchvision(network: ViT, names: tuple[str, ...]) -> Native:
    """The network as torchvision's VisionTransformer; `config.json` holds the arguments of its class.

    Args:
        network: On the CPU.
        names: Of its outputs.

    Raises:
        UsageError: It cannot be expressed: in what it differs.
    """
    own, config = _facts_of(network, "torchvision"), network.config
    values = vars(config) | {"image_size": config.image[0], "patch_size": config.patch[0], "mlp_dim": config.mlp_width}
    stated = {"torchvision": {theirs: values[ours] for theirs, ours in ARGUMENTS.items()}, "categories": list(names)}
    facts = {**TORCHVISION.assumed, "distillation_token": False, **(TORCHVISION.of_config(stated) or {})}
    facts |= {"classes": config.classes or "at least 1"}
    if differing := _differing(facts, own):
        raise _refusal("torchvision", "VisionTransformer", differing, facts, own, network)
    tensors, notes = _filled(network, facts)
    return Native("VisionTransformer", stated, names_back(TORCHVISION.rules, tensors), notes)


def _nearest(
    config: ViTConfig, own: Facts, names: tuple[str, ...] = (), problem: str = ""
) -> tuple[NativeKind, dict[str, Any], Facts, list[str]]:
    """The kind that differs in the fewest facts; its `config.json`, what loading reads in that, and those facts."""
    found = []
    for kind in KINDS:
        if bool(kind.head) == bool(config.classes):
            made = _config_of(kind, config, own["gated_mlp"], names, problem)
            stated = _stated(kind, made)
            found.append((kind, made, stated, _differing(stated, own)))
    return min(found, key=lambda each: len(each[3]))


def _config_of(
    kind: NativeKind, config: ViTConfig, gated: bool, names: tuple[str, ...], problem: str
) -> dict[str, Any]:
    """The `config.json` of a kind, as near to this network as it can be."""
    own: dict[str, Any] = {theirs: getattr(config, ours) for theirs, ours in FIELDS.items()}
    sizes = {"image_size": config.image, "patch_size": config.patch}
    own |= {name: size[0] if kind.tower else side_of(size) for name, size in sizes.items()}
    own |= {"hidden_act": FIRST[config.activation]}
    if kind.model.startswith("dinov2"):
        ratio = config.mlp_width / config.width
        own |= {"mlp_ratio": round(1.5 * ratio if gated else ratio), "use_swiglu_ffn": gated}
    else:
        own["intermediate_size"] = config.mlp_width
    if not kind.tower:
        own["qkv_bias"] = config.qkv_bias
    if kind.model == "dinov2_with_registers":
        own["num_register_tokens"] = max(1, config.registers)
    if kind.name in ("ViTModel", "DeiTModel"):
        own |= {"pooler_act": "linear", "pooler_output_size": config.width}
    if kind.name == "CLIPVisionModelWithProjection":
        own["projection_dim"] = config.classes
    if kind.name.startswith("Siglip"):
        own["vision_use_head"] = not kind.head
    inside = kind.tower and CLASSIFIER in kind.name
    found = {"architectures": [kind.name], "model_type": kind.model, "dtype": "float32"}
    found |= {"vision_config": {"model_type": f"{kind.model}_vision_model", **own}} if inside else own
    if CLASSIFIER in kind.name:
        labels = names or [f"LABEL_{number}" for number in range(config.classes)]
        found |= {"id2label": dict(enumerate(labels)), "label2id": {name: number for number, name in enumerate(labels)}}
        found["problem_type"] = problem
    return found


def _stated(kind: NativeKind, config: Mapping[str, Any]) -> Facts:
    """What loading reads in the `config.json` of a kind, and what its tensors would show."""
    read = of_config(config) or {}
    head = {} if kind.head else {"classes": 0}
    return {"distillation_token": False, **read, "pooling": kind.pooling, "last_norm": kind.last_norm, **head}


def _facts_of(network: ViT, library: str) -> Facts:
    """The same of a network of ours.

    Raises:
        UsageError: It has what no kind has.
    """
    config, parts = network.config, names_of(network.parts)
    if others := _own_parts(network):
        raise UsageError(f"{library} has no ViT with {', '.join(others)}", elsewhere(network, library))
    own = {each.name: getattr(config, each.name) for each in fields(config)} | {"mlp_dim": config.mlp_width}
    own |= {"image_size": config.image, "patch_size": config.patch}
    own["positions"] = "none" if config.positions == "none" else "learned"  # a table of numbers, wherever from
    return {**own, **shown_by(own, parts), "pooling": parts.get("pooling", config.pooling)}


def _own_parts(network: ViT) -> list[str]:
    """What no network of transformers or torchvision has."""
    config, known = network.config, {*EXPRESSIBLE, *OF_TWO}
    others = [f"{slot} {name}" for slot, name in names_of(network.parts).items() if (slot, name) not in known]
    others += ["rotary positions"] * (config.rotary is not None)
    return others + ["heads that do not make up its width"] * (config.heads * config.head_width != config.width)


def _differing(facts: Facts, own: Facts) -> list[str]:
    """The facts in which a kind differs from this network so that nothing fills it."""
    both = {name: (facts[name], own[name]) for name in COMPARED if name in facts}
    if not own["classes"]:
        both.pop("head_bias", None)
    if facts["pooling"] == "class_and_mean" and own["pooling"] in ("class", "mean"):
        del both["pooling"]
    differing = [name for name, (there, here) in both.items() if side_of(there) != side_of(here)]
    lacking = {name for name in differing if name in NEUTRAL and (facts[name] is True or own[name] == "none")}
    return [name for name in differing if name not in lacking]


def _filled(network: ViT, facts: Facts) -> tuple[Tensors, tuple[str, ...]]:
    """All tensors that a kind has, under our names: what this network lacks changes nothing."""
    config, found = network.config, dict(network.state_dict())
    more = {name: value for name in NEUTRAL if (value := facts.get(name)) and getattr(config, name) in (False, "none")}
    if not config.classes:
        more.pop("head_bias", None)
    if not more:
        return found, ()
    values: dict[str, Any] = {name: 1.0 if name == "layer_scale" else value for name, value in more.items()}
    with without_numbers():
        shapes = ViT(replace(config, **values), network.parts).state_dict()
    for name in shapes.keys() - found.keys():
        found[name] = (torch.ones if name.endswith("gamma") else torch.zeros)(shapes[name].shape)
    words = ", ".join(name.replace("_", " ") for name in more)
    return found, (f"always there and not here, so filled with what changes nothing: {words}",)


def elsewhere(network: ViT, library: str) -> Hint:
    """Another target that can express a network."""
    if library != "timm" and not timm_misfit(network.config, names_of(network.parts)):
        return Hint({"to": "timm"}, text="which transformers opens, too, where timm is installed")
    fits = not _own_parts(network) and not _nearest(network.config, _facts_of(network, library))[3]
    if library != "transformers" and fits:
        return Hint({"to": "transformers"})
    return Hint({"to": "onnx"}, text="which keeps every part")


def _refusal(library: str, kind: str, names: list[str], facts: Facts, own: Facts, network: ViT) -> UsageError:
    there, here = (", ".join(f"{name} {as_word(each[name])}" for name in names) for each in (facts, own))
    problem = f"{library} cannot express this network: the nearest, {kind}, has {there}; this one has {here}"
    return UsageError(problem, elsewhere(network, library))

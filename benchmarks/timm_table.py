"""Writes `src/vitrail/weights/timm_table.json`: what timm says of those of its networks that are plain ViTs here.

    python benchmarks/timm_table.py

Every network of timm's ViT, DeiT and EVA files is made with two of its blocks, for a small image, every parameter
drawn, and converted: one that `vitrail.weights.convert` refuses, because a part is unknown or the answers differ, is
left out. A row holds what no tensor says, what the network is made of where a plain ViT is not, and for each published
set of weights its repository, licence, preprocessing and number of classes. Those of CLIP, or behind a norm before the
blocks, for which timm has no list of names are no classes.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import timm
import torch
from timm.data import infer_imagenet_subset
from timm.models import get_pretrained_cfg

from vitrail.errors import VitrailError
from vitrail.nn import names_of
from vitrail.weights.convert import convert_network
from vitrail.weights.family import HEAD, USUAL
from vitrail.weights.infer import shown_by
from vitrail.weights.timm import TIMM, preprocessing_of

OUT = Path(__file__).parents[1] / "src" / "vitrail" / "weights" / "timm_table.json"
ASKED = ("heads", "norm_eps", "activation", "image_size", "patch_size", "pooling")


def row(name: str) -> dict[str, Any] | None:
    """What the table says of an architecture; None where it is no ViT of the plain form.

    Raises:
        VitrailError: If it does not open, or answers otherwise.
    """
    with torch.device("meta"):
        network: Any = timm.create_model(name)
    facts = TIMM.of_module(network)
    if facts is None:
        return None
    torch.manual_seed(0)
    small: Any = timm.create_model(name, depth=2, img_size=tuple(4 * side for side in facts["patch_size"])).eval()
    with torch.no_grad():
        for parameter in small.parameters():
            parameter.normal_(std=1.2 * parameter[0].numel() ** -0.5 if parameter.ndim > 1 else 0.3)
    plain = convert_network(small).network
    is_clip, tags = "norm_pre.weight" in network.state_dict() or "_clip_" in name, {}
    for full in timm.list_pretrained(f"{name}.*"):
        published = get_pretrained_cfg(full).to_dict()
        if published.get("hf_hub_id"):
            tags[full.partition(".")[2]] = {
                "hub": published["hf_hub_id"].removesuffix("/") if "/" in published["hf_hub_id"] else full,
                "licence": published.get("license", ""),
                "classes": published["num_classes"],
                **({"projection": True} if is_clip and _has_unnamed_outputs(published) else {}),
                "preprocessing": preprocessing_of(published).to_dict(),
            }
    first = getattr(get_pretrained_cfg(name), "tag", "")
    ordered = {tag: tags[tag] for tag in sorted(tags, key=lambda tag: (tag != first, tag))}
    count = sum(parameter.numel() for parameter in network.parameters())
    asked = [*ASKED, "distillation_token"] if facts["distillation_token"] else ASKED
    shown = {**shown_by(asdict(plain.config), names_of(plain.parts)), "depth": len(network.blocks)}
    made = {key: shown[key] for key in sorted(shown) if key not in HEAD and shown[key] != USUAL.get(key)}
    made |= {"rotary": asdict(facts["rotary"])} if facts["rotary"] else {}
    return {"facts": {**{key: facts[key] for key in asked}, **made}, "parameters": count, "tags": ordered}


def _has_unnamed_outputs(published: dict[str, Any]) -> bool:
    return published["num_classes"] > 0 and infer_imagenet_subset(published) is None


def main() -> None:
    """Ask every network, and write those that open."""
    table, left_out = {}, {}
    files = ("vision_transformer", "deit", "eva")
    for name in sorted({name for file in files for name in timm.list_models(module=file)}):
        try:
            found = row(name)
        except VitrailError as error:
            left_out[name] = error.problem
            continue
        if found:
            table[name] = found
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in table.items())
    OUT.write_text(f"{{\n{lines}\n}}\n")
    count = sum(len(found["tags"]) for found in table.values())
    print(f"timm {timm.__version__}: {len(table)} architectures, {count} weights")
    for name, reason in left_out.items():
        print(f"left out: {name}: {reason[:150]}")


if __name__ == "__main__":
    main()

"""Writes `src/vitrail/weights/timm_table.json`: what timm says of those of its networks that are plain ViTs here.

    python benchmarks/timm_table.py

Every network of timm's ViT and DeiT files is made without numbers and asked as `vitrail.convert` asks a live one; those
with tensors that no rule knows are left out. A row holds what no tensor says, and for each published set of weights its
repository, licence, preprocessing and number of classes.
"""

import json
from pathlib import Path
from typing import Any

import timm
import torch
from timm.models import get_pretrained_cfg

from vitrail.errors import VitrailError
from vitrail.weights.family import renamed
from vitrail.weights.timm import TIMM, preprocessing_of

OUT = Path(__file__).parents[1] / "src" / "vitrail" / "weights" / "timm_table.json"
ASKED = ("heads", "norm_eps", "activation", "image_size", "patch_size", "pooling")


def row(name: str) -> dict[str, Any] | None:
    """What the table says of an architecture; None where it is no plain ViT, or nothing is published of it."""
    with torch.device("meta"):
        network = timm.create_model(name)
    facts = TIMM.of_module(network)
    if facts is None or facts["pooling"] not in ("class", "mean", "mean_then_norm", "attention"):
        return None
    renamed(TIMM, network.state_dict(), name)
    tags = {}
    for full in timm.list_pretrained(f"{name}.*"):
        published = get_pretrained_cfg(full).to_dict()
        if published.get("hf_hub_id"):
            tags[full.partition(".")[2]] = {
                "hub": published["hf_hub_id"].removesuffix("/") if "/" in published["hf_hub_id"] else full,
                "licence": published.get("license", ""),
                "classes": published["num_classes"],
                "preprocessing": preprocessing_of(published).to_dict(),
            }
    if not tags:
        return None
    first = get_pretrained_cfg(name).tag
    ordered = {tag: tags[tag] for tag in sorted(tags, key=lambda tag: (tag != first, tag))}
    count = sum(parameter.numel() for parameter in network.parameters())
    return {"facts": {key: facts[key] for key in ASKED}, "parameters": count, "tags": ordered}


def main() -> None:
    """Ask every network, and write those that open."""
    table, left_out = {}, {}
    for name in sorted({*timm.list_models(module="vision_transformer"), *timm.list_models(module="deit")}):
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

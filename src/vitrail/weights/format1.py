"""Model and run folders of formats 1 and 2, written until version 0.1.0, in the terms of today. Never written.

model/config.json       of format 2: what stands under `vitrail` stood at the top, between the keys of timm
                        of format 1: no task, the kind of network said it; class names or vocabularies at the top
config.yaml of a run    `task` only for sequences, whose `label_smoothing` and `background` stood at the top;
                        `references` for what is called background now, and `background` for the `pad_value` of a
                        preprocessing, of format 2 as well
"""

from collections.abc import Mapping
from typing import Any

from vitrail.data.preprocessing import current_keys


def model_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """`config.json` of format 1 or 2 as today's; raises KeyError or TypeError where it is damaged."""
    if config["format"] == 2:
        return dict(config)
    network = dict(config["network"])
    if network["kind"] == "ViT":
        task, output, source, facts = "classify", {"classes": config["classes"]}, None, {}
    else:
        task, output, source = "sequences", config["vocabulary"], config.get("source_vocabulary")
        facts = {"label_smoothing": float(config.get("label_smoothing", 0.0))}
        if longest := int(config.get("longest_source", 0)):
            facts["longest_source"] = longest
    return {
        "task": task,
        "network": network,
        "parts": config.get("parts", ""),
        "input": source,
        "output": output,
        "facts": facts,
    }


def run_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """`config.yaml` of format 1, whole or in part, as today's; what is of today is left as it is."""
    new = dict(values)
    if new.get("task") == "sequences" and "background" in new and not isinstance(new["background"], bool):
        new["pad_value"] = new.pop("background")
    if "references" in new:
        new["background"] = new.pop("references")
    if new.get("task") == "sequences" and "label_smoothing" in new and "augmentation" not in new:
        new["augmentation"] = {"label_smoothing": new.pop("label_smoothing")}
    initial = new.get("initial")
    if isinstance(initial, dict) and isinstance(initial.get("reads"), dict):
        new["initial"] = {**initial, "reads": current_keys(initial["reads"])}
    network = new.get("network")
    if isinstance(network, dict) and "kind" not in network and (kind := _kind(network)):
        new["network"] = {"kind": kind, **network}
    return new


def _kind(network: Mapping[str, Any]) -> str:
    """The kind of network that has these keys; empty where several might."""
    if "encoder" in network:
        return "ImageToSequence"
    if network.keys() & {"source_vocabulary", "target_vocabulary", "encoder_depth", "embeddings"}:
        return "Transformer"
    return "ViT" if network.keys() & {"depth", "image_size", "patch_size", "classes"} else ""

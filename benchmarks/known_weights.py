"""Adds a row to `src/vitrail/weights/known_weights.json`: weights that were really run, and what they answered.

    python benchmarks/known_weights.py timm vit_tiny_patch16_224.augreg_in21k_ft_in1k FILE.safetensors imagenet

The library named builds the network, reads the file and answers two images drawn from a seed, a loud and a faint one;
the row, found by a hash of the tensors, holds these answers, the preprocessing and the licence that the library states.
It is written only where vitrail's network answers alike.
"""

import json
import sys
from pathlib import Path

import timm
import torch
from timm.models import get_pretrained_cfg, load_checkpoint

from vitrail.weights.convert import convert_network
from vitrail.weights.published import drawn_images, sample_logits
from vitrail.weights.timm import preprocessing_of

OUT = Path(__file__).parents[1] / "src" / "vitrail" / "weights" / "known_weights.json"


def main(library: str, name: str, file: str, classes: str) -> None:
    """Run the original, and write what it answered."""
    assert library == "timm", "the only library that a row was made with so far"
    network = timm.create_model(name).eval()
    load_checkpoint(network, file)
    converted = convert_network(network)
    published = get_pretrained_cfg(name).to_dict()
    preprocessing = preprocessing_of(published)
    with torch.no_grad():
        logits = sample_logits(network(drawn_images(preprocessing)))
    row = {
        "name": f"timm:{name}",
        "by": f"timm {timm.__version__}",
        "classes": classes,
        "licence": published.get("license", ""),
        "preprocessing": preprocessing.to_dict(),
        "logits": [[round(float(value), 6) for value in one] for one in logits],
    }
    rows = json.loads(OUT.read_text())
    rows[converted.digest] = row
    OUT.write_text("{\n" + ",\n".join(f"{json.dumps(key)}: {json.dumps(row)}" for key, row in rows.items()) + "\n}\n")
    print(f"{row['name']}: gap of the conversion {converted.gap:.1e}, logits of {len(row['logits'])} images written")


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Where each network of the families' suite can go: what `test_layouts` tests, and the tables of the pages.

python -m tests.deploy.where     # writes them anew, between the marks of README and docs/export.md
"""

from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
START, END = "<!-- made by `python -m tests.deploy.where` -->", "<!-- end -->"
CLASSIFIES = "ForImageClassification"


class Where(NamedTuple):
    """Of a row: its class in transformers, where that has one; and whether timm has the network."""

    transformers: str | None
    timm: bool = True

    @property
    def torchvision(self) -> bool:
        """Whether torchvision's one network has it."""
        return self.transformers == f"ViT{CLASSIFIES}"


KINDS = {  # in every run of the tests
    "timm Ti/16": Where(f"ViT{CLASSIFIES}"),
    "timm S/8, non-square image": Where("ViTModel"),
    "timm global_pool='avg'": Where(None),
    "timm DeiT, distilled": Where(f"DeiT{CLASSIFIES}WithTeacher"),
    "timm SigLIP": Where("SiglipVisionModel"),
    "timm CLIP": Where(None),
    "timm DINOv2 with registers": Where("Dinov2WithRegistersModel"),
    "timm DINOv2 giant": Where("Dinov2Model"),
    "transformers ViT": Where(f"ViT{CLASSIFIES}", timm=False),
    "transformers DeiT": Where(f"DeiT{CLASSIFIES}", timm=False),
    "transformers DINOv2 classifier": Where(f"Dinov2{CLASSIFIES}", timm=False),
    "transformers DINOv2 with registers": Where(f"Dinov2WithRegisters{CLASSIFIES}", timm=False),
    "transformers CLIP": Where("CLIPVisionModel"),
    "transformers CLIPVisionModelWithProjection": Where("CLIPVisionModelWithProjection"),
    "transformers CLIP classifier": Where(f"CLIP{CLASSIFIES}"),
    "transformers SigLIP classifier": Where(f"Siglip{CLASSIFIES}"),
    "transformers MAE": Where("ViTModel", timm=False),
    "transformers DINOv3 giant": Where(None, timm=False),
    "torchvision": Where(f"ViT{CLASSIFIES}"),
}
MORE = {  # rows that differ little from those above: in the long tests
    "timm B/32": Where(f"ViT{CLASSIFIES}"),
    "timm L/14": Where(f"ViT{CLASSIFIES}"),
    "timm DeiT": Where(f"ViT{CLASSIFIES}"),
    "timm DINO": Where("ViTModel"),
    "timm MAE": Where("ViTModel"),
    "transformers ViT without head": Where("ViTModel", timm=False),
    "timm DINOv2": Where("Dinov2Model"),
    "transformers DINOv2": Where("Dinov2Model"),
    "timm DeiT-III": Where(f"Dinov2{CLASSIFIES}"),
    "timm global_pool='avg', fc_norm=False": Where(f"Dinov2{CLASSIFIES}"),
    "transformers SigLIP": Where("SiglipVisionModel"),
    "Google big_vision": Where("SiglipVisionModel"),
    "transformers DeiTForImageClassificationWithTeacher": Where(f"DeiT{CLASSIFIES}WithTeacher", timm=False),
    "transformers CLIPModel": Where("CLIPVisionModelWithProjection"),
    "Google google-research/vision_transformer": Where(f"ViT{CLASSIFIES}"),
    "transformers DINOv3": Where(None, timm=False),
    "transformers DINOv3 without registers, non-square image": Where(None, timm=False),
    "transformers DINOv3 without biases": Where(None, timm=False),
    "transformers AIMv2": Where(None, timm=False),
    "transformers AIMv2 with biases": Where(None, timm=False),
    "transformers AIMv2 without head": Where(None, timm=False),
    "timm EVA": Where(None, timm=False),
    "timm EVA-02 Ti": Where(None, timm=False),
    "timm EVA-02 B": Where(None, timm=False),
    "timm EVA-02 CLIP": Where(None, timm=False),
    "timm DINOv3": Where(None, timm=False),
    "timm DINOv3 S+, non-square image": Where(None, timm=False),
    "timm DINOv3 or EUPE with biases, class token": Where(None, timm=False),
    "timm Perception Encoder, core": Where(None, timm=False),
    "timm Perception Encoder, lang": Where(None, timm=False),
    "timm Perception Encoder, spatial": Where(None, timm=False),
    "timm RoPE-ViT, axial": Where(None, timm=False),
    "timm RoPE-ViT, axial with positions": Where(None, timm=False),
    "timm ViT with rotary positions and registers": Where(None, timm=False),
    "timm qk_norm=True": Where(None, timm=False),
}


def short() -> list[str]:
    """The table of README."""
    rows = {**KINDS, **MORE}.values()
    of = {
        "transformers": sum(row.transformers is not None for row in rows),
        "timm": sum(row.timm for row in rows),
        "torchvision": sum(row.torchvision for row in rows),
    }
    opens = {
        "transformers": "a folder for `AutoModel` and `AutoImageProcessor`",
        "timm": '`timm.create_model("local-dir:FOLDER", pretrained=True)`',
        "torchvision": "a state dict and the arguments of its `VisionTransformer`",
    }
    first = "one file that takes pixels, read by `predict.py` and `predict.js` beside it, without vitrail"
    lines = ["| `--to` | what is written | which networks | seen before it has its name |", "|---|---|---|---|"]
    there = "onnxruntime in Python, and in node where that is installed, answers image files alike"
    lines.append(f"| `onnx` | {first} | any that torch traces | {there} |")
    for name, count in of.items():
        seen = "the library opens it and gives the same logits"
        lines.append(f"| `{name}` | {opens[name]} | {count} of {len(rows)} kinds of other libraries | {seen} |")
    return lines


def whole() -> list[str]:
    """The table of docs/export.md."""
    lines = ["| network, as it came | transformers | timm | torchvision |", "|---|---|---|---|"]
    for name, row in {**KINDS, **MORE}.items():
        kind = f"`{row.transformers}`" if row.transformers else "no"
        lines.append(f"| {name} | {kind} | {'yes' if row.timm else 'no'} | {'yes' if row.torchvision else 'no'} |")
    return lines


PAGES = {ROOT / "README.md": short, ROOT / "docs" / "export.md": whole}


def written(text: str, lines: list[str]) -> str:
    """A page with these lines between its marks."""
    before, _, rest = text.partition(f"{START}\n")
    return f"{before}{START}\n" + "\n".join(lines) + f"\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    for page, lines in PAGES.items():
        page.write_text(written(page.read_text(encoding="utf-8"), lines()), encoding="utf-8")

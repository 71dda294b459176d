"""Writes `docs/weights.md` and a table of README.md: which weights open, how far our logits lie from their source's.

    python -m benchmarks.weights_page

Every row of the conformance suite (`tests/weights/families.py`, and vit-pytorch's beside it) is made by its peer's own
code with redrawn numbers, opened live and from its files, and asked about the same images.
"""

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
import torchvision
import transformers
from PIL import Image
from safetensors.torch import load_file, save_file

import vitrail
from benchmarks.measure import machine
from tests.weights.families import ROWS, answer
from tests.weights.redraw import redrawn
from tests.weights.vit_pytorch_reference import PINNED, SIMPLE, SMALL as CLASS, TODAY, ask, sizes
from vitrail.data.preprocessing import Preprocessing, from_hugging_face
from vitrail.errors import VitrailError
from vitrail.weights.family import NETWORKS
from vitrail.weights.places import timm_table
from vitrail.weights.published import GAP, known_table
from vitrail.weights.timm import preprocessing_of as of_timm
from vitrail.weights.torchvision import preprocessing_of as of_torchvision

ROOT = Path(__file__).parents[1]
PAGE, README = ROOT / "docs" / "weights.md", ROOT / "README.md"
START, END = "<!-- made by benchmarks/weights_page.py -->", "<!-- end -->"
TYPED = {  # source of rows: what is typed
    "timm": "`timm:NAME`, `hf:OWNER/NAME`, a folder, `.safetensors`",
    "transformers": "`hf:OWNER/NAME`, a folder, `.safetensors`, `.bin`",
    "torchvision": "`torchvision:NAME`, `.pth`",
    "Google": "`.npz`",
    "vit-pytorch": "`vitrail.convert(network)`; `.pt` with its sizes given",
}
TORCHVISION = {"vit_b_16": 12, "vit_b_32": 12, "vit_l_16": 16, "vit_h_14": 16}  # in full size, with their heads
PROCESSOR = {  # whose preprocessing images of a row go through, by how its name begins; the first that fits
    "timm": "timm",
    "transformers DINOv2": "transformers, BitImageProcessor",
    "transformers DINOv3": "transformers, DINOv3ViTImageProcessor",
    "transformers DeiT": "transformers, DeiTImageProcessor",
    "transformers CLIP": "transformers, CLIPImageProcessor",
    "transformers AIMv2": "transformers, CLIPImageProcessor",
    "transformers SigLIP": "transformers, SiglipImageProcessor",
    "transformers": "transformers, ViTImageProcessor",
    "torchvision": "torchvision",
}
VIT_PYTORCH = (("ViT", TODAY, CLASS), ("SimpleViT", TODAY, SIMPLE), (f"ViT of {PINNED}", PINNED, CLASS))
SMALL = {"embed_dim": 48, "depth": 2, "num_heads": 3, "img_size": 32, "patch_size": 16}
WINDOWED = {"embed_dim": 8, "depths": [1, 1], "num_heads": [1, 2], "image_size": 32, "patch_size": 4, "window_size": 4}
OTHERS: dict[str, tuple[Callable[[], torch.nn.Module], str]] = {  # networks that are refused, and what serves them
    "RoPE-ViT, mixed": (
        lambda: timm.create_model("vit_small_patch16_rope_mixed_224", **SMALL),
        "timm (`vit_small_patch16_rope_mixed_224` ...); or the axial `vit_small_patch16_rope_224`, which opens",
    ),
    "EVA-02 CLIP, enormous": (
        lambda: timm.create_model("eva02_enormous_patch14_clip_224", **SMALL),
        "timm (`eva02_enormous_patch14_clip_224`); or `eva02_large_patch14_clip_336`, which opens",
    ),
    "Sapiens2": (
        lambda: timm.create_model("vit_base_patch16_sapiens2", **SMALL, num_kv_heads=1),
        "timm (`vit_base_patch16_sapiens2` ...)",
    ),
    "DINOv3, ConvNeXt": (
        lambda: timm.create_model("convnext_tiny", depths=[1] * 4, dims=[8] * 4),
        "timm (`convnext_tiny.dinov3_lvd1689m` ...); or `vit_small_patch16_dinov3`, which opens",
    ),
    "Swin": (
        lambda: transformers.SwinModel(transformers.SwinConfig(**WINDOWED)),
        "timm (`swin_tiny_patch4_window7_224` ...), transformers (`SwinModel`), torchvision (`swin_t` ...)",
    ),
    "BEiT": (
        lambda: timm.create_model("beit_base_patch16_224", **SMALL),
        "timm (`beit_base_patch16_224` and its sizes), transformers (`BeitModel`)",
    ),
    "NaFlex": (
        lambda: timm.create_model("naflexvit_base_patch16_gap", embed_dim=48, depth=2, num_heads=3),
        "timm (`naflexvit_base_patch16_gap` ...)",
    ),
}
FEW = 16  # architectures of a licence that are listed
REAL = "timm vit_tiny_patch16_224, the real one"
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def gap(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """The largest difference, relative to the largest number."""
    return float((ours - theirs).abs().max() / theirs.abs().max())


@torch.no_grad()
def gaps(name: str, folder: Path) -> tuple[str, str]:
    """Of a row: live, and from its files."""
    row = ROWS[name]
    module, files = row.make(folder)
    live = vitrail.convert(module, preprocessing=Preprocessing(row.size, mean=MEAN, std=STD))
    images = torch.randn(3, 3, *live.network.config.image, generator=torch.Generator().manual_seed(7))
    opened = vitrail.load(files, assume=row.assume or None, preprocessing=live.preprocessing)
    theirs = answer(module, images)
    return f"{gap(live.network(images), theirs):.0e}", f"{gap(opened.network(images), theirs):.0e}"


@torch.no_grad()
def torchvision_gaps(name: str, heads: int, folder: Path) -> tuple[str, str]:
    """Of one of torchvision's own networks, in the size that it has."""
    module = redrawn(torchvision.models.get_model(name))
    images = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(7))
    theirs, reads = module(images), Preprocessing((224, 224), mean=MEAN, std=STD)
    live = gap(vitrail.convert(module, preprocessing=reads).network(images), theirs)
    save_file(module.state_dict(), folder / "network.safetensors")
    del module
    opened = vitrail.load(folder / "network.safetensors", assume={"heads": heads}, preprocessing=reads)
    return f"{live:.0e}", f"{gap(opened.network(images), theirs):.0e}"


@torch.no_grad()
def real_gaps(data: Path) -> tuple[str, str]:
    """Of the real ViT-Ti/16 beside timm's own network with its tensors."""
    file = data / "vit_ti16" / "model.safetensors"
    module = timm.create_model("vit_tiny_patch16_224", num_classes=1000).eval()
    module.load_state_dict(load_file(file))
    images = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(7))
    opened = vitrail.load(file)
    live = vitrail.convert(module, preprocessing=opened.preprocessing)
    theirs = module(images)
    return f"{gap(live.network(images), theirs):.0e}", f"{gap(opened.network(images), theirs):.0e}"


@torch.no_grad()
def vit_pytorch_gaps(version: str, form: dict[str, Any], folder: Path) -> tuple[str, str]:
    """Of a network of vit-pytorch, which is installed into the folder, and answers in a process of its own."""
    (out := folder / "out").mkdir()
    theirs = ask(version, {"network": form}, folder / version, out)["network"]
    save_file(theirs.state, folder / "network.safetensors")
    size = (form["image_size"],) * 2
    reads = Preprocessing(size, mean=MEAN, std=STD)
    opened = vitrail.load(folder / "network.safetensors", assume=sizes(form), preprocessing=reads)
    return f"{theirs.gap:.0e}", f"{gap(opened.network(theirs.images), theirs.logits):.0e}"


def some_images() -> list[Image.Image]:
    """Images with edges and grain, of sizes with rests of every kind."""
    rng, found = np.random.default_rng(0), []
    for height, width in ((375, 500), (501, 334), (300, 299)):
        coarse = Image.fromarray(rng.integers(0, 256, (9, 12, 3), dtype=np.uint8)).resize((width, height), 0)
        pixels = np.asarray(coarse) + rng.normal(0, 6, (height, width, 3))
        found.append(Image.fromarray(pixels.clip(0, 255).astype(np.uint8)))
    return found


def preprocessing_gaps() -> dict[str, str]:
    """Of each source: the largest difference of a pixel, in levels of 255."""
    config = {"input_size": (3, 224, 224), "interpolation": "bicubic", "mean": MEAN, "std": STD, "crop_pct": 0.9}
    resolved = timm.data.resolve_data_config({}, pretrained_cfg=config)
    sources: dict[str, tuple[Preprocessing, Any]] = {
        "timm": (of_timm(config), timm.data.create_transform(**resolved)),
    }
    for kind in ("ViT", "DeiT", "CLIP", "Bit", "Siglip", "DINOv3ViT"):
        name = f"{kind}ImageProcessor"
        processor = getattr(transformers, name if kind == "DINOv3ViT" else f"{name}Pil")()  # of which there is one
        keys = {**processor.to_dict(), "image_processor_type": f"{kind}ImageProcessor"}
        sources[f"transformers, {kind}ImageProcessor"] = (
            from_hugging_face(keys),
            lambda image, processor=processor: processor(image, return_tensors="pt")["pixel_values"][0],
        )
    preset: Any = torchvision.models.get_weight("ViT_B_16_Weights.IMAGENET1K_V1").transforms()
    sources["torchvision"] = (of_torchvision(preset), preset)
    found = {}
    for name, (ours, theirs) in sources.items():
        std = torch.tensor(ours.std)[:, None, None]
        apart = max(float(((ours(one) - theirs(one)).abs() * std * 255).max()) for one in some_images())
        found[name] = f"{apart:.2f}"
    return found


def _source(name: str) -> str:
    return next(each for each in TYPED if name.startswith(each))


def line(name: str, gaps_of: tuple[str, str], pixels: Mapping[str, str]) -> str:
    """A row of the table: source, network, gaps of logits, gap of preprocessing."""
    source = _source(name)
    network = name.removeprefix(source).strip() or "ViT"
    processor = next((theirs for begins, theirs in PROCESSOR.items() if name.startswith(begins)), "")
    return f"| {source} | {network} | {' | '.join(gaps_of)} | {pixels.get(processor, 'the library states none')} |"


def verifications() -> list[str]:
    """Who says that what is opened answers as its original, by how it came."""
    return [
        "| what is opened | how it is known that it computes what the original does |",
        "|---|---|",
        f"| a live network, `vitrail.convert(module)` | compared on the spot: the outputs of both for the same images "
        f"differ by at most {GAP:.0e}, and again with random weights of which all matter, positions as well, or "
        "nothing is returned |",
        "| known weights (the table below), in any file format | compared with the original's outputs for two images "
        f"drawn from a seed: at most {GAP:.0e} apart |",
        "| any other file, folder or name in a hub | not known: it is opened by rules that are tested on the networks "
        "above, and its own numbers were compared with nothing |",
    ]


def licences() -> list[str]:
    """Under which licence the weights that open by name were published, with the architectures of the rarer ones."""
    under: dict[str, list[str]] = {}
    for architecture, row in timm_table().items():
        for about in row["tags"].values():
            under.setdefault(about["licence"] or "not stated", []).append(f"`{architecture}`")
    lines = ["| licence, shown before the first answer | published weights | architectures |", "|---|---|---|"]
    for licence, names in sorted(under.items(), key=lambda each: -len(each[1])):
        few = [*dict.fromkeys(names)]
        shown = ", ".join(few) if len(few) <= FEW else f"{few[0]} ... and {len(few) - 1} others"
        lines.append(f"| {licence} | {len(names)} | {shown} |")
    return lines


def others() -> list[str]:
    """Networks that are refused, each tried, and what serves them."""
    lines = ["| not opened | because of | use instead |", "|---|---|---|"]
    for name, (make, tool) in OTHERS.items():
        try:
            vitrail.convert(make())
        except VitrailError as error:
            (why,) = (why for why in {*NETWORKS.values()} if why in error.problem)
            lines.append(f"| {name} | {why} | {tool} |")
        else:
            raise SystemExit(f"{name} is listed as not opened, and opens")
    return lines


def short(rows: Mapping[str, tuple[str, str]]) -> list[str]:
    """A line for each source: what is typed, how many networks were opened, and the largest gap of all of them."""
    lines = ["| weights of | how to name them | networks compared | largest logit gap |", "|---|---|---|---|"]
    for source, typed in TYPED.items():
        own = [each for name, each in rows.items() if name.startswith(source) and name != REAL]
        largest = max((gap for each in own for gap in each), key=float)
        lines.append(f"| {source} | {typed} | {len(own)} | {largest} |")
    return lines


def written(page: Path, lines: Sequence[str]) -> None:
    """Put lines between the marks of a page."""
    before, _, rest = page.read_text(encoding="utf-8").partition(START)
    page.write_text(f"{before}{START}\n" + "\n".join(lines) + f"\n{END}{rest.partition(END)[2]}", encoding="utf-8")


def main() -> None:
    """Measure, and write the part between the marks."""
    torch.set_num_threads(1)
    rows = dict[str, tuple[str, str]]()
    for name in ROWS:
        with tempfile.TemporaryDirectory() as folder:
            rows[name] = gaps(name, Path(folder))
    for kind, version, form in VIT_PYTORCH:
        with tempfile.TemporaryDirectory() as folder:
            rows[f"vit-pytorch {kind}"] = vit_pytorch_gaps(version, form, Path(folder))
    for name, heads in TORCHVISION.items():
        with tempfile.TemporaryDirectory() as folder:
            rows[f"torchvision {name}"] = torchvision_gaps(name, heads, Path(folder))
    real = Path(os.environ.get("VITRAIL_DATA", "../shared/data"))
    rows = {REAL: real_gaps(real), **dict(sorted(rows.items(), key=lambda row: list(TYPED).index(_source(row[0]))))}
    pixels = preprocessing_gaps()
    lines = [
        "| library | network | logit gap, live | logit gap, from the file | preprocessing gap, in levels of 255 |",
        "|---|---|---|---|---|",
        *(line(name, both, pixels) for name, both in rows.items()),
    ]
    lines += ["", *verifications()]
    lines += ["", "| known weights | verified by | licence |", "|---|---|---|"]
    lines += [f"| `{row['name']}` | {row['by']} | {row['licence']} |" for row in known_table().values()]
    tags = sum(len(row["tags"]) for row in timm_table().values())
    lines += [
        "",
        f"By name: {len(timm_table())} architectures of timm {timm.__version__} with {tags} published weights.",
    ]
    lines += ["", *licences(), "", *others()]
    versions = (
        f"timm {timm.__version__}, transformers {transformers.__version__}, torchvision {torchvision.__version__}, "
        f"vit-pytorch {TODAY}"
    )
    lines += ["", f"{versions}; {machine()}."]
    written(PAGE, lines)
    written(README, short(rows))


if __name__ == "__main__":
    main()

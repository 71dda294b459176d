"""A folder of photographs with planted faults, and what each is called."""

from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from tests.photographs import make_photographs

RECORDINGS, FRAMES = 4, 6


def plant_faults(root: Path) -> None:
    """Class folders in train and val: photographs, and all that may be wrong with some."""
    for seed, (split, classes) in enumerate({"train": ("ant", "bee", "fly"), "val": ("ant", "bee")}.items()):
        make_photographs(root / split, classes, per_class=12, seed=seed)
    train, val = root / "train", root / "val"
    first = train / "ant" / "ant_000.jpg"
    (val / "ant" / "again.jpg").write_bytes(first.read_bytes())  # an exact copy in another split
    (train / "bee" / "same.jpg").write_bytes((train / "ant" / "ant_001.jpg").read_bytes())  # and in another class
    image = Image.open(train / "bee" / "bee_004.jpg")
    ImageOps.mirror(image).save(val / "bee" / "mirrored.jpg", quality=90)
    image = Image.open(train / "fly" / "fly_005.jpg")
    image.resize((image.width // 2, image.height // 2)).save(train / "fly" / "resized.jpg", quality=90)
    (val / "bee" / "nothing.jpg").touch()
    (val / "bee" / "cut.jpg").write_bytes(first.read_bytes()[:300])
    draw = np.random.default_rng(0)
    for number in range(RECORDINGS):  # each half on either side
        scene = Image.fromarray(draw.integers(0, 256, (7, 7, 3), np.uint8)).resize((140, 140), Image.Resampling.BICUBIC)
        for frame in range(FRAMES):
            left, top = draw.integers(0, 30, 2).tolist()
            folder = (train, val)[frame % 2] / ("ant", "bee")[number % 2]
            part = scene.crop((left, top, left + 110, top + 110))
            part.save(folder / f"clip{number:02}_{frame:06}.jpg", quality=85)
    deep = draw.integers(0, 4096, (60, 60), np.uint16)
    Image.fromarray(deep).save(train / "fly" / "deep.png")
    printed = Image.fromarray(draw.integers(0, 256, (60, 60, 3), np.uint8)).convert("CMYK")
    printed.save(train / "fly" / "print.jpg")
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(draw.integers(0, 256, (50, 70, 3), np.uint8)).save(train / "fly" / "turned.jpg", exif=exif)
    Image.fromarray(draw.integers(0, 256, (30, 130, 3), np.uint8)).save(train / "fly" / "long.png")
    Image.fromarray(draw.integers(0, 256, (60, 60, 4), np.uint8)).save(train / "fly" / "clear.png")
    frames = [Image.fromarray(draw.integers(0, 256, (60, 60), np.uint8)) for _ in range(3)]
    frames[0].save(train / "fly" / "moving.gif", save_all=True, append_images=frames[1:])
    Image.fromarray((draw.integers(0, 20, (60, 60, 3))).astype(np.uint8)).save(train / "fly" / "dark.png")
    soft = Image.fromarray(draw.integers(0, 256, (4, 4, 3), np.uint8))
    soft.resize((90, 90), Image.Resampling.BICUBIC).save(train / "fly" / "soft.png")
    Image.new("RGB", (60, 60), (90, 120, 30)).save(train / "fly" / "plain.png")

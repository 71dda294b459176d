"""Damaged images, each by a number that says how; run as a program it decodes them, in a process that may die of it.

    python -m tests.data.mutated 0 200     a line for each: its number, `decoded` or `refused`; last the peak of memory

Whatever else happens ends the program: a signal, a decoder without end, another error than a DataError, or one that
names nothing.
"""

import signal
import sys
import warnings

import numpy as np

from tests.data import zoo
from tests.peak_memory import peak_memory
from vitrail.data.images import convert_mode, open_image
from vitrail.errors import DataError, located

FROM = (
    *("turned 6.jpg", "progressive.jpg", "grey.jpg", "cmyk adobe.jpg", "two.jpg"),
    *("colour.png", "palette alphas.png", "16 bits 6.png", "interlaced.png", "moving.png"),
    *("clear.gif", "moving.gif", "palette 4.bmp", "alpha.bmp", "lossless.webp", "alpha.webp", "moving.webp"),
    *("deflated.tif", "in planes.tif", "16 bits.tif", "pages.tif", "palette.tif", "tiled.tif"),
    *("colour.avif", "alpha.avif", "phone.heic", "colour.jp2", "16 bits.jp2", "colour.ppm", "words.pbm"),
)
SECONDS = 20  # of a processor: a header may say 100 megapixels, which take some of them
MEMORY = 2048  # MiB more than before, at most: of so many pixels, several times


def mutated(number: int) -> tuple[str, bytes]:
    """The name and the bytes of a damaged image."""
    random, name = np.random.default_rng(number), FROM[number % len(FROM)]
    content = bytearray(zoo.readable()[name].content)
    for _ in range(random.integers(1, 4)):
        place, some = int(random.integers(len(content) or 1)), random.bytes(int(random.integers(1, 9)))
        match random.integers(7):
            case 0 | 1 if content:  # bits
                content[place] ^= 1 << int(random.integers(8))
            case 2:  # the header
                head = min(place, int(random.integers(64)))
                content[head : head + len(some)] = some
            case 3:
                content[place:place] = some
            case 4:
                del content[place : place + len(some)]
            case 5 if random.random() < 0.5:  # an end that is missing
                del content[place:]
            case 6:  # a large number
                content[place : place + 4] = b"\xff\xff\xff\x7f"
    return f"{number} of {name}", bytes(content)


def main(first: int, last: int) -> None:
    """Decode them, in turn."""
    zoo.readable()
    warnings.simplefilter("ignore")
    before = peak_memory()
    for number in range(first, last):
        name, content = mutated(number)
        print(number, end=" ", flush=True)
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        try:
            with located(name):
                convert_mode(open_image(name, content), 3, bits=16)
            print("decoded")
        except DataError as error:
            if name not in error.problem or "\n" in error.problem:
                raise AssertionError(error.problem) from error
            print("refused")
        signal.setitimer(signal.ITIMER_PROF, 0)
    print("memory", (peak_memory() - before) // 2**20)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))

"""What images cost that lie inside other files, and long lists: `python -m benchmarks.data_stores table|archives|list`.

table       20,000 images of 100 kB (noise) in one parquet file of 2 GB, in row groups of 100: unpacked, opened again,
            and read in random order; beside it the same by decoding the row group of each image
archives    100,000 small images in class folders of a zip, and with a label each in a tar as webdataset has them:
            opened for the first time, opened again, and read in random order
list        a `.csv` of a million files in 1,000 folders, with path, label, split and another column

Each is opened in a process of its own. Processor seconds stand beside those of the clock: cores are shared.
"""

import importlib
import io
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.measure import machine
from vitrail.data.sources import read

IMAGES, BYTES, GROUP = 20_000, 100_000, 100
MEMBERS, SMALL, CLASSES = 100_000, 3_000, 100
AT_RANDOM, BY_GROUPS = 20_000, 60
LISTED = 1_000_000


def main(what: str, folder: Path) -> None:
    """Write the data, and open them in processes of their own, with a cache of their own."""
    print(machine())
    files = {"table": write_table, "archives": write_archives, "list": write_list}[what](folder)
    words = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
    for file in files:
        for times in ("listed",) * 3 if what == "list" else ("first", "again"):
            subprocess.run([sys.executable, "-m", "benchmarks.data_stores", times, str(file)], env=words, check=True)
    if what == "table":
        table, began = pq.ParquetFile(files[0]), time.perf_counter()
        for row in np.random.default_rng(1).permutation(IMAGES)[:BY_GROUPS].tolist():
            table.read_row_group(row // GROUP, columns=["image"]).column(0)[row % GROUP].as_py()
        print(f"by row groups: {BY_GROUPS / (time.perf_counter() - began):,.0f} images a second in random order")


def write_table(folder: Path) -> list[Path]:
    """A table as the library `datasets` writes it."""
    draw, image = np.random.default_rng(0), pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    schema = pa.schema([("image", image), ("label", pa.int64())])
    with pq.ParquetWriter(folder / "table.parquet", schema) as writer:
        for first in range(0, IMAGES, GROUP):
            rows = range(first, first + GROUP)
            cells = pa.array([{"bytes": draw.bytes(BYTES), "path": f"{row}.jpg"} for row in rows], image)
            writer.write_table(pa.table([cells, pa.array([row % CLASSES for row in rows])], schema=schema))
    return [folder / "table.parquet"]


def write_archives(folder: Path) -> list[Path]:
    """A zip of class folders, and a tar of images with a label each."""
    content = np.random.default_rng(0).bytes(SMALL)
    with zipfile.ZipFile(folder / "folders.zip", "w") as zipped, tarfile.open(folder / "beside.tar", "w") as tarred:
        for row in range(MEMBERS):
            zipped.writestr(f"c{row % CLASSES:03d}/{row}.jpg", content)
            for name, inside in ((f"{row:09d}.jpg", content), (f"{row:09d}.cls", b"%02d" % (row % CLASSES))):
                member = tarfile.TarInfo(name)
                member.size = len(inside)
                tarred.addfile(member, io.BytesIO(inside))
    return [folder / "folders.zip", folder / "beside.tar"]


def write_list(folder: Path) -> list[Path]:
    """A list of empty files."""
    with open(folder / "list.csv", "w") as out:
        out.write("path,label,split,site\n")
        for above in range(LISTED // 1000):
            (folder / f"c{above:04d}").mkdir()
            for number in range(1000):
                name = f"c{above:04d}/im{number:06d}.jpg"
                (folder / name).touch()
                out.write(f"{name},class {above},{'train' if number % 10 else 'val'},s{number % 50}\n")
    return [folder / "list.csv"]


def peak() -> float:
    """The most memory that this process has had, in MB."""
    return int(re.findall(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[0]) * 1024 / 1e6


def listed(file: Path) -> None:
    """Read a list, and its labels."""
    importlib.import_module("vitrail.data.readers.manifest")
    before, wall, cpu = peak(), time.perf_counter(), time.process_time()
    count = sum(len(samples.labels or ()) for samples in read(str(file)).splits.values())
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(f"{count:,} lines: {wall:.1f} s, {cpu:.1f} s of processors, at most {peak():,.0f} MB, {before:.0f} before")


def opened(times: str, file: Path) -> None:
    """Open it, and read images in random order."""
    for module in ("hub", "archive", "webdataset"):  # no part of what is measured
        importlib.import_module(f"vitrail.data.readers.{module}")
    before, wall, cpu = peak(), time.perf_counter(), time.process_time()
    images = next(iter(read(str(file)).splits.values())).images
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    more = peak() - before
    began, order = time.perf_counter(), np.random.default_rng(1).permutation(len(images))[:AT_RANDOM].tolist()
    for row in order:
        images.content(row)
    rate = len(order) / (time.perf_counter() - began)
    print(
        f"{file.name}, {times}: {wall:.1f} s, {cpu:.1f} s of processors, {more:.0f} MB on top of the library; "
        f"{rate:,.0f} images a second in random order",
        flush=True,
    )


if __name__ == "__main__":
    if sys.argv[1] == "listed":
        listed(Path(sys.argv[2]))
    elif sys.argv[1] in ("first", "again"):
        opened(sys.argv[1], Path(sys.argv[2]))
    else:
        with tempfile.TemporaryDirectory(dir=Path.cwd().parent) as place:
            main(sys.argv[1], Path(place))

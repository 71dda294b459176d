"""`vitrail data pack DATA --out DIR`: images into shards that are read at speed, also from another machine."""

import errno
import time

from vitrail.cli.args import Data
from vitrail.cli.embed import NAMED_PROBLEMS, shown_progress
from vitrail.cli.output import duration, print_json, say, warn
from vitrail.data.shards.pack import QUALITY, SHARD_MB, Packed, pack
from vitrail.errors import RunError, counted
from vitrail.io import FULL


def run(typed: Data, command: str) -> int:
    """Write the shards, and say what is in them."""
    assert typed.out is not None
    began = time.perf_counter()
    try:
        with shown_progress() as progress:
            packed = pack(
                typed.data,
                typed.out,
                size=typed.size,
                quality=QUALITY if typed.quality is None else typed.quality,
                shard_size=SHARD_MB if typed.shard_size is None else typed.shard_size,
                data_root=typed.data_root,
                progress=progress,
            )
    except OSError as error:
        if error.errno not in (*FULL, errno.EIO):
            raise
        problem = f"{error.filename}: {error.strerror}"
        raise RunError(problem, f"{command}  # goes on behind what is whole, when it can be written") from error
    seconds = time.perf_counter() - began
    if typed.json:
        print_json({**packed.to_dict(), "seconds": seconds})
    else:
        _tell(packed, seconds)
    return 0


def _tell(packed: Packed, seconds: float) -> None:
    """What was written, for people."""
    for note in packed.notes:
        warn(note)
    for problem in packed.left_out[:NAMED_PROBLEMS]:
        warn(f"Left out: {problem}.")
    if len(packed.left_out) > NAMED_PROBLEMS:
        warn(f"Left out: {counted(len(packed.left_out) - NAMED_PROBLEMS, 'more image')} (--json names them all).")
    splits = ", ".join(f"{name} {count:,}" for name, count in packed.images.items())
    say(f"{counted(sum(packed.images.values()), 'image')} ({splits}), in {duration(seconds)}")
    say(f"{packed.out}  {counted(packed.shards, 'shard')}, {packed.bytes / 1e6:,.1f} MB")

"""`vitrail data pack DATA --out DIR`: images into shards that are read at speed, also from another machine."""

import errno
import shlex
import time
from pathlib import Path

from vitrail.cli.args import Data
from vitrail.cli.output import duration, print_json, progress_bar, say, warn, warn_left_out
from vitrail.data.shards.pack import QUALITY, SHARD_MB, pack
from vitrail.errors import RunError, UsageError, byte_size, counted
from vitrail.io import FULL, once


def run(options: Data, command: str) -> int:
    """Write the shards, and say what is in them."""
    assert options.out is not None
    began = time.perf_counter()
    try:
        with progress_bar() as progress:
            packed = pack(
                options.data,
                options.out,
                size=options.size,
                quality=QUALITY if options.quality is None else options.quality,
                shard_size=SHARD_MB if options.shard_size is None else options.shard_size,
                data_root=options.data_root,
                progress=progress,
            )
    except OSError as error:
        problem, out = f"{error.filename}: {error.strerror}", options.out.expanduser()
        named = Path(str(error.filename))
        of_out = named.is_relative_to(out) or out.is_relative_to(named)
        if of_out and error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise UsageError(problem, shlex.join(["--out", str(Path.home() / out.name)])) from error
        if error.errno not in (*FULL, errno.EFBIG, errno.EIO):
            raise
        raise RunError(problem, f"{command}  # continues after the last complete shard, {once(error)}") from error
    seconds = time.perf_counter() - began
    if options.json:
        print_json({**packed.to_dict(), "seconds": seconds})
    else:
        for note in packed.notes:
            warn(note)
        warn_left_out(packed.left_out, "image")
        splits = ", ".join(f"{name} {count:,}" for name, count in packed.images.items())
        say(f"{counted(sum(packed.images.values()), 'image')} ({splits}), in {duration(seconds)}")
        say(f"{packed.out}  {counted(packed.shards, 'shard')}, {byte_size(packed.bytes)}")
    return 0

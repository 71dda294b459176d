"""Files that are written whole or not at all, what one process holds alone, and text whose errors name the file.

And of this machine what is to be known before torch is loaded.
"""

import errno
import importlib.util
import json
import math
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import IO, Any

from vitrail.errors import DataError, Hint, RunError, UsageError, byte_size
from vitrail.text import utf8

PARQUET = ".parquet"  # of a table
EVALUATION, EXPLANATION, SIMILAR, DATA, SHOW = "evaluation", "explanation", "similar", "data", "show"  # kinds of pages
AUDIT = "audit"

WRITING = ".writing"  # behind the name of a file that is not whole yet
TOUCH = 20.0  # seconds between two signs of life of a process that holds a place
SILENT = 120.0  # without any, after which one is gone that is not seen; some file systems show them a minute late
STARTING = 4.0  # in which a process says who it is, behind the file that it makes
AWAY = "held it last, where this system does not see it: waiting up to two minutes for a sign of life"
FULL = (errno.ENOSPC, errno.EDQUOT)  # a disk has no room, or none for this user

_command = False


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else (os.cpu_count() or 1)


def begin_command() -> None:
    """This process runs a command of vitrail and nothing else, so that others may be forked from it."""
    global _command
    _command = True


def is_command() -> bool:
    """Whether it does: the process of a person's own, with its threads and connections, is not forked unasked."""
    return _command


@contextmanager
def written(file: Path, wanted: int = 0) -> Iterator[None]:
    """An error in writing a file names it, and of a full disk says what was wanted and what is free.

    Args:
        file: That is written.
        wanted: Bytes; 0 where none are.

    Raises:
        OSError: It cannot be written.
    """
    try:
        yield
    except OSError as error:
        if error.errno is None:  # none of the system's
            raise
        problem = str(error.strerror)
        if error.errno == errno.ENOSPC and wanted:
            free = shutil.disk_usage(file.parent).free
            problem += f": {byte_size(wanted)} are needed, {byte_size(free)} are free"
        elif error.errno == errno.EFBIG and wanted:
            problem += f": {byte_size(wanted)} are needed, and ulimit -f allows less"
        raise OSError(error.errno, problem, str(file)) from error


def once(error: OSError) -> str:
    """When the same can be written that could not be written now; behind what is typed then."""
    if error.errno == errno.EFBIG:
        return "after ulimit -f unlimited, in a new shell where that is refused"
    return "once there is enough space" if error.errno in FULL else "once it can be written"


def write_file(file: Path, content: bytes | str) -> None:
    """Write a file whole, flushed to disk, or leave the former one; its folder is made where needed.

    Raises:
        OSError: It cannot be written; names it.
    """
    content = content if isinstance(content, bytes) else utf8(content).encode()
    with writing(file, len(content)) as handle:
        handle.write(content)


def check_writable(file: Path) -> None:
    """Refuse a place where nothing can be written, before anything is computed; leaves nothing there.

    Raises:
        UsageError: If the folder cannot be made, or nothing can be written into it.
    """
    there = next(folder for folder in file.absolute().parents if folder.exists())
    try:
        with tempfile.TemporaryDirectory(dir=there):
            pass
    except OSError as error:
        problem = f"{file} cannot be written: {there}: {error.strerror}"
        raise UsageError(problem, home_out(file)) from error


@contextmanager
def writing(file: Path, wanted: int = 0) -> Iterator[IO[bytes]]:
    """The same of a file whose content comes piece by piece: it is there when the block has ended.

    Args:
        file: That is written.
        wanted: Bytes; 0 where nobody knows.

    Raises:
        OSError: It cannot be written; names it.
    """
    beside = file.with_name(file.name + WRITING)
    with written(file, wanted):
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(beside, "wb") as handle:
                yield handle
                handle.flush()
                os.fsync(handle.fileno())
            os.replace(beside, file)
        except (OSError, MemoryError):
            beside.unlink(missing_ok=True)  # a disk that is full needs the room
            raise


def flush(path: Path) -> None:
    """Have what is written of a file, or the entries of a folder, on the disk; what is missing is passed over.

    Raises:
        OSError: It cannot be written; names it.
    """
    if path.is_dir() and os.name != "posix":  # where folders cannot be opened
        return
    with written(path):
        try:
            handle = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def append_line(file: Path, line: str) -> None:
    """One more line of a text.

    Raises:
        OSError: It cannot be written; names it.
    """
    with written(file, len(line)), open(file, "ab") as handle:
        handle.write(utf8(f"{line}\n").encode())


@contextmanager
def locked(place: Path, lock: Path, notify: Callable[[str], object] = lambda sentence: None) -> Iterator[None]:
    """Hold a place: a second process that wants it is refused, a dead one's lock is taken over.

    Who holds one touches the file from time to time. Of this machine it is known who is dead; where nobody that this
    system does not see has touched it for two minutes, it is gone, too.

    Args:
        place: A folder or a file, as it is named to people.
        lock: The file that says who holds it.
        notify: Called with a sentence on a lock that is taken over, and on the wait.

    Raises:
        RunError: If a living process holds it.
    """
    from filelock import SoftFileLease  # takes a tenth of a second, which a help text need not

    lease = SoftFileLease(lock, lease_duration=SILENT, heartbeat_interval=TOUCH, timeout=0)
    there, held = lock.exists(), lease.owner
    who = f"process {held.pid} on {held.hostname}" if held else "a process that is just starting"
    with written(lock):
        try:
            lease.acquire()
        except TimeoutError:
            unseen = held is None or held.hostname != _host()
            if unseen:
                notify(f"{place}: {who} {AWAY}")
            if not (unseen and _outlived(lease, lock, SILENT if held else STARTING)):
                raise RunError(f"{place} is in use by {who}", other_out(place)) from None
    if there:
        notify(f"{place} was held by {who}, which is gone: taken over")
    try:
        yield
    finally:
        lease.release()


@cache
def _host() -> str | None:
    """The name by which locks know this machine, or the container on it."""
    from filelock import SoftFileLease

    with tempfile.TemporaryDirectory() as folder, SoftFileLease(Path(folder) / "lock") as lease:
        return None if lease.owner is None else lease.owner.hostname


def _outlived(lease: Any, lock: Path, seconds: float) -> bool:
    """Wait as long as nobody touches a lock: whether it was taken over. Nobody knows who left an empty one."""
    last = lock.stat().st_mtime_ns
    try:
        lease.acquire(seconds + STARTING, TOUCH / 10, cancel_check=lambda: _touched(lock) not in (last, None))
    except TimeoutError:
        if _touched(lock) != last or lock.read_bytes():
            return False
        lock.unlink()
        lease.acquire()
    return True


def _touched(lock: Path) -> int | None:
    """When a lock was touched last; None where it has gone."""
    with suppress(FileNotFoundError):
        return lock.stat().st_mtime_ns
    return None


def free_name(path: Path, taken: Callable[[Path], bool] = Path.exists) -> Path:
    """The path, or the first with a number behind its name that is not taken."""
    free, number = path, 2
    while taken(free):
        free, number = path.with_stem(f"{path.stem}-{number}"), number + 1
    return free


def home_out(path: Path) -> Hint:
    """What is passed or typed so that something is written where it surely can be: into the home folder."""
    return Hint({"out": str(Path.home() / path.name)})


def other_out(path: Path, text: str = "") -> Hint:
    """What is typed so that something is written to another path, where nothing is."""
    return Hint({"out": str(free_name(path, lambda free: free == path or free.exists()))}, text=text)


def check_new(folder: Path) -> None:
    """Refuse a folder for a new run that holds anything, or is a file.

    Raises:
        UsageError: A run that is there can be resumed.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        hint = Hint({"resume": "auto"}) if (folder / "config.yaml").is_file() else other_out(folder)
        raise UsageError(f"{folder} exists already", hint)


def drop_options(command: str, *options: str) -> list[str]:
    """The words of a command but for some options, which have values."""
    words, others = iter(shlex.split(command)), list[str]()
    for word in words:
        name, equals, _ = word.partition("=")
        if name.replace("_", "-") not in options:
            others.append(word)
        elif not equals:
            next(words, None)
    return others


def resume_command(command: str, path: Path) -> str:
    """The command that resumes the run in a folder, from the one that started it."""
    return shlex.join([*drop_options(command, "--out", "--resume"), "--out", str(path), "--resume", "auto"])


def user_cache() -> Path:
    """The folder for what can be made again: `$XDG_CACHE_HOME/vitrail`, else `~/.cache/vitrail`; it may be missing."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vitrail"


def plain(value: Any) -> Any:
    """A value as JSON has it: numbers and arrays of numpy and torch as Python's own, what is not finite as None."""
    match value:
        case float():
            return value if math.isfinite(value) else None
        case Mapping():
            return {key: plain(inner) for key, inner in value.items()}
        case list() | tuple():
            return [plain(inner) for inner in value]
    return plain(value.tolist()) if hasattr(value, "tolist") else value


def to_json(content: Any, indent: int | None = 2) -> str:
    """Values as JSON for people and programs, in one line when `indent` is None.

    Raises:
        TypeError: A value is none that JSON has.
    """
    return utf8(json.dumps(plain(content), indent=indent, ensure_ascii=False, allow_nan=False)) + "\n"


def read_json(file: Path, hint: str | Hint, read: Callable[[Path], bytes] = Path.read_bytes) -> dict[str, Any]:
    """The object in a JSON file.

    Args:
        file: The file.
        hint: What to try when it cannot be used.
        read: What gives its bytes, of one that lies in an archive.

    Raises:
        DataError: It is missing or damaged, or holds something else.
    """
    try:
        content = json.loads(read(file).decode())
    except FileNotFoundError as error:
        raise DataError(f"{file} is missing", hint) from error
    except (OSError, ValueError, RecursionError) as error:  # ValueError: no UTF-8, no JSON, or a number without end
        raise DataError(f"{file} is damaged ({error})", hint) from error
    if not isinstance(content, dict):
        raise DataError(f"{file} is damaged (not a JSON object)", hint)
    return content


def check_table(out: Path, suffix: str, what: str, usual: str) -> None:
    """Refuse a table that could not be written in the end.

    Args:
        out: The file.
        suffix: Of it.
        what: It holds.
        usual: The suffix that is written beside Parquet's.

    Raises:
        UsageError: Its suffix is another, what writes it is missing, or it is a folder.
    """
    if suffix not in (usual, PARQUET):
        problem = f"{what} are written as {usual} or {PARQUET}, not to {out}"
        raise UsageError(problem, Hint({"out": str(out.with_suffix(usual))}))
    if suffix == PARQUET and importlib.util.find_spec("pyarrow") is None:
        raise UsageError(f"{out} needs pyarrow, which is not installed", 'pip install "vitrail[parquet]"')
    if out.is_dir():
        raise UsageError(f"{out} is a folder", Hint({"out": f"{out / what}{usual}"}))


def is_page(text: str, kind: str) -> bool:
    """Whether a file holds a page of this kind; a page that speaks of vitrail is none, nor one that quotes its mark."""
    return f'<meta name="generator" content="vitrail {kind}">' in text.partition("</head>")[0]


def page_place(out: Path | None, *, kind: str, what: str, beside: bool = False) -> Path:
    """Where a page goes; nothing but a page of its kind is ever written over.

    Args:
        out: An HTML file, or a folder for a page that is called by its kind; the current folder when None.
        kind: Of the page, as `is_page` knows it.
        what: Such a page, in words.
        beside: Whether a folder with the name of the page belongs to it. Then a place without an ending is a folder.

    Raises:
        UsageError: That place is taken, or its ending is that of another kind of file.
    """

    def taken(page: Path) -> bool:
        return page.exists() or (beside and page.with_suffix("").exists())

    def elsewhere(page: Path) -> Hint:
        page = free_name(page, taken)
        return Hint({"out": str(page)}, python=f"save({str(page)!r})")

    if out is None or out.is_dir() or (beside and not out.suffix and not out.is_file()):
        return free_name((out or Path()) / f"{kind}.html", taken)
    if out.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"{what} is an HTML page, not {out}", elsewhere(out.with_suffix(".html")))
    if out.exists() and not is_page(out.read_text(encoding="utf-8", errors="replace"), kind):
        raise UsageError(f"{out} exists and is not {what} by vitrail", elsewhere(out))
    if beside and out.with_suffix("").exists() and not out.exists():
        raise UsageError(f"{out.with_suffix('')}, the folder for the images, exists", elsewhere(out))
    return out


def page_writer(place: Callable[[Path | None], Path], out: Path | None) -> Callable[[str], Path]:
    """What writes a page, and gives where; a place where it cannot go is refused now.

    Args:
        place: One of those below, by the kind of the page.
        out: As there.

    Raises:
        UsageError: That place is taken, or nothing can be written there.
    """
    check_writable(place(out))

    def write(text: str) -> Path:
        page = place(out)  # which another process may have taken meanwhile
        write_file(page, text)
        return page

    return write


page_at = partial(page_place, kind=EXPLANATION, what="an explanation", beside=True)
audit_place = partial(page_place, kind=AUDIT, what="an audit")
evaluation_place = partial(page_place, kind=EVALUATION, what="the page of an evaluation")
neighbours_place = partial(page_place, kind=SIMILAR, what="a page of neighbours")
data_place = partial(page_place, kind=DATA, what="the page of a check of data")
show_place = partial(page_place, kind=SHOW, what="a page of images as a network sees them")

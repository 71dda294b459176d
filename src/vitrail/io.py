"""Files that are written whole or not at all, what one process holds alone, and text whose errors name the file."""

import errno
import json
import math
import os
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, Any

from vitrail.errors import DataError, Hint, RunError, UsageError, byte_size
from vitrail.text import utf8

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None

WRITING = ".writing"  # behind the name of a file that is not whole yet
TOUCH = 20.0  # seconds between two signs of life of a process that holds a place
SILENT = 120.0  # without any, after which one is gone that is not seen; some file systems show them a minute late
AWAY = "held it last, where this system does not see it: waiting up to two minutes for a sign of life"
FULL = (errno.ENOSPC, errno.EDQUOT)  # a disk has no room, or none for this user

_MINE: set[Path] = set()  # locks that this process holds


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

    Of this machine the system knows who is dead, unless the file system has no locks. Who holds one touches the file
    from time to time; where nobody has for two minutes, as the clock of the file system counts, it is gone, too.

    Args:
        place: A folder or a file, as it is named to people.
        lock: The file that says who holds it.
        notify: Called with a sentence on a lock that is taken over, and on the wait.

    Raises:
        RunError: If a living process holds it.
    """
    mine, real = {"pid": os.getpid(), "host": socket.gethostname()}, lock.resolve()
    if real in _MINE:  # to open and close the file would let go of it
        raise RunError(f"{place} is in use by this process, {mine['pid']}", other_out(place))
    handle, sure = _claimed(lock)
    held = _holder(lock, handle)
    who = f"process {held['pid']} on {held.get('host')}" if "pid" in held else "a process that is just starting"
    try:
        waits = partial(notify, f"{place}: {who} {AWAY}")
        unseen = held and not (sure and held.get("host", mine["host"]) == mine["host"])
        if handle is None or (unseen and not _silent(lock, waits)):
            raise RunError(f"{place} is in use by {who}", other_out(place))
        with written(lock, len(str(mine))):
            os.ftruncate(handle, 0)
            os.lseek(handle, 0, os.SEEK_SET)
            os.write(handle, json.dumps(mine).encode())
        if held:
            notify(f"{place} was held by {who}, which is gone: taken over")
    except BaseException as error:
        if handle is not None:
            if isinstance(error, OSError):  # where nothing can be written, an empty file is of no use
                lock.unlink(missing_ok=True)
            os.close(handle)
        raise
    _MINE.add(real)
    over = threading.Event()
    touching = threading.Thread(target=_touch, args=(lock, over), daemon=True)
    touching.start()
    try:
        yield
    finally:
        over.set()
        touching.join()
        _MINE.discard(real)
        lock.unlink(missing_ok=True)
        os.close(handle)


def _touch(lock: Path, over: threading.Event) -> None:
    """Touch a lock from time to time: the process that holds it lives."""
    while not over.wait(TOUCH):
        with suppress(OSError):  # somebody removed it, or the disk is away for a time
            os.utime(lock)


def _silent(lock: Path, waiting: Callable[[], object]) -> bool:
    """Whether nobody touches a lock, or will within two minutes; `waiting` is called before it takes long."""
    began, first = time.monotonic(), lock.stat().st_mtime_ns
    if _age(lock) <= SILENT:
        waiting()
    while _age(lock) <= SILENT:
        if time.monotonic() - began > 2 * SILENT or lock.stat().st_mtime_ns != first:
            return False
        time.sleep(TOUCH / 10)
    return True


def _age(lock: Path) -> float:
    """Seconds since it was touched, as the clock of its file system counts."""
    with tempfile.NamedTemporaryFile(dir=lock.parent) as now:
        return (os.fstat(now.fileno()).st_mtime_ns - lock.stat().st_mtime_ns) / 1e9


def _claimed(lock: Path) -> tuple[int | None, bool]:
    """A handle of the lock file that the system gives to one process at a time; None where another one has it.

    And whether it does: some file systems know no locks.

    The system takes it back when a process ends, or closes any other handle of that file, so the lock is read by this
    one. So of many that find the lock of a dead process only one takes it over.
    """
    while True:
        handle = os.open(lock, os.O_CREAT | os.O_RDWR)
        try:
            if fcntl is not None:
                fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(handle), os.stat(lock)):
                return handle, fcntl is not None
        except FileNotFoundError:  # whoever had it has just let it go
            pass
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                return handle, False  # a file system without locks: what the file holds must do
            os.close(handle)
            return None, True
        os.close(handle)


def _holder(lock: Path, handle: int | None) -> dict[str, Any]:
    """Who wrote a lock, read by one's own handle if there is one; nothing where that was not finished, or has gone."""
    try:
        return dict(json.loads(lock.read_bytes() if handle is None else os.read(handle, 4096)))
    except (OSError, ValueError, TypeError):
        return {}


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


def read_json(file: Path, hint: str | Hint) -> dict[str, Any]:
    """The object in a JSON file.

    Args:
        file: The file.
        hint: What to try when it cannot be used.

    Raises:
        DataError: It is missing or damaged, or holds something else.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DataError(f"{file} is missing", hint) from error
    except (OSError, ValueError, RecursionError) as error:  # ValueError: no UTF-8, no JSON, or a number without end
        raise DataError(f"{file} is damaged ({error})", hint) from error
    if not isinstance(content, dict):
        raise DataError(f"{file} is damaged (not a JSON object)", hint)
    return content

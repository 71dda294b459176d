"""Starts a server: the socket, and the processes that load the models while this one imports what listens."""

import asyncio
import resource
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from vitrail.deploy.server.pool import Forker, Pool
from vitrail.errors import Hint, UsageError
from vitrail.io import cores
from vitrail.options import ServeOptions
from vitrail.weights.places import is_onnx

EXPLAINED = 10  # times as long may an explanation take as another answer
WAITING = 2  # requests that wait for each process; more would wait longer than they are worth
LEAST_WAITING, EXPLANATIONS = 4, 32  # that wait at least; explanations that wait
OPEN_FILES = 10_240  # at a time; macOS takes no more, even where it states no limit

Stamp = tuple[str, int, int]  # name, time and size of a file


def serve(
    models: Mapping[str, str],
    options: ServeOptions,
    stated: Mapping[str, Any],
    token: str | None,
    say: Callable[[str], object],
) -> None:
    """Serve until a signal ends it.

    Args:
        models: Paths of models, by the names that they have here.
        options: How.
        stated: What was typed of their weights, by name.
        token: That every request must bear; None for none.
        say: Called with a sentence for whoever started it.

    Raises:
        UsageError: The port is in use, or a model cannot be served.
        VitrailError: As `vitrail.load`.
    """
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    try:
        listener = socket.create_server((options.host, options.port), family=family, backlog=1024)
    except OSError as error:
        problem = f"{options.host}, port {options.port}: {error.strerror or error}"
        raise UsageError(problem, Hint({"port": (options.port + 1) % 65536})) from error
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # which asyncio sets of sockets that it makes itself
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    few = OPEN_FILES if most == resource.RLIM_INFINITY else min(most, OPEN_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (few, most))
    again = asyncio.Event()
    common = {
        "options": {name: str(one) if isinstance(one, Path) else one for name, one in stated.items()},
        "device": options.device,
        "threads": options.threads,
    }
    count, forker = options.workers or cores(), Forker(models.values())
    load = {**common, "models": models, "explains": False, "features": options.features and str(options.features)}
    bound = options.queue or max(LEAST_WAITING, WAITING * count)
    watched = Watched([*models.values(), *([str(options.features)] if options.features else [])])

    def say_if_possible(sentence: str) -> None:
        with suppress(OSError):  # of a full disk, or nobody who reads: no reason to stop
            say(sentence)

    pools = [Pool(forker, load, count, bound, options.timeout, again.set, say_if_possible)]
    pools[0].hurry()
    inside = {name: path for name, path in models.items() if not is_onnx(path)}
    if options.explainers and inside:
        load, patience = {**common, "models": inside, "explains": True}, EXPLAINED * options.timeout
        pools.append(Pool(forker, load, options.explainers, EXPLANATIONS, patience, again.set, say_if_possible))
    from vitrail.deploy.server.listening import Service, Serving  # take as long as a process that loads a model

    try:
        service = Service(pools[0], pools[1] if len(pools) > 1 else None, token)
        asyncio.run(Serving(service, listener, watched, options, again, say_if_possible).run())
    finally:
        forker.end()


class Watched:
    """Files that models are read from.

    Args:
        paths: Of models, and of features.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths, self.last = paths, list[Stamp]()
        self.seen = self.stamps()

    def changed(self) -> bool:
        """Whether they have changed since they were read, and have not since this was asked before."""
        now, before = self.stamps(), self.last
        self.last, settled = now, now == before and now != self.seen
        self.seen = now if settled else self.seen
        return settled

    def stamps(self) -> list[Stamp]:
        """Of each file."""
        found = []
        for path in map(Path, self.paths):
            folder = path / "model" if (path / "model").is_dir() else path
            with suppress(OSError):  # they are being exchanged
                for file in sorted(folder.iterdir()) if folder.is_dir() else [folder]:
                    found.append((str(file), file.stat().st_mtime_ns, file.stat().st_size))
        return found

"""The process that listens, and takes signals. It loads no torch, and decodes nothing.

SIGTERM, SIGINT   no new requests are taken, all that were are answered, exit code 0; a second one ends at once
SIGHUP            the models are loaded anew by other processes, which then answer in place of those before
"""

import asyncio
import contextlib
import logging
import signal
import socket
import struct
from collections.abc import Callable, Mapping
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from vitrail.deploy.server.app import Service, application, refused
from vitrail.deploy.server.launch import Watched
from vitrail.deploy.server.pool import Refusal
from vitrail.errors import RunError, VitrailError
from vitrail.options import ServeOptions

HEADER_SECONDS = 10.0  # in which the headers of a request have come
SEND_SECONDS = 30.0  # in which a client has taken what is sent
ENDING = 10  # seconds for answers on their way, when all are given
LOOKED = 2.0  # seconds between two looks at watched files


class Patient(H11Protocol):
    """HTTP whose headers have to come and whose answers to be taken in time, and whose errors have the one form."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyrefly: ignore[bad-override]
        """Look from time to time whether headers are still coming."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(0)  # any rest counts
        self._look(self)

    def pause_writing(self) -> None:
        """Something waits to be taken."""
        super().pause_writing()
        self._stuck = self.loop.call_later(SEND_SECONDS, self._drop)

    def resume_writing(self) -> None:
        """All is taken."""
        super().resume_writing()
        self._stuck.cancel()

    def _drop(self) -> None:
        """End the connection, and throw away what the system still holds of answers."""
        held = self.transport.get_extra_info("socket")
        held.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def eof_received(self) -> bool:  # pyrefly: ignore[bad-override]
        """Who ends in the midst of a request is told so; who has sent it whole has gone."""
        begun = self.conn.their_state is h11.IDLE and self.conn.trailing_data[0] != b""
        cut = begun or self.conn.their_state is h11.SEND_BODY
        if cut:
            self.send_400_response("")
        return cut

    def send_400_response(self, msg: str) -> None:
        """That a request is none of HTTP; of a broken body the application says so."""
        if self.conn.our_state is h11.SEND_RESPONSE:
            self.scope["state"]["broken"] = True
            self.cycle.message_event.set()
            return
        self._refuse(Refusal(400, "the request is no HTTP", "curl -F image=@photo.jpg"))

    def _look(self, before: object) -> None:
        if self.transport.is_closing():
            return
        some = self.conn.their_state is h11.IDLE and (self.cycle is None or self.conn.trailing_data[0] != b"")
        if some and self.cycle is before:
            self._refuse(Refusal(408, f"no headers came in {HEADER_SECONDS:g} s", "a faster network"))
        else:  # the first look at these headers, if there are any
            self.loop.call_later(HEADER_SECONDS, self._look, self.cycle if some else self)

    def _refuse(self, refusal: Refusal) -> None:
        if self.conn.our_state is h11.IDLE:  # and not in the midst of an answer
            found = refused(refusal)
            headers = [*found.raw_headers, (b"connection", b"close")]
            start = h11.Response(status_code=refusal.status, headers=headers)
            for event in (start, h11.Data(data=bytes(found.body)), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


class _Server(uvicorn.Server):
    """Without signals, of which the process itself takes care."""

    def capture_signals(self) -> contextlib.AbstractContextManager[None]:  # pyrefly: ignore[bad-override]
        return contextlib.nullcontext()


class Serving:
    """A server from its start to its end.

    Args:
        service: What answers, and what is counted.
        listener: The socket.
        watched: The files of models, from before the first process has read them.
        options: How it listens and answers.
        again: Set when the models are to be loaded anew.
        say: Called with a sentence for whoever started it.
    """

    def __init__(
        self,
        service: Service,
        listener: socket.socket,
        watched: Watched,
        options: ServeOptions,
        again: asyncio.Event,
        say: Callable[[str], object],
    ) -> None:
        self.service, self.listener, self.watched, self.options = service, listener, watched, options
        self.again, self.say = again, say

    async def run(self) -> None:
        """Listen at once, answer when the first process has loaded the models, and end by a signal."""
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        config = uvicorn.Config(
            application(self.service),
            http=Patient,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=ENDING,
        )
        self.server = _Server(config)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        loop.add_signal_handler(signal.SIGHUP, self.again.set)
        serving = asyncio.ensure_future(self.server.serve(sockets=[self.listener]))
        starting = asyncio.ensure_future(self.start())
        try:
            await asyncio.wait((serving, starting), return_when=asyncio.FIRST_COMPLETED)
            if starting.done() and starting.exception():
                self.server.should_exit = True
            await serving
            if starting.done():
                starting.result()
        finally:
            starting.cancel()
            for pool in self.service.pools:
                await pool.end()

    async def start(self) -> None:
        """Start the processes: the first alone, since it says whether the models can be served, and how fast."""
        answering, explaining = self.service.answering, self.service.explaining
        (first,) = await answering.prepare(1)
        if first.device != "cpu" and self.options.workers is None:
            answering.count = 1
        answering.swap([first])
        for name, one in first.models.items():
            for note in one["notes"]:
                self.say(f"{name}: {note}")
        host, port = self.listener.getsockname()[:2]
        place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        words = ", ".join(f"{name} ({one['version']})" for name, one in first.models.items())
        self.say(
            f"ready: http://{place} answers by {words}; an image takes {1000 * first.seconds:.0f} ms, and about "
            f"{answering.count / first.seconds:.3g} a second are answered"
        )
        self.service.answering.begin(self.renew())
        if self.options.watch:
            self.service.answering.begin(self.look())
        await answering.fill()
        if explaining is not None:
            await explaining.fill()
            if not any(one["routes"] for one in explaining.models.values()):
                self.service.explaining = None
                await explaining.end()
            elif not agree(answering.models, explaining.models):
                self.again.set()

    def stop(self) -> None:
        """Take no more requests, and end when those that were taken are answered; at once where this is asked twice."""
        if self.service.draining:
            self.server.should_exit = self.server.force_exit = True
            return
        self.service.draining = True
        self.say(f"stopping: {self.service.taken} requests are answered first")
        self.service.answering.begin(self.drain())

    async def drain(self) -> None:
        """End when nothing is left to be answered."""
        while self.service.taken:
            await asyncio.sleep(0.05)
        self.server.should_exit = True

    async def renew(self) -> None:
        """Whenever it is asked for, load the models by other processes; where they cannot, those before answer on."""
        while True:
            await self.again.wait()
            self.again.clear()
            fresh, pools = [], self.service.pools
            try:
                for pool in pools:
                    fresh.append(await pool.prepare())
                if not agree(*(workers[0].models for workers in fresh)):
                    raise RunError("a model was written while it was loaded", "again")
            except Exception as error:
                for worker in (each for workers in fresh for each in workers):
                    worker.end()
                why = error.problem if isinstance(error, VitrailError) else repr(error)
                self.say(f"not exchanged, the models before answer on: {why}")
                continue
            for pool, workers in zip(pools, fresh, strict=True):
                pool.swap(workers)
            words = ", ".join(f"{name} ({one['version']})" for name, one in self.service.answering.models.items())
            self.say(f"exchanged: {words}")

    async def look(self) -> None:
        """Have the models exchanged when their files have changed, and change no more."""
        while True:
            await asyncio.sleep(LOOKED)
            if self.watched.changed():
                self.again.set()


def agree(*every: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether processes that answer differently have the same weights of each model."""
    versions = {(name, one["version"]) for models in every for name, one in models.items()}
    return len(versions) == len({name for name, _ in versions})

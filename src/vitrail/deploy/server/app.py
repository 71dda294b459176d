"""What the server answers: its routes, its limits, and the one form of an error, {"error": ..., "try": ...}.

A request is refused before its body is read where it can be; then the body is read and thrown away, so that the refusal
arrives. Bodies go to a process of a `Pool` as they came: this one decodes nothing.
"""

import asyncio
import ipaddress
import re
import secrets
import socket
import sys
import time
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from importlib.metadata import version
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import Depends, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from vitrail.deploy.server.asked import REFUSALS, ROUTES, TEXTS, Asked, query_refusal, shown_as_json
from vitrail.deploy.server.metrics import RequestCounts
from vitrail.deploy.server.pool import Pool, Refusal

MOST_BYTES = 32 * 2**20  # of a body
MOST_HELD = 8 * MOST_BYTES  # of all bodies that are held at a time
MOST_THROWN = 4 * MOST_BYTES  # of a refused body; behind these the connection is closed
MOST_REQUESTS = 512  # that are read, wait or are answered at a time
BODY_SECONDS = 60.0  # in which a body has come
THROWN_SECONDS = 10.0  # for what is left of a refused one
GONE = 499  # as nginx calls a client that has gone
PROBES = ("/health", "/ready", "/metrics")  # which are not logged
OPEN = ("/", *PROBES[:2])  # for which no token is asked
LOGGED = {f"/{route}" for route in ROUTES} | {*PROBES}
LOCAL = {"localhost", "127.0.0.1", "::1"}  # what the Host of a request over loopback may be, beside the machine's name

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class Service:
    """The pools, and what is counted.

    Attributes:
        answering: Processes for all but explanations.
        explaining: Those for explanations; None where no model can be explained.
        token: That requests must bear; None for none.
        draining: Whether no more requests are taken.
        held: Bytes of all bodies that are held.
        taken: Requests that are read, wait or are answered.
        requests: The same with those that are refused.
        counts: What is counted of all of them.
    """

    def __init__(self, answering: Pool, explaining: Pool | None, token: str | None) -> None:
        self.answering, self.explaining, self.token = answering, explaining, token
        self.draining, self.held, self.taken, self.requests = False, 0, 0, 0
        self.counts = RequestCounts()

    @property
    def pools(self) -> list[Pool]:
        """Those that there are."""
        return [self.answering, *([self.explaining] if self.explaining else [])]

    @property
    def ready(self) -> bool:
        """Whether requests are taken."""
        return bool(self.answering.workers) and not self.draining

    def routes_of(self, name: str) -> list[str]:
        """What a model answers; whether it can be explained is known when a process has loaded it."""
        return [route for pool in self.pools for route in pool.models.get(name, {}).get("routes", ())]

    def named(self, name: str | None) -> str:
        """The model of that name, or the only one.

        Raises:
            Refusal: There is no such model, or nothing is taken now.
        """
        if self.draining:
            raise Refusal(503, "the server is stopping, and takes no more requests", "the same in a minute", 60)
        names = list(self.answering.load["models"])
        if not name and len(names) > 1:
            raise Refusal(422, f"there are several models: {', '.join(names)}", f"?model={quote(names[0])}")
        if (name := name or names[0]) not in names:
            there = f"there is no model '{name[:50]}'; there is {', '.join(names)}"
            raise Refusal(404, there, f"?model={quote(names[0])}")
        return name

    def pool_of(self, route: str, name: str) -> Pool:
        """The pool that answers by a model.

        Raises:
            Refusal: The model has no such route, or nothing is taken now.
        """
        pool = self.answering
        if route == "explain" and self.explaining is not None and name in self.explaining.load["models"]:
            pool = self.explaining
        if not pool.models:
            raise Refusal(503, "the models are being loaded", "the same again in 2 s", 2)
        if route not in pool.models[name]["routes"]:
            there = ", ".join(f"/{each}" for each in self.routes_of(name))
            more = "; a server that was started with --features FILE has it" * (route == "similar")
            raise Refusal(404, f"the model {name} has no /{route}", f"what it has: {there}{more}")
        if pool.full:
            raise pool.refusal()
        return pool

    async def body_of(self, request: Request) -> bytes:
        """The body of a request, as long as it may be.

        Raises:
            Refusal: It is too long, comes too slowly, or too much is held already.
        """
        found, request.state.held = bytearray(), 0
        too_long = Refusal(413, f"a body has at most {MOST_BYTES:,} bytes", "fewer images, or smaller ones")
        if int(request.headers.get("content-length", 0)) > MOST_BYTES:
            raise too_long
        try:
            async with asyncio.timeout(BODY_SECONDS):
                async for chunk in request.stream():
                    found += chunk
                    self.held += len(chunk)
                    request.state.held += len(chunk)
                    if len(found) > MOST_BYTES:
                        raise too_long
                    if self.held > MOST_HELD:
                        raise self.answering.refusal()
        except TimeoutError as error:
            raise Refusal(408, f"the body did not come in {BODY_SECONDS:g} s", "a faster network") from error
        return bytes(found)

    async def answer(self, route: str, request: Request, query: Asked) -> Response:
        """What a process answers to a request; one whose client has gone is dropped."""
        name = request.scope["model"] = self.named(query.model)
        pool = self.pool_of(route, name)
        self.taken += 1
        try:
            body, asked = await self.body_of(request), query.model_dump(exclude={"model"})
            header = {"route": route, "model": name, "query": asked, "type": request.headers.get("content-type", "")}
            both = asyncio.ensure_future(pool.ask(header, body)), asyncio.ensure_future(_gone(request))
            try:
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
                if not both[0].done():
                    raise ClientDisconnect
                about, content = both[0].result()
            finally:
                for each in both:
                    each.cancel()
        finally:
            self.taken -= 1
            self.held -= request.state.held
        request.scope["images"] = about["images"]
        return Response(content, about["status"], media_type="application/json")


async def _gone(request: Request) -> None:
    """Returns when the client has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def refused(refusal: Refusal) -> JSONResponse:
    """A refusal as it is sent."""
    headers = {} if refusal.wait is None else {"Retry-After": str(refusal.wait)}
    return JSONResponse({"error": refusal.problem, "try": refusal.hint}, refusal.status, headers)


async def _on_refusal(request: Request, error: Refusal) -> Response:
    return refused(error)


async def _on_query(request: Request, error: RequestValidationError) -> Response:
    return refused(query_refusal(request.scope["path"].rpartition("/")[2], error.errors()[0]))


async def _on_http(request: Request, error: HTTPException) -> Response:
    """What is no route, or takes another method."""
    path = request.scope["path"]
    if error.status_code == 405:
        method = (error.headers or {})["Allow"]
        found = refused(Refusal(405, f"{path} takes {method}, got {request.method}", f"{method} {path}"))
        found.headers["Allow"] = "GET, HEAD" if method == "GET" else method
        return found
    ways = ", ".join(f"POST /{each}" for each in ROUTES)
    hint = path.rstrip("/") if path.rstrip("/") in LOGGED else f"{ways}, or GET /openapi.json"
    return refused(Refusal(error.status_code, f"there is nothing at {path[:100]}", hint))


async def _on_gone(request: Request, error: ClientDisconnect) -> Response:
    return Response(status_code=GONE)


async def _on_failure(request: Request, error: Exception) -> Response:
    return refused(Refusal(500, "this request failed unexpectedly", "the log of the server says more"))


HANDLERS: dict[Any, Any] = {
    Refusal: _on_refusal,
    RequestValidationError: _on_query,
    HTTPException: _on_http,
    ClientDisconnect: _on_gone,
    Exception: _on_failure,
}


def application(service: Service) -> Callable[[Message, Receive, Send], Awaitable[None]]:
    """The routes, behind what holds for all of them."""
    app = FastAPI(
        title="vitrail",
        version=version("vitrail"),
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        exception_handlers=HANDLERS,
        responses={500: REFUSALS[500], **({} if service.token else {421: REFUSALS[421]})},
    )
    secured = [Depends(HTTPBearer(auto_error=False))] if service.token else []  # which is for OpenAPI alone

    def posted(route: str, kind: type[Asked]) -> Callable[..., Awaitable[Response]]:
        async def handle(request: Request, query: Annotated[kind, Query()]) -> Response:  # pyrefly: ignore
            return await service.answer(route, request, query)

        return handle

    for route, kind in ROUTES.items():
        texts = TEXTS["routes"][route]
        app.post(
            f"/{route}",
            summary=texts["summary"],
            openapi_extra={"requestBody": TEXTS["requestBody"]},
            responses=shown_as_json({200: texts}) | REFUSALS,
            dependencies=secured,
            name=route,
        )(posted(route, kind))

    @app.get("/", include_in_schema=False)
    def page() -> Response:
        from vitrail.pages.render import serve_page  # takes a second, on a thread of its own

        content, policy = serve_page(tuple(service.answering.load["models"]))
        return HTMLResponse(content, headers={"Content-Security-Policy": f"{policy}; frame-ancestors 'none'"})

    @app.get("/health", summary="Whether the server is alive")
    async def health() -> dict[str, str]:
        return {"status": "alive"}

    ready_texts = shown_as_json({200: TEXTS["ready"], 503: TEXTS["loading"]})

    @app.get("/ready", summary="Whether it takes requests, and by which models", responses=ready_texts)
    async def ready() -> Response:
        models = [
            {
                "model": name,
                "version": one["version"],
                "routes": service.routes_of(name),
                "sets": one.get("sets", False),
            }
            for name, one in service.answering.models.items()
        ]
        status = "ready" if service.ready else "stopping" if service.draining else "loading"
        headers = {} if service.ready else {"Retry-After": "2"}
        return JSONResponse({"status": status, "models": models}, 200 if service.ready else 503, headers)

    @app.get(
        "/metrics",
        summary="Counts for Prometheus",
        dependencies=secured,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}, 401: REFUSALS[401]},
        response_class=Response,
    )
    async def metrics() -> Response:
        pools = {"explaining" if pool is service.explaining else "answering": pool for pool in service.pools}
        versions = {name: one["version"] for name, one in service.answering.models.items()}
        return PlainTextResponse(service.counts.text(pools, versions), media_type="text/plain; version=0.0.4")

    async def gate(scope: Message, receive: Receive, send: Send) -> None:
        await _Passage(service, scope, receive, send).through(app)

    return gate


class _Passage:
    """One request on its way: the token, an end to how many there are, refusals that arrive, counts and the log."""

    def __init__(self, service: Service, scope: Message, receive: Receive, send: Send) -> None:
        self.service, self._receive, self._send = service, receive, send
        method = "GET" if scope["method"] == "HEAD" else scope["method"]  # of which the protocol leaves out the body
        self.scope = {**scope, "method": method}
        self.headers = dict[bytes, bytes](scope["headers"])
        self.begun, self.whole, self.taken, self.status = False, False, 0, GONE

    async def through(self, app: Any) -> None:
        """Answer it."""
        service, began, path = self.service, time.monotonic(), self.scope["path"]
        service.requests += 1
        try:
            await (self.refusal() or app)(self.scope, self.receive, self.send)
        except Exception as error:
            log(f"a request failed unexpectedly: {type(error).__name__}: {error}")
        finally:
            service.requests -= 1
            seconds, route = time.monotonic() - began, path if path in LOGGED else "other"
            service.counts.add(self.scope.get("model", ""), route, self.status, seconds)
            if path not in PROBES:
                images = " ".join(self.scope.get("images", ()))
                log(f"{route} {self.status} {1000 * seconds:.0f} ms {images}")

    def refusal(self) -> Response | None:
        """What is refused of any route."""
        service, path = self.service, self.scope["path"]
        if service.requests > MOST_REQUESTS and path not in ("/", *PROBES):
            return refused(service.answering.refusal())
        given = re.sub(rb"(?i)^bearer +", b"", self.headers.get(b"authorization", b""))
        wanted = (service.token or "").encode()
        if not (wanted or self.is_local()):
            problem = "the Host of the request is not this machine, and no token is asked for"
            return refused(Refusal(421, problem, "-H 'Host: localhost', or a server with --token-file FILE"))
        if wanted and path not in OPEN and not secrets.compare_digest(given, wanted):
            found = refused(Refusal(401, "the server asks for a token", "-H 'Authorization: Bearer TOKEN'"))
            found.headers["WWW-Authenticate"] = "Bearer"
            return found
        return None

    def is_local(self) -> bool:
        """Whether a request over loopback names this machine: a page whose name leads here by a trick names itself."""
        with suppress(TypeError, ValueError, KeyError):  # no address, or no Host
            address, host = self.scope["server"][0], self.headers[b"host"].decode("latin-1").lower()
            name = re.sub(r":\d*$", "", host).strip("[]").rstrip(".")
            local = {*LOCAL, address, socket.gethostname().lower()}
            return not ipaddress.ip_address(address).is_loopback or name in local
        return True

    @property
    def broken(self) -> bool:
        """Whether the body has an end that is none, which `Patient` says."""
        return "broken" in self.scope.get("state", ())  # pyrefly: ignore

    async def receive(self) -> Message:
        """The next part of the body, which is counted.

        Raises:
            Refusal: It is broken.
        """
        self.begun = True
        message = await self._receive()
        if self.broken:
            raise Refusal(400, "the body ends before it is whole, or its chunks are none", "curl -F image=@photo.jpg")
        self.taken += len(message.get("body", b""))
        self.whole = self.whole or not message.get("more_body")
        return message

    async def send(self, message: Message) -> None:
        """A part of the answer; before the first, what is left of the body is read and thrown away."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            await self.throw_away()
            more = [(b"x-content-type-options", b"nosniff"), *([] if self.whole else [(b"connection", b"close")])]
            message = {**message, "headers": [*message["headers"], *more]}
        await self._send(message)

    async def throw_away(self) -> None:
        """Read the rest of a body: who is refused while sending it would see a broken connection, and no reason."""
        asks = self.headers.get(b"expect", b"").lower() == b"100-continue" and not self.begun  # and has sent none
        if asks or self.broken or self.status == 408 or int(self.headers.get(b"content-length", b"0")) > MOST_THROWN:
            return
        with suppress(TimeoutError, Refusal):
            async with asyncio.timeout(THROWN_SECONDS):
                while not self.whole and self.taken < MOST_THROWN:
                    await self.receive()


def log(words: str) -> None:
    """Print a line with the time; a disk that is full, or nobody who reads, is no reason to fail."""
    with suppress(OSError):
        print(time.strftime("%Y-%m-%dT%H:%M:%S%z"), words, file=sys.stderr)

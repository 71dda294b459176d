"""What the server answers: its routes, its limits, and the one form of an error, {"error": ..., "try": ...}.

A request is refused before its body is read where it can be; then the body is read and thrown away, so that the refusal
arrives. Bodies go to a process of a `Pool` as they came: this one decodes nothing.
"""

import asyncio
import json
import re
import secrets
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from vitrail.deploy.server.pool import Pool, Refusal

MOST_BYTES = 32 * 2**20  # of a body
MOST_HELD = 8 * MOST_BYTES  # of all bodies that are held at a time
MOST_THROWN = 4 * MOST_BYTES  # of a refused body; behind these the connection is closed
MOST_REQUESTS = 512  # that are read, wait or are answered at a time
BODY_SECONDS = 60.0  # in which a body has come
GONE = 499  # as nginx calls a client that has gone
PROBES = ("/health", "/ready", "/metrics")  # which are not logged
OPEN = ("/", *PROBES[:2])  # for which no token is asked
BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)  # seconds
TEXTS = json.loads(Path(__file__).with_name("openapi.json").read_text())  # what OpenAPI says of the routes

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class Asked(BaseModel, extra="forbid"):
    """What may stand behind the question mark of every route."""

    model: str | None = Field(None, description="Of several models the one that answers.")


class AskedPredict(Asked):
    """The same of predictions."""

    top: int | None = Field(None, ge=1, description="How many classes are named.")
    coverage: float | None = Field(None, gt=0, lt=1, description="How often the set holds the true class.")


class AskedExplain(Asked):
    """The same of explanations."""

    method: str | None = Field(None, description="As of vitrail explain.")
    target: str | None = Field(None, description="The class that is explained.")
    contrast: str | None = Field(None, description="A class that it is held against.")
    trust: bool = Field(True, description="Whether maps are tested.")
    overlay: bool = Field(False, description="Whether the map over the image comes, too: PNG in base64.")


class AskedSimilar(Asked):
    """The same of similar images."""

    neighbours: int = Field(5, ge=1, le=100, description="How many.")


ROUTES = {"predict": AskedPredict, "explain": AskedExplain, "embed": Asked, "similar": AskedSimilar}
LOGGED = {f"/{route}" for route in ROUTES} | {*PROBES}


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
    """

    def __init__(self, answering: Pool, explaining: Pool | None, token: str | None) -> None:
        self.answering, self.explaining, self.token = answering, explaining, token
        self.draining, self.held, self.taken, self.requests = False, 0, 0, 0
        self.statuses, self.seconds = Counter[tuple[str, int]](), dict[str, list[float]]()

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

    def pool_of(self, route: str, name: str | None) -> tuple[Pool, str]:
        """The pool that answers, and the name of the model.

        Raises:
            Refusal: There is no such model, it has no such route, or nothing is taken now.
        """
        if self.draining:
            raise Refusal(503, "the server is stopping, and takes no more requests", "the same in a minute", 60)
        names, pool = list(self.answering.load["models"]), self.answering
        if name is None and len(names) > 1:
            raise Refusal(422, f"there are several models: {', '.join(names)}", f"?model={names[0]}")
        if (name := name or names[0]) not in names:
            raise Refusal(404, f"there is no model of that name; there is {', '.join(names)}", f"?model={names[0]}")
        if route == "explain" and self.explaining is not None and name in self.explaining.load["models"]:
            pool = self.explaining
        if not pool.models:
            raise Refusal(503, "the models are being loaded", "the same again in 2 s", 2)
        if route not in pool.models[name]["routes"]:
            there = ", ".join(f"/{each}" for each in self.routes_of(name))
            raise Refusal(404, f"the model {name} has no /{route}", f"what it has: {there}")
        if pool.full:
            raise pool.refusal()
        return pool, name

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
        pool, name = self.pool_of(route, query.model)
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

    def count(self, route: str, status: int, seconds: float) -> None:
        """Take note of a request that is answered."""
        self.statuses[route, status] += 1
        if status == 200:
            row = self.seconds.get(route, [0.0] * (len(BUCKETS) + 2))
            row[:] = [n + (seconds <= limit) for n, limit in zip(row, BUCKETS, strict=False)] + [
                row[-2] + 1,
                row[-1] + seconds,
            ]

    def metrics(self) -> str:
        """All counts, as Prometheus reads them."""
        lines = ["# TYPE vitrail_requests_total counter"]
        for (route, status), count in sorted(self.statuses.items()):
            lines.append(f'vitrail_requests_total{{route="{route}",status="{status}"}} {count}')
        lines.append("# TYPE vitrail_request_seconds histogram")
        name = "vitrail_request_seconds"
        for route, (*counts, count, total) in self.seconds.items():
            limits = zip((*BUCKETS, "+Inf"), (*counts, count), strict=True)
            lines += [f'{name}_bucket{{route="{route}",le="{limit}"}} {n:g}' for limit, n in limits]
            lines += [f'{name}_sum{{route="{route}"}} {total:.9g}', f'{name}_count{{route="{route}"}} {count:g}']
        lines += [f"# TYPE vitrail_{name} gauge" for name in ("queue_length", "workers", "worker_restarts")]
        for pool in self.pools:
            which = f'{{pool="{"explaining" if pool is self.explaining else "answering"}"}}'
            lines += [f"vitrail_queue_length{which} {len(pool.jobs)}", f"vitrail_workers{which} {len(pool.workers)}"]
            lines.append(f"vitrail_worker_restarts{which} {pool.restarts}")
        return "\n".join([*lines, ""])


async def _gone(request: Request) -> None:
    """Returns when the client has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def refused(refusal: Refusal) -> JSONResponse:
    """A refusal as it is sent."""
    headers = {} if refusal.wait is None else {"Retry-After": str(refusal.wait)}
    return JSONResponse({"error": refusal.problem, "try": refusal.hint}, refusal.status, headers)


def application(service: Service) -> Callable[[Message, Receive, Send], Awaitable[None]]:
    """The routes, behind what holds for all of them."""
    app = FastAPI(title="vitrail", docs_url=None, redoc_url=None)

    @app.exception_handler(Refusal)
    async def on_refusal(request: Request, error: Refusal) -> Response:
        return refused(error)

    @app.exception_handler(RequestValidationError)
    async def on_query(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        return refused(Refusal(422, f"?{str(first['loc'][-1])[:50]}: {first['msg']}", "what /openapi.json names"))

    @app.exception_handler(HTTPException)
    async def on_http(request: Request, error: HTTPException) -> Response:
        ways = ", ".join(f"POST /{each}" for each in ROUTES)
        return refused(Refusal(error.status_code, str(error.detail), f"{ways}, or GET /openapi.json"))

    @app.exception_handler(ClientDisconnect)
    async def on_gone(request: Request, error: ClientDisconnect) -> Response:
        return Response(status_code=GONE)

    @app.exception_handler(Exception)
    async def on_failure(request: Request, error: Exception) -> Response:
        return refused(Refusal(500, "this request failed unexpectedly", "the log of the server says more"))

    def posted(route: str, kind: type[Asked]) -> Callable[..., Awaitable[Response]]:
        async def handle(request: Request, query: Annotated[kind, Query()]) -> Response:  # pyrefly: ignore
            return await service.answer(route, request, query)

        return handle

    for route, kind in ROUTES.items():
        own = {200: {"content": {"application/json": {"example": TEXTS["routes"][route]["example"]}}}}
        error = {"application/json": {"example": TEXTS["error"]}}
        others = {status: {"description": words, "content": error} for status, words in TEXTS["errors"].items()}
        app.post(
            f"/{route}",
            summary=TEXTS["routes"][route]["summary"],
            openapi_extra={"requestBody": TEXTS["requestBody"]},
            responses=own | others,
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

    @app.get("/ready", summary="Whether it takes requests, and by which models")
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

    @app.get("/metrics", summary="What Prometheus reads")
    async def metrics() -> Response:
        return PlainTextResponse(service.metrics(), media_type="text/plain; version=0.0.4")

    async def gate(scope: Message, receive: Receive, send: Send) -> None:
        await _Passage(service, scope, receive, send).through(app)

    return gate


class _Passage:
    """One request on its way: the token, an end to how many there are, refusals that arrive, counts and the log."""

    def __init__(self, service: Service, scope: Message, receive: Receive, send: Send) -> None:
        self.service, self.scope, self._receive, self._send = service, scope, receive, send
        self.headers = dict[bytes, bytes](scope["headers"])
        self.begun, self.whole, self.taken, self.status = False, False, 0, GONE

    async def through(self, app: Any) -> None:
        """Answer it."""
        service, began, path = self.service, time.monotonic(), self.scope["path"]
        service.requests += 1
        try:
            await (self.refusal() or app)(self.scope, self.receive, self.send)
        except Exception as error:
            print(f"vitrail: a request failed unexpectedly: {type(error).__name__}: {error}", file=sys.stderr)
        finally:
            service.requests -= 1
            seconds, route = time.monotonic() - began, path if path in LOGGED else "other"
            service.count(route, self.status, seconds)
            if path not in PROBES:
                images = " ".join(self.scope.get("images", ()))
                print(
                    f"{time.strftime('%H:%M:%S')} {route} {self.status} {1000 * seconds:.0f} ms {images}",
                    file=sys.stderr,
                )

    def refusal(self) -> Response | None:
        """What is refused of any route."""
        service = self.service
        if service.requests > MOST_REQUESTS:
            return refused(service.answering.refusal())
        given = re.sub(rb"(?i)^bearer +", b"", self.headers.get(b"authorization", b""))
        wanted = (service.token or "").encode()
        if wanted and self.scope["path"] not in OPEN and not secrets.compare_digest(given, wanted):
            found = refused(Refusal(401, "the server asks for a token", "-H 'Authorization: Bearer TOKEN'"))
            found.headers["WWW-Authenticate"] = "Bearer"
            return found
        return None

    async def receive(self) -> Message:
        """The next part of the body, which is counted."""
        self.begun = True
        message = await self._receive()
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
        if asks or self.status == 408 or int(self.headers.get(b"content-length", b"0")) > MOST_THROWN:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(BODY_SECONDS):
                while not self.whole and self.taken < MOST_THROWN:
                    await self.receive()

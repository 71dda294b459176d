"""The routes, queue and processes of a server for an engine that listens itself, such as Ray Serve; no explanations."""

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from vitrail.deploy.server.app import Message, Service, application
from vitrail.deploy.server.names import read_token
from vitrail.deploy.server.pool import Forker, Pool
from vitrail.errors import RunError


class Replica:
    """A pool of one process behind the routes; what it refuses and says is what `vitrail serve` does.

    Args:
        service: With a pool that has its process.
    """

    def __init__(self, service: Service) -> None:
        self.service, self.app = service, application(service)

    @classmethod
    async def start(cls, load: Mapping[str, Any], queue: int, timeout: float) -> "Replica":
        """One that has loaded its models; requests must bear the token in $VITRAIL_TOKEN, if there is one.

        Args:
            load: What the process is told to load: `models` by name, `options` of their weights, `device`, `threads`.
            queue: Requests that wait, at most.
            timeout: Seconds for an answer.

        Raises:
            VitrailError: A model cannot be served.
        """
        pool = Pool(Forker(load["models"].values()), {**load, "explains": False}, 1, queue, timeout, _ignore, print)
        pool.swap(await pool.prepare())
        return cls(Service(pool, None, read_token()))

    async def answer(self, request: Request) -> Response:
        """What a server answers to this request."""
        sent = list[Message]()

        async def send(message: Message) -> None:
            sent.append(message)

        await self.app(request.scope, request.receive, send)
        start, *parts = sent
        answer = Response(b"".join(part.get("body", b"") for part in parts), start["status"])
        answer.raw_headers = start["headers"]
        return answer

    def check(self) -> None:
        """Refuse to be called healthy while no process answers.

        Raises:
            RunError: None does.
        """
        if not self.service.ready:
            raise RunError("no process answers here", "another replica")


def _ignore() -> None:
    """Other weights were found where the models are: whoever runs the engine decides when all replicas take them."""

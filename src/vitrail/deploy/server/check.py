"""Whether a running server answers as the model does that is here: it is sent images, by urllib alone."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

from vitrail.deploy.proof import alike, as_files, images_for
from vitrail.deploy.server.names import DIGITS
from vitrail.errors import DataError, Hint, RunError, UsageError, VitrailError
from vitrail.io import plain
from vitrail.model import Model
from vitrail.model.onnx_file import OnnxNetwork
from vitrail.nn.networks import weights_hash
from vitrail.tasks.calibration import COVERAGE

AGREED = 1e-4  # by how much a number may differ, beside its size or 1; both sides compute in fp32
SAID = "file", "notes"  # of an answer, which may differ
SECONDS = 60.0  # for an answer


@dataclass(frozen=True)
class CheckedServer:
    """What a server answered.

    Attributes:
        model: What the model is called there.
        version: The first digits of the hash of its weights, there and here.
        images: How many images were answered on both sides.
        of: What images they are.
        differs: The first image that it answered otherwise; empty where there is none.
        why: What of that answer differs, in words.
    """

    model: str
    version: str
    images: int
    of: str
    differs: str = ""
    why: str = ""


def check_server(url: str, name: str, model: Model, token: str | None = None) -> CheckedServer:
    """Send a server images, and hold its answers against those of a model.

    Args:
        url: Its address, http or https.
        name: What the model is called there; any other name of the same weights will do.
        model: As it has to answer.
        token: That the server asks for; None for none.

    Raises:
        UsageError: This is no address.
        RunError: Nothing answers, or no server of vitrail; it has other weights, asks for another token, or is busy.
    """
    if not url.startswith(("http://", "https://")):
        problem = f"a server has an address that begins with http, got '{url}'"
        raise UsageError(problem, Hint({"check": f"http://{url}"}))
    network, found, count = model.network, _ask(url, "ready"), 0
    version = (network.version if isinstance(network, OnnxNetwork) else weights_hash(network))[:DIGITS]
    try:
        served = {one["model"]: one["version"] for one in found["models"]}
    except (LookupError, TypeError) as error:
        problem = f"what answers at {url} is no server of vitrail"
        raise RunError(problem, "the address that vitrail serve prints when it is ready") from error
    there = next((each for each in ([name] if name in served else served) if served[each] == version), None)
    if there is None:
        words = ", ".join(f"{each} ({other})" for each, other in served.items())
        raise RunError(f"{url} answers by {words}, and {name} is {version} here", "the model that the server was given")
    asked = {"model": there}
    with suppress(VitrailError):
        asked["coverage"] = str(model.output.promising(COVERAGE).coverage)
    coverage = COVERAGE if "coverage" in asked else None
    images, of = images_for(model, None)
    with as_files(images, model.preprocessing.size) as files:
        for file in files:
            with suppress(DataError):  # which no server can read, either
                (own,) = plain([one.to_dict() for one in model.predict([file], coverage=coverage)])
                answer, count = _ask(url, f"predict?{urlencode(asked)}", token, file.read_bytes()), count + 1
                if why := _difference(own, version, answer):
                    return CheckedServer(there, version, count, of, str(file) if images else file.name, why)
    if not count:
        raise RunError(f"{of}: none can be read, so nothing was compared", "vitrail data check  # which says why")
    return CheckedServer(there, version, count, of)


def _difference(own: Mapping[str, Any], version: str, answer: Any) -> str:
    """What differs first in an answer, in words; empty of one that is alike."""
    try:
        (other,) = answer["predictions"]
        theirs = {**other, "version": answer["version"]}
    except (LookupError, TypeError, ValueError):
        return f"the answer is {json.dumps(answer)[:200]}"
    ours = {key: value for key, value in {"version": version, **own}.items() if key not in SAID}
    wrong = (key for key, value in ours.items() if not alike(value, theirs.get(key), AGREED))
    return next((f"{key} is {theirs.get(key)} there, and {ours[key]} here" for key in wrong), "")


def _ask(url: str, path: str, token: str | None = None, body: bytes | None = None) -> Any:
    """The JSON that comes back, None where it is none; of what is refused the status.

    Raises:
        RunError: Nothing comes back, the token is wrong, or no requests are taken now.
    """
    headers = {"Content-Type": "application/octet-stream", "Authorization": f"Bearer {token or ''}"}
    try:
        with urlopen(Request(f"{url.rstrip('/')}/{path}", body, headers), timeout=SECONDS) as reply:
            return json.loads(reply.read())
    except HTTPError as error:
        error.close()
        if error.code == 401:
            problem = f"{url} asks for a token, and {'none was given' if token is None else 'for another one'}"
            raise RunError(problem, "--token-file FILE, with the token that the server was started with") from error
        if error.code == 503:
            raise RunError(f"{url} takes no requests now", "the same in a minute") from error
        return f"status {error.code}"
    except (OSError, HTTPException) as error:
        problem = f"no server answers at {url}: {error}"
        raise RunError(problem, "vitrail serve RUN  # which starts one, and prints its address") from error
    except ValueError:
        return None

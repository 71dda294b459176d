"""From the body of a request to images; every limit is kept before anything is decoded.

    multipart/form-data          each file is an image, whatever its field is called
    application/json             {"images": [BASE64, ...]}
    image/*, octet-stream        one image

The headers of all images are read before the first is decoded. Names are those of the client, or numbers, and are
nothing but words in an answer.
"""

import base64
import binascii
import io
import json
from collections.abc import AsyncGenerator
from typing import Any

from PIL import Image
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from vitrail.data.images import NamedImage, formats_of, hash_of, open_image
from vitrail.deploy.server.pool import Refusal

MOST_IMAGES = 32
MOST_PIXELS = 50_000_000  # of all images of a request together; a process needs 13 to 20 bytes for each, at most
LONGEST_NAME = 200  # characters
STILL = ("GIF", "PNG", "WEBP", "AVIF", "TIFF")  # formats with several images in a file that are one after the other
CURL = "curl -F image=@photo.jpg"


def decode_body(kind: str, body: bytes, most: int = MOST_IMAGES) -> list[NamedImage]:
    """The images of a request, decoded.

    Args:
        kind: The content type.
        body: As it came.
        most: How many images it may have.

    Raises:
        Refusal: The body is not what the type says, it has no image or too many, or one of them is refused.
        DataError: An image cannot be read; names it.
    """
    media = kind.partition(";")[0].strip().lower()
    if media == "multipart/form-data":
        parts = _of_form(kind, body, most)
    elif media == "application/json":
        parts = _of_json(body)
    elif media.startswith("image/") or media == "application/octet-stream":
        parts = [("", body)]
    else:
        problem = f"a body is a form with files, JSON or an image, got the type {media or 'none'}"
        raise Refusal(415, problem, f"{CURL}, or --data-binary @photo.jpg -H 'Content-Type: image/jpeg'")
    if not 0 < len(parts) <= most:
        raise Refusal(422, f"a request has from 1 to {most} images, got {len(parts)}", CURL if not parts else "fewer")
    named = [(_word(name) or str(number), content) for number, (name, content) in enumerate(parts, start=1)]
    if (pixels := sum(_pixels(*each) for each in named)) > MOST_PIXELS:
        problem = f"the images of a request have at most {MOST_PIXELS:,} pixels together, got {pixels:,}"
        raise Refusal(413, problem, "smaller images" if len(named) == 1 else "smaller images, or fewer")
    return [NamedImage(name, open_image(name, each), fingerprint=hash_of(each).hex()) for name, each in named]


def _pixels(name: str, content: bytes) -> int:
    """How many an image has by its header, which also says whether it stands still; 0 where none can be read."""
    if content:
        try:
            with Image.open(io.BytesIO(content), formats=formats_of(content[:64], name)) as image:
                if image.format in STILL and getattr(image, "n_frames", 1) > 1:
                    raise Refusal(422, f"{name}: has several images, one after the other", "one of them")
                return image.width * image.height
        except Image.DecompressionBombError as error:
            raise Refusal(413, f"{name}: has more than {MOST_PIXELS:,} pixels", "a smaller image") from error
        except (OSError, ValueError, SyntaxError, EOFError):
            pass  # which is refused when it is decoded, with the reason
    return 0


def _of_form(kind: str, body: bytes, most: int) -> list[tuple[str, bytes]]:
    """The files of a form; nothing is written to a disk, so nothing waits: an event loop would take 1.6 ms."""

    async def stream() -> AsyncGenerator[bytes, None]:
        yield body

    parser = MultiPartParser(Headers({"content-type": kind}), stream(), max_files=most, max_fields=0)
    parser.spool_max_size = len(body) + 1
    try:
        parser.parse().send(None)
    except StopIteration as parsed:
        files = [each for _, each in parsed.value.multi_items() if isinstance(each, UploadFile)]
        return [(each.filename or "", each.file.read()) for each in files]
    except MultiPartException as error:
        if "many fields" in error.message:
            raise Refusal(422, "a field of the form has no file", CURL) from error
        raise Refusal(422 if "many" in error.message else 400, f"the form: {error.message}", CURL) from error
    raise AssertionError("a form was waited for")


def _of_json(body: bytes) -> list[tuple[str, bytes]]:
    try:
        found: Any = json.loads(body)
    except json.JSONDecodeError as error:
        raise _no_json(f"the body is no JSON: {error.msg} at character {error.pos}") from error
    except RecursionError as error:
        raise _no_json("the body is JSON with too many brackets inside of each other") from error
    except ValueError as error:
        raise _no_json("the body is no JSON: it is no text in UTF-8, or has an endless number") from error
    if not isinstance(found, dict) or found.keys() != {"images"}:
        keys = ", ".join(sorted(found))[:LONGEST_NAME] if isinstance(found, dict) else type(found).__name__
        raise _no_json(f"JSON of a request is an object with images and nothing else, got {keys or 'an empty one'}")
    if not isinstance(found["images"], list):
        raise _no_json(f"images are a list of texts, got {type(found['images']).__name__}")
    return [("", _of_base64(text, number)) for number, text in enumerate(found["images"][: MOST_IMAGES + 1], start=1)]


def _of_base64(text: Any, number: int) -> bytes:
    """An image out of a list."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError, TypeError) as error:
        if not isinstance(text, str):
            raise _no_json(f"image {number} is a text in base64, got {type(text).__name__}") from error
        if text.startswith("data:"):
            raise _no_json(f"image {number} is a data URL", "what stands behind its comma, alone") from error
        if text.split() != [text]:
            raise _no_json(f"image {number} has spaces or line breaks in its base64", "base64 -w0 photo.jpg") from error
        raise _no_json(f"image {number} is no base64: {error}", "base64 -w0 photo.jpg") from error


def _no_json(problem: str, hint: str = '{"images": ["BASE64", ...]}') -> Refusal:
    return Refusal(400, problem, hint)


def _word(name: str) -> str:
    """The last part of a client's name, in one line."""
    last = name.replace("\\", "/").rpartition("/")[2][:LONGEST_NAME]
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in last)

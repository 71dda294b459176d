"""From the body of a request to images; every limit is kept before anything is decoded.

    multipart/form-data          each file is an image, whatever its field is called
    application/json             {"images": [BASE64, ...]}
    image/*, octet-stream        one image

Names are those of the client, or numbers, and are nothing but words in an answer.
"""

import asyncio
import base64
import binascii
import io
import json
from collections.abc import AsyncGenerator
from typing import Any

from PIL import Image
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from vitrail.data.images import PIXEL_LIMIT, NamedImage, formats_of, hash_of, open_image
from vitrail.deploy.server.pool import Refusal

MOST_IMAGES = 32
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
        parts = asyncio.run(_files(kind, body, most))
    elif media == "application/json":
        parts = _of_json(body)
    elif media.startswith("image/") or media == "application/octet-stream":
        parts = [("", body)]
    else:
        problem = f"a body is a form with files, JSON or an image, got the type {media or 'none'}"
        raise Refusal(415, problem, f"{CURL}, or --data-binary @photo.jpg -H 'Content-Type: image/jpeg'")
    if not 0 < len(parts) <= most:
        raise Refusal(422, f"a request has from 1 to {most} images, got {len(parts)}", CURL if not parts else "fewer")
    return [_open(_word(name) or str(number), content) for number, (name, content) in enumerate(parts, start=1)]


def _open(name: str, content: bytes) -> NamedImage:
    """One image, when its header has said that it is small enough and stands still."""
    if content:
        try:
            with Image.open(io.BytesIO(content), formats=formats_of(content[:64], name)) as image:
                if image.width * image.height > PIXEL_LIMIT:
                    problem = f"{name}: has {image.width} x {image.height} pixels, more than {PIXEL_LIMIT:,}"
                    raise Refusal(413, problem, "a smaller image")
                if image.format in STILL and getattr(image, "n_frames", 1) > 1:
                    raise Refusal(422, f"{name}: has several images, one after the other", "one of them")
        except Image.DecompressionBombError as error:
            raise Refusal(413, f"{name}: has more than {PIXEL_LIMIT:,} pixels", "a smaller image") from error
        except (OSError, ValueError, SyntaxError, EOFError):
            pass  # which is refused below, with the reason
    return NamedImage(name, open_image(name, content), fingerprint=hash_of(content).hex())


async def _files(kind: str, body: bytes, most: int) -> list[tuple[str, bytes]]:
    """The files of a form; nothing is written to a disk."""

    async def stream() -> AsyncGenerator[bytes, None]:
        yield body

    parser = MultiPartParser(Headers({"content-type": kind}), stream(), max_files=most, max_fields=0)
    parser.spool_max_size = len(body) + 1
    try:
        form = await parser.parse()
    except MultiPartException as error:
        if "many fields" in error.message:
            raise Refusal(422, "a field of the form has no file", CURL) from error
        raise Refusal(422 if "many" in error.message else 400, f"the form: {error.message}", CURL) from error
    files = [each for _, each in form.multi_items() if isinstance(each, UploadFile)]
    return [(each.filename or "", each.file.read()) for each in files]


def _of_json(body: bytes) -> list[tuple[str, bytes]]:
    wanted = '{"images": ["BASE64", ...]}'
    try:
        found: Any = json.loads(body)
        texts = found["images"]
        if {*found} != {"images"} or not isinstance(texts, list):
            raise TypeError
        return [("", base64.b64decode(text, validate=True)) for text in texts[: MOST_IMAGES + 1]]
    except (binascii.Error, ValueError, TypeError, LookupError, RecursionError) as error:
        raise Refusal(400, "the body is no JSON of the form that is wanted", wanted) from error


def _word(name: str) -> str:
    """The last part of a client's name, in one line."""
    last = name.replace("\\", "/").rpartition("/")[2][:LONGEST_NAME]
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in last)

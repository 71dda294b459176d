"""Files in a bad state, as a full disk, a cut download or a stranger leaves them."""

from pathlib import Path


def damage(file: Path, how: str) -> None:
    """Bring a file into one bad state.

    Args:
        file: What is changed in place.
        how: `missing`, `empty`, `cut` in half, `flipped` in one bit near its end, or a `folder` in its place.
    """
    content = bytearray(file.read_bytes())
    file.unlink()
    match how:
        case "missing":
            pass
        case "empty":
            file.write_bytes(b"")
        case "cut":
            file.write_bytes(content[: len(content) // 2])
        case "flipped":
            content[-3] ^= 1
            file.write_bytes(content)
        case "folder":
            file.mkdir()
        case _:
            raise AssertionError(how)

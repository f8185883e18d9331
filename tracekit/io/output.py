"""Writing files whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from tracekit.core.errors import TracekitError


def write_text(path: Path, text: str) -> None:
    """Write a text file as UTF-8, whole or not at all.

    Raises:
        TracekitError: the folder is missing or cannot be written.
    """
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file beside its place, then rename it there.

    Raises:
        TracekitError: the folder is missing or cannot be written.
    """
    try:
        handle, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise TracekitError(f"{path}: cannot be written ({error.strerror})") from error
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        Path(partial).chmod(0o666 & ~umask())
        Path(partial).replace(path)
    except OSError as error:
        raise TracekitError(f"{path}: cannot be written ({error.strerror})") from error
    finally:
        Path(partial).unlink(missing_ok=True)


def umask() -> int:
    """The permissions that new files and folders of this process do not get."""
    mask = os.umask(0)
    os.umask(mask)
    return mask

"""Replace a small file so that a crash leaves the old content or the new, and keep the old as a backup."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def replace_file(path: Path, data: bytes) -> None:
    """Make `data` the content of `path`; what it held before becomes `path.bak`. Durable when this returns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    backup = path.with_name(path.name + ".bak")
    with suppress(FileNotFoundError):
        # A link first: at no moment is there neither the file nor its backup.
        with suppress(FileNotFoundError):
            backup.unlink()
        os.link(path, backup)
    os.replace(temporary, path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)

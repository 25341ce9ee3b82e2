"""Store directories as paths and URLs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from reput_client.errors import NotAStore

_SECRET: Final = re.compile(r"(?<=:)//[^/@:]*:[^/@]*@")


def is_remote(path: str) -> bool:
    """Tell whether a path is a URL of a file system that is not this machine's."""
    scheme = urlsplit(path).scheme
    return len(scheme) > 1 and scheme != "file"


def without_secret(path: str) -> str:
    """Return a path as it is shown: a URL without user and password."""
    return _SECRET.sub("//", path)


def directory_of(path: str) -> Path:
    """Return the directory of a path or a `file:` URL.

    Raises:
        NotAStore: it is a URL of another file system.
    """
    if is_remote(path):
        raise NotAStore(without_secret(path), f"only local directories can be read here, not {urlsplit(path).scheme}:")
    parts = urlsplit(path)
    return Path(unquote(parts.path)) if parts.scheme == "file" else Path(path)

"""`repair-N`: the directory beside a store's files that keeps everything which a repair changes or takes away.

Nothing in it is ever written over. What comes from below the store directory has the same path in it; what comes from
other directories of the log, where files may have the same names, lies in `outside/K-NAME`, with a number for each
directory. Where a name is taken all the same, a number is added. `repair.json` says where everything came from.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from reput_broker.store.file_io import sync_directory

_WORDS = "repair.json"


class SideDirectory:
    """The directory of one repair: made as the first `repair-N` that is not there, durably."""

    def __init__(self, root: Path) -> None:
        number = 1
        while os.path.lexists(path := root / f"repair-{number}"):
            number += 1
        path.mkdir()
        sync_directory(root)
        self.root = root
        self.path = path
        self._given: set[Path] = {path / _WORDS}
        self._outside: dict[Path, str] = {}

    def place_for(self, source: Path) -> Path:
        """Return where a file or directory is to be kept: given to nobody else."""
        if source.is_relative_to(self.root):
            return self.place(source.relative_to(self.root))
        directory = source.parent
        name = self._outside.setdefault(directory, f"{len(self._outside) + 1}-{directory.name}")
        return self.place(Path("outside", name, source.name))

    def place(self, wanted: Path) -> Path:
        """Return the path below this directory that is like the wanted one: given to nobody else."""
        path, number = self.path / wanted, 1
        while path in self._given or os.path.lexists(path):
            number += 1
            path = self.path / wanted.with_name(f"{wanted.name}.{number}")
        self._given.add(path)
        return path

    def relative(self, place: Path) -> str:
        """Return a place as `repair.json` names it."""
        return str(place.relative_to(self.path))

    def describe(self, words: dict[str, Any]) -> None:
        """Write `repair.json`, and bring it and every name that is there to the disk."""
        with (self.path / _WORDS).open("x", encoding="utf-8") as file:
            json.dump(words, file, indent=2, ensure_ascii=False)
            file.flush()
            os.fsync(file.fileno())
        for directory in [*(path for path in self.path.rglob("*") if path.is_dir()), self.path, self.root]:
            sync_directory(directory)

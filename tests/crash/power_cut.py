"""Make the directory that a power cut could have left behind.

Of every file, what was synced is certain; each page written since then survives or not, as the seed decides. Of every
directory, the names of its last sync are certain; names that came or went since then are there or not. A file that was
never synced may even be empty.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

from crash.sync_shadow import Durable

PAGE_BYTES = 4096


def cut_power(data_dir: Path, synced: Durable, image_dir: Path, rng: random.Random) -> int:
    """Write to `image_dir` what may be left of `data_dir`; return how many pages were lost."""
    shutil.rmtree(image_dir, ignore_errors=True)
    return _cut_directory(data_dir, data_dir, synced, image_dir, rng)


def _cut_directory(root: Path, current: Path, synced: Durable, image: Path, rng: random.Random) -> int:
    image.mkdir(parents=True)
    relative = "." if current == root else str(current.relative_to(root))
    durable = synced.names(relative)
    present = {path.name: str(path.stat().st_ino) for path in current.iterdir()}
    lost = 0
    for name in sorted(durable.keys() | present.keys()):
        inode = _choose_name(durable.get(name), present.get(name), rng)
        if inode is None:
            continue
        path = current / name
        if path.is_dir():
            lost += _cut_directory(root, path, synced, image / name, rng)
        else:
            now = path.read_bytes() if present.get(name) == inode else None
            content, pages = _cut_content(synced.content(inode), now, rng)
            (image / name).write_bytes(content)
            lost += pages
    return lost


def _choose_name(durable: str | None, present: str | None, rng: random.Random) -> str | None:
    if durable == present:
        return durable
    return durable if rng.random() < 0.5 else present


def _cut_content(synced: bytes | None, now: bytes | None, rng: random.Random) -> tuple[bytes, int]:
    if now is None:
        return synced or b"", 0
    if synced is None and rng.random() < 0.25:
        return b"", len(now) // PAGE_BYTES
    image = bytearray(now)
    old = (synced or b"").ljust(len(now), b"\0")
    lost = 0
    for start in range(0, len(now), PAGE_BYTES):
        end = start + PAGE_BYTES
        if image[start:end] != old[start:end] and rng.random() < 0.5:
            image[start:end] = old[start:end][: len(now) - start]
            lost += 1
    return bytes(image), lost

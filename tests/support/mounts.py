"""Small real file systems for tests: full, or read-only. Only root may mount them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

NOBODY = 65534


class Mount:
    """A mounted tmpfs."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def make_read_only(self, read_only: bool = True) -> None:
        """Remount it, read-only or not."""
        how = "ro" if read_only else "rw"
        subprocess.run(["mount", "-o", f"remount,{how}", str(self.path)], check=True)


def try_to_mount(path: Path, size: int) -> bool:
    """Mount an empty tmpfs of `size` bytes on a directory; False where that is not allowed."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "reput-test", str(path)]
    return os.geteuid() == 0 and subprocess.run(command, capture_output=True, check=False).returncode == 0


def unmount(path: Path) -> None:
    """Unmount it, even if a process has a file of it open."""
    subprocess.run(["umount", "--lazy", str(path)], check=True)


@contextmanager
def mounted(path: Path, size: int = 16 << 20) -> Iterator[Mount]:
    """Mount a tmpfs on a directory that is made for it; where that is not allowed, the test is skipped."""
    path.mkdir()
    if not try_to_mount(path, size):
        pytest.skip("no right to mount a file system")
    try:
        yield Mount(path)
    finally:
        unmount(path)


@contextmanager
def closed(directory: Path) -> Iterator[None]:
    """Prevent all users, root included, from creating files in a directory, or skip the test."""
    if os.geteuid() != 0:
        close, reopen = ["chmod", "a-w"], ["chmod", "u+w"]
    else:
        close, reopen = ["chattr", "+i"], ["chattr", "-i"]
        if shutil.which("chattr") is None:
            pytest.skip("no chattr, and root may write anywhere")
    if subprocess.run([*close, str(directory)], capture_output=True, check=False).returncode:
        pytest.skip(f"the file system of {directory} does not know chattr +i")
    try:
        yield
    finally:
        subprocess.run([*reopen, str(directory)], check=True)


@contextmanager
def as_nobody() -> Iterator[None]:
    """Be a user for the block who owns nothing; who is not root stays who it is."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)

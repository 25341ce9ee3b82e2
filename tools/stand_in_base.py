"""A stand-in for the Dockerfile's base image, where that cannot be pulled.

debootstrap makes a minimal Debian with Python from the mirror that this machine's apt uses, under the names that
the official Python images have. It proves the Dockerfile's steps, the user, the files and the entrypoint; it does
not prove the published base image.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from image_engines import EngineError, run

PACKAGES = "ca-certificates,python3,python3-dev,python3-pip,python3-venv"


def make_stand_in(directory: Path, base: str) -> Path:
    """Return the packed root file system that stands for `base`, made in `directory` unless it lies there already.

    Args:
        base: the name of an official Python image on Debian, such as python:3.11-slim-bookworm.

    Raises:
        EngineError: debootstrap failed, or its Python is another version than the name says.
    """
    version, _, suite = base.partition(":")[2].partition("-slim-")
    packed = directory / f"stand-in-{version}-{suite}.tar"
    if packed.exists():
        return packed
    root = directory / "stand-in"
    shutil.rmtree(root, ignore_errors=True)
    print(f"  making a stand-in for {base} with debootstrap, a minute or two", flush=True)
    run(["debootstrap", "--variant=minbase", f"--include={PACKAGES}", suite, str(root), apt_mirror(suite)])
    try:
        if not (root / f"usr/bin/python{version}").exists():
            raise EngineError(f"Debian {suite} has no Python {version}; the stand-in cannot be made")
        for name in ("python", "python3"):
            (root / "usr/local/bin" / name).symlink_to(f"/usr/bin/python{version}")
        partial = packed.with_suffix(".partial")
        run(["tar", "--create", "--numeric-owner", "--directory", str(root), "--file", str(partial), "."])
        partial.rename(packed)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return packed


def apt_mirror(suite: str) -> str:
    """Return the address of the mirror that apt fetches `suite` from; EngineError if it is configured for none."""
    for line in run(["apt-get", "indextargets", "--format", "$(CODENAME) $(REPO_URI)"]).splitlines():
        codename, _, address = line.partition(" ")
        if codename == suite and address:
            return address.strip()
    raise EngineError(f"apt knows no mirror for Debian {suite}; on this machine no stand-in can be made")

"""Make a replacement for the Dockerfile's base image, for machines that cannot pull it.

debootstrap installs a minimal Debian with Python from this machine's apt mirror, with the paths of the official Python
images. That checks the Dockerfile's steps, the user, the files and the entrypoint, but not the published base image.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from image_engines import EngineError, run

PACKAGES = "ca-certificates,python3,python3-dev,python3-pip,python3-venv"


def make_stand_in(directory: Path, base: str) -> Path:
    """Return the packed root file system that replaces `base`; it is made in `directory` unless it exists.

    Args:
        base: the name of an official Python image on Debian, such as python:3.11.13-slim-bookworm.

    Raises:
        EngineError: debootstrap failed, or its Python does not have the version in the name.
    """
    version, _, suite = base.partition(":")[2].partition("-slim-")
    version = ".".join(version.split(".")[:2])  # Debian's has another patch version
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
    """Return the address of apt's mirror for `suite`; raises EngineError if there is none."""
    for line in run(["apt-get", "indextargets", "--format", "$(CODENAME) $(REPO_URI)"]).splitlines():
        codename, _, address = line.partition(" ")
        if codename == suite and address:
            return address.strip()
    raise EngineError(f"apt knows no mirror for Debian {suite}; on this machine no stand-in can be made")

"""The content of a wheel, with and without a C compiler, and `make wheels` with a missing interpreter."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from reput_protocol.kernel import MODULES

ROOT = Path(__file__).parents[3]
SOURCES = ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE")
KERNEL = "protocol/reput_protocol/kernel"
PACKAGES = ("protocol", "broker", "client", "pipeline", "cli")
# Only checks that the kernel is there and is loaded: optimising it, and its large modules, take most of the time.
QUICK = {"REPUT_KERNEL_CFLAGS": "-O0"}
LARGE = ("index", "put_blocks", "records", "tables", "units")
NO_COMPILER = {"CC": "no-such-compiler"}
FAKE_UV = """#!/bin/sh
case "$*" in
*--sdist*) mkdir -p dist; touch dist/reput-1.tar.gz ;;
*"--wheel "*)
    while [ "$1" != --out-dir ]; do shift; done
    test "$REPUT_KERNEL" = compiled && touch "$2/reput-1-cp311-cp311-linux_x86_64.whl" ;;
"python find"*@3.11) echo /usr/bin/python3.11 ;;
*auditwheel*) for last; do :; done; mkdir "${last%/*}/repaired"; mv "$last" "${last%/*}/repaired/" ;;
*) exit 2 ;;
esac
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked source distribution, made from a tree in which a kernel has been compiled for something else."""
    tree = tmp_path_factory.mktemp("tree")
    for name in SOURCES:
        shutil.copy(ROOT / name, tree)
    for name in PACKAGES:
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    (tree / KERNEL / "records.cpython-399-other.so").touch()
    build("sdist", tree)
    (packed,) = (tree / "dist").glob("*.tar.gz")
    with tarfile.open(packed) as archive:
        archive.extractall(tree / "unpacked", filter="data")
    (unpacked,) = (tree / "unpacked").iterdir()
    (unpacked / KERNEL / "records.cpython-399-other.so").touch()
    for name in LARGE:
        module = unpacked / KERNEL / f"{name}.py"
        assert module.stat().st_size > 10_000
        module.write_text("def nothing() -> None:\n    pass\n")
    return unpacked


def build(target: str, source: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(source / "dist")]
    variables = {name: value for name, value in os.environ.items() if name != "REPUT_KERNEL"}
    return subprocess.run(
        command, cwd=source, env=variables | environment, capture_output=True, text=True, check=False
    )


def wheel(source: Path, directory: Path, **environment: str) -> tuple[Path, str]:
    """Build a wheel from the source distribution; return where it is, unpacked, its name and what was printed."""
    shutil.rmtree(source / "dist", ignore_errors=True)
    done = build("wheel", source, **environment)
    assert done.returncode == 0, done.stderr
    (built,) = (source / "dist").glob("*.whl")
    zipfile.ZipFile(built).extractall(directory)
    return directory, built.name + done.stderr


def form(site: Path) -> str:
    """How the kernel of an unpacked wheel runs."""
    program = "from reput_protocol import kernel; print(kernel.FORM, kernel.__file__)"
    environment = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False
    )
    assert str(site) in done.stdout, done.stderr
    return done.stdout.split()[0]


def of_c(site: Path) -> set[str]:
    """The files of C and machine code in a wheel, without the tag of a Python."""
    suffixes = {".so", ".c", ".h", ".pxd"}
    return {path.name.split(".")[0] + path.suffix for path in site.rglob("*") if path.suffix in suffixes}


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_a_wheel_has_the_compiled_kernel_and_the_tag_of_its_python(source: Path, tmp_path: Path) -> None:
    site, said = wheel(source, tmp_path, REPUT_KERNEL="compiled", **QUICK)
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert said.startswith(f"reput-0.1.0-{python}-{python}-linux_")
    assert form(site) == "compiled"
    assert of_c(site) == {f"{name}.so" for name in ("_cython", *MODULES)}


def test_without_a_compiler_a_wheel_is_for_any_python_and_says_that_it_runs_interpreted(
    source: Path, tmp_path: Path
) -> None:
    site, said = wheel(source, tmp_path, **NO_COMPILER)
    assert said.startswith("reput-0.1.0-py3-none-any.whl")
    assert "the kernel was not compiled and will run interpreted: " in said
    assert "no-such-compiler" in said
    assert form(site) == "interpreted"
    assert of_c(site) == set()


def test_a_missing_compiler_fails_a_build_that_requires_the_compiled_kernel(source: Path) -> None:
    done = build("wheel", source, REPUT_KERNEL="compiled", **NO_COMPILER)
    assert done.returncode != 0
    assert "no-such-compiler" in done.stderr


@pytest.mark.parametrize(("versions", "status"), [((), 0), (("3.11",), 0), (("3.11", "3.12"), 1)])
def test_missing_interpreters_are_named_and_fail_only_runs_that_name_them(
    tmp_path: Path, versions: tuple[str, ...], status: int
) -> None:
    (tmp_path / "tools").mkdir()
    shutil.copy(ROOT / "tools" / "wheels.py", tmp_path / "tools")
    for name in ("uv", "uvx"):
        (tmp_path / name).write_text(FAKE_UV)
        (tmp_path / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = [sys.executable, "tools/wheels.py", *versions]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    assert "built   dist/reput-1-cp311-cp311-linux_x86_64.whl" in done.stdout
    missing = [line.split()[2].rstrip(":") for line in done.stdout.splitlines() if line.startswith("missing")]
    assert missing == [version for version in versions or ("3.12", "3.13", "3.14") if version != "3.11"]
    assert [path.suffix for path in (tmp_path / "dist").iterdir()].count(".whl") == 1

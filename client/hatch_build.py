"""Compile the kernel where the package is built: the modules of `reput_protocol.kernel` become machine code.

All of them or none: without a C compiler the build succeeds all the same, and the kernel runs interpreted, as
`reput broker status` says.

REPUT_KERNEL chooses: `compiled` fails the build where nothing can be compiled, `interpreted` compiles nothing.
REPUT_KERNEL_CFLAGS are more options for the compiler.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

KERNEL = Path("reput_protocol/kernel")
INTERPRETED = ("__init__", "raw", "uncompiled")
"""The modules of the kernel that are not compiled; `raw` has another form for that."""
SHARED = "_cython"
"""The module that Cython makes for what all others need of its own."""
LITTLE_OPTIMISED = (SHARED, "frames", "timer")
"""More than -O1 makes these no faster, and takes seconds of the installation."""


class KernelBuildHook(BuildHookInterface[Any]):
    """Adds the compiled kernel to a wheel; for an editable installation it is put next to its source."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and say which files the wheel gets in addition."""
        kernel = Path(self.root) / KERNEL
        if version == "editable":
            remove_compiled(kernel)
        how = os.environ.get("REPUT_KERNEL", "")
        if how == "interpreted":
            return
        self._directory = tempfile.TemporaryDirectory()
        try:
            compiled = compile_kernel(kernel, Path(self._directory.name))
        except Exception as error:
            if how:
                raise
            print(f"the kernel was not compiled and will run interpreted: {error}", file=sys.stderr)
            return
        for path in compiled:
            if version == "editable":
                shutil.copy2(path, kernel)
            else:
                build_data["force_include"][str(path)] = f"reput_protocol/kernel/{path.name}"
        build_data["pure_python"] = False
        build_data["infer_tag"] = True


def remove_compiled(kernel: Path) -> None:
    """Remove the compiled modules of an editable installation; what is left runs interpreted."""
    for old in kernel.glob("*.so"):
        old.unlink()


def compile_kernel(kernel: Path, directory: Path, *, checked: bool = False) -> list[Path]:
    """Compile the kernel in `directory`, with every index checked if asked; return the extension modules.

    Raises:
        Exception: Cython or a C compiler is missing, or fails.
    """
    from Cython.Build import cythonize
    from setuptools import Extension

    # A compiler or a header that is missing is noticed before Cython's work, which takes seconds.
    probe = directory / "probe.c"
    probe.write_text("#include <Python.h>\n")
    _build([Extension("probe", [str(probe)])], directory / "probe")

    package = f"{kernel.parent.name}.{kernel.name}"
    source = directory / kernel.parent.name / kernel.name
    shutil.copytree(kernel, source, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    (source.parent / "__init__.py").touch()
    extensions = [
        Extension(
            f"{package}.{path.stem}",
            [str(path)],
            include_dirs=[str(source)],
            extra_compile_args=[
                "-O1" if path.stem in LITTLE_OPTIMISED else "-O2",
                "-g0",
                *os.environ.get("REPUT_KERNEL_CFLAGS", "").split(),
            ],
        )
        for path in [source / f"{SHARED}.c", *sorted(source.glob("*.py"))]
        if path.stem not in INTERPRETED
    ]
    directives = {
        "language_level": 3,
        "boundscheck": checked,
        "initializedcheck": checked,
        "wraparound": False,
        "cdivision": True,
        "auto_pickle": False,
        "warn.unreachable": False,
    }
    compiled: Any = cythonize
    before = Path.cwd()
    os.chdir(directory)
    try:
        modules = compiled(
            extensions,
            compiler_directives=directives,
            shared_utility_qualified_name=f"{package}.{SHARED}",
            nthreads=os.cpu_count(),
            quiet=True,
        )
        _build(modules, directory)
    finally:
        os.chdir(before)
    return sorted((directory / "lib").rglob("*.so"))


def _build(modules: list[Any], directory: Path) -> None:
    from setuptools import Distribution

    command = Distribution({"ext_modules": modules}).get_command_obj("build_ext")
    command.build_lib = str(directory / "lib")
    command.build_temp = str(directory / "temp")
    command.parallel = os.cpu_count()
    command.ensure_finalized()
    command.run()

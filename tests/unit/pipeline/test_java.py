"""Which Java Spark gets."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from reput_pipeline.spark.java import JavaMissing, find_java_home, launcher_home

BUNDLED = """#!/bin/sh
for argument do echo "$argument"; done
"""


def executable(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def nothing() -> None:
    return None


def test_the_java_of_java_home_or_of_the_path_is_taken(tmp_path: Path) -> None:
    java = executable(tmp_path / "jdk" / "bin" / "java", BUNDLED)
    versions = {str(java): 21}
    environment = {"JAVA_HOME": str(tmp_path / "jdk"), "PATH": ""}
    assert find_java_home(environment, versions.get, nothing) == str(tmp_path / "jdk")
    environment = {"PATH": str(java.parent)}
    assert find_java_home(environment, versions.get, nothing) is None
    environment = {"PATH": str(java.parent), "JAVA_HOME": "/nowhere"}
    assert find_java_home(environment, versions.get, nothing) == str(tmp_path / "jdk")


def test_an_old_java_is_skipped_and_named_if_there_is_no_other(tmp_path: Path) -> None:
    java = executable(tmp_path / "bin" / "java", BUNDLED)
    with pytest.raises(JavaMissing, match=f"{java}: Java 11"):
        find_java_home({"PATH": str(java.parent)}, {str(java): 11}.get, nothing)
    with pytest.raises(JavaMissing, match="no java on the path"):
        find_java_home({"PATH": ""}, lambda _: None, nothing)


def test_the_bundled_java_runs_without_the_module_that_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = executable(tmp_path / "it's here" / "java", BUNDLED)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    home = find_java_home({"PATH": ""}, lambda _: None, lambda: java)
    assert home == str(tmp_path / "cache" / "reput" / "java")
    answer = subprocess.run(
        [f"{home}/bin/java", "--add-modules=jdk.incubator.vector", "-Dname=a b", "Main"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert answer.stdout.splitlines() == ["-Dname=a b", "Main"]


def test_a_cache_that_cannot_be_written_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "cache").write_text("a file")
    java = executable(tmp_path / "java", BUNDLED)
    home = launcher_home(java, tmp_path / "cache")
    assert os.access(home / "bin" / "java", os.X_OK)

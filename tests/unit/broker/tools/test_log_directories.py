"""A log in several directories is examined as one, and a file that is there twice is named."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from support.store_samples import examine, fill
from support.stores import flip_bit


@pytest.fixture
def directories(tmp_path: Path) -> list[Path]:
    """A store below `store` whose log has been spread over two directories."""
    fill(tmp_path / "store")
    directories = [tmp_path / "disk-0", tmp_path / "disk-1"]
    for number, path in enumerate(sorted((tmp_path / "store" / "commitlog").iterdir())):
        directories[number % 2].mkdir(exist_ok=True)
        path.rename(directories[number % 2] / path.name)
    (tmp_path / "store" / "commitlog").rmdir()
    return directories


def test_all_of_it_is_examined(tmp_path: Path, directories: list[Path]) -> None:
    found = examine(tmp_path / "store", commit_log_dirs=directories)
    assert found.report.faults == []
    assert found.report.figures["records"] == found.report.figures["units"] == 60


def test_damage_is_named_with_its_directory(tmp_path: Path, directories: list[Path]) -> None:
    path = min(directories[1].iterdir())
    flip_bit(path, 100)
    found = examine(tmp_path / "store", commit_log_dirs=directories)
    assert {fault.file for fault in found.report.faults} == {path}


def test_a_file_that_is_there_twice_is_named(tmp_path: Path, directories: list[Path]) -> None:
    path = min(directories[1].iterdir())
    shutil.copy(path, directories[0] / path.name)
    found = examine(tmp_path / "store", commit_log_dirs=directories)
    faults = [(fault.file, fault.reason) for fault in found.report.faults]
    assert faults == [(path, f"{directories[0]} has a file of that name too, and only one can be part of the log")]

"""Versions of a release."""

from __future__ import annotations

import datetime
import shutil
from pathlib import Path

import pytest

import release

DAY = datetime.date(2027, 2, 28)


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A copy of every file that names the version."""
    for name in (*release.PLACES, "CHANGELOG.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(release.REPOSITORY / name, tmp_path / name)
    return tmp_path


def test_every_file_names_one_version() -> None:
    assert release.check(None) == []


def test_a_new_version_stands_everywhere_and_the_changes_get_its_heading(copied: Path) -> None:
    before = (copied / "docker-compose.yml").read_text().count("reput:0.1.0")
    release.write("1.0.0rc1", DAY, copied)
    assert release.check("1.0.0rc1", copied) == []
    assert (copied / "docker-compose.yml").read_text().count("reput:1.0.0rc1") == before > 1
    assert "## Unreleased\n\n## 1.0.0rc1 (2027-02-28)\n" in (copied / "CHANGELOG.md").read_text()
    with pytest.raises(SystemExit, match="nothing under"):
        release.write("1.0.0", DAY, copied)
    assert release.check("1.0.0rc1", copied) == []


def test_a_place_that_was_forgotten_is_named(copied: Path) -> None:
    chart = copied / "deploy/helm/reput/Chart.yaml"
    chart.write_text(chart.read_text().replace('appVersion: "0.1.0"', 'appVersion: "0.0.9"'))
    (fault,) = release.check(None, copied)
    assert fault.startswith("deploy/helm/reput/Chart.yaml: ")
    assert fault.endswith(" has 0.0.9 instead of 0.1.0")


def test_what_is_no_version_changes_nothing(copied: Path) -> None:
    with pytest.raises(SystemExit, match="no version"):
        release.write("v1", DAY, copied)
    assert release.check("0.1.0", copied) == []

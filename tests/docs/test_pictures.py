"""The diagrams of the documentation are what tools/docs_pictures draws, and drawn without a script."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from docs_pictures import PICTURES

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "pictures"
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]


def test_the_folder_has_these_pictures() -> None:
    assert sorted(path.name for path in FOLDER.iterdir()) == sorted(PICTURES)


@pytest.mark.parametrize("name", PICTURES)
def test_a_file_is_up_to_date_and_a_page_shows_it(name: str) -> None:
    drawn = PICTURES[name]()
    assert (FOLDER / name).read_text(encoding="utf-8") == drawn, f"`make format` writes docs/pictures/{name}"
    assert any(f"pictures/{name})" in page.read_text(encoding="utf-8") for page in PAGES)


@pytest.mark.parametrize("name", PICTURES)
def test_everything_is_inside_of_the_picture(name: str) -> None:
    picture = ElementTree.fromstring(PICTURES[name]())
    width, height = (float(picture.attrib[side]) for side in ("width", "height"))
    for part in picture.iter():
        if {"x", "y"} <= part.attrib.keys():
            x, y = float(part.attrib["x"]), float(part.attrib["y"])
            assert 0 <= x <= width - float(part.attrib.get("width", 0)), part.attrib
            assert 0 <= y <= height - float(part.attrib.get("height", 0)), part.attrib


def test_no_page_needs_a_script_for_its_diagrams() -> None:
    assert [page.name for page in PAGES if re.search(r"(?m)^```mermaid", page.read_text(encoding="utf-8"))] == []

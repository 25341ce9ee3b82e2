"""Links in the documentation lead to existing files and headings, and the glossary names existing modules."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = {path: path.read_text() for path in (*ROOT.glob("*.md"), *DOCS.rglob("*.md"))}


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    found = set()
    for own, heading in re.findall(r'(?m)^#+ (?:<a id="([^"]+)"></a>)?(.+)$', text):
        found.add(own or re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-"))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    missing = []
    for target in re.findall(r"\]\(([^)\s]+)\)", PAGES[page]):
        if target.startswith(("http://", "https://")):
            continue
        name, _, anchor = target.partition("#")
        found = (page.parent / name).resolve() if name else page
        if not found.exists() or (anchor and found in PAGES and anchor not in anchors(PAGES[found])):
            missing.append(target)
    assert missing == []


def test_the_glossary_names_modules() -> None:
    missing, package = [], ""
    for line in PAGES[DOCS / "glossary.md"].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        head = re.search(r"Module of `(\w+(?:\.\w+)*)`", line)
        if head or line.startswith("#"):
            package = head[1] if head else ""
        elif package and len(cells) == 3:
            for name in re.findall(r"`([a-z_.]+)`", cells[2]):
                module = name if name.startswith("reput_") else f"{package}.{name}"
                try:
                    exists = find_spec(module) is not None
                except ModuleNotFoundError:
                    exists = False
                if not exists:
                    missing.append(module)
    assert missing == []

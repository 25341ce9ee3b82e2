"""Write the pages of the reference into docs/: PYTHONPATH=tools python -m docs_reference"""

from __future__ import annotations

from pathlib import Path

from docs_reference import PAGES

DOCS = Path(__file__).resolve().parents[2] / "docs"

for path, page in PAGES.items():
    (DOCS / path).write_text(page(), encoding="utf-8")

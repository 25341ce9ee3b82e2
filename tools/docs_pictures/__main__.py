"""Write the diagrams: PYTHONPATH=tools python -m docs_pictures"""

from __future__ import annotations

from pathlib import Path

from docs_pictures import PICTURES

TARGET = Path(__file__).resolve().parents[2] / "docs" / "pictures"

TARGET.mkdir(exist_ok=True)
for name, draw in PICTURES.items():
    (TARGET / name).write_text(draw(), encoding="utf-8")

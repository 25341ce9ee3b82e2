"""The diagrams of the documentation as SVG files in docs/pictures, which `make format` writes.

They are drawn without a script, in the colours of the console, and follow the reader's choice of light or dark.
"""

from __future__ import annotations

from typing import Final

from docs_pictures import architecture, concepts

PICTURES: Final = {
    "topics.svg": concepts.topics,
    "commits.svg": concepts.commits,
    "acks.svg": concepts.acks,
    "exchange.svg": concepts.exchange,
    "retries.svg": concepts.retries,
    "pop.svg": concepts.pop,
    "parts.svg": architecture.parts,
    "way.svg": architecture.way,
}
"""What draws each file."""

"""The pages of the reference, made from the code: `make format` writes them to docs/reference.

Each module has `page()`, which returns its page in Markdown. A test compares the files with it.
"""

from __future__ import annotations

from typing import Final

from docs_reference import client, commands, configuration, errors, metrics, requests

PAGES: Final = {
    "reference/configuration.md": configuration.page,
    "reference/commands.md": commands.page,
    "reference/client.md": client.page,
    "reference/errors.md": errors.page,
    "reference/metrics.md": metrics.page,
    "reference/requests.md": requests.page,
}
"""What makes each page, by its path in docs/."""

"""The home page of the site: what README.md says before it comes to running a broker, laid out as a page.

README.md is the only source of these texts. Its parts are recognised by how they begin.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

SECTIONS: Final = {
    "Start": "A broker, a first message, and what the words mean.",
    "How to": "One page for each thing that messages can do.",
    "Recipes": "Whole programs for common problems.",
    "Operate": "Production, security, clusters, backups, alerts.",
    "Reference": "Every option, command, class, error, metric and limit.",
    "Understand": "How it works inside, what it promises, how fast it is.",
    "Migrate": "What changes when you come from another broker.",
}
"""What is behind each entry at the top of the navigation; the page links to them in this order."""
_LINKS_MAX: Final = 4
_COMMENT = re.compile(r"(?m)^<!--.*-->\n")
_BLOCK = re.compile(r"(?ms)^```.*?^```$|^(?!```)\S.*?(?=\n\n|\Z)")


def home_page(readme: str, navigation: Sequence[Mapping[str, Any]]) -> str:
    """Return the page in Markdown, with links as in README.md.

    Raises:
        ValueError: README.md has no part that the page shows, or the navigation no entry of `SECTIONS`.
    """
    blocks = _BLOCK.findall(_COMMENT.sub("", readme.partition("\n## ")[0]))
    claim, rest = _split_lead(_starting(blocks, "**A "))
    promise, promises = _starting(blocks, "**Guarantees**"), _starting(blocks, "- A message")
    return f"""\
---
title: Reput
hide: [navigation, toc]
---

<div class="home" markdown>
<div class="hero" markdown>
<div markdown>

# {claim}

{rest}

[Quick start](docs/quick-start.md){{ .md-button .md-button--primary }}
[Concepts](docs/concepts.md){{ .md-button }}

</div>
<div class="programs" markdown>

{_starting(blocks, "```sh")}

{_starting(blocks, "```python")}

</div>
</div>

<div class="picture" markdown>

{_starting(blocks, "![")}

</div>

<div class="columns" markdown>
<div class="card good" markdown>

{_starting(blocks, "**Choose it if**")}

</div>
<div class="card" markdown>

{_starting(blocks, "**Choose another**")}

</div>
</div>

<div class="promises" markdown>

{promise}

{promises}

</div>

<div class="columns sections" markdown>
{"".join(_section(name, text, navigation) for name, text in SECTIONS.items())}
</div>

<div class="compared" markdown>

{_starting(blocks, "| |")}

{_starting(blocks, "Rates ")}

</div>
</div>
"""


def _starting(blocks: Sequence[str], start: str) -> str:
    for block in blocks:
        if block.startswith(start):
            return block
    raise ValueError(
        f"README.md has no paragraph, list or table that begins with {start!r}; see docs_home.py"
    )


def _split_lead(lead: str) -> tuple[str, str]:
    """Return the bold sentence of the first paragraph, and what follows it."""
    _, claim, rest = lead.split("**", 2)
    return " ".join(claim.split()).rstrip("."), rest.strip()


def _section(name: str, text: str, navigation: Sequence[Mapping[str, Any]]) -> str:
    for entry in navigation:
        if name in entry:
            pages = list(_pages(entry[name]))
            first = pages[0][1]
            links = " · ".join(f"[{title}]({path})" for title, path in pages[:_LINKS_MAX] if title)
            return f'<div class="card" markdown>\n\n**[{name}]({first})**\n{text}\n\n{links}\n\n</div>\n'
    raise ValueError(f"the navigation in zensical.toml has no entry {name!r}; see docs_home.py")


def _pages(entry: str | Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield titles and places in the repository of the pages of an entry, without the home page."""
    if isinstance(entry, str):
        yield "", f"docs/{entry}"
        return
    for page in entry:
        for title, path in page.items():
            if isinstance(path, str) and path != "index.md":
                yield title, _IN_THE_REPOSITORY.get(path, f"docs/{path}")


_IN_THE_REPOSITORY: Final = {"architecture.md": "ARCHITECTURE.md"}

"""Build the documentation as a site: python tools/docs_site.py

1. The pages are written into build/docs: those of docs/, those at the top of the repository, and the home page. Links
   to other files of the repository lead to its address (`repo_url` in zensical.toml), or become plain text.
2. Zensical builds the site from them (see zensical.toml). A broken link or anchor fails the build.
3. Methods get the names of their classes in the search: Producer.send_batch.
4. The built pages are checked: none loads anything from another server, and none documents a private name.

This needs nothing but the standard library and what requirements-docs.lock names.
"""

from __future__ import annotations

import json
import os.path
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
DOCS: Final = ROOT / "docs"
SETTINGS: Final = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]
PREPARED: Final = ROOT / SETTINGS["docs_dir"]
SITE: Final = ROOT / SETTINGS["site_dir"]
REPOSITORY: Final[str | None] = SETTINGS.get("repo_url")
HOME: Final = "index.md"
FROM_THE_TOP: Final = {
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changes.md",
}
"""Pages at the top of the repository, and what they are called on the site."""
ELSEWHERE: Final = {
    "README.md": HOME,
    "conf/broker.toml": "reference/configuration.md",
    "conf/namesrv.toml": "reference/configuration.md#name-server",
}
"""Files of the repository that a page of the site describes."""
ICON: Final = ROOT / "broker" / "reput_broker" / "console" / "static" / "icon.svg"
"""The logo of the console and of the site."""

_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_CODE_IN_A_ROW = re.compile(r"(?m)^\|.*\\\|.*$")
"""A row of a table with an escaped |, which elsewhere ends a cell even in code, and here does not."""
_OWN_ANCHOR = re.compile(r'(?m)^(#+ )<a id="([^"]+)"></a>(.*)$')
"""A heading with an anchor that is not made from its words, as repositories show it."""
_DOCSTRINGS = re.compile(r"<!-- (::: [\w.]+) -->")
"""Where mkdocstrings inserts docstrings; elsewhere the page is read without them."""
_LOADED = re.compile(
    r"<(?:script|img|iframe|source)\b[^>]*\bsrc=[\"']?(?:https?:)?//"
    r"|<link\b[^>]*\brel=[\"']?(?:stylesheet|preconnect)[^>]*\bhref=[\"']?(?:https?:)?//"
    r"|@import|class=\"(?:language-)?mermaid"
)
"""What a browser would load from another server. The theme draws Mermaid diagrams with a script from one."""
_MEMBER = re.compile(r"#reput_[\w.]+\.([A-Z]\w*)\.(\w+)$")
_PRIVATE = re.compile(r'id="(reput_\w+(?:\.\w+)*\._(?!_)\w+)"')
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


def main() -> int:
    """Write, build and check the site; return 0 if it is as it should be, else 1."""
    shutil.rmtree(PREPARED, ignore_errors=True)
    write_pages(PREPARED)
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    built = subprocess.run(command, cwd=ROOT, check=False)
    if built.returncode:
        return 1
    index = SITE / "search.json"
    index.write_text(with_names_of_classes(index.read_text(encoding="utf-8")), encoding="utf-8")
    faults = list(faults_of(SITE))
    for fault in faults:
        print(f"error: {fault}", file=sys.stderr)
    return 1 if faults else 0


def write_pages(target: Path) -> None:
    """Write what Zensical reads to a directory that does not exist yet."""
    shutil.copytree(DOCS, target)
    for page in target.rglob("*.md"):
        path = page.relative_to(target).as_posix()
        _write(page, on_the_site(page.read_text(encoding="utf-8"), f"docs/{path}", path))
    for name, path in FROM_THE_TOP.items():
        _write(target / path, on_the_site((ROOT / name).read_text(encoding="utf-8"), name, path))
    home = home_page((ROOT / "README.md").read_text(encoding="utf-8"), SETTINGS["nav"])
    _write(target / HOME, on_the_site(home, "README.md", HOME))
    logo = target / SETTINGS["theme"]["logo"]
    logo.parent.mkdir()
    shutil.copy(ICON, logo)


def _write(page: Path, text: str) -> None:
    page.write_text(text, encoding="utf-8")


def on_the_site(markdown: str, source: str, path: str, repository: str | None = REPOSITORY) -> str:
    """Return the text of `source`, a file of the repository, as the page `path` of the site.

    Without the address of a repository, links to files that the site does not have become their texts.
    """

    def link(match: re.Match[str]) -> str:
        image, text, target = match.groups()
        name, hash_mark, anchor = target.partition("#")
        if not name or "://" in target:
            return match[0]
        found = os.path.normpath(PurePosixPath(source).parent / name)
        page = _page_of(found)
        if page is None:
            return f"[{text}]({repository}/blob/main/{found}{hash_mark}{anchor})" if repository else text
        relative = os.path.relpath(page, PurePosixPath(path).parent)
        return f"{image}[{text}]({relative}{hash_mark}{anchor})"

    markdown = _OWN_ANCHOR.sub(r"\1\3 { #\2 }", _LINK.sub(link, markdown))
    markdown = _DOCSTRINGS.sub(r"\1", markdown)
    return _CODE_IN_A_ROW.sub(lambda match: match[0].replace("\\|", "|"), markdown)


def _page_of(found: str) -> str | None:
    """Return the page of the site for a file or folder of the repository; None: it has none."""
    page = FROM_THE_TOP.get(found) or ELSEWHERE.get(found)
    if page is None and Path(found).is_relative_to("docs"):
        file = ROOT / found
        if file.is_dir():
            file = min(file.glob("*.md"))
        page = file.relative_to(DOCS).as_posix()
    return page


def with_names_of_classes(index: str) -> str:
    """Return the search's index with `Class.member` as the titles of the members of classes."""
    found = json.loads(index)
    for item in found["items"]:
        if (member := _MEMBER.search(item["location"])) is not None:
            item["title"] = item["title"].replace(member[2], f"{member[1]}.{member[2]}", 1)
    return json.dumps(found, ensure_ascii=False, separators=(",", ":"))


def faults_of(site: Path) -> Iterator[str]:
    """Yield what is wrong with built pages."""
    for page in sorted(site.rglob("*.html")):
        html, name = page.read_text(encoding="utf-8"), page.relative_to(site)
        if (found := _LOADED.search(html)) is not None:
            yield f"{name} loads from another server: {found[0]}"
        if (found := _PRIVATE.search(html)) is not None:
            yield f"{name} documents a private name: {found[1]}"


def home_page(readme: str, navigation: Sequence[Mapping[str, Any]]) -> str:
    """Return the home page in Markdown: what README.md says before it comes to running a broker, with its links.

    README.md is the only source of these texts. Its parts are recognised by how they begin.

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
    raise ValueError(f"README.md has no paragraph, list or table that begins with {start!r}; see docs_site.py")


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
    raise ValueError(f"the navigation in zensical.toml has no entry {name!r}; see docs_site.py")


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


if __name__ == "__main__":
    raise SystemExit(main())

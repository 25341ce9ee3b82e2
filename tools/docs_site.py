"""Hooks of mkdocs (see mkdocs.yml): they add what is not in docs/ to the site, and keep it whole.

- The pages of the reference are made from the code.
- README.md is the first page; the other pages at the top of the repository are added, too.
- Links to other files of the repository become plain text: the site does not have them.
- A page that would load anything from another server fails the build.
"""

from __future__ import annotations

import os.path
import re
from pathlib import Path, PurePosixPath
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from docs_reference import PAGES

ROOT: Final = Path(__file__).resolve().parents[1]
DOCS: Final = ROOT / "docs"
FROM_THE_TOP: Final = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changes.md",
}
"""Pages at the top of the repository, and what they are called on the site."""
ELSEWHERE: Final = {
    "conf/broker.toml": "reference/configuration.md",
    "conf/namesrv.toml": "reference/configuration.md#name-server",
}
"""Files of the repository that a page of the site describes."""

_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_CODE_IN_A_ROW = re.compile(r"(?m)^\|.*\\\|.*$")
"""A row of a table with an escaped |, which elsewhere ends a cell even in code, and here does not."""
_LOADED = re.compile(
    r"<(?:script|img|iframe|source)\b[^>]*\bsrc=[\"']?(?:https?:)?//|<link\b[^>]*\brel=[\"']?stylesheet[^>]*\bhref=[\"']?(?:https?:)?//"
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/."""
    for path, page in PAGES.items():
        files.append(File.generated(config, path, content=page()))
    for name, path in FROM_THE_TOP.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, path, content=_on_the_site(text, Path(name), path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Write a page as mkdocs reads it: links that lead out of docs/, and the character | in the code of a table."""
    del config, files
    path = page.file.src_uri
    if path not in PAGES and path not in FROM_THE_TOP.values():
        markdown = _on_the_site(markdown, Path("docs") / path, path)
    return _CODE_IN_A_ROW.sub(lambda match: match[0].replace("\\|", "|"), markdown)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Refuse a page that loads something from another server: the site works without a network."""
    del config
    found = _LOADED.search(output)
    if found:
        raise PluginError(f"{page.file.src_uri} loads from another server: {found[0]}")
    return output


def _on_the_site(markdown: str, source: Path, path: str) -> str:
    """Return the text of `source`, a file of the repository, with links that are right in the page `path`."""

    def link(match: re.Match[str]) -> str:
        image, text, target = match.groups()
        name, hash_mark, anchor = target.partition("#")
        if not name or "://" in target:
            return match[0]
        found = os.path.normpath(source.parent / name)
        page = FROM_THE_TOP.get(found) or ELSEWHERE.get(found)
        if page is None and (DOCS.parent / found).is_dir() and Path(found).is_relative_to("docs"):
            first = min((DOCS.parent / found).glob("*.md"))
            page = first.relative_to(DOCS).as_posix()
        if page is None and Path(found).is_relative_to("docs"):
            page = PurePosixPath(found).relative_to("docs").as_posix()
        if page is None:
            return str(text)
        relative = os.path.relpath(page, PurePosixPath(path).parent)
        return f"{image}[{text}]({relative}{hash_mark}{anchor})"

    return _LINK.sub(link, markdown)

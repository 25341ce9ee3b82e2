"""The site of the documentation: the pages from which `make docs` builds it, and the checks of what was built."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import docs_site
from docs_site import SECTIONS, home_page

README = (docs_site.ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    target = tmp_path_factory.mktemp("site") / "docs"
    docs_site.write_pages(target)
    return {page.relative_to(target).as_posix(): page.read_text(encoding="utf-8") for page in target.rglob("*.md")}


def paths_of(navigation: Any) -> Iterator[str]:
    """Yield the pages of the navigation."""
    if isinstance(navigation, str):
        yield navigation
    elif isinstance(navigation, dict):
        for entry in navigation.values():
            yield from paths_of(entry)
    else:
        for entry in navigation:
            yield from paths_of(entry)


def test_the_navigation_has_each_page_once(pages: dict[str, str]) -> None:
    assert sorted(paths_of(docs_site.SETTINGS["nav"])) == sorted(pages)


def test_pages_link_to_pages(pages: dict[str, str], tmp_path: Path) -> None:
    missing = []
    for path, text in pages.items():
        for target in re.findall(r"\]\(([^)#\s]+)(?:#\S*)?\)", text):
            found = (tmp_path / path).parent.joinpath(target).resolve().relative_to(tmp_path).as_posix()
            if "://" not in target and not (found in pages or (docs_site.DOCS / found).is_file()):
                missing.append(f"{path}: {target}")
    assert missing == []


def test_source_files_become_text_or_links_to_the_repository() -> None:
    text = "[the log](../broker/log.py#L3) and [groups](groups.md#lag)"
    assert docs_site.on_the_site(text, "docs/pop.md", "pop.md", None) == "the log and [groups](groups.md#lag)"
    address = "https://example.org/reput"
    assert docs_site.on_the_site(text, "docs/pop.md", "pop.md", address) == (
        "[the log](https://example.org/reput/blob/main/broker/log.py#L3) and [groups](groups.md#lag)"
    )


def test_the_reference_is_for_the_site(pages: dict[str, str]) -> None:
    assert "\n### store.flush { #store.flush }\n" in pages["reference/configuration.md"]
    assert "\n::: reput_client.produce.producer.Producer\n" in pages["reference/client.md"]
    assert "<!-- :::" not in pages["reference/client.md"]


def test_the_home_page_has_its_parts(pages: dict[str, str]) -> None:
    home = pages[docs_site.HOME]
    for part in ("# A message broker", "from reput_client.blocking import", "](console/overview.png)"):
        assert part in home
    starts = ["**Choose it if**", "**Choose another**", "**Guarantees**"]
    for start in (*starts, *(f"**[{name}](" for name in SECTIONS)):
        assert f"\n{start}" in home


def test_a_readme_without_a_part_is_named() -> None:
    with pytest.raises(ValueError, match=r"README\.md has no .*Guarantees"):
        home_page(README.replace("**Guarantees**", "**Promises**"), docs_site.SETTINGS["nav"])


def test_the_search_has_the_names_of_classes() -> None:
    places = {
        "reference/client.html#reput_client.produce.producer.Producer.send": "send <code>async</code>",
        "reference/client.html#reput_client.produce.producer.Producer": "Producer",
        "client.html#sending": "Sending",
    }
    index = {"items": [{"location": place, "title": title} for place, title in places.items()]}
    changed = json.loads(docs_site.with_names_of_classes(json.dumps(index)))
    titles = [item["title"] for item in changed["items"]]
    assert titles == ["Producer.send <code>async</code>", "Producer", "Sending"]


@pytest.mark.parametrize(
    ("html", "fault"),
    [
        ('<script src="https://example.org/a.js"></script>', "loads from another server"),
        ('<link rel="stylesheet" href="//example.org/a.css">', "loads from another server"),
        ('<pre class="mermaid"><code>', "loads from another server"),
        ('<h3 id="reput_client.Producer._connect">', "documents a private name: reput_client.Producer._connect"),
    ],
)
def test_faults_of_built_pages_are_found(html: str, fault: str, tmp_path: Path) -> None:
    (tmp_path / "bad.html").write_text(html)
    (tmp_path / "good.html").write_text('<script src="a.js"></script><h3 id="reput_client.Producer.send">')
    (found,) = docs_site.faults_of(tmp_path)
    assert found.startswith(f"bad.html {fault}")

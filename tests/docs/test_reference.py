"""The pages of the reference have every option, command, error and metric, and docs/reference is up to date."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

import reput_client
from docs_reference import PAGES
from reput_broker.config.description import describe
from reput_broker.config.model import BrokerConfig
from reput_broker.observe.catalogue import METRICS
from reput_broker.observe.rocketmq_catalogue import ROCKETMQ_METRICS
from reput_cli.root import root
from reput_client import errors
from reput_protocol.errors import ErrorCode

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    return {path.partition("/")[2]: page() for path, page in PAGES.items()}


def test_the_files_are_what_the_code_makes(texts: dict[str, str]) -> None:
    written = {page.name: page.read_text(encoding="utf-8") for page in (DOCS / "reference").iterdir()}
    assert sorted(written) == sorted(texts)
    for name, text in texts.items():
        assert written[name] == text, f"docs/reference/{name} is not up to date; `make format` writes it"


def test_rows_have_as_many_cells_as_their_table(texts: dict[str, str]) -> None:
    """Where the pages are read in the repository, a | ends a cell even in code."""
    for name, text in texts.items():
        for table in re.findall(r"(?m)(?:^\|.*\n)+", text):
            rows = table.splitlines()
            assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {rows[1].count("|")}, (name, rows[0])


def test_options(texts: dict[str, str]) -> None:
    sections = dict(re.findall(r"(?ms)^### <a [^>]*></a>(\S+)\n\n(.*?)(?=\n#|\Z)", texts["configuration.md"]))
    rows = describe(BrokerConfig())
    assert list(sections) == [row.key for row in rows]
    for row in rows:
        assert f"Default `{row.default}`" in sections[row.key]
        assert ("; live;" in sections[row.key]) == row.live
    assert "at least `1ms`" in sections["store.flush_interval"]
    assert "REPUT_STORE__FLUSH_INTERVAL" in sections["store.flush_interval"]
    assert "flushIntervalCommitLog" in sections["store.flush_interval"]


def test_commands(texts: dict[str, str]) -> None:
    context = click.Context(root, info_name="reput")
    for name in root.list_commands(context):
        command = root.get_command(context, name)
        assert f"\n## reput {name}\n" in texts["commands.md"]
        if isinstance(command, click.Group):
            for verb in command.list_commands(context):
                assert f"\n### reput {name} {verb}\n" in texts["commands.md"]
    consume = texts["commands.md"].split("## reput consume\n")[1].split("\n## ")[0]
    assert "`-g, --group GROUP`" in consume
    assert "--timeout" not in consume
    assert "[shared options]" in consume


def test_errors(texts: dict[str, str]) -> None:
    for name in set(errors.__all__) - {"ErrorCode"}:
        assert re.search(rf"\n### {name}\n\n\S", texts["errors.md"])
    rows = re.findall(r"(?m)^\| (\d+) \| `(\w+)` \|.*\| (\S.*) \|$", texts["errors.md"])
    assert [(int(number), name) for number, name, _ in rows] == [(e.number, e.name) for e in ErrorCode]


def test_metrics(texts: dict[str, str]) -> None:
    for name in (*METRICS, *ROCKETMQ_METRICS):
        assert f"| `{name}` |" in texts["metrics.md"]


def test_the_api_of_the_client(texts: dict[str, str]) -> None:
    listed = re.findall(r"<!-- ::: (?!reput_client\.(?:otel|arrow)\.)[\w.]+\.(\w+) -->", texts["client.md"])
    assert sorted([*listed, *errors.__all__]) == sorted(dir(reput_client))

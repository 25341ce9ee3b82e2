"""The table of docs/compatibility.md has the clients and features of the suite."""

from __future__ import annotations

from interop import table
from interop.catalogue import CLIENTS, FEATURES
from interop.checks import ALONE, CHECKS


def test_each_feature_has_a_check() -> None:
    assert CHECKS.keys() == FEATURES.keys()
    assert FEATURES.keys() >= ALONE.keys()


def test_the_page_has_every_client_and_feature() -> None:
    head, *rows = table.of_page()
    assert head == table.head()
    assert [row[0] for row in rows] == [*FEATURES.values()]
    for (feature, _), row in zip(FEATURES.items(), rows, strict=True):
        for kind, cell in zip(CLIENTS.values(), row[1:], strict=True):
            expected = {table.LACKS} if feature in kind.lacks else {table.PASSED, table.FAILED}
            assert cell in expected, f"{kind.title}: {FEATURES[feature]}"


def test_a_table_that_was_written_is_read_as_it_was() -> None:
    results = {
        (name, feature): table.Result(is_lacking=feature in kind.lacks)
        for name, kind in CLIENTS.items()
        for feature in FEATURES
    }
    results["java-5", "send"] = table.Result(reason="a reason")
    text = table.text(results)
    assert text.count(f"| {table.FAILED} |") == 1
    assert text.count(table.LACKS) == sum(len(kind.lacks) for kind in CLIENTS.values())
    assert len(text.splitlines()) == 2 + len(FEATURES)

"""The tables of docs/compatibility.md have the clients and features of the suite."""

from __future__ import annotations

import pytest

from interop import table
from interop.catalogue import CLIENTS, COLUMNS, FEATURES, Column
from interop.checks import ALONE, CHECKS

TABLES = pytest.mark.parametrize("made", [table.REMOTING, table.GRPC], ids=["remoting", "gRPC"])


def test_each_feature_has_a_check_and_is_in_a_table() -> None:
    assert CHECKS.keys() == FEATURES.keys()
    assert FEATURES.keys() >= ALONE.keys()
    assert {*table.REMOTING.features, *table.GRPC.features} == FEATURES.keys()


@TABLES
def test_the_page_has_every_column_and_feature(made: table.Table) -> None:
    head, *rows = made.of_page()
    assert head == made.head()
    assert [row[0] for row in rows] == [FEATURES[each] for each in made.features]
    for feature, row in zip(made.features, rows, strict=True):
        for column, cell in zip(made.columns, row[1:], strict=True):
            kind = CLIENTS[column.client]
            if feature in kind.lacks:
                expected = {table.LACKS}
            elif column.proxy == "apache":
                expected = {table.PASSED, table.FAILED}
            else:
                expected = {table.FAILED if feature in kind.fails else table.PASSED}
            assert cell in expected, f"{column.title}: {FEATURES[feature]}"


def test_no_cell_of_the_page_is_worse_through_our_proxy() -> None:
    head, *rows = table.GRPC.of_page()
    results = {
        (column, row[0]): table.Result(reason="fails" if cell == table.FAILED else None, is_lacking=cell == table.LACKS)
        for row in rows
        for column, cell in zip(table.GRPC.columns, row[1:], strict=True)
    }
    found = table.compare(results)
    assert found.worse == []
    lacking = sum(result.is_lacking for result in results.values())
    assert 2 * (len(found.same) + len(found.better)) == (len(head) - 1) * len(rows) - lacking


def test_proxies_are_compared_by_what_holds() -> None:
    holds, fails, lacks = table.Result(), table.Result(reason="a reason"), table.Result(is_lacking=True)
    cells = {"send": (holds, holds), "tags": (holds, fails), "sql": (fails, holds), "pull": (lacks, lacks)}
    results = {
        (Column("grpc-go", proxy), feature): result
        for feature, both in cells.items()
        for proxy, result in zip(("reput", "apache"), both, strict=True)
    }
    results[Column("grpc-go", "reput"), "retry"] = fails  # through one proxy only
    results[Column("java-5"), "send"] = fails
    assert table.compare(results) == table.Comparison(
        same=[("grpc-go", "send")], better=[("grpc-go", "tags")], worse=[("grpc-go", "sql")]
    )


def test_a_table_has_what_was_checked() -> None:
    results = {
        (column, feature): table.Result(is_lacking=feature in CLIENTS[column.client].lacks)
        for column in COLUMNS
        for feature in FEATURES
    }
    results[Column("java-5"), "send"] = table.Result(reason="a reason")
    text = table.REMOTING.text(results)
    assert text.count(f"| {table.FAILED} |") == 1
    assert len(text.splitlines()) == 2 + len(table.REMOTING.features)
    one = table.GRPC.text({(Column("grpc-go", "apache"), "send"): table.Result()})
    assert one.splitlines()[-1] == f"| {FEATURES['send']} | {table.PASSED} |"
    assert one.splitlines()[0].endswith("| gRPC, Go 5.1.3 through RocketMQ's |")

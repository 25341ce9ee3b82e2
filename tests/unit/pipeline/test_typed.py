"""`decode_values` and `encode_values` without Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, time
from decimal import Decimal
from importlib import import_module
from typing import Any

import pytest

from reput_client import Json

pa = pytest.importorskip("pyarrow")
types = pytest.importorskip("pyspark.sql.types")
typed = import_module("reput_pipeline.typed")


class Made:
    """What `mapInArrow` has made of it."""

    def __init__(self, batch: Any, names: list[str]) -> None:
        self.batch = batch
        self.names = names

    @property
    def rows(self) -> Any:
        return self.batch.to_pylist()


class Frame:
    """A DataFrame of one batch."""

    def __init__(self, **columns: Any) -> None:
        self.batch = pa.RecordBatch.from_pydict(columns)
        self.columns = list(columns)
        self.schema = {
            name: types.StructField(
                name, types.BinaryType() if name in ("body", "value") else types.StringType()
            )
            for name in columns
        }

    def mapInArrow(self, of: Callable[[Iterable[Any]], Iterator[Any]], schema: Any) -> Any:  # noqa: N802
        (made,) = of([self.batch])
        return Made(made, schema.names)


def decoded(frame: Frame, **given: Any) -> Any:
    given = {"value_type": pa.int64(), **given}
    return typed.decode_values(frame, Json(), **given)


def encoded(frame: Frame, **given: Any) -> Any:
    return typed.encode_values(frame, Json(), **given)


@pytest.mark.parametrize(
    ("of", "on_bad_value", "columns", "name"),
    [
        (decoded, "raise", {"body": [b"1"], "value": [b"own"]}, "value"),
        (decoded, "null", {"body": [b"1"], "error": ["own"]}, "error"),
        (decoded, "null", {"value": [b"1"], "error": ["own"]}, "error"),
        (encoded, "raise", {"value": [b"1"], "body": [b"own"]}, "body"),
        (encoded, "null", {"value": [b"1"], "error": ["own"]}, "error"),
    ],
)
def test_a_column_of_the_user_is_not_replaced(
    of: Callable[..., Any], on_bad_value: str, columns: dict[str, Any], name: str
) -> None:
    with pytest.raises(ValueError, match=rf"column '{name}'.*withColumnRenamed\('{name}', 'own_{name}'\)"):
        of(Frame(**columns), on_bad_value=on_bad_value)


def test_columns_that_are_not_added_are_kept() -> None:
    assert decoded(Frame(error=["own"], body=[b"1"])).rows == [{"error": "own", "value": 1}]
    assert decoded(Frame(value=[b"1", b"x"]), on_bad_value="null").names == ["value", "body", "error"]
    assert encoded(Frame(error=["own"], value=[b"\0"])).rows == [{"error": "own", "body": b'"AA=="'}]


@pytest.mark.parametrize(
    ("kind", "body", "value"),
    [
        (pa.timestamp("ms"), b"5", datetime(1970, 1, 1, 0, 0, 0, 5000)),
        (pa.list_(pa.time32("ms")), b"[5]", [time(0, 0, 0, 5000)]),
        (pa.map_(pa.string(), pa.uint64()), b'{"a":18446744073709551615}', [("a", Decimal((1 << 64) - 1))]),
        (pa.struct([("a", pa.uint32())]), b'{"a":-1}', None),
    ],
    ids=str,
)
def test_numbers_are_of_the_type_that_was_given(kind: Any, body: bytes, value: object) -> None:
    """Spark's next larger type once took milliseconds as microseconds."""
    (row,) = decoded(Frame(body=[body]), value_type=kind, on_bad_value="null").rows
    assert row["value"] == value
    assert (row["error"] is None) == (value is not None)


def test_a_value_that_python_has_not_is_an_error_of_its_row() -> None:
    """Such as a time after the year 9999: it ended the query."""
    times = pa.array([0, 1 << 60, None], pa.timestamp("us", "UTC"))
    frame = Frame(value=pa.StructArray.from_arrays([times], ["at"]))
    frame.schema["value"] = types.StructField(
        "value", types.StructType([types.StructField("at", types.TimestampType())])
    )
    made = encoded(frame, on_bad_value="null").batch
    assert made["body"].to_pylist() == [b'{"at":"1970-01-01T00:00:00Z"}', None, b'{"at":null}']
    assert made["error"].is_null().to_pylist() == [True, False, True]

"""Run jobs in the session of the tests; the schemas of a query without a session."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from pyspark.sql.types import StructType

from reput_pipeline.jobs.run import run_job
from reput_pipeline.source.options import SourceOptions, arrow_schema, spark_schema


class Ran(NamedTuple):
    """How a job ended."""

    code: int
    result: dict[str, Any]
    """The last line of its stdout."""
    lines: list[str]
    """The lines before it."""
    err: str


Run = Callable[..., Ran]


def runner(capfd: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs a job in the session that is there."""

    def run(name: str, *arguments: object) -> Ran:
        capfd.readouterr()
        code = run_job(name, [str(argument) for argument in arguments], stop_session=False)
        captured = capfd.readouterr()
        lines = captured.out.splitlines()
        result = json.loads(lines[-1])
        assert result["job"] == name
        assert result["exit_code"] == code
        return Ran(code, result, lines[:-1], captured.err)

    return run


def spark_schema_of(options: SourceOptions) -> StructType:
    """What `DataSource.schema` returns."""
    return spark_schema(options.all_columns, options.select)


def arrow_schema_of(options: SourceOptions) -> Any:
    """What the batches of a query have to have."""
    return arrow_schema(spark_schema_of(options))

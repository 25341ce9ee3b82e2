"""Options of tables in Spark's catalogue: `CREATE TABLE ... USING reput OPTIONS (...)`.

Spark hands a table's options to the source while the table is made and never again: who reads the table, or inserts
into it, gets none of them, only the columns. So the source keeps them in the metadata of the first column. Where the
statement declares columns of its own, Spark does not ask the source for any, and the options are out of reach.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from reput_pipeline.known_options import SINK_OPTIONS, SOURCE_OPTIONS, is_table, options_for

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_METADATA: Final = "reput.options"
_PLACES: Final = frozenset(("nameserver", "path"))


def with_options_kept(schema: StructType, options: Mapping[str, str]) -> StructType:
    """Return the columns of a table that is being made, with its options; other columns come back as they are."""
    if is_table(options):
        kept = options_for(SINK_OPTIONS, options, "sink", SOURCE_OPTIONS)
        kept |= options_for(SOURCE_OPTIONS, options, "source", SINK_OPTIONS)
        schema.fields[0].metadata = {_METADATA: json.dumps(kept)}
    return schema


def options_in_force(options: Mapping[str, str], schema: StructType) -> dict[str, str]:
    """Return the options of a query: those given, and where they name no place, those of the table besides."""
    given = {name.lower(): value for name, value in options.items()}
    kept = schema.fields[0].metadata.get(_METADATA) if schema.fields else None
    if kept is None or given.keys() & _PLACES:
        return given
    # The prefix marks what is for the source as well as for the sink as options of a table.
    return {f"option.{name}".lower(): value for name, value in json.loads(kept).items()} | given

"""The text of a table is what `json` writes with tabs, and it is read back, with RocketMQ's bare keys too."""

from __future__ import annotations

import json
import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from reput_broker.tables.config_file import decode, encode

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda values: (
        st.lists(values, max_size=4)
        | st.dictionaries(st.text() | st.integers() | st.booleans() | st.none(), values, max_size=4)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.text(), VALUES, max_size=4))
def test_a_table_is_the_text_of_json_with_tabs(members: dict[str, Any]) -> None:
    text = json.dumps(members, indent="\t", separators=(",", ":"), ensure_ascii=False)
    # json writes the keys of text that is not UTF-8 as it is; files cannot have them.
    if re.search("[\ud800-\udfff]", text):
        return
    assert encode(members) == text.encode()
    assert decode(encode(members)) == json.loads(text)


@given(
    st.dictionaries(
        st.text(st.characters(codec="utf-8")),
        st.dictionaries(st.integers(), st.text(st.characters(codec="utf-8"))),
        max_size=4,
    )
)
def test_bare_keys_are_read(tables: dict[str, dict[int, str]]) -> None:
    parts = []
    for name, table in tables.items():
        inner = ",".join(f"{number}:{json.dumps(text)}" for number, text in table.items())
        parts.append(f"{json.dumps(name)}:{{{inner}}}")
    expected = {name: {str(number): text for number, text in table.items()} for name, table in tables.items()}
    assert decode(f"{{{','.join(parts)}}}".encode()) == expected

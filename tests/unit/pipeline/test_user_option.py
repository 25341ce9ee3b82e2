"""The user that source and sink sign their requests as."""

from __future__ import annotations

from pathlib import Path

import pytest

from reput_client.security import Credentials
from reput_pipeline.sink.options import parse_sink_options
from reput_pipeline.source.options import parse_source_options
from reput_pipeline.spark.option_reader import OptionError, credentials_for

SOURCE = {"nameServer": "127.0.0.1:1", "subscribe": "t"}


def test_the_secret_is_read_where_it_is_used(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    given = {"user": "alice", "secretFile": str(file)}
    sink = parse_sink_options({"nameServer": "127.0.0.1:1", "topic": "t", **given}, streaming=False)
    source = parse_source_options({**SOURCE, **given})
    with pytest.raises(OptionError, match="secretFile"):
        credentials_for(source.user)
    file.write_text("a-secret-of-alice\n")
    for options in (sink, source):
        assert credentials_for(options.user) == Credentials("alice", "a-secret-of-alice")
        assert "a-secret" not in repr(options)
    assert credentials_for(parse_source_options(SOURCE).user) is None


@pytest.mark.parametrize("name", ["user", "secretFile"])
def test_a_user_needs_both(name: str) -> None:
    with pytest.raises(OptionError, match="a user needs both"):
        parse_source_options({**SOURCE, name: "x"})


def test_a_directory_has_no_user() -> None:
    with pytest.raises(OptionError, match="needs nameServer"):
        parse_source_options({"path": "/x", "subscribe": "t", "user": "alice", "secretFile": "f"})

"""Shares of the limit of open files: log, queues and connections together stay below it."""

import pytest

from reput_broker.compose.open_files import OpenFiles, shares_of, warn_if_few


def taken(shares: OpenFiles) -> int:
    mapped = 2 * (shares.log_files + shares.index_files)  # each takes two
    return shares.connections + shares.queue_files + mapped + shares.http_connections


@pytest.mark.parametrize("limit", [200, 256, 1024, 4096, 65_536, 1_048_576])
def test_the_shares_leave_room_for_each_other(limit: int) -> None:
    shares = shares_of(limit)
    assert shares.connections >= limit // 3
    assert 1 <= shares.queue_files <= 512
    assert 1 <= shares.log_files <= 256
    assert 1 <= shares.index_files <= 256
    assert 12 <= shares.http_connections <= 64
    assert taken(shares) + 64 <= limit


def test_a_tiny_limit_leaves_one_of_each() -> None:
    assert shares_of(4) == OpenFiles(4, 1, 1, 1, 1, 1)


def test_what_the_connections_need_is_logged_at_the_start(capsys: pytest.CaptureFixture[str]) -> None:
    warn_if_few(shares_of(20_000), 10_000)
    assert capsys.readouterr().out == ""
    warn_if_few(shares_of(1024), 10_000)
    said = capsys.readouterr().out
    assert "open_files_limit_low" in said
    needed = int(said.split("LimitNOFILE) to ")[1].split(",")[0])
    assert shares_of(needed).connections >= 10_000 > shares_of(needed - 1000).connections

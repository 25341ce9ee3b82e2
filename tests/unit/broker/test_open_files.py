import pytest

from reput_broker.open_files import shares_of


@pytest.mark.parametrize("limit", [4, 64, 200, 1024, 4096, 65_536, 1_048_576])
def test_the_shares_leave_room_for_each_other(limit: int) -> None:
    shares = shares_of(limit)
    assert shares.connections >= limit // 2
    assert 1 <= shares.queue_files <= 512
    assert shares.connections + shares.queue_files <= limit

"""Versions of tables: their steps, order and form."""

import pytest

from reput_broker.tables.config_file import DataVersion


def test_a_change_steps_the_counter_and_takes_the_time() -> None:
    version = DataVersion().next(1_700_000_000_000).next(1_700_000_000_001)
    assert version.to_json() == {"counter": 2, "stateVersion": 0, "timestamp": 1_700_000_000_001}


def test_the_order_is_state_version_then_counter_then_time() -> None:
    assert DataVersion(1, 0, 0) > DataVersion(0, 9, 9)
    assert DataVersion(0, 2, 0) > DataVersion(0, 1, 9)
    assert DataVersion(0, 1, 2) > DataVersion(0, 1, 1)


@pytest.mark.parametrize("members", [None, {}, [], {"counter": None}, {"counter": "x", "timestamp": True}])
def test_missing_members_count_as_zero(members: object) -> None:
    assert DataVersion.from_json(members) == DataVersion()


def test_reading_what_was_written() -> None:
    version = DataVersion(3, 4, 5)
    assert DataVersion.from_json(version.to_json()) == version
    assert DataVersion.from_json({"counter": {"value": 7}}).counter == 7  # as 4.x writes it

"""The file of the members that a new master awaits."""

from __future__ import annotations

from pathlib import Path

from reput_broker.groups.membership import GroupMembersFile
from reput_broker.tables.config_file import encode


def test_members_are_awaited_once_and_not_those_of_long_ago(tmp_path: Path) -> None:
    now_ms = [1_700_000_000_000]
    file = GroupMembersFile(tmp_path, lambda: now_ms[0])
    members = {"g": {"one": 6.0}}
    assert file.take(120.0) == {}
    file.save(encode({"members": members}))
    now_ms[0] += 120_000
    assert file.take(120.0) == members
    assert file.take(120.0) == {}, "a later start awaits none of them"
    file.save(encode({"members": members}))
    now_ms[0] += 120_001
    assert file.take(120.0) == {}
    assert file.take(1000.0) == {}, "they are forgotten"
    file.save(encode({"members": members}))
    now_ms[0] += 100_000
    file.unchanged()
    now_ms[0] += 100_000
    assert file.take(120.0) == members, "the master has said so 100 s ago"
    file.unchanged()  # without a file there is nothing to note


def test_a_file_that_cannot_be_read_awaits_no_member(tmp_path: Path) -> None:
    file = GroupMembersFile(tmp_path, lambda: 0)
    (tmp_path / "groupMembers.json").write_text('{"members": 3}')
    assert file.take(120.0) == {}

"""`reput cluster status`: one row for each member, with what it reports."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from reput_cli.options import Settings
from reput_cli.root import root
from reput_client import ClusterMember

MEMBERS = [
    ClusterMember("c", "a", 0, "h:1", 7, takes_messages=True, epoch=3, end_offset=100, slaves=1, in_sync=2),
    ClusterMember("c", "a", 1, "h:2", end_offset=90, lag_bytes=10, is_copying=True),
    ClusterMember("c", "a", 2, "h:3", end_offset=0, lag_bytes=100, is_copying=False),
    ClusterMember("c", "b", 0, "h:4", takes_messages=False, end_offset=5, is_copying=False),
    ClusterMember("c", "c", 0, "h:5", error="h:5 is down"),
]


class FakeAdmin:
    def __enter__(self) -> FakeAdmin:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def cluster_members(self) -> list[ClusterMember]:
        return MEMBERS


def test_every_member_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Settings, "admin", lambda _settings: FakeAdmin())
    result = CliRunner().invoke(root, ["cluster", "status", "-O", "json"])
    assert result.exit_code == 0, result.output
    rows = json.loads(result.output)
    assert rows[0] == {
        "cluster": "c",
        "broker": "a",
        "broker_id": 0,
        "member": 7,
        "role": "master",
        "address": "h:1",
        "epoch": 3,
        "end_offset": 100,
        "lag_bytes": None,
        "slaves": 1,
        "in_sync": 2,
        "state": "serves",
    }
    assert [(row["role"], row["lag_bytes"], row["state"]) for row in rows[1:]] == [
        ("slave", 10, "copies"),
        ("slave", 100, "does not copy"),
        ("master", None, "is not a master"),
        ("master", None, "no report: h:5 is down"),
    ]
    plain = CliRunner().invoke(root, ["cluster", "status"]).output.splitlines()
    assert plain[1].split("\t")[:6] == ["c", "a", "0", "7", "master", "h:1"]

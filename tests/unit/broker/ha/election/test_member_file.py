"""The file in which a member notes its number and the last epoch that it has seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from reput_broker.ha.election.member_file import MemberFile, MemberFileWrong


def test_the_file_of_another_member_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config" / "election.json"
    MemberFile(path, cluster="c", broker_name="b", member=1).note(4)
    assert MemberFile(path, cluster="c", broker_name="b", member=1).epoch == 4
    with pytest.raises(MemberFileWrong, match="correct broker_id, broker_name and cluster"):
        MemberFile(path, cluster="c", broker_name="b", member=2)
    path.write_text("{")
    with pytest.raises(MemberFileWrong, match="is damaged"):
        MemberFile(path, cluster="c", broker_name="b", member=1)

"""The file of epochs, in RocketMQ's format, and what two histories have in common."""

from __future__ import annotations

from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reput_broker.ha.epochs import (
    Decision,
    Epoch,
    EpochBehind,
    EpochFile,
    Follow,
    OwnLog,
    Refuse,
    SetAside,
    TruncateTo,
    decide,
    decode_epochs,
    encode_epochs,
)
from reput_broker.store.base.errors import StoreDamaged
from reput_protocol.commands.replica import ReplicaState


def opened(path: Path) -> EpochFile:
    file = EpochFile(path)
    file.load()
    return file


def test_the_text_is_rocketmqs() -> None:
    lines = b"1-0\n2-4096\n"
    assert encode_epochs([Epoch(1, 0), Epoch(2, 4096)]) == f"2\n{crc32(lines) & 0x7FFFFFFF}\n1-0\n2-4096\n"


@given(st.lists(st.tuples(st.integers(0, 1 << 31), st.integers(0, 1 << 62))))
def test_what_is_written_is_read(entries: list[tuple[int, int]]) -> None:
    epochs = tuple(Epoch(*entry) for entry in entries)
    assert decode_epochs(encode_epochs(epochs), Path("x")) == epochs


@given(st.integers(0, 40), st.sampled_from(list("0123456789-\n x")))
def test_a_changed_file_is_refused_or_the_same(place: int, char: str) -> None:
    epochs = (Epoch(1, 0), Epoch(2, 4096), Epoch(3, 70_000))
    text = encode_epochs(epochs)
    place %= len(text)
    try:
        assert decode_epochs(text[:place] + char + text[place + 1 :], Path("x")) == epochs
    except StoreDamaged as error:
        found = error
    else:
        return
    assert "restore the file from a copy" in str(found)


def test_tenures_append_epochs(tmp_path: Path) -> None:
    file = opened(tmp_path / "epochFileCheckpoint")
    assert not file.exists
    assert file.begin(500, 100) == Epoch(1, 100), "everything from the beginning of the log belongs to the first"
    assert file.begin(700, 100) == Epoch(2, 700)
    assert file.begin(650, 100, 9) == Epoch(9, 650)
    with pytest.raises(EpochBehind, match=r"gives epoch 9, but .* has epoch 9 already"):
        file.begin(800, 100, 9)
    assert opened(file.path).entries == (Epoch(1, 100), Epoch(2, 700), Epoch(9, 650))
    assert file.begin(900, 720) == Epoch(10, 900)
    assert opened(file.path).entries == (Epoch(9, 650), Epoch(10, 900)), "expired epochs are forgotten, but for one"


def test_epochs_without_a_byte_are_kept_while_the_log_begins_with_them(tmp_path: Path) -> None:
    """Another copy may have what was written in them."""
    file = opened(tmp_path / "epochFileCheckpoint")
    for start in (0, 0, 70):
        file.begin(start, 0)
    assert opened(file.path).entries == (Epoch(1, 0), Epoch(2, 0), Epoch(3, 70))


def test_a_slave_adopts_the_epochs_that_its_log_has_reached(tmp_path: Path) -> None:
    file = opened(tmp_path / "epochFileCheckpoint")
    file.adopt([Epoch(1, 0), Epoch(2, 700), Epoch(3, 900)], 700)
    assert opened(file.path).entries == (Epoch(1, 0), Epoch(2, 700))


def own(epochs: list[tuple[int, int]], end: int, low: int = 0, **changes: object) -> OwnLog:
    values: dict[str, object] = {
        "cluster": "C",
        "broker_name": "a",
        "epochs": [Epoch(*epoch) for epoch in epochs],
        "min_offset": low,
        "end_offset": end,
        "file_size": 4096,
    }
    return OwnLog(**{**values, **changes})  # type: ignore[arg-type]


def master(epochs: list[tuple[int, int]], end: int, low: int = 0, *, confirmed: int | None = None) -> ReplicaState:
    return ReplicaState("C", "a", True, epochs[-1][0], low, end, 4096, epochs, confirmed)


@pytest.mark.parametrize(
    ("mine", "theirs", "expected"),
    [
        # The same master goes on.
        (own([(1, 0)], 500), master([(1, 0)], 900), Follow()),
        (own([(1, 0)], 900), master([(1, 0)], 900), Follow()),
        # It has restarted, and had lost nothing that this slave has.
        (own([(1, 0)], 500), master([(1, 0), (2, 900)], 1000), Follow()),
        (own([(1, 0)], 900), master([(1, 0), (2, 900)], 1000), Follow()),
        # It lost the unsynced end of its log and has written something else since.
        (own([(1, 0)], 950), master([(1, 0), (2, 900)], 1000), TruncateTo(900)),
        # This one was the master, and another one has been promoted.
        (own([(1, 0), (2, 700)], 950), master([(1, 0), (3, 800)], 900), TruncateTo(700)),
        (own([(1, 0), (2, 700)], 950), master([(1, 0), (2, 700), (3, 800)], 900), TruncateTo(800)),
        # An epoch began below the beginning of the one before: its end had been lost.
        (own([(1, 0), (2, 700)], 950), master([(1, 0), (2, 700), (3, 650)], 900), TruncateTo(650)),
        # The same epoch, but the master ends earlier.
        (own([(1, 0)], 950), master([(1, 0)], 900), TruncateTo(900)),
        # This one was the first master of an elected group, and the next one had nothing yet.
        (own([(1, 0)], 950), master([(1, 0), (2, 0)], 900, confirmed=900), TruncateTo(0)),
        (own([(1, 0)], 950), master([(1, 0), (2, 0)], 0, confirmed=0), TruncateTo(0)),
        # Without epochs, the last record decides.
        (own([], 500), master([(1, 0)], 900), Follow()),
        # Nothing there yet.
        (own([], 0), master([(4, 8192)], 9000, 8192), Follow()),
        (own([], 0), master([(1, 0)], 9000), Follow()),
        (own([], 8192, 8192), master([(4, 4096)], 9000, 4096), Follow()),
    ],
)
def test_decisions(mine: OwnLog, theirs: ReplicaState, expected: Decision) -> None:
    assert decide(mine, theirs) == expected


@pytest.mark.parametrize(
    ("mine", "theirs", "reason"),
    [
        (own([(1, 0)], 500), master([(1, 0), (2, 5000)], 9000, 4096), "has deleted its log before 4096"),
        (own([(1, 0)], 4096), master([(1, 0), (2, 5000)], 9000, 4096), "has deleted its log before 4096"),
        (own([], 8192, 8192), master([(4, 4096)], 90_000, 12288), "has offsets 12288 to 90000"),
        (own([(1, 0), (5, 8000)], 9500, 8192), master([(1, 0), (6, 5000)], 9000), "they agree up to 5000"),
        (own([(1, 0), (5, 8192)], 9500, 8192), master([(1, 0), (6, 8500)], 9000), "they agree up to 8192"),
        # It was away until the master forgot the epochs that it knows.
        (
            own([(1, 0), (3, 5000)], 6000),
            master([(5, 7000), (6, 20000)], 30_000, 8192),
            "they agree up to 7000 at most, but the master has deleted its log before 8192",
        ),
        (own([(1, 0), (3, 5000)], 9000), master([(5, 7000)], 9000, 8192), "they agree up to 7000 at most"),
        # This one has forgotten the epochs that the master knows.
        (
            own([(5, 8000)], 9500, 8192),
            master([(1, 0), (6, 5000)], 9000),
            "it begins at 8192, and they agree up to 8000 at most",
        ),
    ],
)
def test_a_log_that_cannot_be_continued_is_set_aside(mine: OwnLog, theirs: ReplicaState, reason: str) -> None:
    decision = decide(mine, theirs)
    assert isinstance(decision, SetAside)
    assert reason in decision.reason


def test_a_master_without_any_record_of_this_log_is_not_believed_without_an_election() -> None:
    """It may have lost its disk."""
    for theirs in (master([(1, 0)], 0), master([(1, 0), (2, 0)], 0), master([(1, 0)], 0, confirmed=0)):
        decision = decide(own([(1, 0)], 950), theirs)
        assert isinstance(decision, Refuse)
        assert "it has no record of this log" in decision.reason


@pytest.mark.parametrize(
    ("mine", "reason"),
    [
        (own([(1, 0)], 500, cluster="D"), "its cluster is 'C' and this broker's is 'D'"),
        (own([(1, 0)], 500, broker_name="b"), "its broker_name is 'a' and this broker's is 'b'"),
        (own([(1, 0)], 500, file_size=8192), "its log files have 4096 bytes and those of this broker 8192"),
        (own([(1, 4096)], 5000), "no epoch in common (this broker's: 1 from 4096; the master's: 1 from 0)"),
        (own([(1, 64)], 500), "different histories"),
        (own([], 950), "this log has no epochs and ends at 950, and the master's has offsets 0 to 900"),
        (own([(1, 0), (2, 700)], 950), "its last epoch is 1, and this broker has copied or written epoch 2: another"),
    ],
)
def test_another_master_is_refused_by_name(mine: OwnLog, reason: str) -> None:
    decision = decide(mine, master([(1, 0)], 900))
    assert isinstance(decision, Refuse)
    assert reason in decision.reason


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (own([(1, 0), (5, 700)], 950, confirmed=900), master([(1, 0), (5, 700), (6, 800)], 900, confirmed=900)),
        (own([(1, 0)], 950, confirmed=9000), master([(1, 0)], 900, confirmed=900)),  # it has lost what it had
        (own([(1, 0)], 950, confirmed=950), master([(1, 0), (2, 0)], 900, confirmed=900)),
        # Nor is it moved aside.
        (own([(1, 0), (5, 8000)], 9500, 8192, confirmed=9000), master([(1, 0), (6, 5000)], 9000)),
        (own([(1, 0)], 6000, confirmed=5500), master([(1, 0), (2, 5000)], 9000, 5000)),
    ],
)
def test_what_is_known_to_be_confirmed_is_never_cut(mine: OwnLog, theirs: ReplicaState) -> None:
    decision = decide(mine, theirs)
    assert isinstance(decision, Refuse)
    for fact in (
        f"log is confirmed up to {min(mine.confirmed, mine.end_offset)}",
        *(f"{number} from {start}" for number, start in (*mine.epochs, *theirs.epochs)),
        "promote NUMBER --force",
    ):
        assert fact in decision.reason


def test_what_is_beyond_the_confirmed_is_cut() -> None:
    assert decide(own([(1, 0)], 950, confirmed=900), master([(1, 0), (2, 900)], 1000)) == TruncateTo(900)
    aside = decide(own([(1, 0), (5, 8000)], 9500, 4096, confirmed=4000), master([(1, 0), (6, 4096)], 9000))
    assert isinstance(aside, SetAside)


@given(st.data())
def test_what_is_kept_is_what_both_wrote_together(data: st.DataObject) -> None:
    """Of two logs with a common beginning, everything up to where they part is kept, and nothing beyond."""
    number, offset, epochs = 0, 0, []
    for _ in range(data.draw(st.integers(1, 4))):
        number += data.draw(st.integers(1, 3))
        epochs.append((number, offset))
        offset += data.draw(st.integers(1, 100))
    common = offset  # the last common epoch lasted at least up to here in both
    mine, theirs = list(epochs), list(epochs)
    ends = []
    for own_epochs, step in ((mine, 1), (theirs, 2)):
        at = common + data.draw(st.integers(0, 50))
        ends_common = at
        for later in range(data.draw(st.integers(0, 3))):
            own_epochs.append((number + step + 2 * later, at))
            at += data.draw(st.integers(0, 50))
        ends.append((ends_common, at))
    shared = min(ends[0][0], ends[1][0])
    decision = decide(own(mine, ends[0][1]), master(theirs, ends[1][1]))
    if mine[-1][0] > theirs[-1][0]:
        assert isinstance(decision, Refuse)
        return
    assert decision == (Follow() if shared >= ends[0][1] else TruncateTo(shared))

"""The journal of consumer offsets: cut or changed anywhere, every whole record before that is read."""

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from reput_broker.tables.offset_journal import HEADER_BYTES, JournalEntry, JournalIdentity, OffsetJournal, read_journal

names = st.text(alphabet="%|abcXYZ019_-", min_size=1, max_size=255)
entries = st.builds(
    JournalEntry,
    kind=st.integers(1, 3),
    group=names,
    topic=names,
    queue_id=st.integers(-(2**31), 2**31 - 1),
    offset=st.integers(0, 2**63 - 1),
)
identities = st.builds(JournalIdentity, st.integers(0, 2**63 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**63 - 1))


def written(path: Path, identity: JournalIdentity, blocks: list[list[JournalEntry]]) -> list[int]:
    """Write the blocks and return the size after each entry, the header's size first."""
    journal = OffsetJournal.create(path, identity, next_sequence=1)
    ends = [HEADER_BYTES]
    for block in blocks:
        for entry in block:
            ends.append(ends[-1] + 32 + len(entry.group) + len(entry.topic))
        journal.append(block)
    assert journal.size_b == ends[-1] == path.stat().st_size
    journal.close()
    return ends


@given(identities, st.lists(st.lists(entries, max_size=5), max_size=5))
def test_appended_records_are_read_back(identity: JournalIdentity, blocks: list[list[JournalEntry]]) -> None:
    with TemporaryDirectory() as directory:
        path = Path(directory, "journal")
        written(path, identity, blocks)
        contents = read_journal(path)
    expected = [entry for block in blocks for entry in block]
    assert contents.identity == identity
    assert contents.entries == expected
    assert contents.next_sequence == len(expected) + 1
    assert contents.torn_bytes == 0
    assert contents.damaged_at is None


@given(st.lists(entries, min_size=1, max_size=8), st.data())
@settings(max_examples=200)
def test_a_cut_anywhere_leaves_every_whole_record(block: list[JournalEntry], data: st.DataObject) -> None:
    with TemporaryDirectory() as directory:
        path = Path(directory, "journal")
        ends = written(path, JournalIdentity(0, 0, 0), [block])
        cut = data.draw(st.integers(HEADER_BYTES, ends[-1]))
        path.write_bytes(path.read_bytes()[:cut])
        contents = read_journal(path)
        whole = sum(end <= cut for end in ends) - 1
        assert contents.entries == block[:whole]
        assert contents.end == ends[whole]
        assert contents.torn_bytes == cut - ends[whole]
        assert contents.damaged_at is None
        # Continuing removes the torn record, so that the next one is found.
        journal = OffsetJournal(path, contents.next_sequence, contents.end)
        journal.append([block[0]])
        journal.close()
        assert read_journal(path).entries == [*block[:whole], block[0]]


@given(st.lists(entries, min_size=2, max_size=6), st.data())
@settings(max_examples=200)
def test_a_flipped_bit_costs_one_record_and_is_seen(block: list[JournalEntry], data: st.DataObject) -> None:
    with TemporaryDirectory() as directory:
        path = Path(directory, "journal")
        ends = written(path, JournalIdentity(0, 0, 0), [block])
        position = data.draw(st.integers(HEADER_BYTES, ends[-1] - 1))
        hit = sum(end <= position for end in ends) - 1
        image = bytearray(path.read_bytes())
        image[position] ^= 1 << data.draw(st.integers(0, 7))
        path.write_bytes(image)
        contents = read_journal(path)
    assert contents.entries == block[:hit] + block[hit + 1 :]
    if hit == len(block) - 1:
        assert contents.torn_bytes > 0
    else:
        assert contents.damaged_at == ends[hit]

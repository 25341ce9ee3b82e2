"""Filters against an independent evaluation: every expression on single messages, and some over a whole store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

from filters.cases import NAMES, TEXTS, Case, random_case, random_properties
from filters.ours import outcome
from reput_broker.store.base.results import Block, GetMessageResult
from reput_broker.store.message_store import MessageStore
from reput_client.consume.pull import PulledMessages
from reput_protocol.filter.sql import SqlFilter
from reput_protocol.filter.tags import TagFilter
from reput_protocol.record.message import Message
from reput_protocol.record.put_block import encode_put_block
from reput_protocol.record.record import decode_record
from support.stores import BORN_HOST, T0, dispatch_all, opened, small_options

TAGS = ("paid", "refunded", "AaAa", "BBBB", "AaBB", "größe", "\U0001f600", "x y", "a", None, None)
"""Three of them have the same hash."""
MESSAGES_PER_CASE = 1


def check_values(seed: int, cases: int) -> Counter[str]:
    """Compare the value of random expressions for random messages; return what was seen how often."""
    rng = Random(seed)
    seen: Counter[str] = Counter()
    for _ in range(cases):
        case = random_case(rng, MESSAGES_PER_CASE)
        expected, actual = case.expected(), outcome(case.text, case.messages)
        assert actual == expected, f"{case.text!r} is {actual} for {case.messages}, not {expected}"
        if isinstance(expected, str):
            seen["refused"] += 1
        else:
            seen.update(map(str, expected))
    return seen


class FilledStore:
    """A store with one queue of random messages."""

    def __init__(self, directory: Path, rng: Random, count: int) -> None:
        options = small_options(directory, commit_log_file_size=1 << 20, consume_queue_entries=1000)
        self.store: MessageStore = opened(options)
        self.properties: list[dict[str, str]] = []
        self.tags: list[str | None] = []
        while len(self.tags) < count:
            messages = [self._message(rng) for _ in range(min(rng.randrange(1, 40), count - len(self.tags)))]
            block = bytearray(encode_put_block(messages, "T", 0, T0))
            self.store.put_one(Block(block, "T", 0, len(messages), BORN_HOST))
        dispatch_all(self.store)

    def _message(self, rng: Random) -> Message:
        properties = random_properties(rng)
        properties.pop("TAGS", None)
        tag = rng.choice(TAGS)
        self.tags.append(tag)
        self.properties.append(properties | ({"TAGS": tag} if tag else {}))
        return Message("T", rng.randbytes(rng.choice((0, 10, 300))), tag=tag, properties=properties)

    def read(self, get: Callable[[int], GetMessageResult]) -> list[tuple[int, bytes]]:
        """Everything that gets find, one after the other from where each leads to: queue offsets and records."""
        found: list[tuple[int, bytes]] = []
        offset, end = 0, len(self.tags)
        while offset < end:
            result = get(offset)
            assert offset < result.next_begin_offset <= end
            data = self.store.read_extents(result.extents)
            records = [bytes(message.record) for message in PulledMessages("T", data)]
            offsets = [decode_record(record).queue_offset for record in records]
            assert len(records) == result.count
            assert all(offset <= at < result.next_begin_offset for at in offsets)
            found += zip(offsets, records, strict=True)
            offset = result.next_begin_offset
        return found


def check_store(seed: int, directory: Path, messages: int, expressions: int) -> Counter[str]:
    """Compare what gets with filters find in a store, by SQL and by tag; return what was seen how often."""
    rng = Random(seed)
    filled = FilledStore(directory, rng, messages)
    seen: Counter[str] = Counter(messages=messages)
    for number in range(expressions):
        limit = rng.choice((1, 3, 32, 1000))
        _check_sql(filled, _compiling_case(rng), limit, cold=number % 2 == 1)
        _check_tags(filled, _tag_expression(rng), limit)
        seen["SQL expressions"] += 1
        seen["tag expressions"] += 1
    assert filled.store.close()
    return seen


def _compiling_case(rng: Random) -> Case:
    while True:
        case = random_case(rng)
        if case.expected() != "refused":
            return case


def _check_sql(filled: FilledStore, case: Case, limit: int, *, cold: bool) -> None:
    sql_filter = SqlFilter.parse(case.text)

    def get(offset: int) -> GetMessageResult:
        found = filled.store.get_filtered("T", 0, offset, limit, 1 << 20, sql_filter)
        if isinstance(found, GetMessageResult):
            return found
        with found:
            assert not found.cold
            found.cold = cold
            result, data = found.run_and_read()
            assert data == filled.store.read_extents(result.extents)
        return result

    actual = [offset for offset, _ in filled.read(get)]
    tree = Case(case.text, case.tree, filled.properties)
    expected = [offset for offset, value in enumerate(tree.expected()) if value is True]
    assert actual == expected, f"{case.text!r} lets {set(actual) ^ set(expected)} through, or does not"


def _check_tags(filled: FilledStore, expression: str, limit: int) -> None:
    tag_filter = TagFilter.parse(expression)
    found = filled.read(lambda offset: filled.store.get_message("T", 0, offset, limit, 1 << 20, tag_filter))
    wanted = {tag.strip() for tag in expression.split("||")} - {""}
    everything = expression in ("", "*")
    hashes = {_java_hash(tag) for tag in wanted}
    through = {offset for offset, _ in found}
    for offset, tag in enumerate(filled.tags):
        passes = everything or (_java_hash(tag) if tag else 0) in hashes
        assert (offset in through) is passes, (expression, tag)
    exact = PulledMessages("T", b"".join(record for _, record in found), tag_filter)
    expected = [offset for offset, tag in enumerate(filled.tags) if everything or tag in wanted]
    assert [message.queue_offset for message in exact] == expected, expression


def _java_hash(text: str) -> int:
    value = 0
    for unit in memoryview(text.encode("utf-16-le")).cast("H"):
        value = 31 * value + unit
    return (value + (1 << 31)) % (1 << 32) - (1 << 31)


def _tag_expression(rng: Random) -> str:
    if rng.random() < 0.1:
        return rng.choice(("*", "", " || x", "nothing"))
    tags = rng.sample([tag for tag in TAGS if tag], rng.randrange(1, 4)) + rng.choices(NAMES + TEXTS[:5], k=1)
    return rng.choice(("||", " || ", "||  ")).join(tags)

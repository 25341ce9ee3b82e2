"""Filters, measured in this process: evaluation of SQL92 expressions, and filtered gets.

An expression is compared with plain Python that decodes all properties and compares them; a get that returns nothing
with one that filters by tag and also returns nothing. Medians of several rounds; files are read from the page cache.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from filled_store import dispatch, opened, options_for
from reput_broker.store.base.results import Block, TransferLimits
from reput_broker.store.message_reader import FilteredGet
from reput_broker.store.message_store import MessageStore
from reput_cli.bench_clients import host_facts
from reput_protocol.filter.sql import SqlFilter
from reput_protocol.filter.tags import MessageFilter, TagFilter
from reput_protocol.properties import decode_properties
from reput_protocol.record.message import Message, encode_properties_text
from reput_protocol.record.message_id import born_host_bytes
from reput_protocol.record.put_block import encode_put_block

RECORDS = 1000
_BORN_HOST = born_host_bytes("10.0.0.1", 40_000)
_LIMITS = TransferLimits(4 << 20, 32, 4 << 20, 32, 16_000)
_Plain = Callable[[Mapping[str, str]], bool]

EXPRESSIONS: dict[str, _Plain] = {
    "region = 'eu-west'": lambda p: p.get("region") == "eu-west",
    "amount > 500": lambda p: int(p["amount"]) > 500,
    "amount > 500 AND region = 'eu-west'": lambda p: int(p["amount"]) > 500 and p["region"] == "eu-west",
    "(amount BETWEEN 100 AND 300 OR tier IN ('gold', 'silver')) AND coupon IS NULL": lambda p: (
        (100 <= int(p["amount"]) <= 300 or p["tier"] in ("gold", "silver")) and "coupon" not in p
    ),
}


def main() -> None:
    """Run every measurement and print one line each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=50_000)
    parser.add_argument("--size", type=int, default=1024, help="bytes of each body")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = [evaluating(expression, arguments.rounds) for expression in EXPRESSIONS]
    with tempfile.TemporaryDirectory(prefix="reput-bench-") as directory:
        store = _filled(Path(directory), arguments.messages, arguments.size)
        rows.append(getting("TAGS = 'none'", SqlFilter.parse("TAGS = 'none'"), store, arguments.rounds))
        rows.append(getting("amount > 1000", SqlFilter.parse("amount > 1000"), store, arguments.rounds))
        rows.append(getting("tag none", TagFilter.parse("none"), store, arguments.rounds))
        store.close()
    if arguments.json:
        print(json.dumps({"host": host_facts(), "results": rows}))
        return
    for row in rows:
        print("  ".join(f"{key}={value}" for key, value in row.items()))
    print(host_facts())


def evaluating(expression: str, rounds: int) -> dict[str, object]:
    """Evaluate an expression on the properties of a thousand records."""
    texts = [encode_properties_text(_message(number, 0), f"7F0000010001{number:020X}") for number in range(RECORDS)]
    plain = EXPRESSIONS[expression]
    matches = SqlFilter.parse(expression).matches
    expected = [plain(decode_properties(text)) for text in texts]
    assert list(map(matches, texts)) == expected
    ours = _median(rounds, lambda: [matches(text) for text in texts])
    theirs = _median(rounds, lambda: [plain(decode_properties(text)) for text in texts])
    return {
        "evaluate": expression,
        "per_s": round(RECORDS / ours),
        "us": round(ours / RECORDS * 1e6, 2),
        "of_plain_python": round(theirs / ours, 2),
        "true": sum(expected),
    }


def getting(name: str, message_filter: MessageFilter, store: MessageStore, rounds: int) -> dict[str, object]:
    """Read a queue from end to end with a filter that matches nothing."""
    end = store.max_offset_in_queue("bench", 0)
    took = _median(rounds, partial(_walk, store, message_filter, end))
    return {"get": name, "messages_per_s": round(end / took), "us": round(took / end * 1e6, 2)}


def _walk(store: MessageStore, message_filter: MessageFilter, end: int) -> None:
    offset = 0
    while offset < end:
        if isinstance(message_filter, TagFilter):
            found = store.get_message("bench", 0, offset, 32, 4 << 20, message_filter, limits=_LIMITS)
        else:
            get = store.get_filtered("bench", 0, offset, 32, 4 << 20, message_filter, limits=_LIMITS)
            assert isinstance(get, FilteredGet)
            with get:
                found = get.run()
        offset = found.next_begin_offset


def _median(rounds: int, work: Callable[[], object]) -> float:
    times = []
    for _ in range(rounds):
        started_at = time.perf_counter()
        work()
        times.append(time.perf_counter() - started_at)
    return statistics.median(times)


def _message(number: int, size: int) -> Message:
    properties = {"amount": str(number * 7919 % 1000), "region": ("eu-west", "us-east")[number % 2]}
    properties |= {"tier": ("gold", "silver", "none")[number % 3]}
    return Message("bench", bytes(size), tag="paid", keys=[f"o-{number}"], properties=properties)


def _filled(root: Path, messages: int, size: int) -> MessageStore:
    store = opened(options_for(root))
    for start in range(0, messages, 64):
        batch = [_message(number, size) for number in range(start, min(start + 64, messages))]
        block = bytearray(encode_put_block(batch, "bench", 0, 1_700_000_000_000))
        store.put_one(Block(block, "bench", 0, len(batch), _BORN_HOST))
    dispatch(store)
    return store


if __name__ == "__main__":
    main()

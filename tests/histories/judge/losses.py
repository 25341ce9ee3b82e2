"""Nothing that was acknowledged is lost: it is stored, and every group has handled it, or given it up as agreed.

An acknowledgement holds as long as its level says: what a power cut or another master may take back is excused after
such an event. What is stored although its put was not answered counts too. A producer that deduplicates repeats a put
whose level was not reached until it is: otherwise its caller has lost what another master takes back. Only without a
master it ends with that. A process that fails is a violation, too.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from histories import terms
from histories.judge.facts import Facts, expected_in
from histories.judge.violation import Violation
from reput_protocol.codes import AckLevel

_REPETITION_S: Final = 2.0
"""For how long a repeated put waits at least for a master: 5 s, but it may have waited for copies for 3 s before."""


def judge(facts: Facts) -> Iterator[Violation]:
    """Look for missing messages, and for those that were never sent."""
    stored = {entry.uid for entry in facts.stored if entry.queue[0] in terms.TOPICS}
    handled: dict[str, set[str]] = defaultdict(set)
    for delivery in facts.deliveries:
        if delivery.handled is not None:
            handled[delivery.group].add(delivery.uid)
    dead = {group: {entry.uid for entry in facts.dead_letters(group)} for group in terms.GROUPS}
    for put in facts.puts.values():
        if put.kind in terms.ROLLED_BACK:
            continue
        if put.uid not in stored:
            if put.acked_at is None or facts.may_be_gone(put):
                continue
            rule = "replicated lost" if put.ack == AckLevel.REPLICATED else "acknowledged"
            yield Violation(rule, f"{put.uid} of {put.topic} was acknowledged as {put.ack} and is not there")
        for group in terms.GROUPS:
            wanted = expected_in(put, group)
            if wanted == "handled" and put.uid not in handled[group]:
                yield Violation("lost", f"{put.uid} ({put.kind}, {put.topic}) was never handled in {group}")
            elif wanted == "dead" and put.uid not in dead[group]:
                yield Violation("lost", f"{put.uid} ({put.topic}) is not among the dead letters of {group}")
    for entry in facts.stored:
        if entry.uid not in facts.puts:
            yield Violation("invented", f"{entry} was never put")
    leading, gone_at = "", math.inf
    for event in facts.events:
        if event.what == "leads":
            leading, gone_at = event["address"], math.inf
        elif event.what in ("dies", "led") and event["of"] == leading:
            gone_at = min(gone_at, event.at)
        is_repeated = event.what == "not-reached" and facts.puts[event["uid"]].deduplicated
        if is_repeated and event.at - gone_at < _REPETITION_S:
            yield Violation("not repeated", str(event))
        if event.what == "failed":
            yield Violation("process", f"{event['process']} has ended badly: {str(event.get('log'))[-600:]}")

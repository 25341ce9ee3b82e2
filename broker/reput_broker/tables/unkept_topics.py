"""Topics of kinds that this broker does not keep: what it stored for them would be missing where RocketMQ looks.

A batch queue (`queue.type=BatchCQ`) has entries in `batchconsumequeue/`, a compacted topic
(`cleanup.policy=COMPACTION`) a second log, and a topic whose name begins with `%LMQ%` is a light queue fed by other
topics' messages. RocketMQ even refuses a directory in which a batch topic has an ordinary queue.
"""

from __future__ import annotations

from collections.abc import Mapping

from reput_broker.store.opening.foreign_files import LMQ_PREFIX


def why_not_kept(topic: str, attributes: Mapping[str, str]) -> str | None:
    """Return why messages of this topic cannot be stored, with the remedy; None if they can."""
    if "queue.type" in attributes and attributes["queue.type"].lower() == "batchcq":
        return (
            f"topic {topic!r} has attribute queue.type=BatchCQ and this broker keeps no batch queues; "
            "use a topic without it"
        )
    if "cleanup.policy" in attributes and attributes["cleanup.policy"].upper() == "COMPACTION":
        return (
            f"topic {topic!r} has attribute cleanup.policy=COMPACTION and this broker compacts nothing; "
            "use a topic without it"
        )
    if topic.startswith(LMQ_PREFIX):
        return (
            f"topic {topic!r} begins with {LMQ_PREFIX}, which names RocketMQ's light message queues, and this broker "
            "keeps none; choose another name"
        )
    return None

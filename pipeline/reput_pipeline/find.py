"""The job `find`: messages by key, id or text, from brokers, a store directory or an archive.

In a store directory the key index leads to the messages with a key or id where it is complete; all else is read
through, in the workers.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from urllib.parse import unquote

import click

from reput_pipeline.archives.manifests import ArchiveDirectory
from reput_pipeline.archives.names import NULL_VALUE
from reput_pipeline.finding import FindTask, Wanted, find_task
from reput_pipeline.jobs.frame import job, main
from reput_pipeline.jobs.messages import Messages, messages_arguments
from reput_pipeline.jobs.outcomes import ArgumentError, Outcome
from reput_pipeline.jobs.run import JobRun
from reput_pipeline.live_plan import plan_batch
from reput_pipeline.narrowing import NOTHING_NARROWED, Narrowing
from reput_pipeline.offline_plan import plan
from reput_pipeline.offline_store import OfflineStore
from reput_protocol.exit_codes import ExitCode
from reput_protocol.message_id import decode_offset_message_id
from reput_protocol.printable import printable_json


@job
@messages_arguments
@click.option("--key", metavar="KEY", help="Messages with this key, be it one of several.")
@click.option(
    "--id", "message_id", metavar="ID", help="The message with this unique id or offset message id."
)
@click.option("--text", metavar="TEXT", help="Messages whose body holds this text.")
@click.option("--regex", metavar="PATTERN", help="Messages in whose body this pattern (RE2) is found.")
@click.option("--ignore-case", is_flag=True, help="For --text and --regex.")
@click.option(
    "--limit", type=click.IntRange(1), default=100, show_default=True, help="Messages to show at most."
)
def command(
    run: JobRun,
    messages: Messages,
    key: str | None,
    message_id: str | None,
    text: str | None,
    regex: str | None,
    ignore_case: bool,
    limit: int,
) -> Outcome:
    """Find messages; all that is asked for has to hold. Each is one JSON object on a line of its own.

    Exit code 5 if there is none.
    """
    wanted = _wanted(key, message_id, text, regex, ignore_case, limit)
    tasks = _tasks(messages, wanted)
    found = run.each("find", tasks, find_task, parts=1000)
    found.sort(key=lambda row: (row["storeTimestamp"] or 0, row["physicalOffset"] or 0))
    for row in found[:limit]:
        run.write(printable_json(row))
    return Outcome(
        {"source": messages.where, "found": min(len(found), limit), "limit_reached": len(found) >= limit},
        ExitCode.DONE if found else ExitCode.NOT_FOUND,
    )


def _wanted(
    key: str | None,
    message_id: str | None,
    text: str | None,
    regex: str | None,
    ignore_case: bool,
    limit: int,
) -> Wanted:
    if key is None and message_id is None and text is None and regex is None:
        raise ArgumentError("--key", "is missing; give --key, --id, --text or --regex")
    if text is not None and regex is not None:
        raise ArgumentError("--regex", "contradicts --text; give one of them")
    for name, value in (("--key", key), ("--id", message_id)):
        if value is not None and (not value or " " in value):
            raise ArgumentError(name, f"{value!r} is none; it has no spaces, and at least one character")
    if ignore_case and text is None and regex is None:
        raise ArgumentError("--ignore-case", "needs --text or --regex")
    if regex is not None:
        try:
            re.compile(regex)
        except re.error as error:
            raise ArgumentError("--regex", f"{regex!r} is no regular expression: {error}") from None
    place = None
    if message_id is not None:
        try:
            place = decode_offset_message_id(message_id)[1]
        except ValueError:
            place = None
    pattern = text if text is not None else regex
    return Wanted(
        key,
        message_id,
        place,
        None if pattern is None else pattern.encode(),
        ignore_case,
        regex is not None,
        limit,
    )


def _tasks(messages: Messages, wanted: Wanted) -> list[FindTask]:
    options = messages.options
    if messages.archive is not None:
        messages.check_topics()
        archive = ArchiveDirectory(messages.archive)
        return [
            FindTask(
                wanted, options, NOTHING_NARROWED, None, str(archive.root / file.path), _constants(file.path)
            )
            for file in archive.files()
            if options.is_wanted(file.topic)
        ]
    narrowing = NOTHING_NARROWED
    if options.path is None:
        partitions = plan_batch(options, narrowing)
    else:
        with OfflineStore(options.path) as store:
            token = wanted.key
            if token is None and (
                wanted.physical_offset is None or store.log.find(wanted.physical_offset) is None
            ):
                token = wanted.unique_id  # of the 32 digits that may as well be an offset message id
            if token is not None:
                narrowing = Narrowing(keys=frozenset([token]))
            partitions = plan(store, options, narrowing)
    return [FindTask(wanted, options, narrowing, partition, None, {}) for partition in partitions]


def _constants(path: str) -> dict[str, str | None]:
    pairs = [part.split("=", 1) for part in PurePosixPath(path).parent.parts]
    return {name: None if value == NULL_VALUE else unquote(value) for name, value in pairs}


if __name__ == "__main__":
    main("find")

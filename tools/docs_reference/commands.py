"""The page of commands, from the commands themselves."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from importlib import import_module

import click

from docs_reference.markdown import cell, escaped
from reput_cli.options import SharedOption, every_shared_option
from reput_cli.root import root
from reput_pipeline.jobs import JOBS
from reput_protocol.exit_codes import ExitCode

HEAD = """\
# Commands

`reput COMMAND --help` prints the same text. Errors are at most three lines on stderr: what failed,
why, and what to do; `-vv` adds a traceback. Results are on stdout, notes and progress on stderr.
`eval "$(reput generate completion bash)"` completes commands, topics and groups.
"""


def page() -> str:
    """Return the page."""
    return "".join((HEAD, *_shared(), *_exit_codes(), *_group(root, click.Context(root, info_name="reput"))))


def _shared() -> Iterator[str]:
    context = click.Context(click.Command("reput"))
    yield "\n## Shared options\n\nThey may be anywhere on the line.\n"
    for subject, whose in (
        ("connection", "Of every command that connects to a broker"),
        ("output", "Of every command that prints something"),
    ):
        yield f"\n{whose}:\n\n| Option | Meaning |\n|---|---|\n"
        for option in every_shared_option():
            record = option.own_help_record(context)
            if option.subject == subject and record is not None:
                yield _row(*record)


def _exit_codes() -> Iterator[str]:
    yield "\n## Exit codes\n\n| Code | Name |\n|---|---|\n"
    yield from (f"| {int(code)} | {code.name.lower().replace('_', ' ')} |\n" for code in ExitCode)


def _group(group: click.Group, context: click.Context) -> Iterator[str]:
    for name in group.list_commands(context):
        command = command_of(group, context, name)
        assert command is not None
        if command.hidden:
            continue
        own = click.Context(command, info_name=name, parent=context)
        yield f"\n{'##' if context.parent is None else '###'} {own.command_path}\n"
        yield f"\n{_prose(command.help or '')}\n"
        if isinstance(command, click.Group):
            yield from _group(command, own)
        else:
            yield from _details(command, own)


def command_of(group: click.Group, context: click.Context, name: str) -> click.Command | None:
    """Return a command of a group; of a Spark job, the one that parses its arguments."""
    if group is root.get_command(context, "pipeline") and name in JOBS:
        job: click.Command = import_module(f"reput_pipeline.jobs.{name}").command
        return job
    return group.get_command(context, name)


def _details(command: click.Command, context: click.Context) -> Iterator[str]:
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    yield f"\n```text\n{usage}\n```\n"
    shown = [option for option in command.get_params(context) if isinstance(option, click.Option)]
    helps = command.get_help_option(context)
    own = [option for option in shown if not isinstance(option, SharedOption) and option is not helps]
    if own:
        yield "\n"
        yield from _table(own, context)
    if any(isinstance(option, SharedOption) for option in shown):
        yield "\nAnd the [shared options](#shared-options).\n"
    if command.epilog:
        yield f"\n{_prose(command.epilog)}\n"


def _table(options: Sequence[click.Parameter], context: click.Context) -> Iterator[str]:
    yield "| Option | Meaning |\n|---|---|\n"
    for option in options:
        record = option.get_help_record(context)
        if record is not None:
            yield _row(*record)


def _row(flags: str, text: str) -> str:
    """Return a row of a table of options; a | ends a cell even in code."""
    return "| `{}` | {} |\n".format(flags.replace("|", "\\|"), cell(text))


def _prose(text: str) -> str:
    """Return a help text as Markdown; click keeps the lines of a paragraph that begins with \\b."""
    paragraphs = []
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        if paragraph.startswith("\b"):
            lines = paragraph.removeprefix("\b").strip("\n")
            paragraphs.append(f"```text\n{lines}\n```")
        else:
            paragraphs.append(escaped(paragraph))
    return "\n\n".join(paragraphs)

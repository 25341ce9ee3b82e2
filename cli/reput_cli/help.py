"""`reput help`: the help of a command, or of the options that many commands share."""

from __future__ import annotations

from typing import cast

import click

from reput_cli.failures import CommandFailed
from reput_cli.options import every_shared_option
from reput_protocol.exit_codes import ExitCode

_SUBJECTS = {
    "connection": """\
Commands that talk to a broker take these options, anywhere on the line.

A command connects to its --server; without it to the server of --context, of REPUT_SERVER, of REPUT_CONTEXT, of the
context in use (reput context list), or to 127.0.0.1:10911, in this order.

\b
Examples:
  reput --server broker1:10911,broker2:10911 topic list
  reput topic list --server broker1 --user alice --secret-file secret.txt --tls-ca ca.pem
  reput context add prod --server broker1 --user alice --secret-file secret.txt
""",
    "output": """\
Commands that print something take these options, anywhere on the line.

Results are on stdout, notes and progress on stderr. A terminal gets tables, a pipe text separated by tabs with a line
of headers. The names in JSON are stable: the suffix of a number is its unit (_ms since 1970, _s seconds, _bytes), and
a time in text is UTC: 2026-01-02T03:04:05.678Z.

\b
Examples:
  reput topic list --json
  reput group list -O jsonl
""",
}


@click.command()
@click.argument("words", metavar="[COMMAND... | connection | output]", nargs=-1)
@click.pass_context
def command(context: click.Context, words: tuple[str, ...]) -> int:
    """Print the help of COMMAND, such as `reput help topic create`, or of a subject."""
    from reput_cli.line import UnknownCommand, ordered

    top = context.find_root()
    root = cast("click.Group", top.command)
    if len(words) == 1 and words[0] in _SUBJECTS:
        click.echo(_subject(words[0], context))
        return ExitCode.DONE
    own, found = top, cast("click.Command", root)
    try:
        path = ordered(root, top, words)
    except UnknownCommand as unknown:
        from reput_cli.mistakes import unknown_command

        raise unknown_command(root, top, unknown.path, unknown.rest) from None
    for word in path:
        if not isinstance(found, click.Group):
            raise CommandFailed(
                f"{own.command_path} has no command {word!r}",
                remedy=f"reput help {own.command_path.partition(' ')[2]}",
                code=ExitCode.USAGE,
            )
        found = cast("click.Command", found.get_command(own, word))
        own = found.context_class(found, info_name=word, parent=own, help_option_names=["-h", "--help"])
    click.echo(found.get_help(own))
    return ExitCode.DONE


def _subject(name: str, context: click.Context) -> str:
    formatter = context.make_formatter()
    text = click.Command(name, help=_SUBJECTS[name])
    text.format_help_text(context, formatter)
    records = [option.own_help_record(context) for option in every_shared_option() if option.subject == name]
    with formatter.section("Options"):
        formatter.write_dl([record for record in records if record is not None])
    return formatter.getvalue().strip("\n")

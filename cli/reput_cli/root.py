"""The root command, which imports the module of a noun when it is used."""

from __future__ import annotations

from importlib import import_module

import click
from click.shell_completion import CompletionItem
from typing_extensions import override

# Name -> (module with a `command`, one line of help)
_COMMANDS = {
    "serve": ("reput_cli.serve", "Run the broker."),
    "namesrv": ("reput_cli.namesrv", "Run a name server for several brokers."),
    "proxy": ("reput_cli.proxy", "Run a proxy for RocketMQ 5's gRPC clients."),
    "dev": ("reput_cli.dev", "Run a broker that deletes its data when it stops."),
    "produce": ("reput_cli.produce", "Send messages to a topic."),
    "request": ("reput_cli.request", "Send a request and print the reply to it."),
    "consume": ("reput_cli.consume", "Read messages of a topic."),
    "top": ("reput_cli.top", "Watch topics, groups and clients: a table that is updated."),
    "topic": ("reput_cli.topic", "List, describe, create, alter and delete topics."),
    "group": ("reput_cli.group", "List, describe, create, alter and delete groups; set their offsets."),
    "message": ("reput_cli.message", "Find and print single messages."),
    "dlq": ("reput_cli.dlq", "List, show, replay and purge dead letters."),
    "delay": ("reput_cli.delay", "List and cancel delayed messages."),
    "transaction": ("reput_cli.transaction", "List open transactions; commit one, or roll it back."),
    "schedule": ("reput_cli.schedule", "Create, list, pause, run and delete schedules, which send at times."),
    "cluster": ("reput_cli.cluster", "Show the brokers of a cluster."),
    "broker": ("reput_cli.broker", "Show a broker's state; drain it, make it read-only, sync its log."),
    "client": ("reput_cli.client", "List the clients of a broker, and disconnect one."),
    "config": ("reput_cli.config", "Show, check and set options of a broker."),
    "store": ("reput_cli.store", "Verify, dump, repair, rebuild and export a store directory, offline."),
    "doctor": ("reput_cli.doctor", "Look for faults, and say what to do about each."),
    "health": ("reput_cli.health", "Exit 0 if the broker is ready (for container health checks)."),
    "user": ("reput_cli.user", "List, create, alter and delete the users of access control."),
    "acl": ("reput_cli.acl", "List, allow and deny what users may do."),
    "context": ("reput_cli.context", "Name connections, and choose one."),
    "generate": ("reput_cli.generate", "Print dashboard, alert rules, and other files."),
    "pipeline": ("reput_cli.pipeline", "Archive, audit, rebuild, report and more, on Spark."),
    "bench": ("reput_cli.bench", "Measure produce, consume and round trips."),
    "help": ("reput_cli.help", "Print the help of a command, or of a subject: connection, output."),
    "version": ("reput_cli.version", "Print the version."),
}


_READ_THE_ENVIRONMENT = ("serve", "namesrv", "dev", "config", "health", "help", "version")
"""Commands that do not warn of unknown variables: the broker refuses them with all other mistakes of its configuration,
and has checked the environment in which `health` runs."""
_WORDS = "reput.words"
"""Key of the words of the line in `click.Context.meta`."""


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        from reput_cli.examples import add_examples

        command: click.Command = import_module(_COMMANDS[cmd_name][0]).command
        add_examples(command, cmd_name)
        return command

    @override
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        from reput_cli.line import UnknownCommand, ordered

        try:
            words = ctx.meta[_WORDS] = ordered(self, ctx, args)
        except UnknownCommand as unknown:
            from reput_cli.mistakes import unknown_command

            raise unknown_command(self, ctx, unknown.path, unknown.rest) from None
        try:
            return super().parse_args(ctx, list(words))
        except click.UsageError as error:
            from reput_cli.mistakes import explained

            raise explained(self, error, words) from None

    @override
    def invoke(self, ctx: click.Context) -> object:
        """Run the command; a mistake in its arguments is refused with the line that was probably meant."""
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            from reput_cli.mistakes import explained

            raise explained(self, error, ctx.meta[_WORDS]) from None

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete the name of a command, without importing any."""
        return [CompletionItem(name, help=text) for name, (_, text) in _COMMANDS.items() if name.startswith(incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _COMMANDS.items()])


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="reput", prog_name="reput")
@click.pass_context
def root(context: click.Context) -> None:
    """Reput: a durable, ordered message broker with RocketMQ's store format.

    \b
    Start a broker:               reput dev
    In another terminal, send:    reput produce hello 'first message'
    Read, and wait for more:      reput consume hello
    Look around:                  reput topic list, reput group list, reput top

    Options such as --server and --json may be anywhere on the line: reput help connection, reput help output.
    """
    if context.invoked_subcommand not in _READ_THE_ENVIRONMENT:
        from reput_cli.options import warn_of_unknown_variables

        warn_of_unknown_variables()

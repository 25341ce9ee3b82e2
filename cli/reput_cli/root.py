"""The root command, which imports the module of a noun when it is used."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module

import click
from click.shell_completion import CompletionItem

# Name -> (module with a `command`, one line of help)
_COMMANDS = {
    "serve": ("reput_cli.serve", "Run the broker."),
    "namesrv": ("reput_cli.namesrv", "Run a name server for several brokers."),
    "proxy": ("reput_cli.proxy", "Run a proxy for RocketMQ 5's gRPC clients."),
    "dev": ("reput_cli.dev", "Run a throw-away broker in a temporary directory."),
    "produce": ("reput_cli.produce", "Send messages to a topic."),
    "request": ("reput_cli.request", "Send a request and print the reply to it."),
    "consume": ("reput_cli.consume", "Read messages of a topic."),
    "topic": ("reput_cli.topic", "List, describe, create, alter and delete topics."),
    "group": ("reput_cli.group", "List, describe, create, alter and delete groups; set their offsets."),
    "message": ("reput_cli.message", "Find and print single messages."),
    "dlq": ("reput_cli.dlq", "List, show, replay and purge dead letters."),
    "delay": ("reput_cli.delay", "List and cancel delayed messages."),
    "cluster": ("reput_cli.cluster", "Show the brokers of a cluster."),
    "broker": ("reput_cli.broker", "Show a broker's state; drain it, make it read-only, sync its log."),
    "client": ("reput_cli.client", "List the clients of a broker."),
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
}


_READ_THE_ENVIRONMENT = ("serve", "namesrv", "dev", "config", "health")
"""Commands that do not warn of unknown variables: the broker refuses them with all other mistakes of its configuration,
and has checked the environment in which `health` runs."""


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = import_module(_COMMANDS[cmd_name][0]).command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command; an unknown name is refused with the nearest known one."""
        near = [] if args[0] in _COMMANDS else get_close_matches(args[0], _COMMANDS, n=1)
        if near:
            ctx.fail(f"No such command {args[0]!r}. Did you mean {near[0]!r}?")
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete the name of a command, without importing any."""
        return [
            CompletionItem(name, help=text)
            for name, (_, text) in _COMMANDS.items()
            if name.startswith(incomplete)
        ]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _COMMANDS.items()])


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="reput", prog_name="reput")
@click.pass_context
def root(context: click.Context) -> None:
    """Reput: a durable, ordered message broker with RocketMQ's store format.

    Start one with `reput dev` or `reput serve`, then `reput produce TOPIC` and `reput consume TOPIC` in other
    terminals.
    """
    if context.invoked_subcommand not in _READ_THE_ENVIRONMENT:
        from reput_cli.options import warn_of_unknown_variables

        warn_of_unknown_variables()

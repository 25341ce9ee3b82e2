"""Names for the shell's completion: of topics and groups, which the broker knows, and of contexts.

The shell waits for this, so it ends after half a second, and shows nothing where the broker does not answer.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem
from typing_extensions import override

if TYPE_CHECKING:
    from reput_client.blocking import Admin

WAIT_S = 0.5
_SAFE = re.compile(r"[%A-Za-z0-9_.-]+")
"""A name with any other character would have to be quoted for the shell."""


class _Names(click.ParamType[str]):
    """A name that the broker knows."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the names that begin with what was typed."""
        del param
        wants_all = incomplete.startswith("%")
        names = _within(WAIT_S, lambda: self._ask(ctx, wants_all))
        return [CompletionItem(name) for name in sorted(names) if name.startswith(incomplete) and _SAFE.fullmatch(name)]

    def _ask(self, ctx: click.Context, wants_all: bool) -> Iterable[str]:
        from reput_cli.connection import chosen_server, put_user_into_environment, tls_of
        from reput_client.blocking import Admin

        servers = ctx.params.get("servers") or ()
        server, values = chosen_server(tuple(servers), ctx.params.get("context"), os.environ)
        tls = tls_of(ctx.params, values)
        put_user_into_environment(ctx.params.get("user"), ctx.params.get("secret_file"), values, may_ask=False)
        with Admin(server, timeout_s=WAIT_S, connect_timeout_s=WAIT_S, tls=tls) as admin:
            return self.names(admin, wants_all)

    def names(self, admin: Admin, wants_all: bool) -> Iterable[str]:
        """Return the names; the system's too if `wants_all`."""
        raise NotImplementedError


class TopicName(_Names):
    """The name of a topic."""

    name = "topic"

    @override
    def names(self, admin: Admin, wants_all: bool) -> Iterable[str]:
        from reput_protocol.names import is_system_topic

        own_names = admin.cluster_info().own_names
        return [name for name in admin.list_topics() if wants_all or not is_system_topic(name, own_names)]


class GroupName(_Names):
    """The name of a group."""

    name = "group"

    @override
    def names(self, admin: Admin, wants_all: bool) -> Iterable[str]:
        from reput_protocol.names import is_system_group

        return [one.group for one in admin.list_groups() if wants_all or not is_system_group(one.group)]


class ContextName(click.ParamType[str]):
    """The name of a context."""

    name = "context"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Complete from the file of contexts."""
        from reput_cli.connection import load_contexts
        from reput_cli.failures import CommandFailed

        del ctx, param
        try:
            names = load_contexts().contexts
        except CommandFailed:
            return []
        return [CompletionItem(name) for name in names if name.startswith(incomplete) and _SAFE.fullmatch(name)]


def _within(seconds: float, ask: Callable[[], Iterable[str]]) -> list[str]:
    """Return what `ask` returns; nothing if it fails or takes longer."""
    found: list[str] = []

    def run() -> None:
        try:
            found.extend(ask())
        except Exception:  # whatever it is, the user is typing
            return

    # Resolving a name cannot be given a timeout, so the wait ends and the thread is left behind.
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    return [] if thread.is_alive() else found


TOPIC = TopicName()
GROUP = GroupName()
CONTEXT = ContextName()

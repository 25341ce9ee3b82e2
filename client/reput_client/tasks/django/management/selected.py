"""The backend that a command is for, and its relay."""

from __future__ import annotations

from django.core.management.base import CommandError, CommandParser

from reput_client.outbox import Relay
from reput_client.tasks.django.backend import ReputBackend
from reput_client.tasks.django.interface import InvalidTaskBackend, task_backends
from reput_client.tasks.django.outbox_store import DjangoOutbox


def add_backend(parser: CommandParser) -> None:
    """Add the option `--backend`."""
    parser.add_argument("--backend", default="default", help="the alias in TASKS (default: default)")


def selected_backend(alias: str) -> ReputBackend:
    """Return a backend of this package.

    Raises:
        CommandError: there is none with the alias, it is of another package, or its settings are not valid.
    """
    try:
        backend = task_backends[alias]
        if isinstance(backend, ReputBackend):
            backend.configuration  # noqa: B018 - raises unless it is valid
            return backend
    except InvalidTaskBackend as error:
        raise CommandError(str(error)) from error
    raise CommandError(f"TASKS[{alias!r}] has the BACKEND {type(backend).__name__}, which has its own worker")


def relay_of(backend: ReputBackend) -> Relay | None:
    """Return the relay of a backend's outbox, or None if it has none."""
    configuration = backend.configuration
    if configuration.outbox is None:
        return None
    return Relay(
        DjangoOutbox(configuration.outbox, backend.alias),
        ack=configuration.ack,
        ensure_topic=backend.ensure_topic_again,  # the relay remembers those that it has ensured
        **configuration.client_options,
    )

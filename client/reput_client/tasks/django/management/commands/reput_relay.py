"""`manage.py reput_relay`: send what is in the outbox of a backend; the backend that a command is for."""

from __future__ import annotations

import signal
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from reput_client.outbox import Relay
from reput_client.tasks.django.backend import ReputBackend
from reput_client.tasks.django.interface import InvalidTaskBackend, task_backends
from reput_client.tasks.django.models import DjangoOutbox
from reput_protocol.errors import ReputError


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


class Command(BaseCommand):
    """Sends the rows of the outbox until SIGTERM or SIGINT."""

    help = (
        "Send what is in the outbox of a backend, until SIGTERM or SIGINT. "
        "Workers do that too, unless they have --no-relay."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """See Django."""
        add_backend(parser)
        parser.add_argument("--once", action="store_true", help="send what there is, and end")
        parser.add_argument(
            "--retry", action="store_true", help="first send rows again that the broker has rejected"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """See Django."""
        backend = selected_backend(options["backend"])
        relay = relay_of(backend)
        outbox = backend.configuration.outbox
        if relay is None or outbox is None:
            raise CommandError(
                f'the backend {backend.alias!r} has no outbox; set OPTIONS["outbox"] to a database'
            )
        if options["retry"]:
            self.stdout.write(f"{DjangoOutbox(outbox, backend.alias).retry()} rejected rows are sent again")
        try:
            if options["once"]:
                self.stdout.write(f"{relay.send_all()} rows are sent")
                return
            before = {
                number: signal.signal(number, lambda *_: relay.stop())
                for number in (signal.SIGTERM, signal.SIGINT)
            }
            try:
                relay.run()
            finally:
                for number, handler in before.items():
                    signal.signal(number, handler)
        except ReputError as error:
            raise CommandError(str(error)) from error
        finally:
            relay.close()
            backend.close()

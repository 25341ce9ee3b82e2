"""`manage.py reput_relay`: send what is in the outbox of a backend."""

from __future__ import annotations

import signal
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from reput_client.tasks.django.backend import add_backend, selected_backend
from reput_client.tasks.django.models import DjangoOutbox
from reput_protocol.errors import ReputError


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
        parser.add_argument("--retry", action="store_true", help="first send rows again that the broker has rejected")

    def handle(self, *args: Any, **options: Any) -> None:
        """See Django."""
        backend = selected_backend(options["backend"])
        relay = backend.relay()
        outbox = backend.configuration.outbox
        if relay is None or outbox is None:
            raise CommandError(f'the backend {backend.alias!r} has no outbox; set OPTIONS["outbox"] to a database')
        if options["retry"]:
            self.stdout.write(f"{DjangoOutbox(outbox, backend.alias).retry()} rejected rows are sent again")
        try:
            if options["once"]:
                self.stdout.write(f"{relay.send_all()} rows are sent")
                return
            before = {
                number: signal.signal(number, lambda *_: relay.stop()) for number in (signal.SIGTERM, signal.SIGINT)
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

"""`manage.py reput_worker`: run the tasks of a backend."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from reput_client.tasks.django.management.selected import add_backend, relay_of, selected_backend
from reput_client.tasks.django.worker import Worker
from reput_protocol.errors import ReputError


class Command(BaseCommand):
    """Receives tasks until SIGTERM or SIGINT; a second one ends it at once."""

    help = (
        "Run the tasks of a backend until SIGTERM or SIGINT: then the tasks that run are finished. "
        "With an outbox, a thread sends what is in it."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """See Django."""
        add_backend(parser)
        parser.add_argument(
            "--queue",
            action="append",
            dest="queues",
            metavar="QUEUE",
            help="a queue to receive; may be repeated; by default all QUEUES of the backend",
        )
        parser.add_argument(
            "--concurrency",
            type=int,
            default=1,
            help="how many tasks run at a time, each in a thread (default: 1)",
        )
        parser.add_argument(
            "--invisible",
            type=float,
            default=60.0,
            metavar="SECONDS",
            help="after how long another worker gets the tasks of one that was killed (default: 60)",
        )
        parser.add_argument(
            "--no-relay", action="store_true", help="leave the outbox to manage.py reput_relay"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """See Django."""
        backend = selected_backend(options["backend"])
        queues = options["queues"] or sorted(backend.queues)
        if not queues:
            raise CommandError(
                "name the queues with --queue: the backend has QUEUES = [], which is any queue"
            )
        unknown = [queue for queue in queues if backend.queues and queue not in backend.queues]
        if unknown:
            raise CommandError(
                f"the backend has no queue {', '.join(unknown)}; its QUEUES are {', '.join(sorted(backend.queues))}"
            )
        if options["concurrency"] < 1 or options["invisible"] <= 0:
            raise CommandError("--concurrency must be at least 1, and --invisible more than 0")
        worker = Worker(backend, queues, concurrency=options["concurrency"], invisible_s=options["invisible"])
        relay = None if options["no_relay"] else relay_of(backend)
        thread = threading.Thread(target=relay.run, name="reput-relay") if relay is not None else None

        def stop(number: int, frame: FrameType | None) -> None:
            for each in (signal.SIGTERM, signal.SIGINT):
                signal.signal(each, before[each])
            worker.stop()

        before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
        if thread is not None:
            thread.start()
        self.stdout.write(f"worker {worker.id} receives {', '.join(queues)}")
        try:
            worker.run()
        except ReputError as error:
            raise CommandError(str(error)) from error
        finally:
            if relay is not None and thread is not None:
                relay.stop()
                thread.join()
            backend.close()
            for number, handler in before.items():
                signal.signal(number, handler)

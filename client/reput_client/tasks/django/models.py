"""The table of the outbox, and its rows of one backend, as a relay needs them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

from django.db import connections, models, transaction
from django.db.models.functions import Length

from reput_client.outbox import OutboxRow, OutboxStore, Outcome, columns_of
from reput_client.outbox.relay import FIND_FILE, SqliteLock, first_of
from reput_client.tasks.django.interface import InvalidTaskBackend, task_backends
from reput_protocol.record.message import Message


class Outbox(models.Model):
    """A message that a relay sends to the broker of a backend, and then deletes.

    Attributes:
        backend: the alias of the backend in `TASKS`.
        error: why the broker refuses it; empty while it is to be sent.
    """

    id = models.BigAutoField(primary_key=True)
    backend = models.CharField(max_length=100)
    topic = models.CharField(max_length=255)
    body = models.BinaryField()
    options = models.TextField()
    unique_id = models.CharField(max_length=255, db_index=True)
    created_ms = models.BigIntegerField()
    error = models.TextField(blank=True, default="")

    objects: ClassVar[Any] = models.Manager()

    class Meta:
        """The app's name for users is in `apps`."""

        app_label = "reput_tasks"
        verbose_name_plural = "outbox"

    def __str__(self) -> str:
        return f"{self.unique_id} for {self.topic}"

    @classmethod
    def add(
        cls, message: Message, *, queue_id: int | None = None, ordering_key: str | None = None, backend: str = "default"
    ) -> Self:
        """Insert a message for any topic, in the transaction that the database of the outbox is in.

        Args:
            queue_id, ordering_key: as of `Producer.send`.
            backend: whose broker gets it, and whose outbox has it.

        Raises:
            InvalidMessage: the message has a value and no body.
            InvalidTaskBackend: there is no such backend, or it has no outbox, whose relay would send the message.
        """
        configuration = getattr(task_backends[backend], "configuration", None)
        using = getattr(configuration, "outbox", None)
        if using is None:
            raise InvalidTaskBackend(f'TASKS[{backend!r}] has no outbox; set OPTIONS["outbox"] to a database')
        columns = columns_of(message, queue_id=queue_id, ordering_key=ordering_key)
        row: Self = cls.objects.using(using).create(backend=backend, **columns)
        return row


_COLUMNS = ("id", "topic", "body", "options", "unique_id", "created_ms")


class DjangoOutbox(OutboxStore):
    """Rows are locked by the transaction that sends and deletes them; on SQLite one relay has all rows.

    Args:
        using: the alias of the database.
        backend: whose rows.
    """

    def __init__(self, using: str, backend: str) -> None:
        self._using = using
        self._backend = backend
        self._rows = Outbox.objects.using(using).filter(backend=backend)
        self._has_row_locks = connections[using].vendor != "sqlite"
        self._lock: SqliteLock | None = None

    def relay(self, rows_max: int, send: Callable[[Sequence[OutboxRow]], Outcome]) -> Outcome:
        """See `OutboxStore`."""
        try:
            if self._has_row_locks:
                with transaction.atomic(using=self._using):
                    return self._relay(self._rows.select_for_update(skip_locked=True), rows_max, send)
            # No transaction is open while it sends: that would stop the program's own.
            if not self._acquire():
                return Outcome()
            return self._relay(self._rows, rows_max, send)
        except Exception:
            connections[self._using].close()  # it may be what is broken
            raise

    def _acquire(self) -> bool:
        if self._lock is None:
            with connections[self._using].cursor() as cursor:
                cursor.execute(FIND_FILE)
                (path,) = cursor.fetchone()
            self._lock = SqliteLock(path, self._backend)
        return self._lock.acquire()

    def _relay(self, rows: Any, rows_max: int, send: Callable[[Sequence[OutboxRow]], Outcome]) -> Outcome:
        ids = first_of(rows.filter(error="").order_by("id").values_list("id", Length("body"))[:rows_max])
        if not ids:
            return Outcome()
        page = self._rows.filter(id__in=ids).order_by("id")
        found = [OutboxRow(*row) for row in page.values_list(*_COLUMNS)]
        outcome = send(found)
        unique_ids = {row.id: row.unique_id for row in found}
        if outcome.sent:
            sent = [unique_ids[row_id] for row_id in outcome.sent]
            self._rows.filter(id__in=outcome.sent, unique_id__in=sent).delete()
        for reason, refused in outcome.refused_by_reason().items():
            of_refused = [unique_ids[row_id] for row_id in refused]
            self._rows.filter(id__in=refused, unique_id__in=of_refused).update(error=reason)
        return outcome

    def retry(self) -> int:
        """See `OutboxStore`."""
        cleared: int = self._rows.exclude(error="").update(error="")
        return cleared

    def close(self) -> None:
        """See `OutboxStore`."""
        if self._lock is not None:
            self._lock.release()
        connections[self._using].close()

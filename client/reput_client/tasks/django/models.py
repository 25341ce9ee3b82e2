"""The table of the outbox."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from django.db import models

from reput_client.outbox import columns_of
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
        cls,
        message: Message,
        *,
        queue_id: int | None = None,
        ordering_key: str | None = None,
        backend: str = "default",
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

"""Orders."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import models


class Order(models.Model):
    """An order of a product.

    Attributes:
        task_id: of the task that confirms it.
    """

    product = models.CharField(max_length=100)
    task_id = models.CharField(max_length=64, blank=True)
    confirmed_at = models.DateTimeField(null=True)
    objects: ClassVar[Any] = models.Manager()

    def __str__(self) -> str:
        return f"order {self.pk} of {self.product}"

"""The table of orders."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import models


class Order(models.Model):
    """An order; it is committed together with its task."""

    reference = models.CharField(max_length=64, primary_key=True)
    objects: ClassVar[Any] = models.Manager()

    class Meta:
        app_label = "orders"

    def __str__(self) -> str:
        return str(self.reference)

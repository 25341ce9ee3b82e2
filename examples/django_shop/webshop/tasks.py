"""The tasks of the shop."""

from __future__ import annotations

import django
from django.utils import timezone

from webshop.models import Order

if django.VERSION >= (6,):
    from django.tasks import task
else:
    from django_tasks import task


@task
def confirm(order_id: int) -> str:
    """Confirm an order. It may run twice if its worker is killed, so an order that is confirmed stays as it is."""
    order = Order.objects.get(pk=order_id)
    Order.objects.filter(pk=order_id, confirmed_at=None).update(confirmed_at=timezone.now())
    return f"{order.product} is on its way"

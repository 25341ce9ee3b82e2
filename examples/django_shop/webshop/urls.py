"""Addresses and views of the shop."""

from __future__ import annotations

from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.shortcuts import get_object_or_404
from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from webshop.models import Order
from webshop.tasks import confirm


@csrf_exempt
@require_POST
def orders(request: HttpRequest) -> JsonResponse:
    """Store an order and its task, both or neither; the broker may be away."""
    with transaction.atomic():
        order = Order.objects.create(product=request.POST["product"])
        order.task_id = confirm.enqueue(order.pk).id
        order.save()
    return JsonResponse({"order": order.pk}, status=201)


def order_state(_request: HttpRequest, order_id: int) -> JsonResponse:
    """Return an order and the state of its task."""
    order = get_object_or_404(Order, pk=order_id)
    result = confirm.get_result(order.task_id)
    answer = {"product": order.product, "confirmed": order.confirmed_at is not None, "task": result.status}
    if result.is_finished:
        answer["says"] = result.return_value
    return JsonResponse(answer)


urlpatterns = [path("orders/", orders), path("orders/<int:order_id>/", order_state)]

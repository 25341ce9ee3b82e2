"""The Django app with the commands `reput_worker` and `reput_relay`, and the table of the outbox."""

from __future__ import annotations

from django.apps import AppConfig


class ReputTasksConfig(AppConfig):
    """`INSTALLED_APPS = [..., "reput_client.tasks.django"]`."""

    name = "reput_client.tasks.django"
    label = "reput_tasks"
    verbose_name = "Tasks on Reput"
    default_auto_field = "django.db.models.BigAutoField"

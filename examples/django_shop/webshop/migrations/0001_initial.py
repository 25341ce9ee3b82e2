"""The table of orders."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    """See Django."""

    initial = True
    dependencies: ClassVar[list[Any]] = []
    operations: ClassVar[list[Any]] = [
        migrations.CreateModel(
            name="Order",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("product", models.CharField(max_length=100)),
                ("task_id", models.CharField(blank=True, max_length=64)),
                ("confirmed_at", models.DateTimeField(null=True)),
            ],
        )
    ]

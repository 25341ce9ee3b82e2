"""The table of the outbox."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    """See Django."""

    initial = True
    dependencies: ClassVar[list[Any]] = []
    operations: ClassVar[list[Any]] = [
        migrations.CreateModel(
            name="Outbox",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("backend", models.CharField(max_length=100)),
                ("topic", models.CharField(max_length=255)),
                ("body", models.BinaryField()),
                ("options", models.TextField()),
                ("unique_id", models.CharField(db_index=True, max_length=255)),
                ("created_ms", models.BigIntegerField()),
                ("error", models.TextField(blank=True, default="")),
            ],
            options={"verbose_name_plural": "outbox"},
        )
    ]

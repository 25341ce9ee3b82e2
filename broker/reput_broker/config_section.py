"""What every section of the configuration is made of."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Section(BaseModel):
    """One section; unknown keys and wrong types are refused, and nothing in it changes but by a reload."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, validate_default=False)


def option(default: Any, description: str, *, live: bool = False, **limits: Any) -> Any:
    """Return the field of an option; one that is `live` can change while the broker runs."""
    return Field(default, description=description, json_schema_extra={"live": live}, **limits)

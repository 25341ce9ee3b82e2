"""What every section of the configuration is made of; the sections themselves are in `config.py` and beside it."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Section(BaseModel):
    """A table of options: unknown ones and values of other types are refused, and nothing changes it but a reload."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, validate_default=False)


def option(default: Any, description: str, *, live: bool = False, **limits: Any) -> Any:
    """Declare an option; `live` says that a reload changes it while the broker runs."""
    return Field(default, description=description, json_schema_extra={"live": live}, **limits)

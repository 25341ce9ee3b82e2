"""What is wrong with options."""

from __future__ import annotations

from typing import Any

import pytest

from reput_broker.config.errors import ConfigError
from reput_broker.config.model import BrokerConfig


def problems(**values: Any) -> dict[str, str]:
    """Return the problems of options that are refused, by key."""
    with pytest.raises(ConfigError) as refused:
        BrokerConfig(**values)
    return {problem.key: problem.problem for problem in refused.value.problems}

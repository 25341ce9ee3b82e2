"""An extension of griffe: it describes the constructors of clients by the options that they take.

`@takes(ProducerOptions)` gives a constructor the fields of that dataclass as its arguments (see
`reput_client.transport.options`); the documentation shows these arguments.
"""

from __future__ import annotations

from typing import Any

import griffe


class TakenOptions(griffe.Extension):  # type: ignore[misc]
    """Replaces the parameters of constructors that are decorated with `takes`."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Describe one function, once all modules are loaded."""
        for decorator in func.decorators:
            call = decorator.value
            if decorator.callable_path.endswith(".takes") and isinstance(call, griffe.ExprCall):
                (kind,) = call.arguments
                assert isinstance(kind, griffe.ExprName), "takes is given a class"
                func.parameters = func.modules_collection[kind.canonical_path].parameters

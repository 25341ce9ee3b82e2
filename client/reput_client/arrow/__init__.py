"""Topics and store directories as Arrow record batches: for pandas, Polars, DuckDB and what else reads Arrow.

    from reput_client.arrow import read_arrow, scan_polars

    reader = read_arrow("localhost:10911", "orders", columns=["keys", "body", "storeTimestamp"])
    orders = scan_polars("/var/lib/reput", "orders")

It needs pyarrow and NumPy, which the extra `arrow` installs, but neither Spark nor Java. The names are imported on
first use.

`read` is for both: a topic is read by `topic_reading`, a directory (`directory`, its files: `store_files`) by
`directory_reading`. `batches` makes the columns, `values` those of decoded bodies. Spark's source uses these modules
too.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from reput_client.arrow.polars_scan import scan_polars as scan_polars
    from reput_client.arrow.read import Position as Position
    from reput_client.arrow.read import read_arrow as read_arrow

_MODULES: Final = {
    "Position": "reput_client.arrow.read",
    "read_arrow": "reput_client.arrow.read",
    "scan_polars": "reput_client.arrow.polars_scan",
}
__all__ = ["Position", "read_arrow", "scan_polars"]


if not TYPE_CHECKING:  # with it, a type checker would accept any name

    def __getattr__(name: str) -> Any:
        """Import a public name on its first use.

        Raises:
            ModuleNotFoundError: a library is not installed; names what installs it.
        """
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            value = getattr(import_module(_MODULES[name]), name)
        except ModuleNotFoundError as missing:
            if missing.name not in ("numpy", "polars", "pyarrow"):
                raise
            remedy = "polars" if missing.name == "polars" else "'reput-client[arrow]'"
            raise ModuleNotFoundError(
                f"{name} needs {missing.name}, which is not installed: pip install {remedy}", name=missing.name
            ) from missing
        globals()[name] = value
        return value

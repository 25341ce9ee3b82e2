"""The options of TLS, of source and sink."""

from __future__ import annotations

from typing import Final

from reput_client.tls import TLS
from reput_pipeline.option_reader import TLS_OPTIONS, OptionError, OptionReader

_FILES: Final = ("tlsCa", "tlsCert", "tlsKey")


def read_tls(reader: OptionReader) -> TLS | None:
    """Return how to encrypt; None for not at all. The files are those of the machine that connects.

    Raises:
        OptionError: an option contradicts another.
    """
    if reader.flag("tls", any(name in reader for name in TLS_OPTIONS)):
        ca, cert, key = map(reader.text, _FILES)
        if key is not None and cert is None:
            raise OptionError("tlsKey", "is the key of tlsCert, which is not given")
        return TLS(ca, cert, key, reader.text("tlsServerName"))
    reader.refuse(TLS_OPTIONS[1:], "contradicts tls=false")
    return None

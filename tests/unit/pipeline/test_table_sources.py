"""The sources that a table holds, without a table."""

from __future__ import annotations

import pytest

from reput_pipeline.lake.sources import check_source
from reput_pipeline.source.places import OtherSource

KEY = ("orders", "broker-a")


@pytest.mark.parametrize("host", ["broker-{}.example", "10.0.0.{}", "[fe80::{}]"])
def test_a_broker_is_known_by_an_address_in_common(host: str) -> None:
    """Also by a host name, which looks like the scheme of a URL."""
    first, second, third = (f"{host.format(number)}:10911" for number in (1, 2, 3))
    known = {KEY: f"{first} {second}"}
    check_source("t", known, KEY, f"{second} {third}", same_source=False)
    with pytest.raises(OtherSource, match="give --same-source"):
        check_source("t", known, KEY, third, same_source=False)
    check_source("t", known, KEY, third, same_source=True)
    for directory in ("/data/copy", "s3://backup/copy"):  # --as-broker says whose directory it is
        check_source("t", known, KEY, directory, same_source=False)
        check_source("t", {KEY: directory}, KEY, third, same_source=False)

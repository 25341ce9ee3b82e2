"""The sources that a table holds, without a table."""

from __future__ import annotations

import pytest

from reput_pipeline.lake.table import OtherSource, check_source

KEY = ("orders", "broker-a")


def check(before: str, now: str, *, is_same_topic: bool = False, same_source: bool = False) -> None:
    check_source("t", {KEY: before}, KEY, now, is_same_topic=is_same_topic, same_source=same_source)


@pytest.mark.parametrize("host", ["broker-{}.example", "10.0.0.{}", "[fe80::{}]"])
def test_a_broker_is_known_by_an_address_in_common(host: str) -> None:
    """Also by a host name, which looks like the scheme of a URL; also of an older table, with the text of --server."""
    first, second, third = (f"{host.format(number)}:10911" for number in (1, 2, 3))
    for before in (f"{first} {second}", f"{first};{second}", f"{first}, {second}"):
        check(before, f"{second} {third}")
        with pytest.raises(OtherSource, match="give --same-source"):
            check(before, third)
        check(before, third, same_source=True)
        check(before, third, is_same_topic=True)
    for directory in ("/data/copy", "s3://backup/copy"):  # --as-broker says whose directory it is
        check(first, directory)
        check(directory, first)
        with pytest.raises(OtherSource):
            check(directory, f"{directory}-2", is_same_topic=True)

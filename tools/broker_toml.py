"""Write `conf/broker.toml` from the rows of the options: python tools/broker_toml.py"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from reput_broker.config.model import BrokerConfig
from reput_broker.config.options import is_live, option_fields, option_texts, rocketmq_name, section_of, written

FILE: Final = Path(__file__).resolve().parents[1] / "conf" / "broker.toml"
_WIDTH: Final = 120
_HEAD: Final = """\
# The configuration of a Reput broker: every option with its default, unit and reason.
#
# Order: built-in default < this file < environment < flag. Environment: REPUT_ and the path with double underscores,
# REPUT_STORE__FLUSH_INTERVAL=500ms; a list as here, or with commas; with _FILE appended to the name, the value is read
# from that file.
# Durations need a unit (us ms s m h d), sizes too (B KB MB GB TB, KiB MiB GiB TiB). [live] options change on SIGHUP
# and by `reput config set | reload`, all others need a restart.
"""


def broker_toml() -> str:
    """Return the text of the file."""
    return "\n".join((_HEAD, *_lines())).rstrip("\n") + "\n"


def _lines() -> Iterator[str]:
    texts, section = option_texts(BrokerConfig), ""
    for key, field in option_fields(BrokerConfig).items():
        prefix, _, name = key.rpartition(".")
        if prefix != section:
            section = prefix
            yield f"\n[{section}]"
            yield from _comment(section_of(BrokerConfig, section).__doc__ or "")
            yield ""
        live, rocketmq = "[live] " if is_live(field) else "", rocketmq_name(field)
        yield from _comment(f"{live}{texts[key]}" + (f" RocketMQ: {rocketmq}." if rocketmq else ""))
        yield f"{name} = {written(field, field.default)}\n"


def _comment(text: str) -> Iterator[str]:
    for number, paragraph in enumerate(text.split("\n\n")):
        if number:
            yield "#"
        lines = textwrap.wrap(" ".join(paragraph.split()), _WIDTH - 2, break_on_hyphens=False)
        yield from (f"# {line}" for line in lines)


if __name__ == "__main__":
    FILE.write_text(broker_toml(), encoding="utf-8")

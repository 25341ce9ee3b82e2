"""`reput dev`: a broker in a temporary directory that is deleted at exit."""

from __future__ import annotations

import os
import tempfile
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from reput_cli.serve import checked_config, say_what_next

if TYPE_CHECKING:
    from reput_broker import Broker


@click.command()
@click.option("--port", type=int, default=10911, show_default=True, help="Port of the broker; 0 takes a free one.")
@click.option("--http-port", type=int, help="Port of metrics and health.")
def command(port: int, http_port: int | None) -> int:
    """Run a broker with small files in a temporary directory, which is deleted at exit.

    It ends on Ctrl-C, or when its terminal is closed. Until the disk is full, it keeps and accepts all messages.
    """
    from reput_broker.config.loading import load_config
    from reput_broker.serve import run_broker

    with tempfile.TemporaryDirectory(prefix="reput-dev-") as directory:
        overrides: dict[str, Any] = {
            "data_dir": directory,
            "port": port,
            "store.commit_log_file_size": "16MiB",
            "store.index_slots": 10_000,
            "store.index_entries": 40_000,
            "store.disk_clean_forcibly_ratio": 1.0,
            "store.disk_warning_ratio": 1.0,
        }
        if http_port is not None:
            overrides["http_port"] = http_port
        config = checked_config(partial(load_config, None, os.environ, overrides))
        return run_broker(config, on_ready=_say_ready)


def _say_ready(broker: Broker) -> None:
    from reput_broker.observe.log import write_line

    write_line(f"a temporary broker on {broker.address}; it deletes its messages when it stops (Ctrl-C)")
    say_what_next(broker)

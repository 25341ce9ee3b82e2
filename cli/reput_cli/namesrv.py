"""`reput namesrv`: run a name server in the foreground."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from reput_cli.serve import checked_config
from reput_protocol.exit_codes import ExitCode

if TYPE_CHECKING:
    from reput_broker.config.model import BrokerConfig


@click.command()
@click.option("-c", "--config", "config_path", type=click.Path(path_type=Path), help="TOML file with options.")
@click.option("--data-dir", help="Directory of the key-value settings.")
@click.option("--host", help="Address to listen on.")
@click.option("--port", type=int, help="Port of the name server; 0 takes a free one.")
@click.option("--http-port", type=int, help="Port of metrics and health.")
@click.option("--address-file", help="Write the name server's address to this file once it is ready.")
@click.option("--check", is_flag=True, help="Validate the configuration, its certificates and its users, and exit.")
def command(config_path: Path | None, check: bool, address_file: str | None, **flags: Any) -> int:
    """Run a name server until SIGTERM or Ctrl-C; a second signal ends it immediately.

    Brokers register with it (name_servers), and clients ask it which of them has a topic. A broker is a name server
    too; this one runs without a broker.

    Flags override the environment (REPUT_PORT=9876), and that over the file.
    """
    from reput_broker.config.loading import load_config
    from reput_broker.name_server import DEFAULTS, check_options
    from reput_broker.serve import Served, run_name_server, write_address

    def load() -> BrokerConfig:
        return check_options(load_config(config_path, os.environ, flags, DEFAULTS))

    config = checked_config(load, opens_files=check)
    if check:
        click.echo("the configuration is valid")
        return ExitCode.DONE

    def on_ready(server: Served) -> None:
        if address_file is not None:
            write_address(Path(address_file), server.address)

    return run_name_server(config, reload=load, on_ready=on_ready)

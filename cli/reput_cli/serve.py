"""`reput serve`: run the broker in the foreground."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from reput_cli.connection import DEFAULT_SERVER
from reput_cli.failures import CommandFailed
from reput_protocol.exit_codes import ExitCode

if TYPE_CHECKING:
    from reput_broker import Broker
    from reput_broker.config.model import BrokerConfig


@click.command()
@click.option("-c", "--config", "config_path", type=click.Path(path_type=Path), help="TOML file with options.")
@click.option("--data-dir", help="Store directory.")
@click.option("--host", help="Address to listen on.")
@click.option("--port", type=int, help="Port of the broker; 0 takes a free one.")
@click.option("--name-port", type=int, help="Second port, for RocketMQ clients that look for a name server.")
@click.option("--http-port", type=int, help="Port of metrics and health.")
@click.option("--address-file", help="Write the broker's address to this file once it is ready.")
@click.option(
    "--brokers",
    type=int,
    default=1,
    show_default=True,
    help="Number of brokers to run as one cluster on ports 10 apart, to use as many cores; none copies another.",
)
@click.option("--check", is_flag=True, help="Validate the configuration, its certificates and its users, and exit.")
def command(config_path: Path | None, brokers: int, check: bool, address_file: str | None, **flags: Any) -> int:
    """Run the broker until SIGTERM or Ctrl-C; a second signal ends it immediately.

    Flags override the environment (REPUT_STORE__FLUSH=async), and that over the file.
    """
    from reput_broker.config.loading import load_config

    load = partial(load_config, config_path, os.environ, flags)
    config = checked_config(load, opens_files=check)
    if brokers != 1:
        return _serve_brokers(config, brokers, config_path, check, address_file)
    if check:
        click.echo("the configuration is valid")
        return ExitCode.DONE
    from reput_broker.serve import run_broker, write_address

    def on_ready(server: Broker) -> None:
        if address_file is not None:
            write_address(Path(address_file), server.address)
        if sys.stderr is not None and sys.stderr.isatty():  # elsewhere programs read the log
            say_what_next(server)

    return run_broker(config, reload=load, on_ready=on_ready)


def _serve_brokers(
    config: BrokerConfig, count: int, config_path: Path | None, check: bool, address_file: str | None
) -> int:
    from reput_broker.config.errors import ConfigError
    from reput_broker.serve import parts_of, run_side_by_side, write_address

    try:
        parts = parts_of(config, count)
    except ConfigError as error:
        raise CommandFailed(str(error), code=ExitCode.USAGE) from error
    if check:
        click.echo("the configuration is valid for " + ", ".join(f"{p.name} at {p.address}" for p in parts))
        return ExitCode.DONE
    command = [sys.executable, "-m", "reput_cli", "serve", "--host", config.host]
    if config_path is not None:
        command += ["--config", str(config_path)]

    def write_addresses() -> None:
        if address_file is not None:
            write_address(Path(address_file), ",".join(part.address for part in parts))

    return run_side_by_side(config, parts, command, write_addresses)


def say_what_next(broker: Broker) -> None:
    """Print the URL of the console, and the commands to try next, between the lines of the broker's log."""
    from reput_broker.observe.log import write_line

    config = broker.config
    if broker.http_address is not None and config.console.enabled:
        scheme = "http" if config.tls.effective_http_mode == "off" else "https"
        address = broker.http_address.replace("0.0.0.0", "127.0.0.1")
        write_line(f"  console: {scheme}://{address}/console/")
    options = "" if broker.address == DEFAULT_SERVER else f" --server {broker.address}"
    if config.tls.mode != "off":
        options += " --tls-ca FILE"
    if config.access.enabled:
        options += " --user NAME"
    write_line(f"  try:     reput produce hello 'first message'{options}")
    write_line(f"           reput consume hello{options}")


def checked_config(load: Callable[[], BrokerConfig], *, opens_files: bool = False) -> BrokerConfig:
    """Return the configuration.

    Args:
        opens_files: whether to check the certificates, keys and users that it names, too.

    Raises:
        CommandFailed: with every mistake in it.
    """
    from reput_broker.config.errors import ConfigError

    try:
        config = load()
        if opens_files:
            _check_files(config)
    except ConfigError as error:
        raise CommandFailed(str(error), code=ExitCode.USAGE) from error
    return config


def _check_files(config: BrokerConfig) -> None:
    """Raise ConfigError if certificates, keys, users or the proxy cannot be used, or certificates have ended."""
    from reput_broker.access.control import NoUsers, check_users
    from reput_broker.access.user_file import UserFileRefused
    from reput_broker.compose.proxy_process import check_proxy
    from reput_broker.config.errors import ConfigError, ConfigProblem
    from reput_broker.remoting.tls import file_problems

    problems = [
        ConfigProblem(problem.option, config.origins[problem.option], problem.problem)
        for problem in file_problems(config.tls, time.time())
    ]
    try:
        check_users(config)
    except (NoUsers, UserFileRefused) as error:
        key = "access.file" if config.access.file else "access.enabled"
        problems.append(ConfigProblem("", config.origins[key], str(error)))
    try:
        check_proxy(config)
    except ConfigError as error:
        problems += error.problems
    if problems:
        raise ConfigError(problems)

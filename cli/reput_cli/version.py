"""`reput version`: the version, and what it runs on."""

from __future__ import annotations

import platform
from importlib.metadata import version

import click

from reput_cli.options import Settings, output_options
from reput_cli.output import Printer
from reput_protocol import kernel
from reput_protocol.exit_codes import ExitCode


@click.command()
@output_options
def command(settings: Settings) -> int:
    """Print the version of Reput and of Python, and whether the kernel is compiled."""
    Printer(settings).fields({"reput": version("reput"), "python": platform.python_version(), "kernel": kernel.FORM})
    return ExitCode.DONE

"""`reput generate ...`: print files that come with Reput. They are in `conf/`, which is part of the package."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import click

from reput_cli.examples import epilog
from reput_cli.failures import CommandFailed
from reput_cli.options import Settings, output_options
from reput_cli.output import Printer
from reput_protocol.exit_codes import ExitCode

_CONF = Path(__file__).parent / "conf"
_FILES = {
    "alerts": ("prometheus/rules.yml", "Print Prometheus' alert rules; docs/runbook.md has a page for each."),
    "config": ("broker.toml", "Print a configuration file with every option at its default."),
    "grafana": ("grafana/dashboards/reput.json", "Print the Grafana dashboard."),
    "k8s": ("kubernetes/reput.yaml", "Print Kubernetes manifests."),
    "k8s-tls": ("kubernetes/tls.yaml", "Print the patch that adds TLS to those of k8s, for kustomize."),
    "systemd": ("systemd/reput.service", "Print a systemd unit."),
}
"""File in `conf` and help by command; a command exists if its file does."""
_MOUNTED = ("prometheus", "grafana")
"""Folders of `conf` that the compose file mounts."""
_COMPOSE_TLS = "docker-compose.tls.yml"
"""In `conf`: adds TLS and users to the compose file."""
_BUILD = re.compile(r"^( +)build:.*\n(?:\1 +.*\n)*", re.MULTILINE)


class _Files(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return sorted([*(name for name, (file, _) in _FILES.items() if (_CONF / file).is_file()), *_OWN])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _OWN:
            return _OWN[cmd_name]
        if cmd_name not in self.list_commands(ctx):
            return None
        file, text = _FILES[cmd_name]

        @click.command(cmd_name, help=text, epilog=epilog(f"generate {cmd_name}"))
        def show() -> int:
            return _print((_CONF / file).read_text(encoding="utf-8"))

        return show


@click.group(cls=_Files)
def command() -> None:
    """Print a file to standard output, such as: reput generate alerts > rules.yml."""


@click.command(epilog=epilog("generate completion"))
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> int:
    """Print the completion script of SHELL, which also completes names of topics and groups.

    \b
    bash   in ~/.bashrc: eval "$(reput generate completion bash)"
    zsh    in ~/.zshrc:  eval "$(reput generate completion zsh)"
    fish   reput generate completion fish > ~/.config/fish/completions/reput.fish
    """
    from click.shell_completion import get_completion_class

    from reput_cli.root import root

    kind = get_completion_class(shell)
    if kind is None:
        raise CommandFailed(f"there is no completion for {shell}", code=ExitCode.USAGE)
    return _print(kind(root, {}, "reput", "_REPUT_COMPLETE").source())


@click.command(epilog=epilog("generate compose"))
@click.option(
    "--to",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write it to this directory, with the files that it mounts.",
)
@output_options
def compose(settings: Settings, directory: Path | None) -> int:
    """Print a compose file: a broker; with --profile monitoring also Prometheus with the alert rules, and Grafana with
    the dashboard.

    It runs the image that `docker build` makes in Reput's source directory. With --to DIR, `docker compose up` in DIR
    starts everything; conf/docker-compose.tls.yml there adds TLS and users.
    """
    text = _BUILD.sub("", (_CONF / "docker-compose.yml").read_text(encoding="utf-8")).replace(" --build", "")
    if directory is None:
        return _print(text)
    for name in ("docker-compose.yml", "conf"):
        if (directory / name).exists():
            raise CommandFailed(
                f"{directory / name} exists", remedy="another directory, or remove it", code=ExitCode.USAGE
            )
    directory.mkdir(parents=True, exist_ok=True)
    for name in _MOUNTED:
        shutil.copytree(_CONF / name, directory / "conf" / name)
    shutil.copyfile(_CONF / _COMPOSE_TLS, directory / "conf" / _COMPOSE_TLS)
    (directory / "docker-compose.yml").write_text(text, encoding="utf-8")
    Printer(settings).note(f"written: start it with docker compose up in {directory}")
    return ExitCode.DONE


_OWN = {"completion": completion, "compose": compose}


def _print(text: str) -> int:
    sys.stdout.write(text if text.endswith("\n") else text + "\n")
    return ExitCode.DONE

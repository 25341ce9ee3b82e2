"""`reput generate`: files of the package, unchanged; each verb is a file."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from reput_cli import generate
from reput_cli.failures import CommandFailed
from reput_cli.root import root

CONF = Path(__file__).parents[3] / "conf"


def run(*arguments: str) -> str:
    return CliRunner().invoke(root, ["generate", *arguments], catch_exceptions=False).stdout


@pytest.mark.parametrize("verb", sorted(generate._FILES))
def test_each_verb_prints_its_file(verb: str) -> None:
    file = CONF / generate._FILES[verb][0]
    if file.exists():
        assert run(verb) == file.read_text(encoding="utf-8")
    else:
        assert f"No such command {verb!r}" in CliRunner().invoke(root, ["generate", verb]).stderr


def test_a_compose_file_works_outside_of_the_source_directory(tmp_path: Path) -> None:
    text = run("compose")
    assert "build" not in text
    kept = yaml.safe_load(text)
    original = yaml.safe_load((CONF / "docker-compose.yml").read_text(encoding="utf-8"))
    for service in original["services"].values():
        service.pop("build", None)
    original["x-member"].pop("build")
    assert kept == original
    run("compose", "--to", str(tmp_path / "new"))
    assert (tmp_path / "new" / "docker-compose.yml").read_text(encoding="utf-8") == text
    override = Path("conf/docker-compose.tls.yml")
    assert (tmp_path / "new" / override).read_text() == (CONF.parent / override).read_text()
    for service in kept["services"].values():
        for mount in service.get("volumes", []):
            source = mount.partition(":")[0]
            if source.startswith("."):
                assert any(path.is_file() for path in (tmp_path / "new" / source).rglob("*"))
    with pytest.raises(CommandFailed, match="exists"):
        run("compose", "--to", str(tmp_path / "new"))


def test_the_files_are_inside_the_package() -> None:
    assert generate._CONF.resolve() == CONF
    assert {"alerts", "config", "grafana", "completion", "compose"} <= set(
        generate.command.list_commands(None)  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("shell", "line"), [("bash", "complete -o nosort"), ("zsh", "#compdef reput"), ("fish", "complete ")]
)
def test_completion_scripts(shell: str, line: str) -> None:
    assert line in run("completion", shell)

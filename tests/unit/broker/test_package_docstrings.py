"""The docstring of a package of the broker says what its modules have, so it follows when one is moved or renamed."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import reput_broker

_BROKER = Path(reput_broker.__file__).parent
_PACKAGES = sorted(path.parent for path in _BROKER.rglob("__init__.py"))
_NAME = re.compile(r"`([a-z_]+(?:\.[a-z_]+)*)`")


def _is_there(name: str, package: Path) -> bool:
    """Whether a module or folder is below a package, or below one that it is in."""
    path = name.replace(".", "/")
    while package != _BROKER.parent:
        if (package / f"{path}.py").is_file() or (package / path).is_dir():
            return True
        package = package.parent
    return False


@pytest.mark.parametrize("package", _PACKAGES, ids=lambda package: str(package.relative_to(_BROKER)))
def test_the_modules_that_a_package_names_are_there(package: Path) -> None:
    text = ast.get_docstring(ast.parse((package / "__init__.py").read_text())) or ""
    assert [name for name in _NAME.findall(text) if not _is_there(name, package)] == []

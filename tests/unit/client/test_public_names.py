"""Whatever a public signature names can be imported from the package of that signature."""

from __future__ import annotations

import ast
import builtins
import inspect
import subprocess
import sys
import types
from collections import abc
from collections.abc import Iterator, Mapping
from enum import Enum
from importlib.metadata import version
from types import FunctionType, ModuleType
from typing import Annotated, Any, ParamSpec, TypeVar, get_origin

import pytest

import reput_client
from reput_client import blocking, errors, exported

OURS = ("reput_client", "reput_protocol")
MADE_BY_THE_CLIENT = {"ColumnsResult", "MessageColumns", "PoppedMessage", "Posted", "PulledMessages", "ReceivedMessage"}
"""Programs get these from calls; what their constructors take is internal."""
OF_OTHERS = {"ByteArray", "IntArray", "Meta", "NDArray", "UnsetType", "np", "pa"}
"""Of NumPy, pyarrow and msgspec; the arrays are shown by NumPy's names."""
OF_THE_LIBRARY = {*abc.__all__, *types.__all__, "Any", "Path"} - {"Buffer"}
"""Where a module imports a name for checkers only, it cannot be looked up."""


@pytest.mark.parametrize("package", [reput_client, blocking], ids=lambda package: package.__name__)
def test_what_a_public_signature_names_is_exported(package: ModuleType) -> None:
    missing: dict[str, set[str]] = {}
    for name in dir(package):
        for place, used in names_in(name, getattr(package, name)):
            if used not in dir(package):
                missing.setdefault(used, set()).add(place)
    assert missing == {}


@pytest.mark.parametrize("package", [reput_client, blocking], ids=lambda package: package.__name__)
def test_type_checkers_and_programs_find_the_same_names(package: ModuleType) -> None:
    checked = [*imports_of(exported), *imports_of(package)]
    modules = exported.modules_of(package._OWN)
    assert {name: module for module, name in checked if name not in ("*", "modules_of", "resolve")} == {
        name: module for name, module in modules.items() if module != errors.__name__
    }
    assert ("reput_client.errors", "*") in checked
    assert dir(package) == sorted(modules)
    for name in dir(package):
        assert getattr(package, name) is getattr(sys.modules[modules[name]], name)


@pytest.mark.parametrize("package", [reput_client, blocking], ids=lambda package: package.__name__)
def test_a_star_import_needs_no_extra(package: ModuleType) -> None:
    program = (
        "import sys\n"
        "sys.modules.update(dict.fromkeys(['fastavro', 'numpy', 'google.protobuf', 'pyarrow']))\n"
        f"from {package.__name__} import *\n"
        "print(Producer.__name__, Message.__name__)"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "Producer Message\n"
    left_out = set(dir(package)) - set(package.__all__)
    assert left_out == {"Avro", "AvroSchema", "CodedValues", "MessageColumns", "Protobuf"}


def imports_of(package: ModuleType) -> list[tuple[str, str]]:
    """Return what a module of ours imports from where, also for type checkers only."""
    return [
        (statement.module, each.name)
        for statement in ast.walk(ast.parse(inspect.getsource(package)))
        if isinstance(statement, ast.ImportFrom) and statement.module is not None
        if statement.module.startswith(OURS)
        for each in statement.names
    ]


def names_in(name: str, public: Any) -> Iterator[tuple[str, str]]:
    """Yield the names of this project in the public signatures of an object, each with its place."""
    if inspect.isclass(public):
        for kind in public.__mro__:
            if not kind.__module__.startswith(OURS):
                continue
            for attribute, annotation in inspect.get_annotations(kind).items():
                if not attribute.startswith("_"):
                    yield from named(f"{name}.{attribute}", annotation, vars(sys.modules[kind.__module__]))
            for attribute, member in vars(kind).items():
                is_hidden = attribute.startswith("_") and not attribute.endswith("__")
                is_made = name in MADE_BY_THE_CLIENT or issubclass(kind, Enum)
                if is_hidden or (attribute == "__init__" and is_made):
                    continue
                if inspect.getattr_static(public, attribute) is member:
                    yield from in_function(f"{name}.{attribute}", member)
    elif inspect.isfunction(public):
        yield from in_function(name, public)
    else:
        for part in parts_of(public):
            if getattr(part, "__module__", "").startswith(OURS):
                yield name, part.__name__


def in_function(place: str, member: Any) -> Iterator[tuple[str, str]]:
    """Yield the names in the signature of a function, method or property."""
    function = getattr(member, "fget", None) or getattr(member, "__func__", member)
    if not isinstance(function, FunctionType) or not function.__module__.startswith(OURS):
        return
    scope = inspect.unwrap(function).__globals__
    signature = inspect.signature(function)
    for parameter in signature.parameters.values():
        if not parameter.name.startswith("_"):
            yield from named(f"{place}({parameter.name})", parameter.annotation, scope)
    yield from named(place, signature.return_annotation, scope)


def named(place: str, annotation: Any, scope: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the names in an annotation, which is text in all our modules, other than those of the language."""
    if not isinstance(annotation, str):
        return
    for node in ast.walk(ast.parse(annotation, mode="eval")):
        if isinstance(node, ast.Name) and not is_standard(node.id, scope.get(node.id)):
            yield place, node.id


def is_standard(name: str, found: Any) -> bool:
    """Whether a name is of the language, of its library or of NumPy; an alias of ours is not."""
    if hasattr(builtins, name) or name in OF_OTHERS or name in sys.stdlib_module_names:
        return True
    if found is None or name in types.__all__:
        return name in OF_THE_LIBRARY
    if isinstance(found, (TypeVar, ParamSpec)) or get_origin(found) is Annotated:
        return True  # the annotated type is a built-in
    module = getattr(found, "__module__", "").partition(".")[0]
    return module in sys.stdlib_module_names and getattr(found, "__name__", "") == name


def parts_of(alias: Any) -> Iterator[Any]:
    yield alias
    for argument in getattr(alias, "__args__", ()):
        yield from parts_of(argument)


def test_the_version_is_that_of_the_distribution() -> None:
    assert reput_client.__version__ == blocking.__version__ == version("reput-client")

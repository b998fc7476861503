"""`distir` and `autotune` have one list of public names each, and nobody needs another import."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest

import autotune
import distir
from tests.docs.fences import PAGES, fences

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = (distir, autotune)
SHOWN = {
    **{path.name: path.read_text(encoding="utf-8") for path in (ROOT / "examples").glob("*.py")},
    **{
        fence.where: fence.text
        for page in PAGES
        for fence in fences(page)
        if fence.language == "python"
    },
}
"""Code that users are shown, by where it is."""


def imports(code: str) -> Iterator[tuple[str, str | None]]:
    """Modules that code imports, each with the name that it takes from there, if any."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.module or "", alias.name) for alias in node.names)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_every_public_name_is_there_and_documented(package: ModuleType) -> None:
    assert package.__all__ == sorted(package.__all__, key=lambda n: (not n[0].isupper(), n))
    assert set(package.__all__) <= set(dir(package))
    for name in package.__all__:
        text = inspect.getdoc(getattr(package, name)) or ""
        assert text, f"{package.__name__}.{name} has no docstring"
        assert not text.startswith(f"{name}("), f"{name} has what dataclasses write themselves"


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_a_name_that_is_not_public_is_an_error(package: ModuleType) -> None:
    with pytest.raises(AttributeError, match=f"module '{package.__name__}' has no attribute"):
        package.no_such_name  # noqa: B018 (reading it is the test)


def test_a_star_import_takes_the_public_names() -> None:
    names: dict[str, object] = {}
    exec("from distir import *", names)
    assert set(cast("Any", distir).__all__) <= set(names)


def test_importing_the_packages_alone_does_not_import_their_names() -> None:
    """Plug-ins and `--help` pay for nothing that they do not use."""
    code = "import distir, autotune, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert {"distir", "autotune"} <= loaded
    assert loaded.isdisjoint({"distir.api", "autotune.api", "numpy"})


@pytest.mark.parametrize("where", SHOWN)
def test_what_users_are_shown_imports_from_distir_and_autotune_directly(where: str) -> None:
    for module, name in imports(SHOWN[where]):
        package, _, inner = module.partition(".")
        if package not in ("distir", "autotune", "search_spaces", "experiments"):
            continue
        assert package in ("distir", "autotune"), f"{where} imports {module}"
        assert not inner, f"{where} imports {module}"
        if name is not None and name not in import_module(package).__all__:
            assert inspect.ismodule(import_module(f"{package}.{name}"))


def test_users_are_shown_python() -> None:
    assert any(where.startswith("README.md") for where in SHOWN)
    assert sum(where.startswith("docs/") for where in SHOWN) >= 10

"""The directive `public-names PACKAGE`: the reference of every name in the package's `__all__`.

A public name, or a public method or property of one, without a docstring is a warning, and so
makes a strict build fail. Types in signatures link to the public name of the same thing.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.pycode import ModuleAnalyzer
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

PACKAGES = ("distir", "autotune", "search_spaces")

logger = logging.getLogger(__name__)


class PublicNames(SphinxDirective):
    """Documents the public names of the package that is its argument."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        self.env.note_reread()  # the page depends on code
        package = self.arguments[0]
        for name in undocumented(package):
            logger.warning("%s has no docstring", name, location=self.get_location())
        lines = ["```{eval-rst}", f".. py:module:: {package}", ""]
        for name in public_names(package):
            lines += [*_entry(package, name), ""]
        lines.append("```")
        container = nodes.Element()
        self.state.nested_parse(StringList(lines, source=__file__), 0, container)
        return container.children


def public_names(package: str) -> list[str]:
    """The names that a package exports."""
    return list(import_module(package).__all__)


def undocumented(package: str) -> Iterator[str]:
    """Public names, and public methods and properties of public classes, without docstrings."""
    for name in public_names(package):
        thing = getattr(import_module(package), name)
        if not docstring(package, name):
            yield f"{package}.{name}"
        if inspect.isclass(thing):
            for member in _members(thing):
                if not (inspect.getdoc(getattr(thing, member)) or "").strip():
                    yield f"{package}.{name}.{member}"


def docstring(package: str, name: str) -> str:
    """What is written about a public name; empty if nothing is."""
    thing = getattr(import_module(package), name)
    if not _is_data(thing):
        text = inspect.getdoc(thing) or ""
        # A dataclass without a docstring gets its signature for one.
        return "" if text.startswith(f"{name}(") else text
    home = home_module(package, name)
    written = ModuleAnalyzer.for_module(home).find_attr_docs().get(("", name), [])
    return "\n".join(written)


def _members(thing: type) -> Iterator[str]:
    """Public methods and properties of a class that are ours, inherited ones too."""
    for name in dir(thing):
        owner = next((each for each in thing.__mro__ if name in vars(each)), object)
        member = vars(owner).get(name)
        described = isinstance(member, (classmethod, staticmethod, property))
        if owner.__module__.split(".", maxsplit=1)[0] in PACKAGES and not name.startswith("_"):
            if described or inspect.isfunction(member):
                yield name


def _is_data(thing: Any) -> bool:
    return not (inspect.isclass(thing) or inspect.isroutine(thing))


@cache
def home_module(module: str, name: str) -> str:
    """The module that defines a name which `module` has, by following import statements."""
    source = Path(str(import_module(module).__file__)).read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return home_module(node.module, alias.name)
    return module


def _entry(package: str, name: str) -> list[str]:
    """The reStructuredText that documents one name, once: where its own package exports it."""
    thing = getattr(import_module(package), name)
    own = getattr(thing, "__module__", package).partition(".")[0]
    if own != package and own in PACKAGES and name in public_names(own):
        return [f"``{package}.{name}`` is :py:obj:`{own}.{name}`."]
    if inspect.isclass(thing):
        kind = "autoexception" if issubclass(thing, BaseException) else "autoclass"
        return [f".. {kind}:: {package}.{name}"]
    if inspect.isroutine(thing):
        return [f".. autofunction:: {package}.{name}"]
    body = [f"   {line}" for line in docstring(package, name).splitlines()]
    return [f".. py:data:: {name}", "", *body]


@cache
def _public_by_definition() -> dict[str, str]:
    """Public names by where the thing is defined, and by what it is called there."""
    found: dict[str, str] = {}
    for package in PACKAGES:
        for name in public_names(package):
            thing = getattr(import_module(package), name)
            found.setdefault(name, f"{package}.{name}")
            if not _is_data(thing):
                found[f"{thing.__module__}.{thing.__qualname__}"] = f"{package}.{name}"
    return found


def resolve(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, text: nodes.TextElement
) -> nodes.Node | None:
    """Links what a signature mentions; what is not ours, or is ours but private, stays text."""
    if node.get("refdomain") != "py":
        return None
    target = str(node["reftarget"])
    public = _public_by_definition().get(target)
    if public is not None:
        python = env.get_domain("py")
        return python.resolve_xref(env, node["refdoc"], app.builder, "obj", public, node, text)
    ours = target.split(".", maxsplit=1)[0] in PACKAGES
    return text if not ours or _exists(target) else None


def _exists(target: str) -> bool:
    module, _, name = target.rpartition(".")
    try:
        return hasattr(import_module(module), name)
    except ImportError:
        return False


def plain_defaults(*event: Any) -> tuple[str | None, str] | None:
    """Shows the defaults of dataclasses that a function makes as `...`, which is an expression."""
    *_, shown, returned = event
    return (shown.replace("<factory>", "..."), returned) if shown else None


def setup(app: Sphinx) -> dict[str, bool]:
    """Registers the directive, and how references are resolved."""
    app.add_directive("public-names", PublicNames)
    app.connect("missing-reference", resolve)
    app.connect("autodoc-process-signature", plain_defaults)
    return {"parallel_read_safe": True}

"""YAML: the one place where it is read.

It says what PyYAML's safe loader says, but that a key stands once in a mapping: of two, the last
would count without a word.
"""

from __future__ import annotations

from typing import Any

from distir.errors import DistirError
from distir.files import FilePath, read_parsed

__all__ = ["parse_yaml", "read_yaml"]


def read_yaml(path: FilePath, error: type[DistirError]) -> object:
    """What a YAML file says. Raises `error`, with file and line, if it cannot be read, is no YAML
    or states a key twice."""
    return read_parsed(path, parse_yaml, "YAML", error)


def parse_yaml(text: str) -> object:
    """What a YAML text says. Raises `yaml.YAMLError` if it is none or states a key twice."""
    import yaml

    class Loader(yaml.SafeLoader):
        """Refuses a mapping with two equal keys."""

        def compose_mapping_node(self, anchor: Any) -> Any:
            node = super().compose_mapping_node(anchor)
            _check_keys(node)
            return node

    return yaml.load(text, Loader)


def _check_keys(mapping: Any) -> None:
    """Raises `yaml.YAMLError` if two keys of a mapping are equal. Merges (`<<`) are no keys: what
    they bring may be stated again."""
    import yaml

    lines: dict[tuple[str, str], int] = {}
    for key, _ in mapping.value:
        if not isinstance(key, yaml.ScalarNode) or key.tag == "tag:yaml.org,2002:merge":
            continue
        line, name = key.start_mark.line + 1, (key.tag, key.value)
        if name in lines:
            raise yaml.YAMLError(
                f"line {line} states {key.value}, which line {lines[name]} states already; leave "
                "one of them out"
            )
        lines[name] = line

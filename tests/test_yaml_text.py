"""YAML is read in one place, which refuses what would count without a word."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

import distir
from distir.errors import DistirError
from distir.yaml_text import parse_yaml, read_yaml

ROOT = Path(distir.__file__).parents[1]
PACKAGES = ("distir", "search_spaces", "autotune", "experiments")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tp: 1\nzero: 0\ntp: 2\n", "line 3 states tp, which line 1 states already"),
        ("- {dp: 2, 'dp': 4}\n", "line 1 states dp, which line 1 states already"),
        ("a:\n  b:\n    c: 1\n    c: 1\n", "line 4 states c, which line 3 states already"),
        ("1: a\n1: b\n", "line 2 states 1, which line 1 states already"),
    ],
)
def test_a_key_that_is_stated_twice_is_refused_with_both_lines(
    text: str, said: str, tmp_path: Path
) -> None:
    file = tmp_path / "some.yaml"
    file.write_text(text)
    with pytest.raises(DistirError) as raised:
        read_yaml(file, DistirError)
    assert str(raised.value) == f"{file}: not valid YAML: {said}; leave one of them out"


@pytest.mark.parametrize(
    "text",
    [
        "usual: &usual {a: 1, b: 2}\nother: {<<: *usual, b: 3}\n",
        "a: &a {x: 1}\nb: &b {<<: *a, x: 2}\nc: {<<: *b, x: 3}\nd: *b\n",
        "1: number\n'1': text\n",
        "? [1, 2]\n: a list cannot be a key\n",
        "{a: {x: 1}, b: {x: 1}}",
        "- 1\n- 1\n",
        "",
    ],
)
def test_everything_else_is_read_as_pyyaml_reads_it(text: str) -> None:
    try:
        expected = yaml.safe_load(text)
    except yaml.YAMLError as error:
        with pytest.raises(type(error)):
            parse_yaml(text)
    else:
        assert parse_yaml(text) == expected


def test_yaml_is_read_in_one_place() -> None:
    readers = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if "yaml.load(" in (text := path.read_text()) or "yaml.safe_load" in text
    }
    assert readers == {"distir/yaml_text.py"}

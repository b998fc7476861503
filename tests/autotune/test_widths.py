"""Reports fit the terminal: no word is broken, and no column is left out without a word."""

from __future__ import annotations

import io

import pytest

from autotune import Search, solve
from autotune.rendering import broken_at, console
from autotune.reports.study import study_report, tracking_report
from autotune.result import TrackingRecord
from autotune.testing import toy_problem


def shown(renderable: object, width: int, *, terminal: bool = False) -> str:
    file = io.StringIO()
    console(file=file, width=width, force_terminal=terminal).print(renderable, crop=False)
    return file.getvalue()


@pytest.mark.not_quick
@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_every_line_fits_and_what_is_left_out_is_named(width: int) -> None:
    result = solve(toy_problem(space="standard"), Search(trials=5))
    said = shown(study_report(result), width)
    assert max(len(line.rstrip()) for line in said.splitlines()) <= width
    words = " ".join(said.split())
    for head in ("samples/s", "iteration", "memory", "behind"):
        assert head in words
    table = said.partition("Best plans")[2].partition("Against")[0]
    for head in ("iteration", "memory"):
        assert head in table  # as a column, or in the line that says what there is no room for


@pytest.mark.parametrize("width", [8, 12, 24])
def test_names_are_broken_at_hyphens_alone(width: int) -> None:
    name = "dp4-tp2-pp2-m64-interleaved-c2-z1"
    lines = broken_at(name, "-", width).split("\n")
    assert "".join(lines) == name
    assert all(line.endswith("-") for line in lines[:-1])
    assert all(len(line) <= width + 1 or line.count("-") <= 1 for line in lines)


def test_links_are_whole_however_narrow_the_terminal_is() -> None:
    url = "http://127.0.0.1:5000/#/experiments/1/runs/" + "0123456789abcdef" * 4
    record = TrackingRecord("sqlite:///x.db", "toy", "1", "1", {"this study": url}, "mlflow ui")
    assert url in shown(tracking_report(record), 40)
    linked = shown(tracking_report(record), 40, terminal=True)
    assert f";{url}\x1b\\" in linked  # OSC 8: the address is followed though the text is cut


def test_colours_are_for_terminals_that_want_them(monkeypatch: pytest.MonkeyPatch) -> None:
    result = solve(toy_problem(), Search(trials=2))
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    assert "\x1b[" not in shown(study_report(result), 100)
    assert "\x1b[1;32m" in shown(study_report(result), 100, terminal=True)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "32m" not in shown(study_report(result), 100, terminal=True)

"""Every example of the documentation runs, and prints what the page shows.

The blocks of a page are one session: they run in order, in one folder and with one set of names.
`console` blocks hold commands after a `$`, each followed by what it prints, `python` blocks are
executed, and a `text` block right after one is what it prints. A block that begins with a comment
such as `# my_space.yaml` is a file of that name. A block with `slow` after the language is left
to the slow tests; one with `torch` needs PyTorch; `not-run: REASON` leaves it out.
"""

from __future__ import annotations

import contextlib
import difflib
import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from autotune.cli import main, make_parser
from autotune.problem import load_problem
from tests.docs.fences import PAGES, ROOT, Command, Fence, commands, fences, matches

LANGUAGES = ("console", "python", "text", "toml", "yaml", "csv", "json", "{toctree}", "")
README = ROOT / "README.md"
EXECUTED = [page for page in PAGES if any(fence.runs for fence in fences(page))]
EXECUTED.sort(key=lambda page: page == README)  # it takes longest, and `make quick` the first
SLOW = [page for page in EXECUTED if any(fence.is_slow for fence in fences(page))]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


SECONDS = {
    "README.md": 11,
    "docs/tutorial.md": 8,
    "docs/howto/own-objective.md": 2,
    "docs/howto/many-strategies.md": 2,
    "docs/howto/many-workers.md": 8,
    "docs/howto/launch.md": 4,
    "docs/howto/own-sampler.md": 3,
    "docs/howto/report.md": 4,
    "docs/howto/search-space.md": 20,
    "docs/howto/real-processes.md": 4,
}
"""What the examples of pages take."""


def marked(pages: list[Path], otherwise: float = 0) -> list[Any]:
    """Cases of which those are slow that take more than a second; of pages that have no number,
    `otherwise` is theirs."""
    times = [SECONDS.get(name_of(page), otherwise) for page in pages]
    return [
        pytest.param(page, marks=[pytest.mark.slow(seconds=seconds)] if seconds else [])
        for page, seconds in zip(pages, times, strict=True)
    ]


@pytest.fixture(scope="session")
def tracking_uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One database for all pages: making one takes MLflow seconds."""
    return f"sqlite:///{tmp_path_factory.mktemp('tracking')}/mlflow.db"


@pytest.fixture(autouse=True)
def session(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tracking_uri: str) -> None:
    """A folder of its own for a page, with the examples beside it as in a checkout."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracking_uri)
    (tmp_path / "examples").symlink_to(ROOT / "examples")


@pytest.mark.parametrize("page", marked(EXECUTED), ids=name_of)
def test_the_examples_of_a_page_print_what_it_shows(page: Path, tracking_uri: str) -> None:
    run_page([fence for fence in fences(page) if not fence.is_slow], tracking_uri)


@pytest.mark.parametrize("page", marked(SLOW, otherwise=4), ids=name_of)
def test_all_examples_of_a_page_print_what_it_shows(page: Path, tracking_uri: str) -> None:
    run_page(list(fences(page)), tracking_uri)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_blocks_are_of_a_known_kind(page: Path) -> None:
    for fence in fences(page):
        assert fence.language in LANGUAGES or fence.language.startswith("{"), fence.where
        if fence.language in ("console", "python"):
            known = fence.words in ("", "slow", "torch") or fence.words.startswith("not-run: ")
            assert known, fence.where
        if fence.language == "console":
            assert fence.text.startswith("$ "), f"{fence.where}: a console block has commands"
        else:
            assert not fence.text.startswith(("$ ", "autotune ")), f"{fence.where}: not executed"


@pytest.mark.parametrize("page", EXECUTED, ids=name_of)
def test_commands_in_sentences_and_tables_are_understood(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for line in re.findall(r"`autotune ([a-z]+ [^`…]*(?:--[a-z]|\.csv)[^`…]*)`", text):
        make_parser().parse_args(shlex.split(line))


def test_pages_have_examples() -> None:
    assert len(EXECUTED) >= 3
    assert README in EXECUTED


# --- running --------------------------------------------------------------------------------------


def run_page(blocks: list[Fence], tracking_uri: str) -> None:
    """Runs blocks in order."""
    names: dict[str, object] = {"__name__": "page"}
    printed = ""
    for fence in blocks:
        if fence.file_name is not None:
            Path(fence.file_name).write_text(fence.text, encoding="utf-8")
        elif fence.runs and fence.language == "console":
            for command in commands(fence):
                run_command(fence, command, tracking_uri)
        elif fence.runs:
            printed = run_python(fence, names)
        elif fence.shows_output:
            compare(fence, fence.text, printed)


def run_python(fence: Fence, names: dict[str, object]) -> str:
    """What a block of Python prints."""
    shown = io.StringIO()
    code = compile("\n" * fence.line + fence.text, str(fence.page), "exec")
    with contextlib.redirect_stdout(shown):
        exec(code, names)
    return shown.getvalue()


def run_command(fence: Fence, command: Command, tracking_uri: str) -> None:
    """Runs a command line; only the project's own and Python scripts are known."""
    words = shlex.split(command.line, comments=True)
    terminal = io.StringIO()
    with contextlib.redirect_stdout(terminal), contextlib.redirect_stderr(terminal):
        status = execute(words)
    printed = terminal.getvalue().replace(tracking_uri, "sqlite:///mlflow.db")
    if command.shown.strip():
        compare(fence, command.shown, printed, command.line)
    else:
        assert status == 0, f"{fence.where}: {command.line} gave {status}\n{printed}"


def execute(words: list[str]) -> int:
    """The exit status of a command."""
    if words[:3] == ["python", "-m", "autotune"]:
        words = words[2:]
    if words[0] == "autotune":
        try:
            return main(words[1:])
        except SystemExit as ended:  # argparse, after --help or an error
            return int(ended.code or 0)
    if words[0] == "python" and len(words) == 2:  # a process of its own: it may register things
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, words[1]], env=environment, capture_output=True, text=True, check=False
        )
        sys.stdout.write(done.stdout + done.stderr)
        return done.returncode
    raise AssertionError(f"{' '.join(words)} is not a command that these tests can run")


def compare(fence: Fence, shown: str, printed: str, command: str = "") -> None:
    """Fails with both texts side by side if the page does not show what was printed."""
    if matches(shown, printed):
        return
    lines = difflib.unified_diff(
        shown.splitlines(), printed.splitlines(), fence.where, "printed", lineterm="", n=1
    )
    pytest.fail("\n".join([f"{fence.where}: {command}", *lines]), pytrace=False)


@pytest.mark.not_quick
def test_tables_and_sentences_count_the_named_spaces() -> None:
    counts = [
        load_problem("gpt2", devices=16, space=name).space.count()
        for name in ("small", "standard", "full")
    ]
    table = (ROOT / "docs/howto/search-space.md").read_text(encoding="utf-8")
    said = re.findall(r"^\| `(?:small|standard|full)`.*\| ([\d,]+)", table, re.MULTILINE)
    assert said == [f"{count:,}" for count in counts]
    sentence = "the three have {:,}, {:,} and {:,} strategies".format(*counts)
    assert sentence in (ROOT / "docs/architecture.md").read_text(encoding="utf-8")


# --- the comparison itself ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("tried 50 in 0.94 s.", "tried 50\nin 12.3 s."),
        ("iteration 105 ms\n…", "iteration 105 ms\nmore\nand more\n"),
        ("a …\nz\n", "a b c\nd\nz\n"),
        ("55 suggestions answered", "61 suggestions answered"),
    ],
)
def test_times_of_searches_line_breaks_and_ellipses_match(shown: str, printed: str) -> None:
    assert matches(shown, printed)


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("iteration 105 ms", "iteration 106 ms"),
        ("iteration 105 ms", "iteration 105 ms\nand more"),
        ("134 valid strategies", "135 valid strategies"),
        ("a …\nz\n", "a b c\n"),
    ],
)
def test_other_numbers_and_words_do_not_match(shown: str, printed: str) -> None:
    assert not matches(shown, printed)

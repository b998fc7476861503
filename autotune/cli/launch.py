"""`autotune launch`."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.cli.options import SUPPRESS, add_model_options, given, problem_of, strategy_of
from autotune.cli.output import Output, add_json_option, note
from autotune.cli.simulate import add_strategy_options, communicated, plain, problem_with
from autotune.statement import DEFAULT_STACK, ProblemStatement
from distir.errors import DistirError
from distir.files import check_writable, is_folder, write_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.launch import Target
    from autotune.launch.priced import Launched
    from autotune.problem import Problem
    from autotune.result import TuneResult

SUMMARY = "Write the files with which a framework runs one strategy."


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the subcommand's options."""
    add_model_options(parser, "devices in use (default: the product of the degrees)")
    add_strategy_options(parser)
    group = parser.add_argument_group("launch")
    group.add_argument(
        "--target", required=True, metavar="T", help="the framework, by name (see `targets`)"
    )
    group.add_argument(
        "--to",
        default=SUPPRESS,
        metavar="DIR",
        help="the folder to write (default: write nothing, only report)",
    )
    add_overwrite_option(group)
    add_json_option(parser)


def add_overwrite_option(group: Any) -> None:
    """The option that lets a folder have files already."""
    group.add_argument(
        "--overwrite",
        action="store_true",
        default=SUPPRESS,
        help="write into a folder even if it has files already",
    )


def execute(arguments: argparse.Namespace) -> int:
    """Writes and reports, and returns the exit status."""
    output = Output(arguments)
    folder: str | None = getattr(arguments, "to", None)
    strategy = strategy_of(arguments)
    with output.working():
        from autotune.launch import TARGETS
        from autotune.launch.priced import launched

        target = TARGETS.get(arguments.target)
        if folder is not None:
            check_folder(folder, arguments)
        elif hasattr(arguments, "overwrite"):
            raise DistirError(
                "--overwrite applies to the folder of --to; add --to, or leave out --overwrite"
            )
        problem = problem_with(arguments, strategy)
        done = launched(problem, target, strategy)
    if folder is not None:
        write_folder(folder, done.emission.files.files)
        note(f"wrote {', '.join(sorted(done.emission.files.files))} to {folder}")
    output.write(plain_launch(done), lambda: _report(done))
    return 0


def plain_launch(done: Launched) -> dict[str, Any]:
    """A launch as plain JSON values."""
    from autotune.launch.emit import plain_emission
    from autotune.study.trial import choices

    return {
        **plain_emission(done.emission),
        "strategy": choices(done.strategy, done.problem.batch_size),
        "simulated": plain(
            done.problem, done.simulated, communicated(done.problem, done.simulated)
        ),
        "as_run": {**done.as_run_settings, "metrics": dict(done.as_run.metrics)},
    }


def add_launch_options(parser: argparse.ArgumentParser) -> None:
    """Options of a search whose best strategy is launched."""
    group = parser.add_argument_group("launch")
    group.add_argument(
        "--launch",
        default=SUPPRESS,
        metavar="T:DIR",
        help="write the files with which a framework (see `targets`) runs the best strategy into a "
        "folder; only what the framework can state is searched",
    )
    group.add_argument(
        "--search-all",
        action="store_true",
        default=SUPPRESS,
        help="with --launch, also search what the framework cannot state",
    )
    add_overwrite_option(group)


@dataclass(frozen=True, slots=True)
class LaunchAsked:
    """The framework, and the folder, of a search whose best strategy is launched."""

    target: Target
    folder: str
    search_all: bool

    def framed(self, arguments: argparse.Namespace) -> argparse.Namespace:
        """The arguments with the framework, and with what it usually has where nobody says."""
        asked = {"framework": self.target.name, "search_all": self.search_all}
        return argparse.Namespace(**{**self.target.usual, **vars(arguments), **asked})

    def of(self, result: TuneResult) -> Launched | None:
        """The launch of the best strategy; None if there is none."""
        from autotune.launch.priced import launched

        if result.best is None:
            return None
        return launched(result.problem, self.target, result.best.strategy)

    def launched(self, result: TuneResult) -> Launched | None:
        """The launch of the best strategy, with its files written; None if there is none."""
        done = self.of(result)
        if done is None:
            note("no plan fits, so no launch files are written")
            return None
        write_folder(self.folder, done.emission.files.files)
        note(f"wrote {', '.join(sorted(done.emission.files.files))} to {self.folder}")
        if not done.as_run.feasible:
            stack = self.target.stack
            searched = result.problem.settings.get("stack", DEFAULT_STACK)
            advice = (
                f"; search with --stack {stack} to find plans that fit" if searched != stack else ""
            )
            note(
                f"as {self.target.name} runs it, it does not fit in memory{advice}; README.md "
                "there says what it does otherwise",
                is_error=True,
            )
        return done


def problem_for_framework(arguments: argparse.Namespace) -> Problem:
    """The problem that the arguments state; where they name a framework, or the study that they
    are about does, with a space of what that can state."""
    name: str | None = getattr(arguments, "framework", None)
    if name is None:
        return problem_of(arguments)
    from autotune.launch import load_problem_for

    stated = given(arguments, ProblemStatement)
    return load_problem_for(**stated, framework=name, search_all=arguments.search_all)


def launch_asked(arguments: argparse.Namespace) -> LaunchAsked | None:
    """What `--launch` says. Raises `DistirError` if it cannot be done."""
    asked: str | None = getattr(arguments, "launch", None)
    if asked is None:
        for option in ("search-all", "overwrite"):
            if hasattr(arguments, option.replace("-", "_")):
                raise DistirError(
                    f"--{option} applies to --launch; add --launch, or leave out --{option}"
                )
        return None
    from autotune.launch import TARGETS

    name, colon, folder = asked.partition(":")
    if not colon or not folder:
        raise DistirError(f"--launch {asked}: expected T:DIR, such as megatron:out/")
    target = TARGETS.get(name)
    check_folder(folder, arguments)
    return LaunchAsked(target, folder, hasattr(arguments, "search_all"))


def check_folder(folder: str, arguments: argparse.Namespace) -> None:
    """Raises before the work is done if a folder cannot be written, or has files already and the
    arguments do not say `--overwrite`."""
    path = Path(folder)
    if is_folder(path):
        if any(path.iterdir()) and not hasattr(arguments, "overwrite"):
            raise DistirError(
                f"{folder} has files already; name an empty folder, or add --overwrite to write "
                "into it"
            )
    elif path.exists():
        raise DistirError(f"{folder} is a file; expected a folder to write")


def write_folder(folder: str, files: Mapping[str, str]) -> None:
    """Writes files into a folder, which is made if it is not there."""
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DistirError(f"{folder} cannot be written: {error.strerror}") from error
    for name in files:
        check_writable(path / name)
    for name, text in files.items():
        write_text(path / name, text)


def _report(done: Launched) -> Any:
    from autotune.launch.report import launch_report

    return launch_report(done)

"""Options of studies that are kept on a storage, and what a study that is there says of them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from autotune.cli.options import SUPPRESS, given, positive, seconds
from autotune.cli.output import note
from autotune.durable.stated import GOAL, Kept, plain, restored
from autotune.statement import ProblemStatement
from distir.errors import DistirError

if TYPE_CHECKING:
    from autotune.problem import Problem
    from distir.strategy import Strategy

STATED = (*(each.name for each in fields(ProblemStatement)), *GOAL)
"""Arguments that state what a study is about."""


def add_study_options(parser: argparse.ArgumentParser, *, required: bool = False) -> Any:
    """Options that say where a study is kept."""
    group = parser.add_argument_group("study")
    group.add_argument(
        "--storage",
        required=required,
        default=SUPPRESS,
        metavar="URL",
        help="where to keep the study, so that it survives and others can work on it: "
        "sqlite:///FILE, postgresql://…, journal:FILE or grpc://HOST:PORT (default: in memory)",
    )
    group.add_argument(
        "--study",
        required=required,
        default=SUPPRESS,
        metavar="NAME",
        help="the name of the study there",
    )
    group.add_argument(
        "--retries",
        type=whole,
        default=SUPPRESS,
        metavar="N",
        help="how often to try a strategy again if its worker dies (default: 1)",
    )
    group.add_argument(
        "--heartbeat",
        type=seconds,
        default=SUPPRESS,
        metavar="TIME",
        help="a worker that is silent for this long counts as dead (default: 60s)",
    )
    return group


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Options of studies that this command begins or goes on with."""
    group = add_study_options(parser)
    group.add_argument(
        "--resume",
        action="store_true",
        default=SUPPRESS,
        help="continue the study of this name; nothing else needs to be stated again",
    )
    group.add_argument(
        "--workers",
        type=positive,
        default=SUPPRESS,
        metavar="N",
        help="processes on this machine that run trials (default: 1); on others, use `autotune "
        "work`",
    )


def whole(text: str) -> int:
    """A whole number of at least 0."""
    return 0 if text == "0" else positive(text)


def kept_of(arguments: argparse.Namespace, **more: Any) -> Kept:
    """Where the arguments say that the study is kept."""
    return Kept(**given(arguments, Kept), **more)


def as_begun(arguments: argparse.Namespace, kept: Kept) -> argparse.Namespace:
    """The arguments with those of a study that is resumed: what it was begun with, where nothing
    else is typed. What is typed of the problem must be the same; of the search it may be something
    else."""
    if not kept.resume:
        if not hasattr(arguments, "model"):
            raise DistirError(
                "--model is needed; only a study that is resumed (--resume) knows its model"
            )
        return arguments
    from autotune.durable.opening import found_study

    study = found_study(kept)
    attributes = study.attributes()
    study.close()
    if "launch" in arguments.typed:
        _check_framework(attributes["problem"], vars(arguments))
    stated = {name: plain(getattr(arguments, name)) for name in STATED if name in arguments.typed}
    search = {
        name: value
        for name, value in attributes["search"].items()
        if value is not None and name not in arguments.typed
    }
    values = restored(attributes["problem"], stated) | restored(search, {})
    return argparse.Namespace(**{**vars(arguments), **values})


def _check_framework(kept: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    """Raises `DistirError` if `--launch` asks for another space than a study was begun with."""
    names = ("framework", "search_all")
    if all(kept.get(name) == asked[name] for name in names):
        return
    begun, here = (
        f"--launch {each['framework']}:…{' --search-all' if each['search_all'] else ''}"
        if each.get("framework")
        else "no --launch"
        for each in (kept, asked)
    )
    raise DistirError(
        f"this is a different study: it was started with {begun}, here it is {here}; leave out "
        "--launch to continue it, and write the files of a plan with autotune launch"
    )


def read_enqueued(arguments: argparse.Namespace, problem: Problem) -> None:
    """Puts the plans that the file of `--enqueue` states in its place. Raises `DistirError` if it
    cannot be read, or is a launch on other devices than the problem has."""
    path: Any = getattr(arguments, "enqueue", None)
    if not isinstance(path, str):
        return
    from autotune.enqueued import plans_in

    plans = plans_in(path)
    if plans == []:
        note(f"{path} does not state a plan: nothing is tried first")
    arguments.enqueue = [_launched(path, problem, arguments.model)] if plans is None else plans


def _launched(path: str, problem: Problem, model: str) -> Strategy:
    """The plan of a launch file; what that says of another problem is told."""
    from autotune.launch.first import plan_for

    plan, told = plan_for(problem, path, model)
    if told:
        note(f"{path} is for another problem: {told}; its plan is tried first anyway")
    return plan

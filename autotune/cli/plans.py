"""The option `--plan`: a plan as a text file, written if a model is given, and read if none is."""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from distir.errors import DistirError
from distir.strategy import Strategy

if TYPE_CHECKING:
    from distir.plan import Plan

SUPPRESS = argparse.SUPPRESS


def add_plan_option(parser: argparse.ArgumentParser, *, reads: bool = True) -> None:
    """The option of a command that writes plans, and `reads` them if it is said to."""
    text = "write the plan to a file"
    if reads:
        text += "; without --model, read model, workload and strategy from it"
    parser.add_argument("--plan", default=SUPPRESS, metavar="FILE", help=text)
    parser.set_defaults(default_of=parser.get_default)


def is_written(arguments: argparse.Namespace) -> bool:
    """Whether the arguments have a plan written.

    Raises `DistirError` if it would take the place of a file that is no plan: one that was to be
    read, perhaps.
    """
    if not (hasattr(arguments, "plan") and hasattr(arguments, "model")):
        return False
    check_replaceable(arguments.plan)
    return True


def check_replaceable(path: str) -> None:
    """Raises `DistirError` if there is a file with something else than a plan."""
    from distir.files import user_path
    from distir.plan_text import FIRST_WORD

    known = user_path(path)
    if not known.is_file():
        return
    with known.open("rb") as file:
        start = file.read(len(FIRST_WORD))
    if start not in (b"", FIRST_WORD.encode()):
        raise DistirError(
            f"--plan would overwrite {path}, which is not a plan; expected the name of a new file "
            "or of a plan, or no --model to read a plan"
        )


def plan_read(arguments: argparse.Namespace) -> Plan | None:
    """The plan that the arguments name in place of a model; None if they name a model.

    Raises `DistirError` if they name neither, or state what the plan states.
    """
    if hasattr(arguments, "model"):
        return None
    if not hasattr(arguments, "plan"):
        raise DistirError(
            "no model is stated; expected --model (a name or a file), or --plan with the file of a "
            "plan"
        )
    from distir.plan_text import load_plan
    from distir.workload import Workload

    stated = (*fields(Workload), *fields(Strategy))
    others = ("microbatch_size", "devices", "attention", "imbalance", "sizes")
    for name in (*(each.name for each in stated), *others):
        default = arguments.default_of(name)
        if getattr(arguments, name, default) != default:
            option = f"--{name.replace('_', '-')}"
            raise DistirError(
                f"the plan states {option} already; leave it out, or add --model to make a new plan"
            )
    return load_plan(arguments.plan)


def write_plan(arguments: argparse.Namespace, plan: Plan) -> None:
    """Writes a plan to the file that the arguments name."""
    from autotune.cli.output import note
    from distir.plan_text import save_plan

    save_plan(plan, arguments.plan)
    note(f"wrote {arguments.plan}; without --model, --plan {arguments.plan} reads it")


def stated_by(plan: Plan) -> dict[str, Any]:
    """What a plan states of a problem, by the names of `ProblemStatement`: the precision, whose
    usual value depends on the hardware, and what is not as usual."""
    from autotune.statement import TRAINING_ALONE, ProblemStatement

    workload = plan.workload
    unused = () if workload.training else TRAINING_ALONE
    known = {each.name for each in fields(ProblemStatement)} - set(unused)
    stated = {
        each.name: getattr(workload, each.name)
        for each in fields(workload)
        if each.name in known
        and (
            each.name in ("precision", "batch_size") or getattr(workload, each.name) != each.default
        )
    }
    return {**stated, "devices": plan.strategy.devices}

"""Plans on disk: a text that says everything, and shows the programs that every device runs.

    plan 1
    model {"name": "gpt2", …}
    workload {"mode": "training", …}
    strategy {"dp": 2, …}
    cuts [4]
    schedule
      0F0 0F1 0B0 0B1
      1F0 1B0 1F1 1B1
    function "gpt2" { … }
    blocks 0, 1
    function "forward" { … }
    …

A plan is read back by planning again. The programs are in the text for people, and as a check: if
what is planned now differs from what was written, that is an error and not a surprise.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from distir.errors import ArgumentError, DistirError, ImportModelError, StrategyError, shown
from distir.files import read_text, write_text
from distir.importers.load import LoadedModel
from distir.ir.core import Node, Value
from distir.ir.function import Function
from distir.ir.text import format_function, parse_function
from distir.ops.collective import Rearranged, Scratch
from distir.ops.fused import Fused
from distir.ops.routing import Dispatch
from distir.plan import BlockProgram, Plan, Planner, TokenPasses
from distir.schedules import compile_schedule, format_schedule, parse_schedule, validate
from distir.strategy import Strategy
from distir.workload import Workload

FIRST_WORD = "plan "
"""What a plan's text begins with, whatever its version."""
VERSION = f"{FIRST_WORD}1"

_SETTINGS = (
    "mode",
    "batch_size",
    "sequence_length",
    "precision",
    "gradient_precision",
    "optimizer",
    "loss",
    "output",
    "dropout",
    "vocabulary_multiple",
)


def save_plan(plan: Plan, path: str | Path) -> None:
    """Writes a plan to a file, as a whole; raises `DistirError` if it cannot be written."""
    write_text(path, format_plan(plan))


def load_plan(path: str | Path) -> Plan:
    """Reads a plan from a file; raises `StrategyError` if it is damaged, or would be planned
    otherwise now."""
    text = read_text(path, ImportModelError)
    try:
        return parse_plan(text)
    except StrategyError as error:
        raise StrategyError(f"{path}: {error}") from error


def format_plan(plan: Plan) -> str:
    """The text of a plan."""
    return "\n".join(_lines(plan)) + "\n"


def _lines(plan: Plan) -> Iterator[str]:
    workload, model = plan.workload, plan.workload.model
    yield VERSION
    facts = {
        "name": model.name,
        "sequence_length": model.sequence_length,
        "longest": model.longest,
        **({} if model.fixed_length is None else {"fixed_length": model.fixed_length}),
        "symbols": {name: list(dims) for name, dims in model.symbols.items()},
        "sequences": {name: list(dims) for name, dims in model.sequences.items()},
    }
    yield f"model {json.dumps(facts)}"
    yield f"workload {json.dumps({name: getattr(workload, name) for name in _SETTINGS})}"
    yield f"strategy {json.dumps(plan.strategy.to_dict())}"
    yield f"cuts {json.dumps([stage.blocks[0] for stage in plan.stages[1:]])}"
    if plan.recomputed:
        yield f"recomputed {json.dumps(plan.recomputed)}"
    yield "schedule"
    schedule = plan.schedule.schedule
    yield from (f"  {line}" for line in format_schedule(schedule).splitlines())
    yield format_function(model.function)
    yield from _program_lines(plan)


def _program_lines(plan: Plan) -> Iterator[str]:
    """The programs of the blocks; equal ones are written once."""
    users: dict[BlockProgram, list[int]] = {}
    for stage in plan.stages:
        for index, program in zip(stage.blocks, stage.programs, strict=True):
            users.setdefault(program, []).append(index)
    for program, indices in users.items():
        yield f"blocks {', '.join(map(str, indices))}"
        yield from _function_lines("gather", program.forward_gathers, ())
        yield from _function_lines("forward", program.forward, program.outputs)
        if plan.workload.training:
            made = (*program.input_gradients, *_gradients(program))
            if plan.schedule.splits_backward:
                first, second = program.backward_parts
                read = [value for node in second.nodes for value in node.operands]
                yield from _function_lines("gather for B", first.gathers, ())
                yield from _function_lines("backward B", first.nodes, (*made, *read))
                yield from _function_lines("gather for W", second.gathers, ())
                yield from _function_lines("backward W", second.nodes, made)
            else:
                yield from _function_lines("gather again", program.backward_gathers, ())
                yield from _function_lines("backward", program.backward, made)
            settled = [program.values[local] for local in program.settled.values()]
            yield from _function_lines("settle", program.settle, settled)


def _gradients(program: BlockProgram) -> list[Value]:
    return [program.values[use.gradient] for use in program.parameters if use.gradient is not None]


def _function_lines(name: str, nodes: Sequence[Node], outputs: Sequence[Value]) -> Iterator[str]:
    if not nodes:
        return
    made = {value for node in nodes for value in node.results}
    given = dict.fromkeys(v for node in nodes for v in node.operands if v not in made)
    shown = tuple(value for value in dict.fromkeys(outputs) if value in made)
    yield format_function(
        Function(name, tuple(given), (), {}, tuple(nodes), shown or nodes[-1].results)
    )


# --- reading --------------------------------------------------------------------------------------


def parse_plan(text: str) -> Plan:
    """The plan that `format_plan` wrote."""
    lines = text.splitlines()
    if not lines or lines[0] != VERSION:
        found = lines[0][:40] if lines else ""
        raise StrategyError(
            f"this is not a plan: its first line is {shown(found)}; expected {VERSION!r}"
        )
    try:
        plan = _read(lines)
    except ArgumentError as error:
        raise StrategyError(f"the plan is damaged: {error}") from error
    except DistirError:
        raise
    except Exception as error:  # whatever a text makes of us that we did not write
        raise StrategyError(f"the plan is damaged: {type(error).__name__}: {error}") from error
    _check_programs(plan, lines)
    return plan


def _loss_copies(lines: Sequence[str]) -> int:
    """How many copies of logits in fp32 the loss of a written plan holds."""
    written = re.compile(rf" = {Scratch.name}{{.*\bcopies=(\d+)")
    found = (written.search(line) for line in lines)
    return next((int(match[1]) for match in found if match), 0)


def _token_passes(lines: Sequence[str], narrow: str) -> TokenPasses:
    """What happens to tokens of written programs on their way to experts."""
    ops = [line.partition(" = ")[::2] for line in lines]
    copied = [op for _, op in ops if op.startswith(f"{Rearranged.name}{{")]
    return TokenPasses(
        sorts=any('"sorted"' in op for op in copied),
        pads=any('"aligned"' in op for op in copied),
        sends_narrow=any(
            f" {narrow}[" in result and f"{Dispatch.name}{{" in op for result, op in ops
        ),
    )


def _read(lines: Sequence[str]) -> Plan:
    facts = _json(lines, "model")
    symbols = {name: tuple(dims) for name, dims in facts.pop("symbols").items()}
    sequences = {name: tuple(dims) for name, dims in facts.pop("sequences", {}).items()}
    begin = next((i for i, line in enumerate(lines) if line.startswith("function ")), None)
    if begin is None or "}" not in lines[begin:]:
        raise StrategyError("the plan is damaged: it has no whole function")
    end = lines.index("}", begin)
    function = parse_function("\n".join(lines[begin : end + 1]))
    model = LoadedModel(function=function, symbols=symbols, sequences=sequences, **facts)
    workload = Workload(model=model, **_json(lines, "workload"))
    strategy = Strategy.from_dict(_json(lines, "strategy"))
    fuse = any(f" = {Fused.name}{{" in line for line in lines)
    schedule = parse_schedule("\n".join(lines[lines.index("schedule") + 1 : begin]))
    validate(schedule)
    if (len(schedule.ranks), schedule.stages, schedule.microbatches) != (
        strategy.pp,
        strategy.stages,
        strategy.microbatches,
    ):
        raise StrategyError("the plan is damaged: its schedule is for another strategy")
    narrow = any(f"{workload.types.cast}[" in line for line in lines[end + 1 :])
    chosen = any(line.startswith("recomputed ") for line in lines[:begin])
    recomputed = _json(lines, "recomputed") if chosen else ()
    planner = Planner(
        workload,
        fuse=fuse,
        narrow=narrow,
        token_passes=_token_passes(lines[end + 1 :], str(workload.types.cast)),
        loss_copies=_loss_copies(lines),
    )
    plan = planner.plan(strategy, _json(lines, "cuts"), recomputed)
    if len(plan.stages) != strategy.stages:
        raise StrategyError(f"the plan is damaged: its cuts make {len(plan.stages)} stages")
    return replace(plan, schedule=compile_schedule(schedule))


def _json(lines: Sequence[str], key: str) -> Any:
    line = next((line for line in lines if line.startswith(f"{key} ")), None)
    if line is None:
        raise StrategyError(f"the plan is damaged: it has no line {key!r}")
    return json.loads(line[len(key) + 1 :])


def _check_programs(plan: Plan, lines: Sequence[str]) -> None:
    begin = next((i for i, line in enumerate(lines) if line.startswith("blocks ")), len(lines))
    written = lines[begin:]
    planned = "\n".join(_program_lines(plan)).splitlines()
    if list(written) == planned:
        return
    here = next(
        (i for i, (a, b) in enumerate(zip(written, planned, strict=False)) if a != b),
        min(len(written), len(planned)),
    )
    blocks = next(
        (line for line in reversed(planned[: here + 1]) if line.startswith("blocks ")), ""
    )
    raise StrategyError(
        f"line {begin + here + 1}: the program of {blocks or 'the blocks'} would be planned "
        "differently now; the plan was changed by hand or written by another version: make it again"
    )


__all__ = ["format_plan", "load_plan", "parse_plan", "save_plan"]

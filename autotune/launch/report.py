"""What launches and readings look like on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from autotune.launch.nodes import on_nodes
from autotune.reports.quantities import described
from distir.metrics import iteration_seconds, peak_memory_bytes, reserved_memory_bytes
from distir.units import percent, short_bytes, short_seconds

if TYPE_CHECKING:
    from rich.console import RenderableType

    from autotune.launch.better import Better
    from autotune.launch.priced import Launched
    from autotune.launch.read import Reading
    from autotune.launch.target import Note, Target
    from autotune.problem import Problem


def launch_report(done: Launched) -> RenderableType:
    """The command of a launch, what it costs, and what to know of it."""
    from rich.console import Group

    return Group(*_launch_parts(done))


def _launch_parts(done: Launched) -> Iterator[RenderableType]:
    from rich.text import Text

    target = done.emission.target
    yield Text(done.problem.title, style="bold")
    yield Text(described(done.strategy))
    yield Text(_cost("Simulated", done.problem, done.simulated))
    lead = f"As {target.name} runs it{_nodes(done.problem, done.as_run_settings)}"
    yield Text(_cost(lead, done.problem, done.as_run))
    yield Text("")
    yield Text(f"For {target.label}, in the files {', '.join(done.emission.files.files)}:")
    yield Text(done.emission.files.command)
    yield from _notes("Approximated", done.emission.approximated)
    yield from _notes("Still missing", done.emission.missing)


def read_report(
    problem: Problem,
    reading: Reading,
    simulated: Any,
    as_run: Any,
    found: Sequence[Better] | None,
) -> RenderableType:
    """What a file states, how good it is, and what would be better."""
    from rich.console import Group

    return Group(*_read_parts(problem, reading, simulated, as_run, found))


def _read_parts(
    problem: Problem,
    reading: Reading,
    simulated: Any,
    as_run: Any,
    found: Sequence[Better] | None,
) -> Iterator[RenderableType]:
    from rich.text import Text

    target = reading.target
    yield Text(problem.title, style="bold")
    yield from (Text(note) for note in problem.notes)
    yield Text(f"{reading.path} is for {target.label}: {described(reading.strategy)}")
    yield Text(_cost("Simulated", problem, simulated))
    result, _ = as_run
    yield Text(run_line(problem, target, as_run))
    yield from _notes("Not simulated", reading.not_modelled)
    if found is None:
        return
    yield Text("")
    if not found:
        yield Text(
            f"Of the strategies that {target.name} can state, none was found that is better."
        )
    for each in found:
        yield Text(better_line(problem, result, each), style="green")
        for name, (now, then) in each.changes.items():
            yield Text(f"  {change_line(name, now, then)}")
        for note in each.needed:
            yield Text(f"  needs {note.what}: {note.reason}")


def run_line(problem: Problem, target: Target, as_run: Any) -> str:
    """What a file states takes as the framework runs it, given its result and what is otherwise."""
    result, settings = as_run
    stack = settings.get("stack", target.stack)
    lead = f"As {target.name} runs it (stack {stack}){_nodes(problem, settings)}"
    return _cost(lead, problem, result)


def _nodes(problem: Problem, settings: Mapping[str, Any]) -> str:
    """The nodes of a launch, where they are not those that a plan fills."""
    each: int | None = settings.get("devices_per_node")
    if each is None:
        return ""
    simulator: Any = problem.simulator
    cluster = simulator.cost.cluster
    return f", on {on_nodes(cluster, each)} instead of {cluster.node_devices}"


def _cost(lead: str, problem: Problem, result: Any) -> str:
    seconds = short_seconds(result.metrics[iteration_seconds.name])
    memory = result.metrics[peak_memory_bytes.name]
    reserve = result.metrics[reserved_memory_bytes.name]
    room = f"{short_bytes(memory + reserve)} of {short_bytes(problem.memory_bytes)}"
    return f"{lead}: {seconds} per step, {room}{'' if result.feasible else ': does not fit'}"


def better_line(problem: Problem, run: Any, each: Better) -> str:
    """What a better strategy gains over the result of what a file states, both as the framework
    runs them."""
    name, memory = iteration_seconds.name, peak_memory_bytes.name
    metrics = each.trial.evaluation.metrics
    more = metrics[name] / run.metrics[name] - 1
    change = f"{'+' if more > 0 else '-'}{percent(abs(more))}"
    spare = problem.memory_bytes - metrics[memory] - metrics[reserved_memory_bytes.name]
    return (
        f"Better: {each.trial.label}: {short_seconds(metrics[name])} ({change}), fits with "
        f"{short_bytes(spare)} to spare; change"
    )


def change_line(name: str, now: Any, then: Any) -> str:
    """What to do with an option to have a better strategy."""
    if then is None:
        return f"leave out {name} (now {_word(now)})"
    if now is None:
        return f"{name} {_word(then)}"
    return f"{name} {_word(then)} instead of {_word(now)}"


def _word(given: Any) -> str:
    if given is True:
        return "set"
    return " ".join(map(str, given)) if isinstance(given, (list, tuple)) else str(given)  # type: ignore[arg-type]


def _notes(title: str, notes: Sequence[Note]) -> Iterator[RenderableType]:
    from rich.text import Text

    if notes:
        yield Text("")
        yield Text(f"{title}:")
    for note in notes:
        value = "" if note.value in (None, True) else f" {note.value}"
        yield Text(f"  {note.what}{value}: {note.reason}")

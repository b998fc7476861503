"""A space evaluated in several processes, by joblib: the same chunks in the same order.

A process gets the problem once, without what its simulator has found out, and then ranges of the
space. The backend is joblib's: `loky` (processes of this machine), or `dask` and `ray`, which
spread over a cluster. A process that is killed costs the ranges that it had another try.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from autotune.exhaustive.chunks import Chunk, evaluated, size_after, stretches
from autotune.objectives.columns import Evaluations
from autotune.objectives.evaluation import Evaluation
from autotune.objectives.objective import Objective
from autotune.packing import packed, unpacked
from autotune.processes import watch_parent
from autotune.statement import Goal
from autotune.study.study import Measure
from distir.arrays import Indices
from distir.errors import DistirError
from distir.strategy import Strategy
from distir.user_code import one_line
from search_spaces import SearchSpace
from search_spaces.columns import SpaceColumns

if TYPE_CHECKING:
    from autotune.problem import Problem

AHEAD = 2
"""Chunks per process that are under way or waiting. More than loky hands to its processes at once,
twice as many as there are, would trip it (a KeyError in its thread) when it is interrupted."""
MOST_DEATHS = 3
"""How often processes may die without a new answer before the next part is tried alone."""


@dataclass(frozen=True, slots=True)
class _Answer:
    evaluations: Evaluations
    started: float
    seconds: float


def chunks_in_processes(
    problem: Problem, objective: Objective, goal: Goal, jobs: int, backend: str = "loky"
) -> Generator[Chunk, None, None]:
    """All of the problem's space, evaluated in `jobs` processes."""
    if problem.changed is None:
        raise DistirError("this problem cannot be recreated in other processes; use one job")
    at_once = objective.many is not None and not goal.apart(objective)
    parts = _parts(problem.space, at_once)
    with contextlib.closing(_answers(problem, goal, parts, jobs, backend)) as answers:
        for part, answer in answers:
            parts.answered(part[1], answer.seconds)
            numbers, chosen = parts.taken(*part)
            found = answer.evaluations
            objective.settle_names(found.metrics)
            costs = objective.costs(found)
            yield Chunk(numbers, chosen, found, costs, answer.started, answer.seconds)


class _Parts(Protocol):
    """A space in parts, each with its place and its size."""

    def __iter__(self) -> Iterator[tuple[int, int]]: ...

    def taken(self, first: int, count: int, /) -> tuple[Indices, Sequence[Strategy]]:
        """The strategies of a part, with their numbers."""
        ...

    def answered(self, count: int, seconds: float, /) -> None:
        """Learns how long a part of that size took."""
        ...


class _AtOnce:
    """Chunks of which the strategies are evaluated at once."""

    def __init__(self, space: SearchSpace) -> None:
        table = SpaceColumns(space)
        self.borders, self.taken = table.borders, table.taken

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return stretches(self.borders)

    def answered(self, count: int, seconds: float, /) -> None:
        """Chunks depend on the space alone."""


class _OneByOne:
    """Strategies that are evaluated one by one: several in a part where they are quick, so that
    parts take longer than sending them."""

    def __init__(self, space: SearchSpace) -> None:
        self._space = space
        self._size = 1

    def __iter__(self) -> Iterator[tuple[int, int]]:
        first, count = 0, self._space.count()
        while first < count:
            size = min(self._size, count - first)
            yield first, size
            first += size

    def taken(self, first: int, count: int, /) -> tuple[Indices, Sequence[Strategy]]:
        chosen = list(islice(self._space.enumerate(first), count))
        return np.arange(first, first + len(chosen)), chosen

    def answered(self, count: int, seconds: float, /) -> None:
        self._size = size_after(count, seconds)


def _parts(space: SearchSpace, at_once: bool) -> _Parts:
    return _AtOnce(space) if at_once else _OneByOne(space)


def _answers(
    problem: Problem, goal: Goal, parts: Iterable[tuple[int, int]], jobs: int, backend: str
) -> Generator[tuple[tuple[int, int], _Answer], None, None]:
    """Parts, which are asked for as processes get to them, with their answers."""
    payload = packed((problem.changed, goal))
    with _connected(backend, jobs):
        yield from _with_second_tries(payload, parts, jobs, backend)


def _with_second_tries(
    payload: bytes, parts: Iterable[tuple[int, int]], jobs: int, backend: str
) -> Generator[tuple[tuple[int, int], _Answer], None, None]:
    """Parts with their answers. Where processes died, what they had is asked for again; a part in
    whose time they die time and again gets processes to itself, and fails if they die even so."""
    rest, sent = iter(parts), deque[tuple[int, int]]()
    deaths = 0
    while True:
        try:
            for answer in _answers_of_live(payload, rest, sent, jobs, backend):
                deaths = 0
                yield sent.popleft(), answer
            return
        except _died() as error:
            deaths += 1
            if deaths == MOST_DEATHS:
                deaths = 0
                yield _answered_alone(payload, sent, backend, error)


def _answered_alone(
    payload: bytes, sent: deque[tuple[int, int]], backend: str, error: Exception
) -> tuple[tuple[int, int], _Answer]:
    """The first part with its answer, found while nothing else is asked for."""
    part, alone = sent.popleft(), deque[tuple[int, int]]()
    started = time.time()
    try:
        (answer,) = _answers_of_live(payload, iter([part]), alone, 2, backend)
    except _died():
        reason = f"its process died {MOST_DEATHS + 1} times: {one_line(error)}"
        failed = Evaluations.of([Evaluation.failure(reason)] * part[1])
        answer = _Answer(failed, started, time.time() - started)
    return part, answer


def _died() -> tuple[type[Exception], ...]:
    """What a backend raises when one of its processes was killed."""
    loky: Any = import_module("joblib.externals.loky.process_executor")
    kinds: list[type[Exception]] = [loky.BrokenProcessPool]
    if (dask := sys.modules.get("distributed")) is not None:  # else it is not used
        kinds.append(dask.KilledWorker)
    return tuple(kinds)


def _answers_of_live(
    payload: bytes,
    rest: Iterator[tuple[int, int]],
    sent: deque[tuple[int, int]],
    jobs: int,
    backend: str,
) -> Generator[_Answer, None, None]:
    """Answers to the parts that were `sent`, which is to processes that are no more, and to the
    rest, as long as all processes live."""
    joblib: Any = import_module("joblib")
    work = joblib.delayed(_evaluate)
    again = list(sent)

    def tasks() -> Iterator[Any]:
        for part in again:
            yield work(payload, *part)
        for part in rest:
            sent.append(part)
            yield work(payload, *part)

    known = {"initializer": _start} if backend == "loky" else {}
    with (
        joblib.parallel_config(backend=backend, n_jobs=jobs, **known),
        _ended(_results(joblib, tasks(), jobs, backend)) as results,
    ):
        yield from _replaced_quietly(results)


def _results(
    joblib: Any, tasks: Iterator[Any], jobs: int, backend: str
) -> Generator[_Answer, None, None]:
    if backend == "ray":  # gives lists only
        return _in_lists(joblib, tasks, AHEAD * jobs)
    ahead = {"batch_size": 1, "pre_dispatch": AHEAD * jobs}
    return joblib.Parallel(return_as="generator", **ahead)(tasks)


def _in_lists(joblib: Any, tasks: Iterator[Any], size: int) -> Generator[_Answer, None, None]:
    with joblib.Parallel(batch_size=1) as parallel:  # its processes stay for all lists
        while part := list(islice(tasks, size)):
            yield from parallel(part)


@contextlib.contextmanager
def _ended(results: Generator[_Answer, None, None]) -> Generator[Iterator[_Answer], None, None]:
    """Closes the stream of results, also before its end after an interrupt."""
    try:
        yield results
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that some are not used
            results.close()


def _replaced_quietly(results: Iterator[_Answer]) -> Iterator[_Answer]:
    """Processes that have grown are replaced, as loky does it from 300 MB on, which large chunks
    take. Nothing is lost by that, so nobody is warned of it."""
    while True:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "A worker stopped while some jobs", UserWarning)
            answer = next(results, None)
        if answer is None:
            return
        yield answer


@contextlib.contextmanager
def _connected(backend: str, jobs: int) -> Generator[None, None, None]:
    """A cluster to send work to, where the backend has one. Its address comes from the environment
    (`DASK_SCHEDULER_ADDRESS`, `RAY_ADDRESS`); without one, it is started on this machine.
    """
    started = {"dask": _dask, "ray": _ray}.get(backend)
    if started is None:
        yield
        return
    try:
        connection = started(jobs)
    except ImportError as error:
        package = {"dask": "'dask[distributed]'"}.get(backend, backend)
        raise DistirError(
            f"the backend {backend} is missing; try: pip install {package}"
        ) from error
    with connection:
        yield


def _dask(jobs: int) -> contextlib.AbstractContextManager[Any]:
    client: Any = import_module("distributed").Client
    address = os.environ.get("DASK_SCHEDULER_ADDRESS")
    here = {"n_workers": jobs, "threads_per_worker": 1, "dashboard_address": None}
    return client(address) if address else client(**here)


def _ray(jobs: int) -> contextlib.AbstractContextManager[Any]:
    ray: Any = import_module("ray")
    import_module("ray.util.joblib").register_ray()
    if ray.is_initialized():
        return contextlib.nullcontext()
    address = os.environ.get("RAY_ADDRESS")
    here: dict[str, Any] = {"num_cpus": jobs, "include_dashboard": False}
    ray.init(log_to_driver=False, **({"address": address} if address else here))
    return _closing(ray.shutdown)


@contextlib.contextmanager
def _closing(close: Callable[[], None]) -> Generator[None, None, None]:
    try:
        yield
    finally:
        close()


@dataclass(frozen=True, slots=True)
class _Worker:
    """What a process needs to evaluate parts."""

    objective: Objective
    parts: _Parts
    measure: Measure | None
    close: Callable[[], None]
    """Ends the processes of its own that it may have."""

    def answer(self, first: int, count: int) -> _Answer:
        """What the objective says of a part."""
        _, strategies = self.parts.taken(first, count)
        started, clock = time.time(), time.perf_counter()
        evaluations = evaluated(self.objective, strategies, self.measure)
        seconds = time.perf_counter() - clock
        return _Answer(evaluations, started, seconds)


_workers: dict[bytes, _Worker] = {}
"""The worker of this process, by what it was made from; one at most."""
_making = threading.Lock()
"""Held while it is made: a process may evaluate in several threads."""


def _worker(payload: bytes) -> _Worker:
    with _making:
        if payload not in _workers:
            for other in list(_workers):
                _workers.pop(other).close()
            _workers[payload] = _made_worker(payload)
        return _workers[payload]


def _made_worker(payload: bytes) -> _Worker:
    from autotune.solving import measuring

    changed, goal = unpacked(payload)
    problem: Problem = changed()
    objective: Objective = goal.over(problem)
    apart = contextlib.ExitStack()
    measure = apart.enter_context(measuring(objective, goal)) if goal.apart(objective) else None
    atexit.register(apart.close)
    at_once = measure is None and objective.many is not None
    return _Worker(objective, _parts(problem.space, at_once), measure, apart.close)


def _start() -> None:
    """Begins a process of loky's: who started it decides about its end, also of an interrupt."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    watch_parent(os.getppid())


def _evaluate(payload: bytes, first: int, count: int) -> _Answer:
    return _worker(payload).answer(first, count)

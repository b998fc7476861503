"""An objective: what is measured, and which metric of it is to be made large or small."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

from autotune.objectives.aims import Aim
from autotune.objectives.costs import settled_all
from autotune.objectives.evaluation import Evaluation, as_evaluation, finite, traceback_of
from autotune.objectives.reporting import Pruned, Reporting
from autotune.plugins import PluginError
from distir.errors import DistirError, shown
from distir.metrics import find_metric
from distir.strategy import Strategy
from distir.user_code import one_line, run_user_code

if TYPE_CHECKING:
    from autotune.objectives.columns import Evaluations, MetricColumn

Measured: TypeAlias = "float | Mapping[str, float] | Evaluation"


class ObjectiveFunction(Protocol):
    """What a plug-in provides: any callable from a strategy to a number, numbers by name or an
    `Evaluation`.

    It may carry the attributes `metric` (which of several numbers counts; by default the first) and
    `direction` (`"maximize"` or `"minimize"`, by default that of the simulated metric of this
    name, else `"minimize"`). A
    second parameter named `simulate` is given the default simulator of the run: a function from a
    strategy to its `Evaluation`. One named `report` is given a function `report(step, value)`, to
    be told values of the metric on the way; it raises where the trial is not to go on.
    """

    def __call__(self, strategy: Strategy, /) -> Measured:
        """Measures one strategy. May raise, may take minutes."""
        ...


@dataclass(slots=True)
class Objective:
    """A function from strategies to evaluations, the metric that counts, and its direction."""

    name: str
    function: Callable[[Strategy], Measured]
    metric: str = ""
    """Empty until the first evaluation shows what there is."""
    direction: str = ""
    cheap: bool = False
    """Whether a whole space may be evaluated without asking."""
    many: Callable[[Sequence[Strategy]], Evaluations] | None = None
    """Evaluates many strategies at once, where that is quicker than one by one."""
    trusted: bool = False
    """Whether it is the simulator's own, which needs no process of its own and changes no strategy.
    """
    others: tuple[Aim, ...] = ()
    """What else is made large or small, at once; `metric` is the first."""
    reporting: Reporting | None = None
    """What a plug-in reports to on the way; None if it does not report."""

    def __post_init__(self) -> None:
        if self.direction not in ("", "maximize", "minimize"):
            raise DistirError(
                f"objective {self.name} has direction {self.direction!r}; "
                "expected maximize or minimize"
            )

    def measure(self, strategy: Strategy) -> Evaluation:
        """Evaluates `strategy`; whatever goes wrong becomes a failed evaluation with its reason."""
        try:
            return as_evaluation(self.function(strategy if self.trusted else copy(strategy)))
        except KeyboardInterrupt:
            raise
        except Pruned as end:
            return Evaluation({}, feasible=False, reason=str(end), pruned=True)
        except BaseException as error:  # noqa: BLE001  the code is someone else's
            return Evaluation.failure(one_line(error), {"traceback": traceback_of(error)})

    def settle_names(self, measured: Collection[str]) -> None:
        """Learns from the names of what was measured which of it counts: the first, if nobody says.
        What a plug-in measures itself comes first; only a name that it does not know may be what
        the simulator calls one of its metrics as an objective."""
        self.metric = self.metric or next(iter(measured), "")
        known = {aim.metric for aim in self.aims}
        self.metric = _settled_name(self.metric, measured, known)
        self.others = tuple(
            replace(aim, metric=_settled_name(aim.metric, measured, known)) for aim in self.others
        )

    def checked(self, evaluation: Evaluation) -> Evaluation:
        """`evaluation`, or a failure if the metric that counts is missing or not a finite
        number.
        """
        if evaluation.failed:
            return evaluation
        self.settle_names(evaluation.metrics)
        reasons = (_missing(aim.metric, evaluation) for aim in self.aims)
        reason = next((each for each in reasons if each is not None), None)
        return evaluation if reason is None else Evaluation.failure(reason, evaluation.output)

    def checked_all(self, evaluations: Evaluations) -> Evaluations:
        """Each of `evaluations`, `checked`."""
        import numpy as np

        from autotune.objectives.columns import Evaluations

        self.settle_names(evaluations.metrics)
        values = evaluations.metrics.get(self.metric)
        counted = evaluations.feasible & ~evaluations.failed
        if values is not None and not (counted & ~np.isfinite(values)).any():
            return evaluations
        each = [evaluations[index] for index in range(len(evaluations))]
        return Evaluations.of([self.checked(evaluation) for evaluation in each])

    def costs(self, evaluations: Evaluations) -> MetricColumn:
        """The `cost` of each of `evaluations`, NaN where there is none."""
        import numpy as np

        values = evaluations.metrics.get(self.metric)
        if values is None:
            return np.full(len(evaluations), np.nan)
        known = ~evaluations.failed & np.isfinite(values)
        return settled_all(np.where(known, -values if self.maximize else values, np.nan))

    @property
    def maximize(self) -> bool:
        """Whether larger is better."""
        return self._first.maximize

    @property
    def _first(self) -> Aim:
        return Aim(self.metric, self.direction)

    @property
    def aims(self) -> tuple[Aim, ...]:
        """All that is made large or small, the first of which ranks plans."""
        return (self._first, *self.others)

    def all_costs(self, evaluation: Evaluation) -> tuple[float, ...] | None:
        """The `cost` of each aim; None where one is not known."""
        each = [aim.cost(evaluation.metrics) for aim in self.aims]
        known = tuple(cost for cost in each if cost is not None)
        return known if len(known) == len(each) and not evaluation.failed else None

    def cost(self, evaluation: Evaluation) -> float | None:
        """The metric that counts with its sign chosen so that smaller is better; `None` where
        there is none.
        """
        return None if evaluation.failed else self._first.cost(evaluation.metrics)


def _settled_name(name: str, measured: Collection[str], taken: Collection[str]) -> str:
    """What is called `name` among what was measured, unless that is `taken` by another aim."""
    found = None if name in measured else find_metric(name)
    is_meant = found is not None and found.name in measured and found.name not in taken
    return found.name if found is not None and is_meant else name


def _missing(metric: str, evaluation: Evaluation) -> str | None:
    """Why an evaluation has no usable value of a metric; None if it has one, or needs none."""
    value = evaluation.metrics.get(metric)
    if finite(value) or (value is None and not evaluation.feasible):
        return None
    if value is None:
        named = f" {metric!r}" if metric else ""
        known = ", ".join(evaluation.metrics) or "an empty mapping"
        said = f"the objective gave no metric{named}; it gave {known}"
        if find_metric(metric) is not None:
            said += "; the simulator's metrics are in the result of its parameter `simulate`"
        return said
    return f"the objective's {metric} is {value}"


def as_objective(
    function: Any,
    name: str,
    *,
    simulate: Callable[[Strategy], Evaluation],
    metric: str | None = None,
    direction: str | None = None,
) -> Objective:
    """Wraps a plug-in. `metric` and `direction` override what the plug-in says of itself. Raises
    `DistirError` if it cannot be called with a strategy alone, or says of itself what is no text.
    """
    if isinstance(function, Objective):
        return function
    if inspect.isclass(function):
        function = run_user_code(f"objective {name}", function, PluginError)
    if not callable(function):
        raise DistirError(
            f"objective {name} is {type(function).__name__} {function!r}; expected a callable"
        )
    _check_waits_for_nobody(name, function)
    reporting = Reporting()
    known = {"simulate": simulate, "report": reporting}
    wanted = {name: given for name, given in known.items() if name in _parameters(function)}
    measure = cast(Callable[..., Measured], function)
    _check_call(name, measure, wanted)
    return Objective(
        name=name,
        function=partial(measure, **wanted) if wanted else measure,
        reporting=reporting if "report" in wanted else None,
        metric=metric or _own_word(name, function, "metric"),
        direction=direction or _own_word(name, function, "direction"),
    )


def _own_word(name: str, function: object, attribute: str) -> str:
    """What a plug-in says of itself; empty where it says nothing."""
    said = getattr(function, attribute, None)
    if said is not None and not isinstance(said, str):
        raise PluginError(f"objective {name} has {attribute} {shown(said)}; expected a text")
    return said or ""


def _check_waits_for_nobody(name: str, function: Any) -> None:
    """Raises `PluginError` for an `async` function, which answers a promise and no number."""
    while isinstance(function, partial):
        function = cast("partial[object]", function).func
    called = (function, getattr(function, "__call__", None))  # noqa: B004  its code, not whether
    if any(
        inspect.iscoroutinefunction(each) or inspect.isasyncgenfunction(each) for each in called
    ):
        raise PluginError(
            f"objective {name} is an async function, whose result nothing awaits; expected a plain "
            "function, such as one that ends in: return asyncio.run(...)"
        )


def _check_call(name: str, function: Callable[..., object], wanted: Mapping[str, object]) -> None:
    """Raises `PluginError` if a call with a strategy, and with what a plug-in `wanted` besides,
    could only fail."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(None, **wanted)
    except TypeError as error:
        raise PluginError(
            f"objective {name} cannot be called with a strategy: {error}; expected one parameter "
            "for the strategy, and defaults for all others except `simulate` and `report`"
        ) from error


def _parameters(function: Callable[..., object]) -> Collection[str]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):  # some callables written in C have no signature
        return ()

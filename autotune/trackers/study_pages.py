"""What the pages of a tracked study say: the answer in words, numbers, columns and charts.

It knows the form in which MLflow's pages keep columns and charts, which no reference states: a test
looks at the pages in a browser, and where the form has changed, pages open without them.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from autotune.reports.quantities import described, heading, lost, memory_use, shown
from autotune.trackers.study_files import FILES
from distir.metrics import (
    iteration_seconds,
    mfu,
    peak_memory_bytes,
    throughput_samples_per_second,
)
from distir.units import counted

if TYPE_CHECKING:
    from autotune.objectives.objective import Objective
    from autotune.result import TuneResult
    from autotune.trackers.tracker import StudyHeader

CLOSE = 0.01
"""Regret that counts as having found a plan as good as the best."""
SEARCH = "search/"
"""Metrics with a slash have a section of their own in the charts, above all others."""
FINAL = ("final_regret_pct", "rank_in_grid", "trials_to_1_pct")
"""Numbers that compare searches: final regret, rank in the grid, trials to within 1 %."""
REGRET = "regret_pct"
"""How far a trial is behind the best plan that is known."""
CHOICES = ("dp", "tp", "pp", "microbatches", "schedule")
"""Choices that tables and charts show."""


def problem_key(header: StudyHeader) -> str:
    """A short name of the problem and of what is looked for."""
    problem, objective = header.problem, header.objective
    what = (problem.title, problem.space_name, objective.name, objective.metric, objective.maximize)
    return sha256(repr(what).encode()).hexdigest()[:12]


def readable(metrics: Mapping[str, float]) -> dict[str, float]:
    """Metrics in the units that people read, by names that say so."""
    found: dict[str, float] = {}
    if peak_memory_bytes.name in metrics:
        found["memory_gib"] = rounded(metrics[peak_memory_bytes.name] / 2**30)
    if mfu.name in metrics:
        found["mfu_pct"] = rounded(100 * metrics[mfu.name])
    return found


def rounded(value: float) -> float:
    """A value in four digits: columns are narrow."""
    return float(f"{value:.4g}")


def described_study(result: TuneResult) -> str:
    """The answer in Markdown."""
    problem, best = result.problem, result.best
    lines = [f"**{problem.title}**", ""]
    if best is None:
        lines.append("No plan was found that fits.")
        return "\n".join(lines)
    lines += [f"Best plan: **{described(best.strategy)}**", "", "| | |", "| --- | --- |"]
    for name in (throughput_samples_per_second.name, iteration_seconds.name, mfu.name):
        if best.metric(name) is not None:
            lines.append(f"| {heading(name)} | {shown(name, best.metric(name))} |")
    if peak_memory_bytes.name in best.evaluation.metrics:
        used = memory_use(best.evaluation.metrics, problem.memory_bytes)
        lines.append(f"| memory | {used.partition(' ')[2]} |")
    if result.grid is not None:
        lines += [
            "",
            f"No other of the {result.grid.space_size:,} strategies in the grid is better.",
        ]
    elif result.proof is not None and result.proof.may_gain(best) == 0:
        lines += [
            "",
            f"Proved: none of the {result.proof.space_size:,} strategies in the space is better.",
        ]
    if result.regret is not None:
        behind = f"{lost(result.regret)} behind" if result.regret else "the best"
        lines.append(f"{result.sampler} found {behind} in {counted(len(result.trials), 'trial')}.")
    listed = [f"- `{file.name}`: {file.what}" for file in FILES]
    lines += ["", "Files of a study:", "", *listed, "- `trials.json`: every trial"]
    return "\n".join(lines)


def final_numbers(result: TuneResult) -> dict[str, float]:
    """The numbers `FINAL`, as far as they are known."""
    found: dict[str, float] = {}
    if result.regret is not None:
        found["final_regret_pct"] = 100 * result.regret
    rank = result.grid.rank(result.found) if result.grid is not None else None
    if rank is not None:
        found["rank_in_grid"] = rank
    if result.pareto is not None:
        found["pareto_plans"] = len(result.pareto.plans)
        found["pareto_hypervolume"] = result.pareto.hypervolume
    close = trials_to_close(result)
    if close is not None:
        found["trials_to_1_pct"] = close
    return found


def trials_to_close(result: TuneResult) -> int | None:
    """Trials until one was within 1 % of the best of all; None if none was."""
    if result.grid is None:
        return None
    for tried, trial in enumerate(result.trials, 1):
        regret = result.grid.regret(trial) if trial.feasible else None
        if regret is not None and regret <= CLOSE:
            return tried
    return None


def view_of_table(objective: Objective) -> dict[str, Any]:
    """Trials, the best first, with the columns that tell most. Sorting by a metric also shows them
    without their studies above them, in which they would be folded away."""
    metric = objective.metric
    metrics = (metric, throughput_samples_per_second.name, iteration_seconds.name, "memory_gib")
    columns = [f"metrics.`{name}`" for name in dict.fromkeys((*metrics, "mfu_pct", REGRET))]
    return {
        "searchFilter": "tags.kind = 'trial'",
        "orderByKey": f"metrics.`{metric}`",
        "orderByAsc": not objective.maximize,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "datasetsFilter": [],
        "modelVersionFilter": "All Runs",
        "selectedColumns": [*columns, *(f"params.`{name}`" for name in CHOICES)],
    }


def view_of_charts(objective: Objective) -> dict[str, Any]:
    """Parallel coordinates of choices, and time against memory, of trials."""
    metric = objective.metric
    parallel = {"type": "PARALLEL", "selectedParams": list(CHOICES), "selectedMetrics": [metric]}
    scatter = {
        "type": "SCATTER",
        "xaxis": {"key": "memory_gib", "type": "METRIC"},
        "yaxis": {"key": metric, "type": "METRIC"},
    }
    charts = _charts("Regions of the space", [parallel, scatter], columns=1, height=420)
    return {**view_of_table(objective), **charts}


def view_of_searches(objective: Objective) -> dict[str, Any]:
    """Of studies, the best so far and the regret by trial, where the grid is the line that none can
    beat; below, the numbers that compare searches."""
    best = f"{SEARCH}best_{objective.metric}"
    lines = [_line(best), _line(f"{SEARCH}regret_pct")]
    bars = [{"type": "BAR", "metricKey": name} for name in FINAL]
    return {
        "searchFilter": "tags.kind = 'study'",
        "orderByKey": "attributes.start_time",
        "orderByAsc": False,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "datasetsFilter": [],
        "modelVersionFilter": "All Runs",
        **_charts("Searches against the grid", [*lines, *bars], columns=2, height=360),
    }


def _line(metric: str) -> dict[str, Any]:
    """A chart of a metric by trial."""
    return {
        "type": "LINE",
        "metricKey": metric,
        "selectedMetricKeys": [metric],
        "lineSmoothness": 0,
        "scaleType": "linear",
        "xAxisScaleType": "linear",
        "xAxisKey": "step",
        "selectedXAxisMetricKey": "",
        "yAxisKey": "metric",
        "yAxisExpressions": [],
        "range": {},
        "ignoreOutliers": False,
        "useGlobalXaxisKey": False,
    }


def _charts(
    name: str, charts: list[dict[str, Any]], *, columns: int, height: int
) -> dict[str, Any]:
    """A section with these charts and no other."""
    section = {
        "uuid": "autotune",
        "name": name,
        "display": True,
        "isReordered": False,
        "deleted": False,
        "isGenerated": False,
        "columns": columns,
        "cardHeight": height,
    }
    shared = {
        "deleted": False,
        "isGenerated": False,
        "metricSectionId": "autotune",
        "runsCountToCompare": 100,
    }
    return {
        "runsHiddenMode": "SHOWALL",
        "compareRunCharts": [
            {**chart, "uuid": f"autotune-{at}", **shared} for at, chart in enumerate(charts)
        ],
        "compareRunSections": [section],
        "viewMaximized": False,
    }

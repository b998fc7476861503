"""The report: what is wanted and what is reached, and what the residuals depend on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean

from autotune.calibration import Calibration
from autotune.calibration.extrapolation import Extrapolation
from autotune.calibration.spreads import RowResidual, coverage
from autotune.validation import Case, PredictedRow, Report
from autotune.validation.statistics import Statistics
from distir.cost import Band, load_stack, stack_names
from distir.cost.band import SIZES
from experiments.fidelity.missed import by_source, mean_size, missed
from experiments.fidelity.origins import origins
from experiments.fidelity.tables import WITH_TABLES, WithTable

WANTED: Mapping[str, tuple[float, float | None]] = {
    "vtrain-single": (0.08, 0.04),
    "vtrain-multi": (0.08, 0.01),
    "llmfoundry": (0.06, None),
    "zerobubble": (0.06, None),
    "bigscience": (0.08, None),
}
"""Mean error and regret of sources, by constants that have not seen them."""
MEAN_WANTED = 0.085
"""Mean error over sources of dense models, by constants that have not seen them."""
MIXTURES_WANTED, MIXTURES_RATIO = 0.2, 2.0
"""Mean error of mixtures of experts, and the largest ratio of predicted and measured seconds."""

BINS: Mapping[str, Callable[[Case], float]] = {
    "devices": lambda case: case.strategy.devices,
    "microbatch (samples)": lambda case: (
        case.batch_size / case.strategy.dp / case.strategy.microbatches
    ),
    "hidden": lambda case: case.model.config.hidden,
    "tokens per device and layer": lambda case: (
        case.batch_size
        * case.sequence_length
        / case.strategy.dp
        / case.strategy.microbatches
        / case.strategy.tp
        / case.strategy.cp
    ),
    "tp": lambda case: case.strategy.tp,
    "pp": lambda case: case.strategy.pp,
}


def report_text(
    calibration: Calibration,
    validation: Report,
    band: Band,
    beyond: Mapping[str, Extrapolation],
    mixtures: Sequence[RowResidual],
    unknown: Sequence[RowResidual],
    tables: Mapping[str, WithTable],
    file: str,
) -> str:
    """The whole report in Markdown.

    `beyond` is what larger rows are off by where smaller ones tell; `mixtures` are the residuals of
    mixtures of experts, which no constant has seen; `unknown` those of rows predicted as if they
    did not say their software; `tables` what sources are off by with measured products.
    """
    return "\n".join(
        [
            "# Predictions against published measurements",
            "",
            f"Constants fitted to {len(calibration.cases)} rows of {file}.",
            f"{validation.overall.rows_used} rows of dense models predicted.",
            "What is left of each target, and its likely cause, is in [README.md](README.md).",
            "",
            *_wanted(calibration, validation, mixtures, tables),
            *missed(
                {name: error for name, (error, _) in WANTED.items()},
                MEAN_WANTED,
                calibration.residuals_unseen,
                mixtures,
                MIXTURES_WANTED,
            ),
            *_memory(validation),
            *_constants(calibration),
            *_sources(calibration),
            *_band(band, calibration.residuals_unseen, mixtures, unknown),
            *_beyond(beyond),
            *_of_mixtures(mixtures),
            *_validation("Every row, by source", validation.sources),
            *_validation("Mixtures of experts, by source", validation.moe),
            *_validation("Every row, by hardware", validation.hardware),
            *_of_sources(validation),
            *_residuals(calibration),
            *origins(),
        ]
    )


def _wanted(
    calibration: Calibration,
    validation: Report,
    mixtures: Sequence[RowResidual],
    tables: Mapping[str, WithTable],
) -> list[str]:
    lines = ["## Wanted and reached", "", "| | wanted | unseen | seen |", "|---|---|---|---|"]
    for name, (error, regret) in WANTED.items():
        each = calibration.sources.get(name)
        if each is None:
            continue
        cells = (_share(each.unseen_mape), _share(each.mape))
        lines.append(f"| {name}, error | {_share(error)} | {' | '.join(cells)} |")
        if regret is not None:
            cells = (_share(each.unseen_regret), _share(each.regret))
            lines.append(f"| {name}, regret | {_share(regret)} | {' | '.join(cells)} |")
    for name, own in tables.items():
        error, regret = WITH_TABLES[name]
        told = "with the products of its other half"
        lines.append(f"| {name} {told}, error | {_share(error)} | {_share(own.error)} | |")
        lines.append(f"| {name} {told}, regret | {_share(regret)} | {_share(own.regret)} | |")
    means = (calibration.mean_unseen_mape, calibration.mean_mape)
    lines.append(
        f"| mean over sources | {_share(MEAN_WANTED)} | {' | '.join(map(_share, means))} |"
    )
    for name, own in by_source(mixtures).items():
        cells = (_share(MIXTURES_WANTED), _share(mean_size(own)))
        lines.append(f"| {name}, mixtures of experts, error | {' | '.join(cells)} | |")
    if mixtures:
        largest = max(math.exp(abs(each.value)) for each in mixtures)
        lines.append(f"| a mixture, largest ratio | {MIXTURES_RATIO:g} | {largest:.2f} | |")
    for name in ("zerobubble", "bigscience"):
        each = validation.sources.get(name)
        if each is not None:
            lines.append(f"| {name}, memory | 5.0 % | {_share(each.memory_mape)} | |")
    overall = validation.overall
    lines += [
        f"| out of memory, recall | 85.0 % | {_share(overall.oom_recall)} | |",
        f"| out of memory, precision | 80.0 % | {_share(overall.oom_precision)} | |",
        "",
    ]
    return lines


def _memory(validation: Report) -> list[str]:
    """What measured memory is missed by, by software stack and counter, and where none is
    claimed."""
    groups: dict[tuple[str, str], list[PredictedRow]] = {}
    for each in validation.outcomes:
        if each.memory_error is not None:
            key = (each.case.software.stack, each.case.row.group)
            groups.setdefault(key, []).append(each)
    lines = [
        "## Memory",
        "",
        "| stack | source | rows | bias | error | largest | claimed |",
        "|---|---|---|---|---|---|---|",
    ]
    for (stack, source), own in sorted(groups.items()):
        errors = [each.memory_error or 0.0 for each in own]
        figures = (fmean(errors), _mean_size(errors), max(errors, key=abs))
        claimed = "no" if own[0].unclaimed_memory else "yes"
        cells = [stack, source, str(len(own)), *map(_share, figures), claimed]
        lines.append(f"| {' | '.join(cells)} |")
    unclaimed = [load_stack(name) for name in stack_names()]
    reasons = [each.unclaimed_memory for each in unclaimed if not each.claims_memory]
    return [*lines, "", *(f"- {said[:1].upper()}{said[1:]}." for said in reasons), ""]


def _constants(calibration: Calibration) -> list[str]:
    lines = [
        "## Constants",
        "",
        "| | prior | value | nine tenths | sources left out | told by |",
        "|---|---|---|---|---|---|",
    ]
    for each in calibration.constants:
        told = ", ".join(f"{name} {share:.0%}" for name, share in list(each.told_by.items())[:3])
        spans = [
            "" if ends is None else f"{ends[0]:.3g} … {ends[1]:.3g}"
            for ends in (each.interval, each.without_sources)
        ]
        value = f"{each.value:.3g}" if each.fitted else "kept"
        pinned = f" (pinned by {each.pinned_by})" if each.pinned_by else ""
        cells = [each.name, f"{each.prior:.3g}", value, *spans, told + pinned]
        lines.append(f"| {' | '.join(cells)} |")
    spread = (
        f"A source as a whole is off by {_share(calibration.source_spread)} (root mean square)."
    )
    return [*lines, "", spread, ""]


def _sources(calibration: Calibration) -> list[str]:
    lines = [
        "## Sources of the fit",
        "",
        "| | rows | error | bias | regret | unseen error | unseen bias | unseen regret |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, each in calibration.sources.items():
        figures = (
            each.mape, each.bias, each.regret,
            each.unseen_mape, each.unseen_bias, each.unseen_regret,
        )  # fmt: skip
        lines.append(f"| {name} | {each.rows} | {' | '.join(map(_share, figures))} |")
    return [*lines, ""]


def _band(
    band: Band,
    dense: Sequence[RowResidual],
    mixtures: Sequence[RowResidual],
    unknown: Sequence[RowResidual],
) -> list[str]:
    """The band's deviations, and the share of rows within it by source."""
    kinds = {
        "dense": dense,
        "mixtures that state their token dispatcher": [
            each for each in mixtures if each.case.dispatcher_known
        ],
        "mixtures that do not": [each for each in mixtures if not each.case.dispatcher_known],
        "dense, as if nobody said which software": unknown,
    }
    shares = {
        kind: (coverage(rows, band, wide=False), coverage(rows, band, wide=True))
        for kind, rows in kinds.items()
        if rows
    }
    parts = {
        "all plans of a source share": band.source,
        "more of it where nobody says which software it is": band.software,
        "more of it in mixtures of experts": band.model,
        "more of it where these do not state their token dispatcher": band.dispatcher,
        "between layouts of a problem": band.layout,
        "between plans that differ in schedule and microbatches alone": band.repeat,
    }
    return [
        "## The band",
        "",
        "| deviation, root mean square, by constants that have not seen the source | |",
        "|---|---|",
        *(f"| {what} | {_share(value)} |" for what, value in parts.items()),
        "",
        f"Bands are {band.width:.2g} (68 %) and {band.width95:.2g} times (95 %) all of it.",
        "",
        "| | | 68 % | 95 % |",
        "|---|---|---|---|",
        *(
            f"| {kind} | {name} | {_share(near[name])} | {_share(far[name])} |"
            for kind, (near, far) in shares.items()
            for name in sorted(near)
        ),
        *(
            f"| {kind} | mean over sources | {_share(fmean(near.values()))} "
            f"| {_share(fmean(far.values()))} |"
            for kind, (near, far) in shares.items()
        ),
        "",
    ]


def _beyond(beyond: Mapping[str, Extrapolation]) -> list[str]:
    """What rows are off by that are larger than those that tell constants and bands."""
    return [
        "## Beyond the sizes of the data",
        "",
        "Rows are cut by their size. Constants and bands of the smaller rows, without the source",
        "that is judged, foretell the larger ones. The spread per doubling is what these need for",
        "68 and 95 % of them to lie in their bands.",
        "",
        "| | cut at | larger rows | error of smaller | error of larger | spread per doubling |",
        "|---|---|---|---|---|---|",
        *(
            f"| {SIZES[name]} | {', '.join(f'{cut:.3g}' for cut in each.cuts)} | {each.rows} "
            f"| {_share(each.error_within)} | {_share(each.error_beyond)} | {_share(each.spread)} |"
            for name, each in beyond.items()
        ),
        "",
    ]


def _of_mixtures(mixtures: Sequence[RowResidual]) -> list[str]:
    """What mixtures of experts are off by, by source and by what their rows say."""
    groups: dict[tuple[str, ...], list[float]] = {}
    for each in mixtures:
        case, facts = each.case, each.case.facts
        sends = facts.get("sends_copies_once")
        key = (
            case.row.group,
            "not stated" if sends is None else "once per node" if sends else "once per expert",
            "yes" if facts.get("overlaps_exchanges") else "",
            "yes" if facts.get("dispatch") == "compiled" else "",
            f"{case.batch_size // case.strategy.dp // case.strategy.microbatches}",
        )
        groups.setdefault(key, []).append(math.expm1(each.value))
    heads = ("source", "tokens are sent", "exchanges overlap", "one graph", "microbatch")
    return [
        "## What mixtures of experts are off by",
        "",
        f"| {' | '.join(heads)} | rows | bias | error | largest ratio |",
        f"|{'---|' * (len(heads) + 4)}",
        *(
            f"| {' | '.join(key)} | {len(own)} | {_share(fmean(own))} | {_share(_mean_size(own))} "
            f"| {max(max(1 + e, 1 / (1 + e)) for e in own):.2f} |"
            for key, own in sorted(groups.items())
        ),
        "",
    ]


def _validation(title: str, table: Mapping[str, Statistics]) -> list[str]:
    heads = (
        "mape", "median_ape", "bias", "regret", "memory_mape",
        "oom_recall", "oom_precision", "band_coverage", "band95_coverage",
    )  # fmt: skip
    lines = [
        f"## {title}",
        "",
        f"| | used | left out | {' | '.join(heads)} |",
        f"|{'---|' * (len(heads) + 3)}",
    ]
    for name, each in table.items():
        out = sum(each.rows_excluded.values())
        cells = " | ".join(_share(getattr(each, head)) for head in heads)
        lines.append(f"| {name} | {each.rows_used} | {out} | {cells} |")
    return [*lines, ""]


def _of_sources(validation: Report) -> list[str]:
    """The bias of every source with a target, by width and tensor-parallel degree against
    microbatch; and how far its own repeats differ, which no prediction can better."""
    lines = ["## What the residuals of sources with a target depend on", ""]
    for name in WANTED:
        own = [each for each in validation.outcomes if each.case.row.group == name]
        own = [each for each in own if each.error is not None and not each.case.experts]
        if own:
            lines += [f"### {name}", "", *_repeats(own), "", *_crossed(own), ""]
    return lines


def _repeats(outcomes: Sequence[PredictedRow]) -> list[str]:
    """How far rows of one configuration are from their mean."""
    same: dict[object, list[float]] = {}
    for each in outcomes:
        case = each.case
        key = (case.choice_group, case.strategy, case.precision, case.model, case.hardware.family)
        same.setdefault(key, []).append(case.measured.seconds or 0.0)
    apart = [
        abs(seconds / fmean(times) - 1.0)
        for times in same.values()
        if len(times) > 1
        for seconds in times
    ]
    if not apart:
        return [f"{len(outcomes)} rows, none of which repeats another's configuration."]
    apart_by = f"{_share(fmean(apart))} from the mean of their like"
    return [f"{len(outcomes)} rows; the {len(apart)} that repeat a configuration are {apart_by}."]


def _crossed(outcomes: Sequence[PredictedRow]) -> list[str]:
    """Bias, and how many rows, by hidden width and tp (down) and samples per microbatch."""
    of_microbatch = BINS["microbatch (samples)"]
    cells: dict[tuple[int, int], dict[int, list[float]]] = {}
    for each in outcomes:
        case = each.case
        row = (case.model.config.hidden, case.strategy.tp)
        column = round(math.log2(of_microbatch(case)))
        cells.setdefault(row, {}).setdefault(column, []).append(each.error or 0.0)
    columns = sorted({column for own in cells.values() for column in own})
    heads = " | ".join(f"mb {2.0**column:g}" for column in columns)
    return [
        f"| hidden | tp | {heads} |",
        f"|{'---|' * (len(columns) + 2)}",
        *(
            f"| {hidden} | {tp} | {' | '.join(_cell(own.get(column)) for column in columns)} |"
            for (hidden, tp), own in sorted(cells.items())
        ),
    ]


def _cell(errors: Sequence[float] | None) -> str:
    return f"{100 * fmean(errors):+.0f} % ({len(errors)})" if errors else ""


def _residuals(calibration: Calibration) -> list[str]:
    """Mean of predicted over measured, by what a row is; bins grow by powers of two."""
    lines = ["## What the residuals depend on", ""]
    for what, of in BINS.items():
        bins: dict[int, list[float]] = {}
        for case, residual in zip(calibration.cases, calibration.residuals, strict=True):
            bins.setdefault(round(math.log2(of(case))), []).append(float(residual))
        lines += [
            f"### By {what}",
            "",
            "| about | rows | bias | error |",
            "|---|---|---|---|",
            *(_bin(2.0**power, own) for power, own in sorted(bins.items())),
            "",
        ]
    return lines


def _bin(middle: float, residuals: Sequence[float]) -> str:
    errors = [math.expm1(each) for each in residuals]
    return (
        f"| {middle:g} | {len(errors)} | {_share(fmean(errors))} | {_share(_mean_size(errors))} |"
    )


def _mean_size(errors: Iterable[float]) -> float:
    return fmean(abs(each) for each in errors)


def _share(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"

"""Predictions and measurements as tables: by source, by hardware, and over all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.validation.cases import Exclusion
from autotune.validation.doubts import Timed, doubts_of, ran_as_assumed
from autotune.validation.hardware import hardware_family
from autotune.validation.predict import PredictedRow
from autotune.validation.rows import SAYS_NONE, MeasuredRow
from autotune.validation.statistics import (
    Choice,
    Statistics,
    mean_or_none,
    median_or_none,
    precision_of,
    recall_of,
    regret_of,
    spearman,
)

__all__ = ["Report", "make_report", "statistics_of"]


@dataclass(frozen=True, slots=True)
class Report:
    """What `autotune validate` finds."""

    sources: Mapping[str, Statistics]
    """Dense models, by source group."""
    moe: Mapping[str, Statistics]
    """Mixtures of experts, by source group."""
    hardware: Mapping[str, Statistics]
    """Dense models, by family of devices."""
    overall: Statistics
    """Dense models, every row alike."""
    source_mean: float | None
    """Mean over sources of the dense models' mean errors, every source alike."""
    outcomes: tuple[PredictedRow, ...]
    exclusions: tuple[Exclusion, ...]

    @property
    def worst(self) -> list[PredictedRow]:
        """Outcomes with a time, the largest error first."""
        timed = [each for each in self.outcomes if each.error is not None]
        return sorted(timed, key=lambda each: -abs(each.error or 0.0))

    @property
    def assumptions(self) -> dict[str, dict[str, int]]:
        """By source group: what was assumed, and for how many rows."""
        found: dict[str, Counter[str]] = {}
        for each in self.outcomes:
            group = found.setdefault(each.case.row.group, Counter())
            group.update(each.assumptions)
        return {group: dict(counts.most_common()) for group, counts in found.items()}

    @property
    def doubts(self) -> list[str]:
        """Of measured times that can hardly be seconds of a step, a sentence each way; and of rows
        that ran, though what was assumed of them would not fit."""
        timed = ((each, each.case.measured.seconds) for each in self.outcomes)
        said = doubts_of(
            Timed(each.case.row.id, seconds, each.seconds)
            for each, seconds in timed
            if seconds is not None
        )
        ran = [
            each.case.row.id
            for each in self.outcomes
            if not (each.fits or each.case.memory_stated or each.case.measured.out_of_memory)
        ]
        return [*said, *ran_as_assumed(ran)]

    @property
    def unclaimed_memory(self) -> list[str]:
        """Of which rows memory is not claimed, and why: a sentence for each stack that rows with
        measured memory have, or with what ran out of it."""
        told = (
            each.unclaimed_memory
            for each in self.outcomes
            if each.case.measured.memory_bytes is not None or each.case.measured.out_of_memory
        )
        return [said for said in dict.fromkeys(told) if said]

    def to_dict(self, worst: int = 20) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "sources": {name: each.to_dict() for name, each in self.sources.items()},
            "moe": {name: each.to_dict() for name, each in self.moe.items()},
            "hardware": {name: each.to_dict() for name, each in self.hardware.items()},
            "overall": self.overall.to_dict(),
            "source_mean_mape": self.source_mean,
            "doubts": self.doubts,
            "assumptions": self.assumptions,
            "rows": [_row_dict(each) for each in self.outcomes],
            "excluded": [
                {"id": each.row.id, "reason": each.reason, "detail": each.detail}
                for each in self.exclusions
            ],
            "worst": [_worst_dict(each) for each in self.worst[:worst]],
        }


def make_report(outcomes: Sequence[PredictedRow], exclusions: Sequence[Exclusion]) -> Report:
    """All tables of a file's rows."""
    dense = [each for each in outcomes if not is_mixture(each.case.row)]
    moe = [each for each in outcomes if is_mixture(each.case.row)]
    without = [each for each in exclusions if not is_mixture(each.row)]
    without_moe = [each for each in exclusions if is_mixture(each.row)]
    sources = _by(dense, without, lambda row: row.group)
    return Report(
        sources=sources,
        moe=_by(moe, without_moe, lambda row: row.group),
        hardware=_by(dense, without, hardware_family),
        overall=statistics_of(dense, without),
        source_mean=mean_or_none(s.mape for s in sources.values() if s.mape is not None),
        outcomes=tuple(outcomes),
        exclusions=tuple(exclusions),
    )


def is_mixture(row: MeasuredRow) -> bool:
    """Whether the row's model has experts."""
    return row.text("num_experts").lower() not in ("", "1", *SAYS_NONE)


def _by(
    outcomes: Sequence[PredictedRow],
    exclusions: Sequence[Exclusion],
    key: Callable[[MeasuredRow], str],
) -> dict[str, Statistics]:
    names = sorted({key(e.case.row) for e in outcomes} | {key(e.row) for e in exclusions})
    return {
        name: statistics_of(
            [each for each in outcomes if key(each.case.row) == name],
            [each for each in exclusions if key(each.row) == name],
        )
        for name in names
    }


def statistics_of(outcomes: Sequence[PredictedRow], exclusions: Iterable[Exclusion]) -> Statistics:
    """The figures of some rows."""
    timed = [each for each in outcomes if each.case.measured.seconds is not None]
    predicted = [each.seconds for each in timed]
    measured = [each.case.measured.seconds or 0.0 for each in timed]
    errors = [each.error or 0.0 for each in timed]
    memory = [abs(e.memory_error) for e in outcomes if e.memory_error is not None]
    judged = [each for each in outcomes if each.case.memory_stated]
    happened = [each.case.measured.out_of_memory for each in judged]
    foreseen = [not each.fits for each in judged]
    return Statistics(
        rows_used=len(outcomes),
        rows_excluded=dict(Counter(each.reason for each in exclusions).most_common()),
        mape=mean_or_none(abs(error) for error in errors),
        median_ape=median_or_none(abs(error) for error in errors),
        bias=mean_or_none(errors),
        spearman=spearman(predicted, measured),
        band_coverage=mean_or_none(
            float(_inside(each, each.band.interval(each.seconds))) for each in timed
        ),
        band95_coverage=mean_or_none(
            float(_inside(each, each.band.interval95(each.seconds))) for each in timed
        ),
        regret=regret_of(
            Choice(each.case.choice_group, p, m)
            for each, p, m in zip(timed, predicted, measured, strict=True)
        ),
        memory_mape=mean_or_none(memory),
        oom_rows=len(judged),
        oom_recall=recall_of(happened, foreseen),
        oom_precision=precision_of(happened, foreseen),
    )


def _inside(each: PredictedRow, interval: tuple[float, float]) -> bool:
    """Whether the measured seconds lie in an interval."""
    low, high = interval
    return low <= (each.case.measured.seconds or 0.0) <= high


def _row_dict(each: PredictedRow) -> dict[str, Any]:
    return {
        "id": each.case.row.id,
        "source": each.case.row.group,
        "measured_seconds": each.case.measured.seconds,
        "predicted_seconds": each.seconds,
        "band": list(each.band.interval(each.seconds)),
        "band95": list(each.band.interval95(each.seconds)),
        "measured_memory_bytes": each.case.measured.memory_bytes,
        "predicted_memory_bytes": each.memory_bytes,
        "fits": each.fits,
        "memory_claimed": not each.unclaimed_memory,
        "assumptions": each.assumptions,
    }


def _worst_dict(each: PredictedRow) -> dict[str, Any]:
    return {
        "id": each.case.row.id,
        "source_group": each.case.row.group,
        "label": each.case.strategy.label,
        "measured_seconds": each.case.measured.seconds,
        "predicted_seconds": each.seconds,
        "error": each.error,
        "seconds": dict(each.breakdown),
    }

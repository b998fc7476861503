"""How soon samplers come within 1 % of the best, over many problems and seeds.

    python -m experiments.samplers --json table.json                  # stated and drawn problems
    python -m experiments.samplers --problems mine.yaml --samplers bounds,tpe --trials 30 --json -

A *case* is a problem with a seed. Trials are looked up in what `truth.py` has evaluated once.
Truths and cases are kept in `--cache` between runs, as long as the software is the same, so that a
run that was interrupted goes on. Milliseconds are those of the sampler alone; what it does before
it proposes the first strategy is its set-up. Intervals hold 95 % of the results of drawing the
problems again (bootstrap).
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import autotune
from autotune.cli.options import positive, whole
from autotune.cli.output import Output
from autotune.cli.parser import Parser
from autotune.objectives.costs import regret
from autotune.prospects.prospects import ProblemProspects
from autotune.questions.compare import CLOSE
from autotune.samplers import Sampler, find_sampler, load_sampler
from autotune.samplers.sampler import Outcome, tell
from autotune.study.study import Study
from distir.errors import DistirError
from distir.files import write_text
from distir.strategy import Strategy
from distir.units import counted
from experiments.command import exit_status, make_folder, note
from experiments.samplers.problems import default_questions, read_questions
from experiments.samplers.truth import SIMULATOR, Truth, can_be_kept, find_truth, key_of

CACHE = Path("build/samplers")
DRAWN, DRAW_SEED = 36, 20261123
"""Problems that are drawn, and by which seed."""
SAMPLERS = ("bounds", "tpe", "reinforce", "random")
AFTER = (10, 30, 50, 200)
"""Numbers of trials after which regrets are reported."""
DRAWS = 1000
"""Bootstrap draws."""


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the table, or writes it as JSON; returns 1 if no problem could be answered."""
    options = _parsed(argv)
    with Output(options).working():
        found = _compared(options)
    if options.json:
        text = json.dumps(found, indent=2)
        print(text) if options.json == "-" else write_text(options.json, text + "\n")
    if options.json != "-":
        _print(found)
    return 0 if found["problems"] and found["samplers"] else 1


def _compared(options: argparse.Namespace) -> dict[str, Any]:
    """What becomes of the samplers over all problems, as plain JSON values."""
    make_folder(options.cache)
    if options.problems is not None:
        questions = read_questions(options.problems)
    else:
        questions = default_questions(options.drawn, options.draw_seed)
    truths: list[Truth] = []
    cases: dict[str, list[Case]] = {name: [] for name in options.samplers}
    left_out: dict[str, str] = {}
    failed: dict[str, str] = {}
    for question in questions:
        try:
            truth = find_truth(question, options.cache)
        except DistirError as error:
            left_out[question.name] = str(error)
            note(f"left out: {question.name}: {error}")
            continue
        truths.append(truth)
        note(f"{len(truths)}: {question.name}: {truth.best.label}")
        for name in [name for name in cases if name not in failed]:
            try:
                for seed in range(options.seeds):
                    made = _kept_case(truth, name, seed, options.trials, options.cache)
                    cases[name].append(made)
            except DistirError as error:
                failed[name] = str(error)
                note(f"left out: {name}: {error}")
    return {
        "trials": options.trials,
        "seeds": options.seeds,
        "samplers": {
            name: _standing(each, options.trials)
            for name, each in cases.items()
            if name not in failed
        },
        "problems": {truth.question.name: truth.to_dict() for truth in truths},
        "left_out": left_out | failed,
    }


def _parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(
        prog="experiments.samplers", usage="experiments.samplers [OPTION …]", description=__doc__
    )
    parser.add_argument("--problems", type=Path, metavar="FILE.yaml", help="in place of the usual")
    parser.add_argument("--samplers", type=_names, default=",".join(SAMPLERS), metavar="A,B")
    parser.add_argument("--trials", type=positive, default=30, metavar="N", help="(default 30)")
    parser.add_argument("--seeds", type=positive, default=2, metavar="N", help="(default 2)")
    parser.add_argument("--drawn", type=whole, default=DRAWN, help=f"drawn problems ({DRAWN})")
    parser.add_argument("--draw-seed", type=int, default=DRAW_SEED)
    parser.add_argument(
        "--cache", type=Path, default=CACHE, help=f"where truths are kept ({CACHE})"
    )
    parser.add_argument("--json", metavar="FILE", help="write JSON to FILE, or to stdout for -")
    return parser.parse_args(argv)


def _names(text: str) -> list[str]:
    """The names of samplers; raises `DistirError` for one that is not known."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise argparse.ArgumentTypeError("it names no sampler; expected names such as bounds,tpe")
    for name in names:
        find_sampler(name)
    return names


@dataclass(frozen=True, slots=True)
class Case:
    """One sampler on one problem with one seed."""

    problem: str
    regrets: Sequence[float]
    """After each trial; infinite until something fits."""
    setup_seconds: float
    suggestion_seconds: Sequence[float]
    infeasible: int

    def regret_after(self, trials: int) -> float:
        """The regret after so many trials, or after all there were."""
        return self.regrets[min(trials, len(self.regrets)) - 1] if self.regrets else math.inf


class _Timed:
    """A sampler with a clock."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self.seconds: list[float] = []
        """Per trial, with what was told of the one before."""
        self._spent = 0.0

    def ask(self) -> Strategy | None:
        clock = time.perf_counter()
        strategy = self._sampler.ask()
        self._spent += time.perf_counter() - clock
        return strategy

    def tell_outcome(self, outcome: Outcome) -> None:
        clock = time.perf_counter()
        tell(self._sampler, outcome)
        self._spent += time.perf_counter() - clock

    def tell(self, strategy: Strategy, cost: float | None, violation: float = 0.0) -> None:
        self._sampler.tell(strategy, cost, violation)

    def trial_ended(self) -> None:
        """Counts what was spent since the trial before."""
        self.seconds.append(self._spent)
        self._spent = 0.0


def _kept_case(truth: Truth, name: str, seed: int, trials: int, folder: Path) -> Case:
    """A case, from the folder if it is there."""
    if not can_be_kept(truth.question, name):
        return _case(truth, name, seed, trials)
    key = key_of(truth.question, (*SIMULATOR, autotune), name, seed, trials)
    file = folder / f"{key}.json"
    try:
        return Case(**json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):  # there is none, or a damaged one
        case = _case(truth, name, seed, trials)
    write_text(file, json.dumps(asdict(case)))
    return case


def _case(truth: Truth, name: str, seed: int, trials: int) -> Case:
    problem, objective = truth.problem, truth.objective
    clock = time.perf_counter()
    sampler = load_sampler(name, problem.space, seed, ProblemProspects(problem, objective))
    made = time.perf_counter() - clock
    timed = _Timed(sampler)
    study = Study(problem.space, objective, timed, truth.measure, seed)
    study.run(trials, lambda _: timed.trial_ended())
    if study.interrupted:  # what it has found so far is no case
        raise KeyboardInterrupt
    if study.error:
        raise DistirError(f"{name}, {truth.question.name}: {study.error}")
    first, *others = timed.seconds or [0.0]
    return Case(
        truth.question.name,
        tuple(_regrets(study, truth)),
        made + first,
        tuple(others),
        sum(not trial.feasible for trial in study.trials),
    )


def _regrets(study: Study, truth: Truth) -> Iterator[float]:
    best = math.inf
    for trial in study.trials:
        if trial.feasible and trial.cost is not None:
            best = min(best, trial.cost)
        yield regret(best, truth.best_cost) if best < math.inf else math.inf


def _standing(cases: Sequence[Case], trials: int) -> dict[str, Any]:
    """What a sampler reaches."""
    waits = [seconds for case in cases for seconds in case.suggestion_seconds]
    return {
        **_after(cases, trials),
        "milliseconds_per_suggestion": 1e3 * median(waits) if waits else None,
        "setup_seconds": median(case.setup_seconds for case in cases) if cases else None,
        "setup_seconds_most": max((case.setup_seconds for case in cases), default=None),
        "infeasible": _mean([case.infeasible / max(1, len(case.regrets)) for case in cases]),
        "cases": len(cases),
        "after": {str(number): _after(cases, number) for number in AFTER if number <= trials},
    }


def _after(cases: Sequence[Case], trials: int) -> dict[str, Any]:
    regrets = np.array([case.regret_after(trials) for case in cases])
    problems = [case.problem for case in cases]
    return {
        "within_1_percent": _mean((regrets <= CLOSE).tolist()),
        "within_1_percent_interval": _interval(regrets <= CLOSE, problems),
        "regret_median": _quantile(regrets, 0.5),
        "regret_p95": _quantile(regrets, 0.95),
    }


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _quantile(values: Any, share: float) -> float | None:
    """None where so many found nothing that fits."""
    if not len(values):
        return None
    found = float(np.quantile(values, share, method="higher"))
    return found if math.isfinite(found) else None


def _interval(values: Any, problems: Sequence[str]) -> list[float] | None:
    """Between which 95 % of the means lie if the problems are drawn again."""
    names = sorted(set(problems))
    if not names:
        return None
    means = np.array(
        [np.mean([v for v, p in zip(values, problems, strict=True) if p == n]) for n in names]
    )
    rng = np.random.default_rng(0)
    drawn = means[rng.integers(len(means), size=(DRAWS, len(means)))].mean(axis=1)
    return [float(each) for each in np.quantile(drawn, (0.025, 0.975))]


def _print(found: dict[str, Any]) -> None:
    count, seeds, trials = len(found["problems"]), found["seeds"], found["trials"]
    numbers = (count, "problem"), (seeds, "seed"), (trials, "trial")
    print(", ".join(counted(*each) for each in numbers))
    print("sampler     within 1 %          regret median      p95   infeasible   ms   set-up s")
    for name, each in found["samplers"].items():
        if each["cases"]:
            low, high = each["within_1_percent_interval"]
            print(
                f"{name:10} {each['within_1_percent']:7.1%} ({low:.0%} to {high:.0%})   "
                f"{_percent(each['regret_median'])}  {_percent(each['regret_p95'])}   "
                f"{each['infeasible']:8.0%}  {each['milliseconds_per_suggestion'] or 0:6.1f} "
                f"{each['setup_seconds']:6.1f}"
            )


def _percent(value: float | None) -> str:
    return "nothing" if value is None else f"{value:7.2%}"


if __name__ == "__main__":
    sys.exit(exit_status(main))

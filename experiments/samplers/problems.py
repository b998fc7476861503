"""The problems that samplers are compared over: stated ones, and ones drawn by a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NoReturn, cast

from autotune.cli.options import add_model_options, add_objective_options, add_space_option
from autotune.cli.parser import Parser
from autotune.problem import Problem, load_problem
from autotune.statement import Goal, ProblemStatement
from distir.errors import DistirError, shown
from distir.yaml_text import read_yaml
from search_spaces import searched
from search_spaces.named import UNNAMED

STATED = Path(__file__).with_name("problems.yaml")
"""Problems that samplers were developed with."""

OBJECTIVE = "objective"
SPACE = "space"


@dataclass(frozen=True, slots=True)
class Question:
    """A problem as it is stated, by the options of `run`, and its objective."""

    stated: Mapping[str, Any]
    objective: str = "throughput"
    objective_options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What else is stated of it: the metric that counts, its direction, how trials are made."""

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Question:
        """From a mapping with the options of `run` that state a problem and its objective, without
        dashes in front; raises `DistirError` for others, and for values that they do not take. The
        space may also be what its file would say."""
        space = content.get(SPACE)
        options = {**content, SPACE: UNNAMED} if isinstance(space, Mapping) else content
        found = vars(_options().parse_args(list(_words(options))))
        stated = {name: value for name, value in found.items() if value is not _UNSTATED}
        if isinstance(space, Mapping):
            stated[SPACE] = _in_order(cast("Mapping[str, Any]", space))
        problem, goal = (
            {each.name: stated[each.name] for each in fields(kind) if each.name in stated}
            for kind in (ProblemStatement, Goal)
        )
        question = cls(problem, goal.pop(OBJECTIVE, "throughput"), goal)
        _ = question.goal  # raises if options contradict each other
        return question

    @property
    def goal(self) -> Goal:
        """What is looked for; raises `DistirError` if there is no such goal."""
        return Goal(objective=self.objective, **self.objective_options)

    @property
    def asked(self) -> tuple[str, str]:
        """What is asked, in words that are equal for equal questions."""
        return repr(ProblemStatement(**self.stated)), repr(self.goal)

    def problem(self) -> Problem:
        """The problem; raises `DistirError` if there is no such problem."""
        statement = self.goal.suited(ProblemStatement(**self.stated))
        return load_problem(**statement.stated())

    @property
    def name(self) -> str:
        """One line that tells the problem from others."""
        others = {**self.stated, OBJECTIVE: self.objective, **self.objective_options}
        model = str(others.pop("model"))
        return ", ".join([model, *(f"{key} {value}" for key, value in others.items())])


def _in_order(space: Mapping[str, Any]) -> dict[str, Any]:
    """What the file of a space would say, by the names of its choices. Raises `SpaceError` if that
    is no space."""
    searched(space)
    return dict(sorted(space.items()))


_UNSTATED = object()
"""Stands for the value of an option that a problem does not state."""


class _ProblemParser(Parser):
    """Reads the options of one problem of several: a mistake in them does not end the program."""

    def error(self, message: str) -> NoReturn:
        raise DistirError(self.said(message))

    def _whose(self, name: str) -> str:
        """What was meant, and which options there are."""
        kinds = "the model, the cluster, the space and the objective"
        return f"{super()._whose(name)} (expected options of run that state {kinds})"


def _options() -> Parser:
    """The options of `run` that state a problem and its objective. What is not stated is not
    there."""
    parser = _ProblemParser(add_help=False)
    add_model_options(parser, "")
    add_space_option(parser)
    add_objective_options(parser)
    defaults = vars(parser.parse_args(["--model=any"]))
    parser.set_defaults(**dict.fromkeys(defaults, _UNSTATED))
    return parser


def _words(content: Mapping[str, Any]) -> Iterator[str]:
    """A problem as the words of a command line."""
    seen: set[str] = set()
    for key, value in content.items():
        name = str(key).replace("_", "-")
        if name in seen:
            raise DistirError(f"{name} is stated twice; leave one of them out")
        seen.add(name)
        if isinstance(value, bool):
            yield f"--{name}" if value else f"--no-{name}"
        elif isinstance(value, Mapping):
            several = cast("Mapping[Any, Any]", value)
            yield from (f"--{name}={one}={number}" for one, number in several.items())
        elif isinstance(value, str | int | float):
            yield f"--{name}={value}"
        else:
            raise DistirError(f"{name} is {shown(value)}; expected what --{name} of run takes")


def read_questions(path: Path) -> list[Question]:
    """The problems of a YAML file, a list of mappings with the options of `run`; equal ones once.
    Raises `DistirError` for a file that is no such list, and for an option or a value that `run`
    does not take."""
    content = read_yaml(path, DistirError)
    if (
        not isinstance(content, list)
        or not content
        or not all(isinstance(each, Mapping) for each in cast("list[object]", content))
    ):
        raise DistirError(f"{path}: expected a list of mappings, each with a model and options")
    found: dict[tuple[str, str], Question] = {}
    for number, each in enumerate(cast("list[Mapping[str, Any]]", content), start=1):
        try:
            question = Question.of(each)
        except DistirError as error:
            raise DistirError(f"{path}, problem {number}: {error}") from error
        found.setdefault(question.asked, question)
    return list(found.values())


# --- drawn ----------------------------------------------------------------------------------------

DENSE = (
    "gpt2", "gpt2-large", "gpt2-xl", "gpt3-1.3B", "gpt3-6.7B", "gpt3-13B", "megatron-7.5B",
    "megatron-18.4B", "llama3-8b", "llama2-13b", "qwen2.5-3b", "qwen3-14b", "mistral-7b",
    "bert-large", "vit-l", "mlp-small",
)  # fmt: skip
LARGE = ("gpt3-175B", "llama3-70b", "llama3-405b", "megatron-145.6B", "qwen2.5-72b")
OTHERS = ("mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v2-lite", "t5-base", "t5-3b")
CLUSTERS = (
    "dgx-a100",
    "dgx-a100-40gb",
    "hgx-h100",
    "dgx2-v100",
    "p3dn-v100-32gb",
    "mi300x-platform",
)


def drawn_questions(count: int, seed: int) -> list[Question]:
    """`count` problems drawn by a seed: models of all kinds on 8 to 4,096 devices, most of them
    with as many as somebody would use."""
    rng = random.Random(seed)
    return [_drawn(rng) for _ in range(count)]


def _drawn(rng: random.Random) -> Question:
    kind = rng.choices((DENSE, LARGE, OTHERS), (5, 2, 3))[0]
    devices = rng.choice((64, 128, 512, 1024, 4096) if kind is LARGE else (8, 16, 32, 64))
    space = "small" if devices > 1024 else rng.choices(("small", "standard", "full"), (2, 5, 2))[0]
    if space == "full":
        devices, space = (8, space) if kind is DENSE else (devices, "standard")
    mode = rng.choices(("training", "inference"), (4, 1))[0]
    stated: dict[str, Any] = {
        "model": rng.choice(kind),
        "cluster": rng.choice(CLUSTERS),
        "devices": devices,
        "space": space,
        "mode": mode,
    }
    batch = rng.choice((None, devices, 4 * devices, 1024))
    if batch is not None and mode == "training":
        stated["batch_size"] = batch
    objective = rng.choices(("throughput", "latency", "memory"), (4, 1, 1))[0]
    return Question(stated, objective)


def default_questions(drawn: int, seed: int) -> Sequence[Question]:
    """The stated problems, and as many as are to be drawn, of which equal ones are one."""
    every = (*read_questions(STATED), *drawn_questions(drawn, seed))
    return list({each.name: each for each in every}.values())


__all__ = ["Question", "default_questions", "drawn_questions", "read_questions"]

"""What programs hand in is held to annotations at the front door, in one line."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import pytest

import autotune
import distir
from distir import Strategy, Workload
from distir.arguments import checked
from distir.cost import Cluster
from distir.errors import ArgumentError, DistirError, StrategyError

MODEL = "mlp-xs"


@checked
def door(
    whole: int = 0,
    number: float = 0.0,
    path: str | Path = "",
    word: Literal["least", "most"] | int | None = None,
    several: Sequence[str] | None = None,
    table: Mapping[str, int] | None = None,
    cluster: Cluster | None = None,
    anything: Any = None,
) -> None:
    """Takes what its annotations say."""


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"whole": "3"}, "whole is '3'; expected a whole number"),
        ({"whole": True}, "whole is True; expected a whole number"),
        ({"whole": 2.0}, "whole is 2.0; expected a whole number"),
        ({"number": "1"}, "number is '1'; expected a number"),
        ({"path": 3}, "path is 3; expected a text or a path"),
        ({"word": "all"}, "word is 'all'; expected 'least', 'most', a whole number or None"),
        ({"several": "a"}, "several is 'a'; expected a list (each a text) or None"),
        ({"several": [1]}, "several is [1]; expected a list (each a text) or None"),
        ({"table": [1]}, "table is [1]; expected a mapping or None"),
        ({"cluster": {}}, "cluster is {}; expected a Cluster (see load_cluster) or None"),
    ],
)
def test_what_is_of_another_kind_is_refused_in_one_line(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ArgumentError) as raised:
        door(**given)
    assert str(raised.value) == said


def test_what_is_of_the_kind_is_taken() -> None:
    cluster = distir.load_cluster("dgx-a100", devices=2)
    numbers: list[Any] = [np.int64(3), np.float32(1)]
    door(*numbers)
    door(0, 0, Path(), "least", ("a",), {"a": 1}, cluster, object())
    door(3, 1, "", 4, [], {})
    with pytest.raises(ArgumentError, match="whole is None"):
        door(cast("Any", None))


def test_plans_to_try_first_are_any_iterable() -> None:
    """Gone through once, however often they are needed."""
    first = [Strategy(dp=2), Strategy(tp=2)]
    plans: list[Any] = [iter(first), tuple(first), dict.fromkeys(first).keys()]
    for each in plans:
        result = autotune.tune(MODEL, devices=2, trials=2, enqueue=each, compare_grid=False)
        assert [trial.strategy for trial in result.trials] == first


def simulate(**changed: Any) -> Any:
    usual = {"model": MODEL, "strategy": Strategy(dp=2), "cluster": "dgx-a100", "batch_size": 8}
    given: dict[str, Any] = {**usual, **changed}
    return distir.simulate(**given)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"batch_size": "64"}, "batch_size is '64'; expected a whole number"),
        ({"strategy": {"dp": 2}}, "strategy is {'dp': 2}; expected a Strategy"),
        ({"cluster": None}, "cluster is None; expected a Cluster"),
        ({"stack": 3}, "stack is 3; expected a SoftwareStack"),
        ({"precision": 16}, "precision is 16; expected a text"),
        ({"mode": 16}, "unknown mode 16; expected one of"),
        ({"dropout": "no"}, "dropout is 'no'; expected True or False"),
    ],
)
def test_a_simulation_says_what_it_takes(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(DistirError, match=re.escape(said)):
        simulate(**changed)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"devices": "16"}, "devices is '16'; expected a whole number or None"),
        ({"cluster": {}}, "cluster is {}; expected a text, a path or a Cluster"),
        ({"batch_size": "most"}, "batch_size is 'most'; expected a whole number, 'least' or None"),
        ({"attention": 3}, "unknown attention 3; expected one of: eager, fused"),
        ({"space": 3}, "the space is 3; expected small, standard, full, a YAML file"),
        ({"direction": "up"}, "direction is 'up'; expected 'maximize', 'minimize' or None"),
        ({"isolate": "no"}, "isolate is 'no'; expected True or False"),
        ({"trials": "3"}, "trials is '3'; expected a whole number or None"),
        ({"seed": "3"}, "seed is '3'; expected a whole number"),
        ({"enqueue": ["x"]}, "a plan to be tried first is 'x'; expected a Strategy, or choices"),
        ({"enqueue": {"dp": 2}}, "enqueue is {'dp': 2}; expected a list"),
        ({"workers": "2"}, "workers is '2'; expected a whole number"),
        ({"study": "mine"}, "--study needs --storage"),
    ],
)
def test_a_search_says_what_it_takes(changed: dict[str, Any], said: str) -> None:
    given: dict[str, Any] = {"devices": 2, "trials": 2, **changed}
    with pytest.raises(DistirError, match=re.escape(said)):
        autotune.tune(MODEL, **given)


def test_an_unknown_argument_is_told_with_what_is_near() -> None:
    unknown: Any = {"recompute": "full"}
    misspelt: Any = {"devises": 8}
    with pytest.raises(
        TypeError, match=r"^tune\(\) got an unexpected .* 'recompute'; did you mean "
    ):
        autotune.tune(MODEL, **unknown)
    with pytest.raises(TypeError, match=r"compare_samplers.* 'devises'; did you mean devices"):
        autotune.compare_samplers(MODEL, **misspelt)


def test_what_is_made_of_others_says_what_it_takes() -> None:
    workload = Workload(model=distir.load_model(MODEL), batch_size=8)
    cluster = distir.load_cluster("dgx-a100", devices=2)
    wrong: Any = {"dp": 2}
    for use in (
        lambda: Workload(model=wrong),
        lambda: distir.Simulator(workload, wrong),
        lambda: distir.Simulator(wrong, cluster),
        lambda: distir.Simulator(workload, cluster).simulate(wrong),
        lambda: distir.verify(workload, wrong),
        lambda: distir.load_cluster("dgx-a100", wrong),
        lambda: distir.load_stack(wrong),
        lambda: autotune.compare_samplers(MODEL, devices=2, seeds=wrong),
        lambda: autotune.certify(wrong, wrong),
    ):
        with pytest.raises(ArgumentError, match=r" is {'dp': 2}; expected "):
            use()


class _Place:
    """Something like a path."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __fspath__(self) -> str:
        return str(self._path)


def test_numbers_and_paths_of_other_libraries_are_taken_for_pythons(tmp_path: Path) -> None:
    workload = Workload(
        model=distir.load_model("gpt2"),
        batch_size=cast("Any", np.int32(64)),
        dropout=cast("Any", np.bool_(False)),
    )
    assert (type(workload.batch_size), type(workload.dropout)) == (int, bool)
    space = tmp_path / "space.yaml"
    space.write_text("dp: [8]\n")
    found = autotune.tune(
        "gpt2", "dgx-a100", devices=cast("Any", np.int64(8)), space=cast("Any", _Place(space))
    )
    assert found.best is not None


def test_numbers_of_numpy_are_numbers_of_a_strategy() -> None:
    made = Strategy(dp=cast("Any", np.int64(2)), microbatches=cast("Any", np.int32(4)))
    assert made == Strategy(dp=2, microbatches=4)
    assert type(made.dp) is int
    with pytest.raises(StrategyError, match="dp is"):
        Strategy(dp=cast("Any", np.float64(2.5)))

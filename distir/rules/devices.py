"""How many devices a strategy takes."""

from __future__ import annotations

import operator
from collections.abc import Callable

from distir.factoring import divisors
from distir.rules.facts import WorkloadFacts
from distir.rules.rule import Advice, Rule
from distir.rules.splitting import tp_divides_axes
from distir.rules.wording import listed, product


def degrees_fill(devices: int) -> Rule:
    """The product of the degrees is exactly the number of devices."""
    return _rule("the degrees fill the devices", devices, operator.eq)


def degrees_fit(devices: int) -> Rule:
    """The product of the degrees is at most the number of devices."""
    return _rule("the degrees fit the devices", devices, operator.le)


def _rule(name: str, devices: int, suits: Callable[[int, int], bool]) -> Rule:
    there = "there is 1 device" if devices == 1 else f"there are {devices} devices"

    def check(dp: int, tp: int, cp: int, pp: int) -> str | None:
        if suits(dp * tp * cp * pp, devices):
            return None
        return f"{product(_telling(dp, tp, cp, pp))}, but {there}"

    def advice(workload: WorkloadFacts, dp: int, tp: int, cp: int, pp: int) -> Advice:
        taken = dp * tp * cp * pp
        exact = {
            name: devices * degree // taken
            for name, degree in _telling(dp, tp, cp, pp).items()
            if devices * degree % taken == 0
        }
        if "tp" in exact and tp_divides_axes(workload, "", exact["tp"]):
            del exact["tp"]
        return {name: (degree,) for name, degree in exact.items()}

    return Rule(
        name,
        check,
        advice,
        otherwise=f"degrees that divide {devices} are {listed(divisors(devices))}",
    )


def _telling(dp: int, tp: int, cp: int, pp: int) -> dict[str, int]:
    """The degrees by name, context parallelism where it is used."""
    return {"dp": dp, "tp": tp, **({"cp": cp} if cp > 1 else {}), "pp": pp}


def hosts_are_known(without: str | None) -> Rule:
    """What is offloaded needs a host; `without` says what is missing where nothing is known of
    it."""

    def check(offload: str) -> str | None:
        return f"offload = {offload}, but {without}" if offload and without else None

    return Rule("hosts are known to whom something is offloaded", check)


__all__ = ["degrees_fill", "degrees_fit", "hosts_are_known"]

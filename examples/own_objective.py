"""An objective of one's own: any function from a strategy to a number.

On the command line:  python -m autotune run --model gpt2 --objective examples/own_objective.py:cost
"""

from autotune import tune


def cost(strategy, simulate):
    """Dollars per million samples. What fails is a failed trial, and the study goes on."""
    if strategy.tp == 2:
        raise RuntimeError("the job was preempted")
    samples_per_second = simulate(strategy).metrics["throughput_samples_per_second"]
    dollars_per_second = strategy.devices * 2.0 / 3600
    return 1e6 * dollars_per_second / samples_per_second


if __name__ == "__main__":
    result = tune("gpt2", objective=cost, trials=20)
    print(result)

"""A model of one's own: a Python function that returns a Function, built op by op.

On the command line:  python -m autotune run --model examples/own_model.py:two_towers
"""

from autotune import tune
from distir import Builder, Function, ops


def two_towers(batch_size: int = 1) -> Function:
    """Two stacks of layers over the same input, added at the end."""
    builder = Builder("two-towers")
    x = builder.input("x", (batch_size, 1024))
    left = right = x
    for layer in range(8):
        for side, value in (("left", left), ("right", right)):
            up = builder.parameter(f"{side}.{layer}.up", (1024, 4096))
            down = builder.parameter(f"{side}.{layer}.down", (4096, 1024))
            hidden = builder.add(ops.linalg.MatMul(), value, up)
            hidden = builder.add(ops.activations.Relu(), hidden)
            value = builder.add(ops.linalg.MatMul(), hidden, down)
            left, right = (value, right) if side == "left" else (left, value)
    return builder.build([builder.add(ops.arithmetic.Add(), left, right)])


if __name__ == "__main__":
    print(tune(two_towers, devices=8, batch_size=512, trials=20))

"""A model of one's own: a Python function that returns a Function, built op by op.

On the command line:  python -m autotune run --model examples/own_model.py:two_towers
"""

from autotune import tune
from distir.ir import Builder, Function
from distir.ops.activations import Relu
from distir.ops.arithmetic import Add
from distir.ops.linalg import MatMul


def two_towers(batch_size: int = 1) -> Function:
    """Two stacks of layers over the same input, added at the end."""
    builder = Builder("two-towers")
    x = builder.input("x", (batch_size, 1024))
    left = right = x
    for layer in range(8):
        for side, value in (("left", left), ("right", right)):
            up = builder.parameter(f"{side}.{layer}.up", (1024, 4096))
            down = builder.parameter(f"{side}.{layer}.down", (4096, 1024))
            hidden = builder.add(Relu(), builder.add(MatMul(), value, up))
            value = builder.add(MatMul(), hidden, down)
            left, right = (value, right) if side == "left" else (left, value)
    return builder.build([builder.add(Add(), left, right)])


if __name__ == "__main__":
    print(tune(two_towers, devices=8, batch_size=512, trials=20))

"""Random small convolutional networks."""

from __future__ import annotations

from hypothesis import strategies as st

from distir.ir import Builder, Function, Value
from distir.models.layers import linear
from distir.ops.activations import Relu
from distir.ops.arithmetic import Add
from distir.ops.conv import Conv
from distir.ops.pooling import MaxPool
from distir.ops.reduce import ReduceMean

SIZE = 8
"""Of images, each way."""


def convolution(
    builder: Builder, x: Value, channels: int, name: str, kernel: int, stride: int, group: int
) -> Value:
    """A convolution that keeps the size of the image, divided by the stride, with its bias."""
    pad = (kernel - 1) // 2
    shape = (channels, x.type.shape[1] // group, kernel, kernel)
    weight = builder.parameter(f"{name}.weight", shape)
    op = Conv(strides=(stride, stride), pads=(pad,) * 4, dilations=(1, 1), group=group)
    bias = builder.parameter(f"{name}.bias", (channels, 1, 1))
    return builder.add(Add(), builder.add(op, x, weight), bias)


@st.composite
def convolutions(draw: st.DrawFn) -> Function:
    """Plain, grouped, strided and residual convolutions, pooling, and a head."""
    builder = Builder("convolutions")
    x = builder.input("pixels", (3, 4, SIZE, SIZE))
    for number in range(draw(st.integers(1, 4))):
        channels = draw(st.sampled_from([4, 8, 12]))
        kind = draw(st.sampled_from(["plain", "grouped", "strided", "residual", "pool"]))
        name = f"layer{number}"
        if kind == "residual":
            channels = x.type.shape[1]
            y = convolution(builder, builder.add(Relu(), x), channels, name, 3, 1, 1)
            x = builder.add(Add(), x, y)
            continue
        if kind == "pool" and x.type.shape[2] >= 2:
            pool = MaxPool(kernel=(2, 2), strides=(2, 2), pads=(0,) * 4, dilations=(1, 1))
            x = builder.add(pool, x)
            continue
        stride = 2 if kind == "strided" and x.type.shape[2] % 2 == 0 else 1
        group = 2 if kind == "grouped" else 1
        x = builder.add(Relu(), convolution(builder, x, channels, name, 3, stride, group))
    x = builder.add(ReduceMean((2, 3), keepdims=False), x)
    return builder.build([linear(builder, x, "head", 6)])

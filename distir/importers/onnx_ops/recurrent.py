"""Converters of recurrent layers: a product over all steps, and what is done step by step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from distir.errors import ImportModelError, UnsupportedOpError
from distir.importers.onnx_call import Call, converts
from distir.importers.onnx_ops.shapes import sliced
from distir.ir.core import Value
from distir.ops.arithmetic import Add
from distir.ops.linalg import Einsum
from distir.ops.recurrent import GRUSteps, LSTMSteps, Recurrence, RNNSteps
from distir.ops.tensor import Concat, Split, Transpose

_REVERSED = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
"""Per value of `direction`, whether each of the directions runs from the last step to the first."""

_LENGTHS, _FIRST_STATE, _PEEPHOLES = 4, 5, 7
"""Positions of operands behind input, weights and bias: the lengths of samples, the first of the
states before the first step, and weights by which gates of an LSTM look at cells."""


@converts("RNN")
def rnn(call: Call) -> Sequence[Value]:
    """A product, and RNNSteps."""
    names = {name.lower() for name in _activations(call)}
    if len(names) > 1 or not names <= {"tanh", "relu"}:
        raise _unknown_activations(call, "Tanh or Relu, and one of them")
    rectified = names == {"relu"}
    return _recurrent(call, lambda reverse: RNNSteps(reverse, rectified))


@converts("GRU")
def gru(call: Call) -> Sequence[Value]:
    """A product, and GRUSteps."""
    _check_activations(call, ("sigmoid", "tanh"))
    if not call.attribute("linear_before_reset", 0):
        raise UnsupportedOpError(
            f"{call.node.label}: a GRU that resets states before they are multiplied is not "
            "supported; expected linear_before_reset = 1, as PyTorch and Keras have it"
        )
    return _recurrent(call, GRUSteps)


@converts("LSTM")
def lstm(call: Call) -> Sequence[Value]:
    """A product, and LSTMSteps."""
    _check_activations(call, ("sigmoid", "tanh", "tanh"))
    if call.has(_PEEPHOLES):
        raise UnsupportedOpError(
            f"{call.node.label}: an LSTM whose gates look at its cells (operand {_PEEPHOLES}) is "
            "not supported; expected none, as PyTorch and Keras have it"
        )
    if call.attribute("input_forget", 0):
        raise UnsupportedOpError(
            f"{call.node.label}: an LSTM that has one gate for input and forgetting is not "
            "supported; expected input_forget = 0"
        )
    return _recurrent(call, LSTMSteps)


def _activations(call: Call) -> list[str]:
    given = call.attribute("activations") or ()
    return [each.decode() if isinstance(each, bytes) else str(each) for each in given] or ["Tanh"]


def _check_activations(call: Call, expected: Sequence[str]) -> None:
    """Raises `UnsupportedOpError` if the layer's activations, those of each direction in turn, are
    given and not the usual ones."""
    given = [name.lower() for name in _activations(call)]
    times = -(-len(given) // len(expected))
    if call.attribute("activations") and given != [*expected] * times:
        raise _unknown_activations(call, ", ".join(name.title() for name in expected))


def _unknown_activations(call: Call, expected: str) -> UnsupportedOpError:
    found = ", ".join(_activations(call))
    return UnsupportedOpError(
        f"{call.node.label}: activations {found} are not supported; expected {expected}"
    )


@dataclass(frozen=True, slots=True)
class _Layer:
    """The operands of a layer as each of its directions has them."""

    inputs: Value
    """`[steps, batch, size]`."""
    weights: Sequence[Value]
    """Those of inputs, `[gates · hidden, size]`."""
    state_weights: Sequence[Value]
    """`[gates · hidden, hidden]`."""
    biases: Sequence[Value | None]
    """`[gates · hidden]`, those of inputs."""
    state_biases: Sequence[Value]
    """`[gates · hidden]`."""
    first: Sequence[Sequence[Value]]
    """The states before the first step, `[batch, hidden]` each; none: they are zero."""


def _recurrent(call: Call, made: Callable[[bool], Recurrence]) -> Sequence[Value]:
    """All directions of a layer, side by side: its first state after every step, and its states
    after the last one."""
    if call.attribute("clip") is not None:
        raise UnsupportedOpError(
            f"{call.node.label}: clipped gates are not supported; expected no clip"
        )
    reversed_ = _directions(call)
    batch_first = bool(call.attribute("layout", 0))
    layer = _layer(call, made(False), len(reversed_), batch_first=batch_first)
    every: list[Value] = []
    last: list[list[Value]] = []
    for place, reverse in enumerate(reversed_):
        op = made(reverse)
        states = _stepped(call, op, layer, place)
        steps, batch, hidden = states[0].type.shape
        every.append(call.view(states[0], (steps, 1, batch, hidden), (0, 2, 3)))
        last.append([_last(call, state, reverse) for state in states])
    results = [_side_by_side(call, every, 1)]
    results += [_side_by_side(call, each, 0) for each in zip(*last, strict=True)]
    if not batch_first:
        return results
    orders = ((2, 0, 1, 3), *[(1, 0, 2)] * (len(results) - 1))
    return [call.add(Transpose(o), each) for o, each in zip(orders, results, strict=True)]


def _directions(call: Call) -> Sequence[bool]:
    direction = str(call.attribute("direction", "forward"))
    call.without_effect("hidden_size", "output_sequence")  # shapes say it
    found = _REVERSED.get(direction)
    if found is None or call.type(1).shape[0] != len(found):
        raise ImportModelError(
            f"direction {direction!r} and weights {call.type(1)}; expected one of "
            f"{', '.join(_REVERSED)}, and weights for each direction"
        )
    return found


def _layer(call: Call, op: Recurrence, directions: int, *, batch_first: bool) -> _Layer:
    """The layer's operands, with steps in front of samples."""
    inputs = call.operand(0)
    if batch_first:
        inputs = call.add(Transpose((1, 0, 2)), inputs)
    _note_lengths(call, inputs.type.shape[0])
    state_weights = _each(call, call.operand(2), directions)
    width = state_weights[0].type.shape[0]
    biases: Sequence[Value | None] = [None] * directions
    state_biases = [_zeros(call, width)] * directions
    if call.has(3):
        both = _each(call, call.operand(3), directions)
        halves = [call.apply(Split(0, (width, width)), each) for each in both]
        biases, state_biases = [a for a, _ in halves], [b for _, b in halves]
    weights = _each(call, call.operand(1), directions)
    first = _first_states(call, op, directions, batch_first=batch_first)
    return _Layer(inputs, weights, state_weights, biases, state_biases, first)


def _zeros(call: Call, width: int) -> Value:
    import numpy as np

    return call.builder.constant(np.zeros(width), call.type().dtype, "no bias")


def _each(call: Call, x: Value, count: int) -> list[Value]:
    """The parts of `x` along its first dim, one per direction, without that dim."""
    shape = x.type.shape
    parts = [x] if count == 1 else call.apply(Split(0, (1,) * count), x)
    kept = (None, *range(len(shape) - 1))
    return [call.view(part, shape[1:], kept) for part in parts]


def _side_by_side(call: Call, parts: Sequence[Value], dim: int) -> Value:
    return parts[0] if len(parts) == 1 else call.add(Concat(dim), *parts)


def _note_lengths(call: Call, steps: int) -> None:
    """Tells of lengths of samples, which are not applied, unless all are the longest."""
    if not call.has(_LENGTHS):
        return
    lengths = call.known(_LENGTHS)
    if lengths is None or (lengths != steps).any():
        call.note(
            f"{call.node.op_type} runs over all {steps:,} steps of every sample; lengths of "
            "samples are not applied"
        )


def _first_states(
    call: Call, op: Recurrence, directions: int, *, batch_first: bool
) -> Sequence[Sequence[Value]]:
    """The states before the first step, per direction; none where all are zero."""
    places = range(_FIRST_STATE, _FIRST_STATE + op.states)
    if not any(_is_set(call, place) for place in places):
        return [()] * directions
    found: list[list[Value]] = []
    for place in places:
        state = call.operand(place) if call.has(place) else None
        if state is None:
            raise UnsupportedOpError(
                f"{call.node.label}: of the states before the first step, operand {place} is "
                f"absent; expected all {op.states} or none"
            )
        if batch_first:
            state = call.add(Transpose((1, 0, 2)), state)
        found.append(_each(call, state, directions))
    return list(zip(*found, strict=True))


def _is_set(call: Call, place: int) -> bool:
    """Whether an operand is given, and not known to be zero."""
    if not call.has(place):
        return False
    array = call.known(place)
    return array is None or bool(array.any())


def _stepped(call: Call, op: Recurrence, layer: _Layer, place: int) -> tuple[Value, ...]:
    """The states of one direction after every step."""
    inputs = call.add(Einsum("sbi,wi->sbw"), layer.inputs, layer.weights[place])
    bias = layer.biases[place]
    if bias is not None:
        inputs = call.add(Add(), inputs, bias)
    weights = (layer.state_weights[place], layer.state_biases[place])
    return call.apply(op, inputs, *weights, *layer.first[place])[: op.states]


def _last(call: Call, state: Value, reverse: bool) -> Value:
    """`[1, batch, hidden]` of the step that runs last."""
    at = slice(0, 1, 1) if reverse else slice(-1, None, 1)
    return sliced(call, state, [at, slice(0, None, 1), slice(0, None, 1)])

"""NumPy's functions, computed by PyTorch on its tensors: what arrays of tensors look up.

Importing this needs PyTorch. Operands are tensors and Python's numbers.
"""

# pyright: basic
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autotune.distributed.backend import load_torch, torch_dtype
from distir.errors import DistirError

torch = load_torch()

Function = Callable[..., Any]


def add_at(target: Any, key: tuple[Any, ...], values: Any) -> None:
    """Adds values to elements of a tensor, which may come several times."""
    values = torch.as_tensor(values, dtype=target.dtype, device=target.device)
    shape = target[key].shape
    flat = torch.arange(target.numel(), device=target.device).reshape(target.shape)[key]
    target.view(-1).index_add_(0, flat.reshape(-1), values.expand(shape).reshape(-1))


# --- elementwise ----------------------------------------------------------------------------------


def _real(x: Any) -> Any:
    """Integers as real numbers, as NumPy takes them where a function has real results."""
    is_tensor = isinstance(x, torch.Tensor)
    return x.double() if is_tensor and not x.is_floating_point() else x


def _counted(x: Any) -> Any:
    """Truth values as integers: PyTorch does not subtract them."""
    is_tensor = isinstance(x, torch.Tensor)
    return x.long() if is_tensor and x.dtype == torch.bool else x


def _pair(a: Any, b: Any) -> tuple[Any, Any]:
    if isinstance(a, float):
        b = _real(b)
    if isinstance(b, float):
        a = _real(a)
    return a, b


def _number(x: Any, like: Any) -> Any:
    """A Python number as a tensor beside another."""
    if isinstance(x, torch.Tensor):
        return x
    floating = isinstance(x, float) and like.is_floating_point()
    return torch.tensor(x, dtype=like.dtype if floating else None, device=like.device)


def _of_reals(function: Function) -> Function:
    return lambda x: function(_real(x))


def _of_pairs(function: Function) -> Function:
    return lambda a, b: function(*_pair(a, b))


def _of_tensors(function: Function) -> Function:
    """Functions that PyTorch has for tensors alone."""

    def run(a: Any, b: Any) -> Any:
        a, b = _pair(a, b)
        like = a if isinstance(a, torch.Tensor) else b
        return function(_number(a, like), _number(b, like))

    return run


UFUNCS: dict[Any, Function] = {
    np.exp: _of_reals(torch.exp),
    np.expm1: _of_reals(torch.expm1),
    np.log: _of_reals(torch.log),
    np.log1p: _of_reals(torch.log1p),
    np.sqrt: _of_reals(torch.sqrt),
    np.tanh: _of_reals(torch.tanh),
    np.sin: _of_reals(torch.sin),
    np.cos: _of_reals(torch.cos),
    np.reciprocal: _of_reals(torch.reciprocal),
    np.negative: torch.negative,
    np.absolute: torch.abs,
    np.sign: torch.sign,
    np.floor: torch.floor,
    np.ceil: torch.ceil,
    np.rint: torch.round,
    np.trunc: torch.trunc,
    np.isnan: torch.isnan,
    np.isfinite: torch.isfinite,
    np.square: torch.square,
    np.logical_not: torch.logical_not,
    np.positive: torch.clone,
    np.maximum: _of_tensors(torch.maximum),
    np.minimum: _of_tensors(torch.minimum),
    np.logaddexp: _of_tensors(torch.logaddexp),
    np.logical_and: _of_tensors(torch.logical_and),
    np.logical_or: _of_tensors(torch.logical_or),
    np.logical_xor: _of_tensors(torch.logical_xor),
    np.greater: _of_tensors(torch.gt),
    np.greater_equal: _of_tensors(torch.ge),
    np.less: _of_tensors(torch.lt),
    np.less_equal: _of_tensors(torch.le),
    np.equal: _of_tensors(torch.eq),
    np.not_equal: _of_tensors(torch.ne),
    np.add: _of_pairs(lambda a, b: a + b),
    np.subtract: _of_pairs(lambda a, b: _counted(a) - _counted(b)),
    np.multiply: _of_pairs(lambda a, b: a * b),
    np.power: _of_pairs(lambda a, b: a**b),
    np.true_divide: lambda a, b: _real(a) / _real(b),
    np.matmul: lambda a, b: torch.matmul(*_of_one_type(a, b)),
}
"""NumPy's elementwise functions."""


# --- others ---------------------------------------------------------------------------------------


def _of_one_type(*tensors: Any) -> Any:
    """Products take operands of one type."""
    dtype = tensors[0].dtype
    for each in tensors[1:]:
        dtype = torch.promote_types(dtype, each.dtype)
    return tuple(each.to(dtype) for each in tensors)


def _dims(axis: Any, x: Any) -> tuple[int, ...]:
    if axis is None:
        return tuple(range(x.ndim))
    return tuple(axis) if isinstance(axis, (tuple, list)) else (axis,)


def _several(dims: Any) -> Any:
    return dims if isinstance(dims, int) else tuple(dims)


def _reduced(function: Function) -> Function:
    def run(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
        dims = _dims(axis, x)
        return function(x, dim=dims, keepdim=keepdims) if dims else x.clone()

    return run


def _one_by_one(function: Function) -> Function:
    """Functions that PyTorch has for one dim at a time."""

    def run(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
        for dim in sorted((d % x.ndim for d in _dims(axis, x)), reverse=True):
            x = function(x, dim=dim, keepdim=keepdims)
        return x

    return run


def _mean(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    return _reduced(torch.mean)(x if x.is_floating_point() else x.double(), axis, keepdims)


def _index_of_most(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    return torch.argmax(x, dim=axis, keepdim=keepdims)


def _reshaped(x: Any, shape: Any, **_: Any) -> Any:
    return x.reshape((shape,) if isinstance(shape, int) else tuple(int(size) for size in shape))


def _transposed(x: Any, axes: Any = None) -> Any:
    return x.permute(*(axes if axes is not None else reversed(range(x.ndim))))


def _split(x: Any, parts: Any, axis: int = 0) -> Any:
    if isinstance(parts, int):
        return list(torch.split(x, x.shape[axis] // parts, axis))
    return list(torch.tensor_split(x, tuple(int(each) for each in parts), axis))


def _padded(x: Any, widths: Any, mode: str = "constant", constant_values: Any = 0) -> Any:
    if mode != "constant":
        raise DistirError(f"padding {mode!r} of a tensor is not known; expected 'constant'")
    pairs = widths if isinstance(widths[0], (tuple, list)) else [widths] * x.ndim
    flat = [int(each) for pair in reversed(list(pairs)) for each in pair]
    return torch.nn.functional.pad(x, flat, value=constant_values)


def _where(condition: Any, a: Any, b: Any) -> Any:
    tensors = (each for each in (a, b) if isinstance(each, torch.Tensor))
    like = next((each for each in tensors if each.is_floating_point()), None)
    # Where there are numbers alone, NumPy's type of them counts.
    dtype = torch.float64 if like is None else like.dtype
    a, b = (
        torch.tensor(each, dtype=dtype, device=condition.device)
        if isinstance(each, float)
        else torch.as_tensor(each, device=condition.device)
        for each in (a, b)
    )
    return torch.where(condition.bool(), a, b)


def _taken(x: Any, index: Any, axis: Any = None) -> Any:
    if axis is None:
        return x.reshape(-1)[index]
    index = torch.as_tensor(index, device=x.device)
    axis = axis % x.ndim
    rows = torch.index_select(x, axis, (index % x.shape[axis]).reshape(-1))
    return rows.reshape(*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])


def _taken_along(x: Any, index: Any, axis: int) -> Any:
    axis = axis % x.ndim
    others = [[*each.shape[:axis], 1, *each.shape[axis + 1 :]] for each in (x, index)]
    shape = torch.broadcast_shapes(*others)
    whole, own = ([*shape[:axis], each.shape[axis], *shape[axis + 1 :]] for each in (x, index))
    places = index.long() % x.shape[axis]
    return torch.gather(x.expand(whole), axis, places.expand(own))


def _put_along(x: Any, index: Any, values: Any, axis: int) -> None:
    index = index.long()
    if not isinstance(values, torch.Tensor):
        values = torch.full(index.shape, values, dtype=x.dtype, device=x.device)
    x.scatter_(axis, index, values.to(x.dtype).expand(index.shape))


def _summed(equation: str, *operands: Any, **_: Any) -> Any:
    return torch.einsum(equation, *_of_one_type(*operands))


def _summed_up(x: Any, axis: Any = None, **_: Any) -> Any:
    return torch.cumsum(x.reshape(-1) if axis is None else x, axis or 0)


def _joined(function: Function) -> Function:
    def run(tensors: Sequence[Any], axis: int = 0) -> Any:
        return function(_of_one_type(*tensors), axis)

    return run


def _full_like(x: Any, value: Any, dtype: Any = None) -> Any:
    made = None if dtype is None else torch_dtype(np.dtype(dtype))
    return torch.full_like(x, value, dtype=made)


FUNCTIONS: dict[Any, Function] = {
    np.shape: lambda x: tuple(x.shape),
    np.size: lambda x: x.numel(),
    np.ndim: lambda x: x.ndim,
    np.reshape: _reshaped,
    np.ravel: lambda x, **_: x.reshape(-1),
    np.transpose: _transposed,
    np.moveaxis: lambda x, start, end: torch.movedim(x, _several(start), _several(end)),
    np.swapaxes: torch.swapaxes,
    np.expand_dims: torch.unsqueeze,
    np.squeeze: torch.squeeze,
    np.broadcast_to: lambda x, shape: x.expand(tuple(shape)),
    np.sum: _reduced(torch.sum),
    np.mean: _mean,
    np.max: _reduced(torch.amax),
    np.min: _reduced(torch.amin),
    np.prod: _one_by_one(torch.prod),
    np.any: _one_by_one(torch.any),
    np.all: _one_by_one(torch.all),
    np.argmax: _index_of_most,
    np.cumsum: _summed_up,
    np.where: _where,
    np.concatenate: _joined(torch.cat),
    np.stack: _joined(torch.stack),
    np.split: _split,
    np.take: _taken,
    np.take_along_axis: _taken_along,
    np.put_along_axis: _put_along,
    np.pad: _padded,
    np.flip: lambda x, axis=None: torch.flip(x, _dims(axis, x)),
    np.einsum: _summed,
    np.zeros_like: lambda x, dtype=None: _full_like(x, 0, dtype),
    np.ones_like: lambda x, dtype=None: _full_like(x, 1, dtype),
    np.full_like: _full_like,
    np.copy: lambda x: x.clone(),
}
"""NumPy's other functions."""

__all__ = ["FUNCTIONS", "UFUNCS", "add_at"]

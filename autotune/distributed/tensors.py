"""PyTorch's tensors as arrays: ops that are written for NumPy compute with them, unchanged.

NumPy asks its operands whether they know a function themselves (`__array_ufunc__`,
`__array_function__`: NEP 13 and NEP 18). `TensorArray` does so for the functions that ops use, in
two tables, and computes any other by NumPy on the host. Real numbers of NumPy's arrays take part in
the type of the tensors beside them.
"""

# pyright: basic
from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from autotune.distributed.backend import load_torch
from distir.errors import DistirError

Array = Any

_IN_PLACE = {np.copyto, np.put, np.place, np.putmask, np.fill_diagonal}
"""Functions that change an operand, which NumPy could only do to a copy of a tensor."""


class TensorArray(NDArrayOperatorsMixin):
    """A tensor that behaves like a NumPy array, as far as ops and the executor use arrays."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor

    # --- what an array knows of itself ------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    @property
    def ndim(self) -> int:
        return self.tensor.ndim

    @property
    def size(self) -> int:
        return self.tensor.numel()

    @property
    def dtype(self) -> Any:
        """The NumPy type; NumPy has none for bf16, of whose numbers it says that they are fp32."""
        return _numpy_dtype(self.tensor.dtype)

    @property
    def T(self) -> Any:  # noqa: N802
        return np.transpose(self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return numpy_of(self) if dtype is None else numpy_of(self).astype(dtype)

    def __len__(self) -> int:
        return len(self.tensor)

    def __bool__(self) -> bool:
        return bool(self.tensor)

    def __float__(self) -> float:
        return float(self.tensor)

    def __int__(self) -> int:
        return int(self.tensor)

    def __index__(self) -> int:
        return int(self.tensor)

    def __repr__(self) -> str:
        return f"TensorArray({self.tensor})"

    # --- elements ---------------------------------------------------------------------------------

    def __getitem__(self, key: Any) -> TensorArray:
        if _goes_backwards(key):
            return _wrapped(np.asarray(numpy_of(self)[_numpy_key(key)], order="C"), self.tensor)
        return TensorArray(self.tensor[_key(key, self.tensor)])

    def __setitem__(self, key: Any, value: Any) -> None:
        self.tensor[_key(key, self.tensor)] = _unwrapped(value, self.tensor)

    # --- methods ----------------------------------------------------------------------------------

    def reshape(self, *shape: Any) -> Any:
        sizes = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        return TensorArray(self.tensor.reshape(tuple(sizes)))

    def astype(self, dtype: Any, copy: bool = True) -> TensorArray:
        if np.dtype(dtype) == self.dtype:
            return self
        return TensorArray(self.tensor.to(_torch_dtype(np.dtype(dtype))))

    def copy(self) -> TensorArray:
        return TensorArray(self.tensor.clone())

    def transpose(self, *axes: Any) -> Any:
        order = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes
        return np.transpose(self, order or None)

    def swapaxes(self, first: int, second: int) -> Any:
        return np.swapaxes(self, first, second)

    def ravel(self) -> Any:
        return TensorArray(self.tensor.reshape(-1))

    def sum(self, axis: Any = None, keepdims: bool = False) -> TensorArray:
        return np.sum(self, axis=axis, keepdims=keepdims)

    def mean(self, axis: Any = None, keepdims: bool = False) -> TensorArray:
        return np.mean(self, axis=axis, keepdims=keepdims)

    def max(self, axis: Any = None, keepdims: bool = False) -> TensorArray:
        return np.max(self, axis=axis, keepdims=keepdims)

    def min(self, axis: Any = None, keepdims: bool = False) -> TensorArray:
        return np.min(self, axis=axis, keepdims=keepdims)

    def prod(self, axis: Any = None, keepdims: bool = False) -> TensorArray:
        return np.prod(self, axis=axis, keepdims=keepdims)

    def any(self, axis: Any = None, keepdims: bool = False) -> TensorArray:
        return np.any(self, axis=axis, keepdims=keepdims)

    def all(self, axis: Any = None, keepdims: bool = False) -> TensorArray:
        return np.all(self, axis=axis, keepdims=keepdims)

    def argmax(self, axis: Any = None, keepdims: bool = False) -> TensorArray:
        return np.argmax(self, axis=axis, keepdims=keepdims)

    def item(self) -> Any:
        return self.tensor.item()

    # --- NumPy's questions ------------------------------------------------------------------------

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **given: Any) -> Any:
        known = _ufuncs().get(ufunc)
        (out,) = given.pop("out", (None,))
        if method == "at" and ufunc is np.add and isinstance(inputs[0], TensorArray):
            target, key, values = inputs
            _add_at(target.tensor, _key(key, target.tensor), values)
            return None
        if method == "__call__" and known is not None and not given and _is_ours(out):
            made = TensorArray(known(*_operands(inputs)))
        elif method == "at" and isinstance(inputs[0], np.ndarray):
            return ufunc.at(*(_on_host(each) for each in inputs))
        elif method in ("__call__", "reduce"):
            return _by_numpy(getattr(ufunc, method), (*inputs,), {**given, "out": out})
        else:
            return NotImplemented
        if out is None:
            return made
        out.tensor.copy_(made.tensor)
        return out

    def __array_function__(self, func: Any, types: Any, args: Any, given: Any) -> Any:
        known = _functions().get(func)
        if known is not None:
            made = known(*_operands(args), **given)
            return _as_arrays(made)
        if func in _IN_PLACE:
            raise DistirError(f"{func.__name__} of a tensor is not known; expected an entry for it")
        return _by_numpy(func, args, given)


# --- between NumPy and PyTorch --------------------------------------------------------------------


def numpy_of(array: Array) -> Any:
    """An array on the host, as NumPy's; bf16 comes as fp32, which has all its numbers."""
    if not isinstance(array, TensorArray):
        return array
    tensor = array.tensor.detach().cpu()
    if tensor.dtype == load_torch().bfloat16:
        tensor = tensor.float()
    return tensor.numpy()


def tensor_of(array: Array) -> Any:
    """The tensor of an array: its own, or one that shares the memory of a NumPy array."""
    if isinstance(array, TensorArray):
        return array.tensor
    array = np.asarray(array, order="C")
    return load_torch().from_numpy(array if array.flags.writeable else array.copy())


def array_like(tensor: Any, like: Array) -> Array:
    """A tensor as an array of the kind of another."""
    return TensorArray(tensor) if isinstance(like, TensorArray) else tensor.numpy()


def _as_arrays(made: Any) -> Any:
    if isinstance(made, load_torch().Tensor):
        return TensorArray(made)
    if isinstance(made, (list, tuple)) and made and isinstance(made[0], load_torch().Tensor):
        return [TensorArray(each) for each in made]
    return made


def _wrapped(array: Any, like: Any) -> TensorArray:
    """A NumPy array as a tensor beside another: real numbers in its type, and where it is."""
    tensor = load_torch().from_numpy(np.asarray(array, order="C"))
    floating = tensor.is_floating_point() and like.is_floating_point()
    return TensorArray(tensor.to(like.device, like.dtype if floating else None))


def _unwrapped(operand: Any, like: Any) -> Any:
    if isinstance(operand, TensorArray):
        return operand.tensor
    if isinstance(operand, np.generic) or (isinstance(operand, np.ndarray) and not operand.ndim):
        return operand.item()
    if isinstance(operand, np.ndarray):
        return _wrapped(operand, like).tensor
    if isinstance(operand, (list, tuple)):
        return type(operand)(_unwrapped(each, like) for each in operand)
    return operand


def _tensors_in(operands: Any) -> list[Any]:
    if isinstance(operands, TensorArray):
        return [operands.tensor]
    if isinstance(operands, (list, tuple)):
        return [tensor for each in operands for tensor in _tensors_in(each)]
    return []


def _operands(operands: Sequence[Any]) -> Any:
    """Operands as tensors and Python numbers."""
    tensors = _tensors_in(operands)
    like = next((each for each in tensors if each.is_floating_point()), tensors[0])
    return tuple(_unwrapped(each, like) for each in operands)


def _on_host(operand: Any) -> Any:
    if isinstance(operand, (list, tuple)):
        return type(operand)(_on_host(each) for each in operand)
    return numpy_of(operand)


def _by_numpy(func: Callable[..., Any], args: Sequence[Any], given: Any) -> Any:
    """What NumPy computes, on the host; results are tensors like the operands."""
    tensors = _tensors_in([*args, *given.values()])
    like = next((each for each in tensors if each.is_floating_point()), tensors[0])
    out = given.pop("out", None)
    hosted = {name: _on_host(value) for name, value in given.items()}
    made = func(*(_on_host(each) for each in args), **hosted)
    if isinstance(out, TensorArray):
        out.tensor.copy_(_wrapped(made, like).tensor)
        return out
    if out is not None:
        out[...] = made
        return out
    if isinstance(made, (list, tuple)):
        return type(made)(_wrapped(each, like) for each in made)
    return _wrapped(made, like) if isinstance(made, (np.ndarray, np.generic)) else made


def _is_ours(out: Any) -> bool:
    return out is None or isinstance(out, TensorArray)


def _goes_backwards(key: Any) -> bool:
    keys = key if isinstance(key, tuple) else (key,)
    return any(isinstance(each, slice) and (each.step or 1) < 0 for each in keys)


def _numpy_key(key: Any) -> Any:
    return tuple(map(_on_host, key)) if isinstance(key, tuple) else _on_host(key)


def _key(key: Any, like: Any) -> Any:
    if isinstance(key, tuple):
        return tuple(_key(each, like) for each in key)
    if isinstance(key, (np.ndarray, TensorArray, np.generic)):
        found = _unwrapped(key, like)
        return int(found) if isinstance(key, np.generic) else found
    return key


@lru_cache(maxsize=64)
def _torch_dtype(dtype: Any) -> Any:
    return load_torch().from_numpy(np.zeros(0, dtype)).dtype


@lru_cache(maxsize=64)
def _numpy_dtype(dtype: Any) -> Any:
    torch = load_torch()
    return (
        np.dtype(np.float32)
        if dtype is torch.bfloat16
        else torch.zeros(0, dtype=dtype).numpy().dtype
    )


# --- functions of NumPy, in tensors ---------------------------------------------------------------


def _add_at(target: Any, key: Any, values: Any) -> None:
    torch = load_torch()
    values = _unwrapped(values, target)
    values = torch.as_tensor(values, dtype=target.dtype, device=target.device)
    key = key if isinstance(key, tuple) else (key,)
    shape = target[key].shape
    flat = torch.arange(target.numel(), device=target.device).reshape(target.shape)[key]
    target.view(-1).index_add_(0, flat.reshape(-1), values.expand(shape).reshape(-1))


@lru_cache(maxsize=1)
def _ufuncs() -> dict[Any, Callable[..., Any]]:
    """NumPy's elementwise functions, in tensors."""
    torch = load_torch()

    def real(x: Any) -> Any:
        """Integers as real numbers, as NumPy takes them where a function has real results."""
        is_tensor = isinstance(x, torch.Tensor)
        return x.double() if is_tensor and not x.is_floating_point() else x

    def counted(x: Any) -> Any:
        """Truth values as integers: PyTorch does not subtract them."""
        is_tensor = isinstance(x, torch.Tensor)
        return x.long() if is_tensor and x.dtype == torch.bool else x

    def unary(name: str) -> Callable[..., Any]:
        function = getattr(torch, name)
        return lambda x: function(real(x))

    def pair(a: Any, b: Any) -> tuple[Any, Any]:
        if isinstance(a, float):
            b = real(b)
        if isinstance(b, float):
            a = real(a)
        return a, b

    def binary(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda a, b: function(*pair(a, b))

    def of_tensors(name: str) -> Callable[..., Any]:
        function = getattr(torch, name)

        def run(a: Any, b: Any) -> Any:
            a, b = pair(a, b)
            like = a if isinstance(a, torch.Tensor) else b
            a, b = (_number(torch, each, like) for each in (a, b))
            return function(a, b)

        return run

    elementwise = {
        ufunc: unary(name)
        for ufunc, name in (
            (np.exp, "exp"), (np.expm1, "expm1"), (np.log, "log"), (np.log1p, "log1p"),
            (np.sqrt, "sqrt"), (np.tanh, "tanh"), (np.sin, "sin"), (np.cos, "cos"),
            (np.reciprocal, "reciprocal"),
        )
    }  # fmt: skip
    same = {
        ufunc: getattr(torch, name)
        for ufunc, name in (
            (np.negative, "negative"), (np.absolute, "abs"), (np.sign, "sign"),
            (np.floor, "floor"), (np.ceil, "ceil"), (np.rint, "round"), (np.trunc, "trunc"),
            (np.isnan, "isnan"), (np.isfinite, "isfinite"), (np.square, "square"),
            (np.logical_not, "logical_not"), (np.positive, "clone"),
        )
    }  # fmt: skip
    tensors = {
        ufunc: of_tensors(name)
        for ufunc, name in (
            (np.maximum, "maximum"), (np.minimum, "minimum"), (np.logaddexp, "logaddexp"),
            (np.logical_and, "logical_and"), (np.logical_or, "logical_or"),
            (np.logical_xor, "logical_xor"), (np.matmul, "matmul"),
            (np.greater, "gt"), (np.greater_equal, "ge"), (np.less, "lt"),
            (np.less_equal, "le"), (np.equal, "eq"), (np.not_equal, "ne"),
        )
    }  # fmt: skip
    arithmetic = {
        np.add: binary(lambda a, b: a + b),
        np.subtract: binary(lambda a, b: counted(a) - counted(b)),
        np.multiply: binary(lambda a, b: a * b),
        np.power: binary(lambda a, b: a**b),
        np.true_divide: lambda a, b: real(a) / real(b),
        np.matmul: lambda a, b: torch.matmul(*_of_one_type(torch, a, b)),
    }
    return {**elementwise, **same, **tensors, **arithmetic}


def _number(torch: Any, x: Any, like: Any) -> Any:
    """A Python number as a tensor beside another."""
    if isinstance(x, torch.Tensor):
        return x
    floating = isinstance(x, float) and like.is_floating_point()
    return torch.tensor(x, dtype=like.dtype if floating else None, device=like.device)


def _of_one_type(torch: Any, *tensors: Any) -> Any:
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


@lru_cache(maxsize=1)
def _functions() -> dict[Any, Callable[..., Any]]:
    """NumPy's other functions, in tensors."""
    torch = load_torch()

    def reduced(name: str) -> Callable[..., Any]:
        function = getattr(torch, name)

        def run(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
            dims = _dims(axis, x)
            return function(x, dim=dims, keepdim=keepdims) if dims else x.clone()

        return run

    def one_by_one(name: str) -> Callable[..., Any]:
        """Functions that PyTorch has for one dim at a time."""
        function = getattr(torch, name)

        def run(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
            for dim in sorted((d % x.ndim for d in _dims(axis, x)), reverse=True):
                x = function(x, dim=dim, keepdim=keepdims)
            return x

        return run

    def mean(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
        dims = _dims(axis, x)
        x = x if x.is_floating_point() else x.double()
        return x.mean(dim=dims, keepdim=keepdims) if dims else x.clone()

    def index_of_most(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
        return torch.argmax(x, dim=axis, keepdim=keepdims)

    def reshape(x: Any, shape: Any, **_: Any) -> Any:
        sizes = (shape,) if isinstance(shape, int) else tuple(int(size) for size in shape)
        return x.reshape(sizes)

    def transpose(x: Any, axes: Any = None) -> Any:
        return x.permute(*(axes if axes is not None else reversed(range(x.ndim))))

    def split(x: Any, parts: Any, axis: int = 0) -> Any:
        if isinstance(parts, int):
            return list(torch.split(x, x.shape[axis] // parts, axis))
        return list(torch.tensor_split(x, tuple(int(each) for each in parts), axis))

    def pad(x: Any, widths: Any, mode: str = "constant", constant_values: Any = 0) -> Any:
        if mode != "constant":
            raise DistirError(f"padding {mode!r} of a tensor is not known; expected 'constant'")
        pairs = widths if isinstance(widths[0], (tuple, list)) else [widths] * x.ndim
        flat = [int(each) for pair in reversed(list(pairs)) for each in pair]
        return torch.nn.functional.pad(x, flat, value=constant_values)

    def where(condition: Any, a: Any, b: Any) -> Any:
        like = next(
            (
                each
                for each in (a, b)
                if isinstance(each, torch.Tensor) and each.is_floating_point()
            ),
            condition,
        )
        if like is condition:  # numbers alone: NumPy's type of them
            like = torch.zeros((), dtype=torch.float64, device=condition.device)
        condition, a, b = (
            each
            if isinstance(each, torch.Tensor)
            else torch.as_tensor(each, device=like.device)
            if not isinstance(each, float)
            else torch.tensor(each, dtype=like.dtype, device=like.device)
            for each in (condition, a, b)
        )
        return torch.where(condition.bool(), a, b)

    def take(x: Any, index: Any, axis: Any = None) -> Any:
        if axis is None:
            return x.reshape(-1)[index]
        index = torch.as_tensor(index, device=x.device)
        axis = axis % x.ndim
        rows = torch.index_select(x, axis, (index % x.shape[axis]).reshape(-1))
        return rows.reshape(*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])

    def along(x: Any, index: Any, axis: int) -> Any:
        axis = axis % x.ndim
        others = [[*each.shape[:axis], 1, *each.shape[axis + 1 :]] for each in (x, index)]
        shape = torch.broadcast_shapes(*others)
        whole, own = ([*shape[:axis], each.shape[axis], *shape[axis + 1 :]] for each in (x, index))
        places = index.long() % x.shape[axis]
        return torch.gather(x.expand(whole), axis, places.expand(own))

    def put_along(x: Any, index: Any, values: Any, axis: int) -> None:
        index = index.long()
        if not isinstance(values, torch.Tensor):
            values = torch.full(index.shape, values, dtype=x.dtype, device=x.device)
        x.scatter_(axis, index, values.to(x.dtype).expand(index.shape))

    def einsum(equation: str, *operands: Any, **_: Any) -> Any:
        return torch.einsum(equation, *_of_one_type(torch, *operands))

    def cumsum(x: Any, axis: Any = None, **_: Any) -> Any:
        return torch.cumsum(x.reshape(-1) if axis is None else x, axis or 0)

    def full_like(x: Any, value: Any, dtype: Any = None) -> Any:
        return torch.full_like(
            x, value, dtype=None if dtype is None else _torch_dtype(np.dtype(dtype))
        )

    return {
        np.shape: lambda x: tuple(x.shape),
        np.size: lambda x: x.numel(),
        np.ndim: lambda x: x.ndim,
        np.reshape: reshape,
        np.ravel: lambda x, **_: x.reshape(-1),
        np.transpose: transpose,
        np.moveaxis: lambda x, start, end: torch.movedim(x, _several(start), _several(end)),
        np.swapaxes: torch.swapaxes,
        np.expand_dims: torch.unsqueeze,
        np.squeeze: torch.squeeze,
        np.broadcast_to: lambda x, shape: x.expand(tuple(shape)),
        np.sum: reduced("sum"),
        np.mean: mean,
        np.max: reduced("amax"),
        np.min: reduced("amin"),
        np.prod: one_by_one("prod"),
        np.any: one_by_one("any"),
        np.all: one_by_one("all"),
        np.argmax: index_of_most,
        np.cumsum: cumsum,
        np.where: where,
        np.concatenate: lambda xs, axis=0: torch.cat(_of_one_type(torch, *xs), axis),
        np.stack: lambda xs, axis=0: torch.stack(_of_one_type(torch, *xs), axis),
        np.split: split,
        np.take: take,
        np.take_along_axis: along,
        np.put_along_axis: put_along,
        np.pad: pad,
        np.flip: lambda x, axis=None: torch.flip(x, _dims(axis, x)),
        np.einsum: einsum,
        np.zeros_like: lambda x, dtype=None: full_like(x, 0, dtype),
        np.ones_like: lambda x, dtype=None: full_like(x, 1, dtype),
        np.full_like: full_like,
        np.copy: lambda x: x.clone(),
    }


__all__ = ["TensorArray", "array_like", "numpy_of", "tensor_of"]

"""PyTorch's tensors as arrays: ops that are written for NumPy compute with them, unchanged.

NumPy asks its operands whether they know a function themselves (`__array_ufunc__`,
`__array_function__`: NEP 13 and NEP 18). `TensorArray` does so for the functions that ops use
(`torch_functions.py`), and computes any other by NumPy on the host. Real numbers of NumPy's arrays
take part in the type of the tensors beside them.
"""

# pyright: basic
from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from types import ModuleType
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from autotune.distributed.backend import load_torch, torch_dtype
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
        return TensorArray(self.tensor.to(torch_dtype(np.dtype(dtype))))

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
        known = _functions().UFUNCS.get(ufunc)
        (out,) = given.pop("out", (None,))
        if method == "at" and ufunc is np.add and isinstance(inputs[0], TensorArray):
            target, key, values = inputs
            found = _key(key if isinstance(key, tuple) else (key,), target.tensor)
            _functions().add_at(target.tensor, found, _unwrapped(values, target.tensor))
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
        known = _functions().FUNCTIONS.get(func)
        if known is not None:
            made = known(*_operands(args), **given)
            return _as_arrays(made)
        if func in _IN_PLACE:
            raise DistirError(f"{func.__name__} of a tensor is not known; expected an entry for it")
        return _by_numpy(func, args, given)


def _functions() -> ModuleType:
    """What PyTorch computes of NumPy's functions, imported when it is needed."""
    return importlib.import_module("autotune.distributed.torch_functions")


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
def _numpy_dtype(dtype: Any) -> Any:
    torch = load_torch()
    return (
        np.dtype(np.float32)
        if dtype is torch.bfloat16
        else torch.zeros(0, dtype=dtype).numpy().dtype
    )


__all__ = ["TensorArray", "array_like", "numpy_of", "tensor_of"]

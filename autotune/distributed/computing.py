"""PyTorch computes the ops of a plan: with its kernels where it has them, and with its tensors in
place of NumPy's arrays in all others."""

# pyright: basic
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from autotune.distributed.backend import load_torch
from autotune.distributed.kernels import computed_by_kernel
from autotune.distributed.messenger import GLOO, GLOO_AND_NCCL
from autotune.distributed.tensors import TensorArray
from distir.errors import DistirError
from distir.execute.computing import NUMPY, Computing, evaluate_at
from distir.ir.core import Op
from distir.ir.types import DType

Where = Literal["numpy", "cpu", "cuda"]
"""What computes: NumPy in float64, or PyTorch on CPUs or on NVIDIA GPUs."""

Array = Any
"""NumPy's, or a `TensorArray`, which behaves like it."""

WHERE: tuple[Where, ...] = get_args(Where)


@dataclass(slots=True)
class TensorComputing:
    """PyTorch on a device, in the types of the plan, with PyTorch's random numbers for dropout;
    `exact` has all real numbers in float64, and the random numbers of the ops. `tf32`: GPUs
    multiply fp32 in TF32."""

    device: str
    exact: bool = False
    tf32: bool = False
    _torch: Any = field(default_factory=load_torch)
    _dtypes: dict[DType, Any] = field(default_factory=dict[DType, Any])

    def __post_init__(self) -> None:
        torch = self._torch
        if self.device != "cpu":
            # PyTorch's own defaults are fp32 for products and TF32 for convolutions.
            torch.backends.cuda.matmul.allow_tf32 = self.tf32
            torch.backends.cudnn.allow_tf32 = self.tf32
        self._dtypes.update(
            {
                DType.FLOAT64: torch.float64,
                DType.FLOAT32: torch.float32,
                DType.BFLOAT16: torch.bfloat16,
                DType.FLOAT16: torch.float16,
                DType.BOOL: torch.bool,
            }
        )

    def dtype(self, dtype: DType) -> Any:
        """The type of tensors for values of a type; that of all integers is int64.

        Raises `DistirError` for a type in which PyTorch does not compute.
        """
        if dtype.is_float and self.exact:
            return self._torch.float64
        if dtype.is_float and dtype not in self._dtypes:
            raise DistirError(
                f"PyTorch does not compute in {dtype.short_name}; expected a precision of fp32, "
                "tf32, bf16 or fp16"
            )
        return self._dtypes.get(dtype, self._torch.int64)

    def sent(self, array: Array, dtype: DType) -> Array:
        return self.held(array, dtype)

    def empty(self, dtype: DType, shape: Sequence[int]) -> Array:
        made = self._torch.empty(tuple(shape), dtype=self.dtype(dtype), device=self.device)
        return TensorArray(made)

    def held(self, array: Array, dtype: DType) -> Array:
        wanted = self.dtype(dtype)
        if isinstance(array, TensorArray):
            return array if array.tensor.dtype is wanted else TensorArray(array.tensor.to(wanted))
        # A copy: a step changes what the optimizer updates in place.
        return TensorArray(self._torch.tensor(array, dtype=wanted, device=self.device))

    def evaluate(
        self,
        op: Op,
        coordinate: Mapping[str, int],
        operands: Sequence[Array],
        dtypes: Sequence[DType],
    ) -> Sequence[Array]:
        results = computed_by_kernel(
            op, coordinate, [each.tensor for each in operands], exact=self.exact
        )
        if results is not None:
            made = [TensorArray(each) for each in results]
        else:
            made = evaluate_at(op, coordinate, operands)
        return [self.held(each, dtype) for each, dtype in zip(made, dtypes, strict=True)]


def computing_on(
    where: Where, process: int = 0, *, exact: bool = False, tf32: bool = False
) -> Computing:
    """What computes there, for a process of this machine, with `exact` in float64. Every process on
    GPUs has one of its own, which multiplies fp32 in TF32 if asked to."""
    if where == "numpy":
        return NUMPY
    if where == "cuda":
        load_torch().cuda.set_device(process)
        return TensorComputing(f"cuda:{process}", exact, tf32)
    return TensorComputing(where, exact)


def carriers_on(where: Where) -> str:
    """What carries the messages of tensors that are there."""
    return GLOO_AND_NCCL if where == "cuda" else GLOO


def check_devices(where: Where, processes: int) -> None:
    """Raises `DistirError` if there are not as many GPUs as processes.

    It asks the driver's library and not the runtime, which would have to be asked again after a
    fork.
    """
    if where != "cuda":
        return
    found = load_torch().cuda.device_count()
    if not found:
        raise DistirError("PyTorch finds no NVIDIA GPU here; try --on cpu")
    if processes > found:
        raise DistirError(
            f"{processes} devices need as many GPUs, but there are {found} here; try fewer devices"
        )


__all__ = ["WHERE", "TensorComputing", "Where", "carriers_on", "check_devices", "computing_on"]

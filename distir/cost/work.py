"""The work of an op: its operations and bytes. `device.py` turns work into seconds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np

from distir.cost.amounts import Amount

__all__ = ["OpClass", "Work"]


class OpClass(str, Enum):
    """Classes of ops, which reach different fractions of a device's peak rates."""

    PRODUCT = "product"
    """Matrix products and convolutions, on the matrix units."""
    ATTENTION = "attention"
    """Fused attention, on the matrix units, with a softmax in between."""
    MEMORY = "memory"
    """All other ops: bound by the bytes that they move; their operations run on the vector
    units."""


@dataclass(frozen=True, slots=True)
class Work:
    """Operations and bytes of one op (or of several ops of one class) on one device.

    Numbers may be arrays with one element per plan. Work without operations and bytes (that of a
    view or a reshape) is not launched and takes no time.
    """

    kind: OpClass = OpClass.MEMORY
    flops: Amount = 0.0
    """Floating-point operations; a multiply and an add are two."""
    bytes_read: Amount = 0.0
    """Bytes read from device memory."""
    bytes_written: Amount = 0.0
    """Bytes written to device memory."""
    dtype: str = "fp32"
    """The type in which operations are done; it selects the peak rate."""
    launches: Amount = 1.0
    """Number of kernels that the op consists of."""

    @classmethod
    def nothing(cls) -> Work:
        """No work: the neutral element of addition."""
        return cls(launches=0.0)

    @property
    def bytes(self) -> Amount:
        """Bytes moved to and from device memory."""
        return self.bytes_read + self.bytes_written

    @property
    def kernels(self) -> Amount:
        """Number of kernels that are launched: 0 if there are no operations and no bytes."""
        busy = self.flops + self.bytes
        return self.launches * (np.greater(busy, 0.0) if isinstance(busy, np.ndarray) else busy > 0)

    def __add__(self, other: Work) -> Work:
        """Both works as one op: counts add up. The traffic of a value that the first op writes and
        the second reads is still counted.

        Raises `ValueError` if the works differ in class or type.
        """
        if other._is_nothing():
            return self
        if self._is_nothing():
            return other
        if (self.kind, self.dtype) != (other.kind, other.dtype):
            raise ValueError(
                f"cannot add {other.kind.value} work in {other.dtype} to {self.kind.value} work in "
                f"{self.dtype}: they run at different rates; add their seconds instead"
            )
        return Work(
            self.kind,
            self.flops + other.flops,
            self.bytes_read + other.bytes_read,
            self.bytes_written + other.bytes_written,
            self.dtype,
            self.kernels + other.kernels,
        )

    def __mul__(self, times: float) -> Work:
        """The work of `times` such ops."""
        return Work(
            self.kind,
            self.flops * times,
            self.bytes_read * times,
            self.bytes_written * times,
            self.dtype,
            self.launches * times,
        )

    def _is_nothing(self) -> bool:
        counts = (self.flops, self.bytes_read, self.bytes_written)
        return all(not isinstance(count, np.ndarray) and count == 0 for count in counts)

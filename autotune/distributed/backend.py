"""PyTorch, imported when it is needed."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
from functools import lru_cache
from typing import Any

from distir.errors import DistirError

INSTALL = "pip install 'distir[torch]'"


def torch_installed() -> bool:
    """Whether PyTorch can be imported."""
    return importlib.util.find_spec("torch") is not None


def load_torch() -> Any:
    """The module `torch` with `torch.distributed`. Raises `DistirError` if it is missing."""
    try:
        import torch  # pyright: ignore[reportMissingImports]
        import torch.distributed  # noqa: F401  # pyright: ignore[reportMissingImports]
        import torch.utils.weak  # noqa: F401  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise DistirError(
            f"real processes need PyTorch, which cannot be imported ({error}); try: {INSTALL}"
        ) from None
    module: Any = torch  # pyright: ignore[reportUnknownVariableType]
    return module


@lru_cache(maxsize=64)
def torch_dtype(dtype: Any) -> Any:
    """PyTorch's type of NumPy's."""
    import numpy as np

    return load_torch().from_numpy(np.zeros(0, dtype)).dtype


def load_torch_to_fork() -> Any:
    """As `load_torch`, with what gradients import at their first use: each process that is forked
    would import it anew. Raises `DistirError` if PyTorch is missing."""
    torch = load_torch()
    with contextlib.suppress(ImportError):
        importlib.import_module("torch.fx.experimental.symbolic_shapes")
    return torch


__all__ = ["load_torch", "load_torch_to_fork", "torch_dtype", "torch_installed"]

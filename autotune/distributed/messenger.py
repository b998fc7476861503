"""How a process talks to the others: process groups, collectives, and messages between ranks.

Arrays travel as bytes; only sums and maxima need their numbers. Every message is counted in the
element type of the plan, although NumPy computes in float64.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import numpy as np

from autotune.distributed.backend import load_torch
from distir.errors import DistirError
from distir.ir.core import Array
from distir.user_code import one_line

ProcessGroup = tuple[int, ...]
"""The processes of a group, ascending."""


@dataclass(frozen=True, slots=True)
class MessageSpan:
    """A collective, or the wait for a message, by the clock of the machine."""

    what: str
    start: float
    end: float


@dataclass(slots=True)
class Messenger:
    """Process `process` of `processes`.

    `note` is told what the process waits for, and an empty text when it goes on. `sent` has, per
    name (mesh axes, or `pp`), the bytes that took part in messages, as the cost model counts them:
    of a collective those of the full tensor. `spans` are the times in which it waited, in messages
    and collectives.
    """

    process: int
    processes: int
    note: Callable[[str], None] = lambda text: None
    sent: Counter[str] = field(default_factory=Counter[str])
    spans: list[MessageSpan] = field(default_factory=list[MessageSpan])
    _groups: dict[ProcessGroup, Any] = field(default_factory=dict[ProcessGroup, Any])
    _on_the_way: list[tuple[Any, Any]] = field(default_factory=list[tuple[Any, Any]])
    _torch: Any = field(default_factory=load_torch)

    def join(self, store: str, timeout_seconds: float) -> None:
        """Meets the other processes at a store: `file://` and a path, or `env://` as torchrun has
        it. Raises `DistirError` if that fails."""
        self.note("waits for all processes to begin")
        self._torch.set_num_threads(1)
        try:
            self._torch.distributed.init_process_group(
                "gloo",
                init_method=store,
                rank=self.process,
                world_size=self.processes,
                timeout=timedelta(seconds=timeout_seconds),
            )
        except (RuntimeError, ValueError) as error:
            reason = one_line(error)
            raise DistirError(f"{self.processes} processes could not meet: {reason}") from error

    def make_groups(self, groups: Sequence[ProcessGroup]) -> None:
        """Makes process groups, all of them before the first message and in the same order in every
        process: groups that are made when they are first needed wait for each other for ever. Those
        that are there are kept."""
        self.note("waits for all processes to form groups")
        for group in dict.fromkeys(groups):
            if len(group) > 1 and group not in self._groups:
                self._groups[group] = self._torch.distributed.new_group(list(group))

    def meet(self) -> None:
        """Waits until all processes are here."""
        self.note("waits for all processes to come as far")
        self._torch.distributed.barrier()

    def gather(self, value: Any) -> list[Any] | None:
        """The values of all processes, in their order, in process 0; None in the others."""
        every = [None] * self.processes if self.process == 0 else None
        self._torch.distributed.gather_object(value, every)
        return every

    def leave(self) -> None:
        """Ends the connection to all processes."""
        self._torch.distributed.destroy_process_group()

    # --- collectives ------------------------------------------------------------------------------

    def all_reduce(
        self, array: Array, group: ProcessGroup, reduction: str, name: str, itemsize: float
    ) -> Array:
        """The sum, or maximum, over a group."""
        tensor = self._torch.from_numpy(_numbers(array).copy())
        kinds = self._torch.distributed.ReduceOp
        kind = kinds.SUM if reduction == "sum" else kinds.MAX
        with self._waiting_in("all-reduce", group, name):
            self._torch.distributed.all_reduce(tensor, op=kind, group=self._groups[group])
        self.sent[name] += round(tensor.numel() * itemsize)
        return tensor.numpy().astype(array.dtype, copy=False).reshape(array.shape)

    def all_gather(
        self, array: Array, group: ProcessGroup, name: str, itemsize: float
    ) -> list[Array]:
        """The arrays of all processes of a group, in its order."""
        own = self._torch.from_numpy(_bytes(array))
        others = [self._torch.empty_like(own) for _ in group]
        with self._waiting_in("all-gather", group, name):
            self._torch.distributed.all_gather(others, own, group=self._groups[group])
        self.sent[name] += round(array.size * len(others) * itemsize)
        return [_array(each.numpy(), array.dtype, array.shape) for each in others]

    def all_to_all(
        self, parts: Sequence[Array], group: ProcessGroup, name: str, itemsize: float
    ) -> list[Array]:
        """From a part for each process of a group, in its order, the parts that they have for this
        process. All parts have one shape."""
        own = self._torch.from_numpy(np.concatenate([_bytes(part) for part in parts]))
        others = self._torch.empty_like(own)
        with self._waiting_in("all-to-all", group, name):
            self._torch.distributed.all_to_all_single(others, own, group=self._groups[group])
        self.sent[name] += round(sum(part.size for part in parts) * itemsize)
        received = np.split(others.numpy(), len(parts))
        return [_array(each, parts[0].dtype, parts[0].shape) for each in received]

    # --- messages ---------------------------------------------------------------------------------

    def send(self, arrays: Sequence[Array], process: int, name: str, size_bytes: float) -> None:
        """Sends arrays as one message, without waiting until they have arrived. `size_bytes` is
        what they take in the types of the plan. Messages to a process arrive in order."""
        buffer = self._torch.from_numpy(np.concatenate([_bytes(array) for array in arrays]))
        sending = self._torch.distributed.isend(buffer, dst=process)
        self._on_the_way.append((sending, buffer))  # the buffer must live as long
        self.sent[name] += round(size_bytes)

    def receive(
        self, templates: Sequence[tuple[Any, Sequence[int]]], process: int, what: str
    ) -> list[Array]:
        """Waits for a message of arrays with these dtypes and shapes."""
        sizes = [int(np.prod(shape)) * np.dtype(dtype).itemsize for dtype, shape in templates]
        buffer = self._torch.empty(sum(sizes), dtype=self._torch.uint8)
        with self._waiting(f"waits for process {process} to send {what}", what):
            self._torch.distributed.recv(buffer, src=process)
        pieces = np.split(buffer.numpy(), np.cumsum(sizes)[:-1])
        made = zip(pieces, templates, strict=True)
        return [_array(piece, dtype, shape) for piece, (dtype, shape) in made]

    def flush(self) -> None:
        """Waits until all that was sent has arrived."""
        self.note("waits for what it sent to be received")
        for sending, _ in self._on_the_way:
            sending.wait()
        self._on_the_way.clear()
        self.note("")

    def _waiting_in(
        self, what: str, group: ProcessGroup, name: str
    ) -> AbstractContextManager[None]:
        others = ", ".join(str(each) for each in group if each != self.process)
        label = f"{what} over {name}"
        return self._waiting(f"waits for {others} in {label}", label)

    @contextmanager
    def _waiting(self, note: str, label: str) -> Generator[None, None, None]:
        """Tells what is waited for, and writes down for how long."""
        self.note(note)
        start = time.perf_counter()
        yield
        self.spans.append(MessageSpan(label, start, time.perf_counter()))
        self.note("")


def _numbers(array: Array) -> Array:
    """The array in a type that messages can add up."""
    array = np.ascontiguousarray(array)
    return array.astype(np.uint8) if array.dtype == np.bool_ else array


def _bytes(array: Array) -> Array:
    return np.array(array, order="C").reshape(-1).view(np.uint8)


def _array(data: Array, dtype: Any, shape: Sequence[int]) -> Array:
    return np.frombuffer(data.tobytes(), dtype=dtype).reshape(shape)


__all__ = ["MessageSpan", "Messenger", "ProcessGroup"]

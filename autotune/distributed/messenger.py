"""How a process talks to the others: process groups, collectives, and messages between ranks.

Arrays are NumPy's or tensors. They travel as bytes; only sums and maxima need their numbers. Every
message is counted in the element type of the plan, although NumPy computes in float64.

Between any two processes, messages are received in the order in which they are sent, and all
processes of a group enter its collectives in one order: so they need no tags, which NCCL does not
have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from autotune.distributed.backend import load_torch
from autotune.distributed.clock import Clock, HostClock
from autotune.distributed.tensors import array_like, tensor_of
from distir.errors import DistirError
from distir.ir.core import Array
from distir.user_code import one_line

GLOO, GLOO_AND_NCCL = "gloo", "cpu:gloo,cuda:nccl"
"""What carries messages: gloo alone, or NCCL those of tensors on GPUs."""

ProcessGroup = tuple[int, ...]
"""The processes of a group, ascending."""


@dataclass(frozen=True, slots=True)
class MessageSpan:
    """A collective, or the wait for a message: moments of the messenger's clock."""

    what: str
    start: Any
    end: Any


@dataclass(slots=True)
class Messenger:
    """Process `process` of `processes`.

    `note` is told what the process waits for, and an empty text when it goes on. `carriers` are
    `GLOO` or `GLOO_AND_NCCL`. `sent` has, per
    name (mesh axes, or `pp`), the bytes that took part in messages, as the cost model counts them:
    of a collective those of the full tensor. `spans` are the times in which it waited, in messages
    and collectives.
    """

    process: int
    processes: int
    note: Callable[[str], None] = lambda text: None
    carriers: str = GLOO
    clock: Clock = field(default_factory=HostClock)
    sent: Counter[str] = field(default_factory=Counter[str])
    spans: list[MessageSpan] = field(default_factory=list[MessageSpan])
    _groups: dict[ProcessGroup, Any] = field(default_factory=dict[ProcessGroup, Any])
    _channels: dict[tuple[int, int], Any] = field(default_factory=dict[tuple[int, int], Any])
    _on_the_way: list[tuple[Any, Any]] = field(default_factory=list[tuple[Any, Any]])
    _torch: Any = field(default_factory=load_torch)

    def join(self, store: str, timeout_seconds: float) -> None:
        """Meets the other processes at a store: `file://` and a path, or `env://` as torchrun has
        it. Raises `DistirError` if that fails."""
        self.note("waits for all processes to begin")
        self._torch.set_num_threads(1)
        try:
            self._torch.distributed.init_process_group(
                self.carriers,
                init_method=store,
                rank=self.process,
                world_size=self.processes,
                timeout=timedelta(seconds=timeout_seconds),
            )
        except (RuntimeError, ValueError) as error:
            reason = one_line(error)
            raise DistirError(f"{self.processes} processes could not meet: {reason}") from error

    def make_groups(
        self, groups: Sequence[ProcessGroup], channels: Sequence[tuple[int, int]] = ()
    ) -> None:
        """Makes process groups, all of them before the first message and in the same order in every
        process: groups that are made when they are first needed wait for each other for ever. Those
        that are there are kept.

        `channels` are pairs (sender, receiver). For NCCL each is a group of its own: what two
        processes send each other would otherwise wait in one queue, each behind its own message.
        """
        self.note("waits for all processes to form groups")
        for group in dict.fromkeys(groups):
            if len(group) > 1 and group not in self._groups:
                self._groups[group] = self._torch.distributed.new_group(list(group))
        for channel in dict.fromkeys(channels if self.carriers == GLOO_AND_NCCL else ()):
            if channel not in self._channels:
                self._channels[channel] = self._torch.distributed.new_group(sorted(channel))

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
        own = tensor_of(array)
        dtype = self._torch.uint8 if own.dtype == self._torch.bool else own.dtype
        tensor = own.to(dtype, copy=True, memory_format=self._torch.contiguous_format)
        kinds = self._torch.distributed.ReduceOp
        kind = kinds.SUM if reduction == "sum" else kinds.MAX
        with self._waiting_in("all-reduce", group, name):
            self._torch.distributed.all_reduce(tensor, op=kind, group=self._groups[group])
        self.sent[name] += round(tensor.numel() * itemsize)
        return array_like(tensor.to(own.dtype), array)

    def all_gather(
        self, array: Array, group: ProcessGroup, name: str, itemsize: float
    ) -> list[Array]:
        """The arrays of all processes of a group, in its order."""
        own = tensor_of(array).contiguous()
        others = [self._torch.empty_like(own) for _ in group]
        with self._waiting_in("all-gather", group, name):
            self._torch.distributed.all_gather(others, own, group=self._groups[group])
        self.sent[name] += round(own.numel() * len(others) * itemsize)
        return [array_like(each, array) for each in others]

    def all_to_all(
        self, parts: Sequence[Array], group: ProcessGroup, name: str, itemsize: float
    ) -> list[Array]:
        """From a part for each process of a group, in its order, the parts that they have for this
        process. All parts have one shape."""
        own = self._torch.stack([tensor_of(part) for part in parts])
        others = self._torch.empty_like(own)
        with self._waiting_in("all-to-all", group, name):
            self._torch.distributed.all_to_all_single(others, own, group=self._groups[group])
        self.sent[name] += round(own.numel() * itemsize)
        return [array_like(each, parts[0]) for each in others]

    # --- messages ---------------------------------------------------------------------------------

    def send(self, arrays: Sequence[Array], process: int, name: str, size_bytes: float) -> None:
        """Sends arrays as one message, without waiting until they have arrived. `size_bytes` is
        what they take in the types of the plan. Messages to a process arrive in order."""
        buffer = self._torch.cat([_bytes(tensor_of(array)) for array in arrays])
        sending = self._torch.distributed.isend(
            buffer, dst=process, group=self._channels.get((self.process, process))
        )
        self._on_the_way.append((sending, buffer))  # the buffer must live as long
        self.sent[name] += round(size_bytes)

    def receive(self, templates: Sequence[Array], process: int, what: str) -> list[Array]:
        """Waits for a message of arrays like these."""
        like = [tensor_of(each) for each in templates]
        sizes = [each.numel() * each.element_size() for each in like]
        buffer = self._torch.empty(sum(sizes), dtype=self._torch.uint8, device=like[0].device)
        with self._waiting(f"waits for process {process} to send {what}", what):
            self._torch.distributed.recv(
                buffer, src=process, group=self._channels.get((process, self.process))
            )
        pieces = self._torch.split(buffer, sizes)
        made = zip(pieces, like, templates, strict=True)
        return [array_like(_numbers(piece, each), template) for piece, each, template in made]

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
        start = self.clock.now()
        yield
        self.spans.append(MessageSpan(label, start, self.clock.now()))
        self.note("")


def packed(arrays: Sequence[Array]) -> Array:
    """Arrays of one type as one array."""
    if len(arrays) == 1:
        return arrays[0]
    flat = [tensor_of(each).reshape(-1) for each in arrays]
    return array_like(load_torch().cat(flat), arrays[0])


def unpacked(array: Array, like: Sequence[Array]) -> list[Array]:
    """The arrays that `packed` made one of, given arrays of their shapes."""
    if len(like) == 1:
        return [array]
    pieces = load_torch().split(tensor_of(array), [each.size for each in like])
    return [
        array_like(piece.reshape(each.shape), each)
        for piece, each in zip(pieces, like, strict=True)
    ]


def _bytes(tensor: Any) -> Any:
    contiguous = tensor.contiguous()
    return contiguous.reshape(-1).view(load_torch().uint8)


def _numbers(data: Any, like: Any) -> Any:
    """Bytes as a tensor like another; a copy, because bytes in a row do not begin where numbers
    may."""
    return data.clone().view(like.dtype).reshape(like.shape)


__all__ = [
    "GLOO",
    "GLOO_AND_NCCL",
    "MessageSpan",
    "Messenger",
    "ProcessGroup",
    "packed",
    "unpacked",
]

"""Values of a block that wait for its backward pass in the memory of the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from distir.ir.core import Node, Op, Part, Value
from distir.ops.collective import Shard, Sharded
from distir.ops.host import Landed, ToDevice, ToHost
from distir.ops.tensor import Slice, Split
from distir.plan.model import BlockProgram, HostedValues, fresh_values, with_values
from distir.transforms.bucket import bucketed
from distir.transforms.moves import Local

_PARTS = (Shard, Slice, Split)
"""Views of a part alone of what they show."""


def with_values_on_host(program: BlockProgram) -> BlockProgram:
    """The program whose forward pass copies to the host what the backward pass reads, each value as
    soon as it is made, and whose backward pass has it brought back.

    Of values that show one another, one is copied. What is not the block's own stays: parameters,
    and what it is given by the block before and hands on to the next.
    """
    views = _Views.of(program.forward)
    own = {*program.inputs, *(value for node in program.forward for value in node.results)}
    passed = {*program.inputs} & {*program.outputs}
    handed = {*program.input_gradients, *program.locals(u.gradient for u in program.parameters)}
    saved: dict[Value, Local] = {}
    for local in program.placed.saved:
        value = program.values[local]
        root = views.storage(value)
        if root in own and root not in passed and value not in handed:
            saved[value] = local
    if not saved:
        return program
    copied = list(dict.fromkeys(map(views.copied, saved)))
    there, back = fresh_values(copied), fresh_values(copied)
    again: list[Node] = []
    for value in saved:
        for node in views.path(value):
            if node.result not in back:
                back |= fresh_values(node.results)
                again += with_values([node], back)
    chains = [
        [Node(ToDevice(), (there[value],), (back[value],), part=Part.STATE)] for value in copied
    ]
    hosted = HostedValues(
        saved=frozenset(saved),
        copies=tuple(there.values()),
        landing=Node(Landed(), (*copied, *there.values()), ()),
        returns=tuple(bucketed(chains)),
        without=program,
    )
    return replace(
        program,
        values={
            **program.values,
            **{Local(local.value, local.layout): back[value] for value, local in saved.items()},
        },
        forward=_with_copies(program, there),
        computed_backward=(
            *again,
            *with_values(program.computed_backward, {value: back[value] for value in saved}),
        ),
        hosted=hosted,
    )


def _with_copies(program: BlockProgram, there: Mapping[Value, Value]) -> tuple[Node, ...]:
    """The forward pass, in which every value is copied as soon as it is made."""

    def copies(values: Sequence[Value]) -> list[Node]:
        return [Node(ToHost(), (value,), (there[value],)) for value in values if value in there]

    found = copies(program.inputs)
    for node in program.forward:
        found += [node, *copies(node.results)]
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Views:
    """By view the node that shows it."""

    makers: Mapping[Value, Node]

    @classmethod
    def of(cls, nodes: Sequence[Node]) -> _Views:
        """The views that nodes make."""
        return cls({v: node for node in nodes if _shown(node.op).is_view for v in node.results})

    def storage(self, value: Value) -> Value:
        """The value whose memory a value shows."""
        while value in self.makers:
            value = self.makers[value].operands[0]
        return value

    def copied(self, value: Value) -> Value:
        """The value of which a copy is enough, without parts that nobody asks for."""
        path = self.path(value)
        return path[0].operands[0] if path else value

    def path(self, value: Value) -> list[Node]:
        """The nodes that make a value from the one that is `copied`."""
        found: list[Node] = []
        while value in self.makers and not isinstance(_shown(self.makers[value].op), _PARTS):
            found.insert(0, self.makers[value])
            value = found[0].operands[0]
        return found


def _shown(op: Op) -> Op:
    return op.op if isinstance(op, Sharded) else op


__all__ = ["with_values_on_host"]

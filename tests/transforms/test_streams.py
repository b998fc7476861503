"""Blocks of models in which several activations go through all layers, and of those whose layers
make what they scale their activations with."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import combinations

import pytest

from distir import Strategy, Workload
from distir.execute.verify import Verifier
from distir.importers.load import LoadedModel
from distir.ir import Builder, Function, Node, Value
from distir.ops.activations import Relu
from distir.ops.arithmetic import Add, Mul, Sum
from distir.ops.linalg import MatMul
from distir.ops.norm import LayerNormalization
from distir.ops.tensor import Concat, Reshape, Split
from distir.transforms.streams import narrow_sections

BATCH, WIDTH, FFN = 11, 48, 96
LENGTHS = (23, 7, 5)
"""Of the streams: of an image, a text, and one more."""


class Streams:
    """A function to which layers of several streams are added, scaled by what is made of a time."""

    def __init__(self, streams: int, shared_time: bool) -> None:
        self.builder = Builder("streams")
        self._parameters = 0
        self.times = self.builder.input("times", (BATCH, 32))
        self.time = self._time() if shared_time else None
        inputs = [self.builder.input(f"x{n}", (BATCH, LENGTHS[n], 40)) for n in range(streams)]
        self.streams = [self.product(x, WIDTH) for x in inputs]

    def product(self, x: Value, columns: int) -> Value:
        self._parameters += 1
        shape = (x.type.shape[-1], columns)
        return self.builder.add(MatMul(), x, self.builder.parameter(f"p{self._parameters}", shape))

    def norm(self, x: Value) -> Value:
        self._parameters += 1
        names = (f"scale{self._parameters}", f"shift{self._parameters}")
        return self.builder.add(
            LayerNormalization(), x, *(self.builder.parameter(name, (WIDTH,)) for name in names)
        )

    def _time(self) -> Value:
        return self.product(self.builder.add(Relu(), self.product(self.times, 64)), 64)

    def conditions(self, number: int) -> Sequence[Value]:
        """What one layer scales a stream with."""
        time = self.time or self._time()
        made = self.product(self.builder.add(Relu(), time), number * WIDTH)
        parts = self.builder.apply(Split(-1, (WIDTH,) * number), made)
        return [self.builder.add(Reshape((BATCH, 1, WIDTH)), part) for part in parts]

    def layer(self, kept: int) -> None:
        """All streams together, then each alone; only the first `kept` go on."""
        scales = [self.conditions(4) for _ in self.streams]
        normed = [
            self.builder.add(Mul(), self.norm(x), own[0])
            for x, own in zip(self.streams, scales, strict=True)
        ]
        every = [self.product(x, WIDTH) for x in normed]
        both = self.builder.add(Concat(1), *every) if len(every) > 1 else every[0]
        lengths = tuple(x.type.shape[1] for x in self.streams)
        mixed = self.builder.add(Relu(), both)
        parts = self.builder.apply(Split(1, lengths), mixed) if len(lengths) > 1 else [mixed]
        own = zip(self.streams[:kept], parts[:kept], scales[:kept], strict=True)
        self.streams = [self._alone(*each) for each in own]

    def _alone(self, x: Value, mixed: Value, scales: Sequence[Value]) -> Value:
        add, scale = self.builder.add, Mul()
        x = add(Add(), x, add(scale, self.product(mixed, WIDTH), scales[1]))
        inner = add(Relu(), self.product(add(scale, self.norm(x), scales[2]), FFN))
        return add(Add(), x, add(scale, self.product(inner, WIDTH), scales[3]))

    def head(self) -> Function:
        joined = self.builder.add(Concat(1), *self.streams) if self.streams[1:] else self.streams[0]
        return self.builder.build([self.product(self.norm(joined), 36)])


def of_streams(streams: int, layers: int, one_ends: bool, shared_time: bool = True) -> Function:
    """Layers of several streams, one of which may end in the last layer."""
    made = Streams(streams, shared_time)
    for _ in range(layers - 1):
        made.layer(streams)
    made.layer(kept=streams - one_ends)
    return made.head()


def workload(function: Function) -> Workload:
    return Workload(model=LoadedModel("streams", function), batch_size=8)


@pytest.mark.parametrize("one_ends", [False, True])
@pytest.mark.parametrize("layers", [4, 7])
@pytest.mark.parametrize("streams", [2, 3])
def test_layers_of_several_streams_are_blocks(streams: int, layers: int, one_ends: bool) -> None:
    found = workload(of_streams(streams, layers, one_ends))
    assert found.num_layers == layers
    assert len(found.program.blocks.blocks) >= layers


@pytest.mark.parametrize("shared_time", [False, True])
@pytest.mark.parametrize("layers", [4, 7])
def test_layers_that_make_their_scales_are_blocks(layers: int, shared_time: bool) -> None:
    """The first layer like the others."""
    found = workload(of_streams(1, layers, False, shared_time))
    assert found.num_layers == layers


@pytest.mark.parametrize(
    "function",
    [
        of_streams(2, 4, False),
        of_streams(2, 4, True),
        of_streams(3, 4, False),
        of_streams(1, 4, False, shared_time=False),
    ],
)
def test_streams_cut_into_stages_compute_what_one_device_does(function: Function) -> None:
    strategy = Strategy(dp=2, tp=2, pp=4, microbatches=2)
    result = Verifier(workload(function)).verify(strategy)
    assert result.passed, result.first_difference


# --- laws of narrow places -----------------------------------------------------------------------


def random_nodes(chance: random.Random) -> tuple[list[Node], set[Value]]:
    """A few ops, each of which reads some of what was made before, and the last all that nothing
    reads; and all that they make or read."""
    builder = Builder("random")
    values = [builder.input("x", (2, 3))]
    for _ in range(chance.randrange(4, 9)):
        read = chance.sample(values[-4:], chance.randint(1, min(3, len(values))))
        values.append(builder.add(Sum(), *read))
    function = builder.build([values[-1]])
    read_once = {value for node in function.nodes for value in node.operands}
    builder.add(Sum(), *(value for value in values if value not in read_once))
    nodes = list(builder.nodes)
    return nodes, {v for node in nodes for v in (*node.operands, *node.results)}


def live_after(done: set[Node], nodes: Sequence[Node]) -> int:
    """How many values are live once these ops are done."""
    makers = {value: node for node in nodes for value in node.results}
    read = {value for node in nodes if node not in done for value in node.operands}
    return sum(value not in makers or makers[value] in done for value in read)


def places(nodes: Sequence[Node], last: Node) -> Iterator[set[Node]]:
    """All that may be done before something else, without the `last` op."""
    makers = {value: node for node in nodes for value in node.results}
    others = [node for node in nodes if node is not last]
    for number in range(1, len(nodes)):
        for chosen in map(set, combinations(others, number)):
            before = {makers[v] for node in chosen for v in node.operands if v in makers}
            if before <= chosen:
                yield chosen


@pytest.mark.parametrize("seed", range(60))
def test_sections_end_at_the_narrowest_places_ahead(seed: int) -> None:
    """Ops come after those that they read from. Behind a section, no place before the last op that
    reads as many values as may be live has fewer live."""
    chance = random.Random(seed)
    nodes, activations = random_nodes(chance)
    width = chance.randint(1, 3)
    sections = narrow_sections(nodes, activations, (), width)
    ordered = [node for section in sections for node in section]
    assert sorted(map(nodes.index, ordered)) == [*range(len(nodes))]
    joining = [node for node in nodes if len({*node.operands}) >= width]
    every = list(places(nodes, last=(joining or nodes)[-1]))
    done: set[Node] = set()
    for section in sections[:-1]:
        done |= {*section}
        assert done in every
        live = live_after(done, nodes)
        assert live <= width
        assert all(live_after(place, nodes) >= live for place in every if done < place)

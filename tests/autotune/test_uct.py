"""Tree search over decisions: what it learns of words of axis lists."""

from __future__ import annotations

from autotune.samplers.uct import STOP, UctSampler, decisions_of
from distir.strategy import Strategy
from search_spaces import listed_space

WORDS = ("heads", "ffn", "hidden", "batch", "sequence", "vocabulary")
GAIN = {"heads": 3.0, "ffn": 2.0, "vocabulary": 1.0}
"""What each word takes off the cost of a list; the others add to it."""


def test_a_list_is_one_decision_per_word_and_one_that_stops() -> None:
    path = decisions_of("axes", "cp=sequence;tp=heads,ffn")
    assert path == (
        ("axes cp", "sequence"),
        ("axes tp", "heads"),
        ("axes tp", "ffn"),
        ("axes", STOP),
    )
    assert decisions_of("tp", 4) == (("tp", 4),)


def test_words_that_pay_are_found_in_a_quarter_of_the_space() -> None:
    lists = [(a, b, c) for a in WORDS for b in WORDS for c in WORDS if len({a, b, c}) == 3]
    lists += [(a, b) for a, b, _ in lists] + [(a,) for a, _, _ in lists]
    space = listed_space(
        [Strategy(tp=4, axes=f"tp={','.join(each)}") for each in dict.fromkeys(lists)]
    )
    best, reached = 10.0 - sum(GAIN.values()), 0
    for seed in range(40):
        sampler, found = UctSampler(space, seed), float("inf")
        for _ in range(space.count() // 4):
            strategy = sampler.ask()
            assert strategy is not None
            cost = 10.0 - sum(GAIN.get(word, -1.0) for word in strategy.axis_lists["tp"])
            sampler.tell(strategy, cost)
            found = min(found, cost)
        reached += found == best
    assert reached >= 36


def test_what_a_list_is_worth_on_one_mesh_is_tried_first_on_another() -> None:
    texts = [f"tp={a},{b}" for a in WORDS for b in WORDS if a != b]
    space = listed_space([Strategy(tp=tp, axes=text) for tp in (2, 4) for text in texts])
    for seed in range(10):
        sampler = UctSampler(space, seed)
        for text in texts:
            sampler.tell(Strategy(tp=2, axes=text), 1.0 if text == "tp=hidden,ffn" else 2.0)
        assert sampler.ask() == Strategy(tp=4, axes="tp=hidden,ffn")


def test_meshes_that_split_alike_are_all_proposed() -> None:
    """A mesh axis without words is told from others, and from none."""
    texts = ["", "data:2=;model:2=", "data:2=;model:2=heads", "data:4=;model:2=heads"]
    space = listed_space([Strategy(tp=tp, axes=text) for text in texts for tp in (4, 8)])
    for seed in range(10):
        sampler = UctSampler(space, seed)
        proposed: list[Strategy | None] = []
        for cost in range(space.count()):
            proposed.append(strategy := sampler.ask())
            assert strategy is not None
            sampler.tell(strategy, float(cost))
        assert set(proposed) == set(space.enumerate())


def test_what_does_not_fit_ranks_behind_what_does() -> None:
    space = listed_space([Strategy(tp=tp) for tp in (1, 2, 4)])
    sampler = UctSampler(space, 0)
    for tp, cost, violation in ((1, 1.0, 0.5), (2, 5.0, 0.0), (4, 2.0, 0.1)):
        sampler.tell(Strategy(tp=tp), cost, violation)
    assert sampler.ask() is None
    best = [sampler.rank_behind((("tp", tp),)) for tp in (2, 4, 1)]
    assert best == sorted(best, reverse=True)
    assert len(set(best)) == 3

"""Rerouted tokens and their share of the mismatch, computed by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

import numpy as np
import pytest

from rcdiag.statistics.routing import experts_per_layer, rerouted_layers, routing_sums
from rcdiag.table.trajectories import Ragged, Trajectories


def ragged(lists: list[list[int]]) -> Ragged:
    lengths = [len(one) for one in lists]
    return Ragged(
        np.array(list(chain.from_iterable(lists))), np.concatenate([[0], np.cumsum(lengths)])
    )


def draw(tokens: int, layers: int, experts: int, top_k: int, dense: int = 0) -> Ragged:
    random = np.random.default_rng(0)
    lists = []
    for _ in range(tokens):
        routed = [random.permutation(experts)[:top_k] for _ in range(layers)]
        lists.append([0] * (dense * top_k) + np.concatenate(routed).tolist())
    return ragged(lists)


@pytest.mark.parametrize(
    ("layers", "experts", "top_k", "dense"),
    [(4, 8, 2, 0), (6, 128, 8, 0), (5, 16, 1, 0), (3, 64, 6, 1), (1, 8, 4, 0)],
)
def test_the_number_of_experts_of_a_layer_is_inferred_from_the_lists(layers, experts, top_k, dense):
    assert experts_per_layer(draw(300, layers, experts, top_k, dense)) == top_k


def test_a_few_lists_are_not_enough_to_infer_it():
    assert experts_per_layer(draw(10, 4, 8, 2)) is None
    assert experts_per_layer(ragged([[], []])) is None


def test_the_order_of_experts_within_a_layer_does_not_matter():
    one = ragged([[0, 1, 2, 3], [0, 1, 2, 3], [], [0, 1, 2, 3]])
    other = ragged([[1, 0, 3, 2], [0, 1, 2, 4], [0, 1, 2, 3], [0, 1]])
    known, differ = rerouted_layers(one, other, top_k=2)
    assert known.tolist() == [True, True, False, False]
    assert differ.tolist() == [[False, False], [False, True], [False, False], [False, False]]


def rows() -> Trajectories:
    """Make two rows of a prompt, 4 and 3 tokens; the last of the first row is masked."""
    same, moved = [0, 1, 2, 3], [0, 1, 2, 5]
    both = [0, 4, 2, 5]
    return Trajectories(
        first_row=0,
        response_ids=Ragged(np.arange(7, dtype=np.int32), np.array([0, 4, 7])),
        mask=np.array([1, 1, 1, 0, 1, 1, 1], bool),
        log_probs={
            "rollout": np.zeros(7),
            "old": np.array([0.1, 0.2, 0.3, 9.0, 0.4, 0.5, 0.6]),
            "r3": np.array([0.1, 0.0, 0.1, 9.0, 0.4, 0.1, np.nan]),
        },
        group=np.array([7, 7], np.uint64),
        token_lists={
            "rollout_routed_experts": ragged([same, same, same, [], same, same, []]),
            "old_routed_experts": ragged([same, moved, same, same, both, [], same]),
        },
    )


def test_a_token_counts_as_rerouted_by_the_experts_of_its_predecessor():
    """Known at tokens 1, 2 of the first row and 1 of the second; rerouted are 2 and 1."""
    sums = routing_sums(rows(), "rollout", "old", 2, [])
    assert sums.routed.sums.shape == (1, 6)
    expected = [3, 2, 0.2**2 + 0.3**2 + 0.5**2, 0.3**2 + 0.5**2, 1, 2]
    np.testing.assert_allclose(sums.routed.sums[0], expected)


def test_a_replay_is_compared_on_the_tokens_that_it_has():
    sums = routing_sums(rows(), "rollout", "old", None, ["r3"])
    assert sums.routed is None
    own = 0.1**2 + 0.2**2 + 0.3**2 + 0.4**2 + 0.5**2
    replayed = 0.1**2 + 0.0 + 0.1**2 + 0.4**2 + 0.1**2
    # The last tokens of both rows have no experts, since no forward pass reads them.
    np.testing.assert_allclose(sums.replayed["r3"].sums, [[5, own, replayed, 0]])


def test_tokens_without_recorded_experts_are_counted():
    made = rows()
    lists = made.token_lists["rollout_routed_experts"]
    lengths = lists.lengths.copy()
    lengths[[0, 4]] = 0
    some = Ragged(lists.values[np.repeat(lengths > 0, lists.lengths)], np.cumsum([0, *lengths]))
    made = replace(made, token_lists={"rollout_routed_experts": some})
    assert routing_sums(made, "rollout", "old", None, ["r3"]).replayed["r3"].sums[0, 3] == 2

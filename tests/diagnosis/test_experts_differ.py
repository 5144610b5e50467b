"""The finding on experts, on tables whose numbers are known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import rcdiag
from rcdiag.pages.figures import FIGURES, applying
from rcdiag.table.opening import open_table
from rcdiag.table.writer import TableWriter
from rcdiag.usecases.score import score

ROWS, TOKENS, LAYERS, TOP_K, EXPERTS = 40, 12, 3, 2, 8
LISTS = pa.list_(pa.list_(pa.uint16()))


def write(path: Path, *, rerouted: float = 0.3, replayed: float = 0.25) -> Path:
    """Write rows whose log-ratios are 0.01 at tokens with the same experts, else 0.2.

    The replay keeps `replayed` of each log-ratio; a row in ten has no experts at all.
    """
    random = np.random.default_rng(0)
    shape = (ROWS, TOKENS, LAYERS, TOP_K)
    rollout = random.permuted(np.tile(np.arange(EXPERTS), (*shape[:3], 1)), axis=3)[..., :TOP_K]
    old, moved = rollout[..., ::-1].copy(), random.random((ROWS, TOKENS)) < rerouted
    spare = [(set(range(EXPERTS)) - set(one)).pop() for one in rollout[moved][:, 1].tolist()]
    old[moved, 1, 0] = spare
    before = np.roll(moved, 1, axis=1)
    before[:, 0] = False
    sign = random.choice([-1.0, 1.0], (ROWS, TOKENS))
    log_ratio = sign * np.where(before, 0.2, 0.01)
    log_prob = -0.3 - random.exponential(1.0, (ROWS, TOKENS))
    empty = [[[]] * TOKENS if row % 10 == 0 else None for row in range(ROWS)]

    def lists(experts: np.ndarray) -> pa.Array:
        flat = experts.reshape(ROWS, TOKENS, -1).tolist()
        return pa.array([none or one for none, one in zip(empty, flat, strict=True)], LISTS)

    table = pa.table(
        {
            "response_ids": pa.array(random.integers(0, 99, (ROWS, TOKENS)).tolist()),
            "rollout_log_probs": log_prob.tolist(),
            "old_log_probs": (log_prob + log_ratio).tolist(),
            "r3_log_probs": (log_prob + replayed * log_ratio).tolist(),
            "rollout_routed_experts": lists(rollout),
            "old_routed_experts": lists(old),
        }
    )
    about = {"policies": {"r3": {"backend": "hf", "options": {"experts": "rollout"}}}}
    with TableWriter(path, table.schema, about) as writer:
        writer.write(table)
    return path


def test_shares_and_what_a_replay_removes(tmp_path):
    table = open_table(write(tmp_path / "t.parquet"))
    result = score(table)
    changes, (replay,) = result.routing.rerouting, result.routing.replays.values()
    assert changes.routed_tokens == ROWS * 0.9 * (TOKENS - 1)
    assert changes.experts_chosen == TOP_K
    assert [layer.value for layer in changes.rerouted_by_layer][::2] == [0.0, 0.0]
    assert changes.rerouted.value == changes.rerouted_by_layer[1].value
    assert changes.rerouted.low < 0.3 < changes.rerouted.high
    np.testing.assert_allclose(changes.k2_same_experts.value, 0.01**2 / 2)
    np.testing.assert_allclose(changes.k2_rerouted.value, 0.2**2 / 2)
    np.testing.assert_allclose(replay.removed.value, 1 - 0.25**2)
    cause = result.diagnosis.causes[0]
    assert cause.slug == "moe-routing"
    assert "tokens of the same experts by 0.01, no more than by rounding" in cause.message
    assert rcdiag.compare(table).diagnosis.causes == result.diagnosis.causes
    share = changes.rerouted_share_of_squares.value
    np.testing.assert_allclose(cause.evidence[-1]["share"], share, rtol=1e-5)
    (finding,) = [one for one in result.findings if one.slug == "experts-differ"]
    assert finding.message.startswith("36% of the tokens took other experts in old than in rollout")
    assert "the experts of rollout in r3 remove 0.93" in finding.message
    assert finding.evidence["removed"] == {"r3": replay.removed.value}


def test_equal_experts_are_reported_as_equal(tmp_path):
    result = score(open_table(write(tmp_path / "t.parquet", rerouted=0.0)))
    (finding,) = [one for one in result.findings if one.slug == "experts-differ"]
    assert finding.message.startswith("rollout and old took the same experts at all 396 tokens")


def test_a_table_without_experts_has_no_finding(tmp_path):
    path = write(tmp_path / "t.parquet")
    table = pq.read_table(path).drop_columns(["old_routed_experts", "r3_log_probs"])
    pq.write_table(table, path)
    result = score(open_table(path))
    assert result.routing is None
    assert not [one for one in result.findings if one.slug == "experts-differ"]


def test_the_figure_has_a_dot_for_each_layer(tmp_path):
    result = score(open_table(write(tmp_path / "t.parquet")))
    spec = FIGURES["experts-by-layer"]
    assert spec in list(applying(result))
    layers = result.routing.rerouting.rerouted_by_layer
    chart = spec.chart(result)
    assert chart.columns[1] == "share of tokens"
    assert [row[1] for row in chart.rows] == [layer.value for layer in layers]
    assert "36% of the tokens" in spec.caption(result)

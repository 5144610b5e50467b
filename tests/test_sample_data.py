"""The shipped data match their README, and were made by the shipped policies."""

from __future__ import annotations

import importlib
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from rcdiag.engines import BACKENDS
from rcdiag.engines.notation import parse_policy
from rcdiag.results import ScoreResult
from rcdiag.table.opening import open_table
from rcdiag.table.stream import decode
from rcdiag.table.trajectories import Trajectories
from rcdiag.usecases.score import score
from tests.builders import first_batch
from tests.engine_models import rcdiag_alone, scored

DATA = Path("sample_data")
TABLES = ["rollouts", "multi_turn", "stale", "temperature", "moe"]


def flat(table: str, column: str) -> np.ndarray:
    return scored(DATA / f"{table}.parquet", column)


def lengths(table: str, column: str = "response_ids") -> np.ndarray:
    return np.array([len(row) for row in pq.read_table(DATA / f"{table}.parquet")[column]])


@cache
def result_of(table: str) -> ScoreResult:
    return score(open_table(DATA / f"{table}.parquet"))


def test_the_rollouts_are_large_and_their_lengths_spread():
    result = lengths("rollouts")
    assert len(result) >= 2000
    assert result.sum() >= 200_000
    assert result.max() >= 20 * result.min()


def test_every_step_holds_32_prompts_with_8_samples():
    rows = pq.read_table(DATA / "rollouts.parquet", columns=["step", "group_id"]).to_pydict()
    steps = np.array(rows["step"])
    assert len(np.unique(steps)) >= 8
    for step in np.unique(steps):
        groups = np.array(rows["group_id"])[steps == step]
        assert np.array_equal(np.unique(groups, return_counts=True)[1], np.full(32, 8))


def test_the_sample_data_are_small():
    sizes = [path.stat().st_size for path in DATA.rglob("*") if path.is_file()]
    assert sum(sizes) < 25e6


@pytest.mark.parametrize("table", TABLES)
def test_every_table_is_scored_from_recorded_log_probs(table):
    result = result_of(table)
    assert result.num_sequences >= 256
    values = [value.value for value in result.mismatch.values()]
    assert all(value is not None and np.isfinite(value) for value in values)
    assert set(result.scoring) == {"rollout", "old"}


def test_the_calculator_is_masked_in_the_middle_of_responses():
    rows = pq.read_table(DATA / "multi_turn.parquet", columns=["response_mask"]).to_pylist()
    masks = [np.array(row["response_mask"]) for row in rows]
    assert all(mask[0] == 1 for mask in masks)
    assert sum((mask == 0).any() for mask in masks) > 0.9 * len(masks)
    masked = np.concatenate(masks) == 0
    assert np.isnan(flat("multi_turn", "rollout_log_probs")[masked]).all()


def test_stale_rollouts_are_farther_away_than_fresh_ones():
    fresh, stale = (result_of(table).mismatch["k3_kl"] for table in ("rollouts", "stale"))
    assert stale.low is not None
    assert fresh.high is not None
    assert stale.low > 10 * fresh.high


def test_the_samplers_own_log_probs_are_those_that_sampled():
    """With the exact sampler, E[ratio] = 1 and kappa = 1."""
    result = result_of("rollouts").mismatch
    assert result["ratio_mean_z"].level == "ok"
    for name in ("ratio_mean", "ratio_mean_seq", "kappa"):
        assert result[name].low <= 1.0 <= result[name].high, name


def test_log_probs_recorded_before_the_temperature_did_not_sample():
    """Sampled at 0.7 and scored at 0.7 by the trainer: tokens come from the target, kappa < 0."""
    result = result_of("temperature")
    assert result.mismatch["ratio_mean_z"].level == "error"
    assert result.mismatch["ratio_mean"].low > 1.0
    assert result.mismatch["kappa"].high < 0.0
    assert result.findings[0].slug == "behavior-is-not-the-sampler"
    table = open_table(DATA / "temperature.parquet")
    reverse = score(table, behavior="old", target="rollout").mismatch
    assert reverse["ratio_mean"].low < 1.0 < reverse["ratio_mean"].high
    assert reverse["ratio_mean_z"].level == "unknown"  # the file says that `rollout` sampled


def test_kept_sets_are_named_and_a_replay_over_them_repairs_the_ratio():
    """E[ratio] is the kept mass over the whole vocabulary, and 1 over the kept ids."""
    rows = decode(first_batch(DATA / "top_p.parquet"), ("rollout", "old"))
    spec = parse_policy("kept=hf:float32,support=rollout", str(DATA / "policy" / "step_8"))
    first = first_rows(rows, 16)
    kept = (
        BACKENDS["hf"]
        .load(spec, 512, Path("engine.log"))
        .score(first, lambda tokens: None)
        .log_probs
    )
    rollout, old = (first.log_probs[name] for name in ("rollout", "old"))
    mass, after = np.exp(old - kept), np.exp(kept - rollout)
    assert mass.max() < 1 + 1e-5
    assert np.mean(mass) == pytest.approx(np.mean(np.exp(old - rollout)), abs=1e-3)
    assert np.mean(after) == pytest.approx(1.0, abs=1e-3)
    assert np.mean((after < 0.9) | (after > 1.1)) == 0.0
    alone = first.token_lists["rollout_kept_ids"].lengths == 1
    assert (rollout[alone] == 0.0).all()
    assert (kept[alone] == 0.0).all()
    (cause,) = result_of("top_p").diagnosis.causes
    assert (cause.slug, cause.verdict) == ("top-p-renormalised", "broken")


def test_expected_ratios_of_kept_sets_are_exact_sums(monkeypatch):
    """The table of docs/kept-sets.md, on a few tokens: the mean ratio is the kept mass."""
    monkeypatch.syspath_prepend(str(DATA))
    kept_sets = importlib.import_module("kept_sets")
    monkeypatch.setattr(kept_sets, "MOST_TOKENS", 16)
    prompts = kept_sets.prompts_of_step_8(1)["prompt_ids"][:6]
    made = {
        name: kept_sets.measure(prompts, 1, **settings)
        for name, settings in {"p": {"top_p": 0.8}, "k": {"top_k": 3}, "whole": {}}.items()
    }
    for name, one in made.items():
        assert one["ratio"] == pytest.approx(one["kept_mass"], abs=1e-9)
        assert one["ratio_kept"] == pytest.approx(1.0, abs=1e-9)
        assert one["outside_kept"] <= one["outside"], name
    assert made["p"]["kept_mass"] < 0.95
    assert made["p"]["outside"] > 0.1
    assert made["whole"]["kept_mass"] == pytest.approx(1.0, abs=1e-6)


def first_rows(rows: Trajectories, count: int) -> Trajectories:
    """Return the first rows, with the log-probs and kept ids of their tokens."""
    prompts, responses = rows.prompt_ids, rows.response_ids
    tokens = int(responses.offsets[count])
    return Trajectories(
        first_row=0,
        prompt_ids=prompts.slice(0, count),
        response_ids=responses.slice(0, count),
        mask=rows.mask[:tokens],
        temperature=rows.temperature[:count],
        log_probs={name: values[:tokens] for name, values in rows.log_probs.items()},
        token_lists={name: lists.slice(0, tokens) for name, lists in rows.token_lists.items()},
    )


def test_advantages_are_those_of_their_groups():
    columns = ["group_id", "reward", "advantage"]
    rows = pq.read_table(DATA / "rollouts.parquet", columns=columns).to_pydict()
    groups, reward = np.array(rows["group_id"]), np.array(rows["reward"])
    for group in np.unique(groups)[:40]:
        own = reward[groups == group]
        expected = (own - own.mean()) / (own.std(ddof=1) + 1e-6)
        np.testing.assert_allclose(
            np.array(rows["advantage"])[groups == group], expected, atol=1e-9
        )


@pytest.fixture(scope="module")
def last_step(tmp_path_factory) -> Path:
    """Short rows of the last step, rescored with the policy of that step."""
    folder = tmp_path_factory.mktemp("last")
    table = pq.read_table(DATA / "rollouts.parquet")
    short = np.array([len(row) < 96 for row in table["response_ids"]])  # one forward per token
    last = table.filter(short & (np.array(table["step"]) == max(table["step"].to_pylist())))
    pq.write_table(last.slice(0, 40), folder / "last.parquet")
    policies = {"hf_fp32": "hf:float32", "vllm_decode": "vllm:bfloat16,path=decode"}
    return with_policies(folder / "last.parquet", folder / "scored.parquet", policies)


@pytest.fixture(scope="module")
def last_step_prefill(last_step) -> Path:
    """The same rows, also scored by vLLM's prefill."""
    out = last_step.with_name("prefill.parquet")
    return with_policies(last_step, out, {"vllm_prefill": "vllm:bfloat16"})


def with_policies(table: Path, out: Path, policies: dict[str, str]) -> Path:
    """Add policies of the last step to the table; returns the path of the new table."""
    model = DATA / "policy" / "step_8"
    options = [part for name, what in policies.items() for part in ("--policy", f"{name}={what}")]
    run = rcdiag_alone("score", table, "--model", model, *options, "-o", out, "--json")
    assert run.code == 0, run.err
    assert run.document["kind"] == "score"
    return out


@pytest.mark.engine
def test_the_shipped_policy_gives_the_log_probs_that_the_trainer_recorded(last_step):
    """Up to rounding of float32 sums in another order; wrong weights would differ by 1e-2."""
    recorded, again = (
        scored(last_step, "old_log_probs"),
        scored(last_step, "hf_fp32_log_probs"),
    )
    np.testing.assert_allclose(again, recorded, atol=5e-5)


@pytest.mark.engine
@pytest.mark.parametrize(
    ("table", "path"),
    [
        ("last_step", "decode"),
        pytest.param("last_step_prefill", "prefill", marks=pytest.mark.slow),
    ],
)
def test_vllm_reproduces_the_recorded_log_probs_up_to_bfloat16(request, table, path):
    """Two CPUs are two engines of one precision, whose roundings are independent at worst.

    The bound comes from the distance of each to float32.
    """
    rows = request.getfixturevalue(table)
    recorded, exact = scored(rows, "rollout_log_probs"), scored(rows, "old_log_probs")
    again = scored(rows, f"vllm_{path}_log_probs")

    def rms(gap: np.ndarray) -> float:
        return float(np.sqrt(np.mean(gap**2)))

    sampler, engine = rms(recorded - exact), rms(again - exact)
    assert 2 / 3 < engine / sampler < 3 / 2
    assert rms(again - recorded) < 1.1 * np.hypot(sampler, engine)


def test_routing_metrics_of_the_mixture_match_its_columns():
    """Counted token by token: 4 layers of 2 experts, in any order."""
    rows = pq.read_table(DATA / "moe.parquet").to_pylist()
    squares = {False: [], True: []}
    by_layer = [0, 0, 0, 0]
    for row in rows:
        for place in range(1, len(row["response_ids"])):
            pair = [row[f"{name}_routed_experts"][place - 1] for name in ("rollout", "old")]
            sets = [[set(one[2 * k : 2 * k + 2]) for k in range(4)] for one in pair]
            differ = [one != other for one, other in zip(*sets, strict=True)]
            by_layer = [count + one for count, one in zip(by_layer, differ, strict=True)]
            log_ratio = row["old_log_probs"][place] - row["rollout_log_probs"][place]
            squares[any(differ)].append(log_ratio**2)
    tokens = len(squares[False]) + len(squares[True])
    routing = result_of("moe").routing
    changes = routing.rerouting
    assert (changes.routed_tokens, changes.experts_chosen) == (tokens, 2)
    assert changes.rerouted.value == pytest.approx(len(squares[True]) / tokens)
    assert [one.value for one in changes.rerouted_by_layer] == pytest.approx(
        [count / tokens for count in by_layer]
    )
    assert changes.k2_same_experts.value == pytest.approx(np.mean(squares[False]) / 2)
    assert changes.k2_rerouted.value == pytest.approx(np.mean(squares[True]) / 2)
    held = sum(squares[True]) / (sum(squares[True]) + sum(squares[False]))
    assert changes.rerouted_share_of_squares.value == pytest.approx(held)
    assert changes.k2_rerouted.low > changes.k2_same_experts.high

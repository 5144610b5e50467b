"""Log-probs over kept sets, against the enumerated distribution of a tiny model in float64."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoModelForCausalLM

from rcdiag.engines import BACKENDS
from rcdiag.engines.hf import head as head_module
from rcdiag.engines.hf.support import OwnSets, RecordedSets
from rcdiag.engines.notation import parse_policy
from rcdiag.engines.scoring import plan_scoring
from rcdiag.errors import RcdiagError
from rcdiag.progress import SILENT
from rcdiag.table.opening import open_table
from rcdiag.table.stream import decode
from rcdiag.table.trajectories import Ragged
from tests.builders import first_batch

SAMPLING = {"top_p": 0.8, "top_k": 40, "min_p": 0.02}


def kept_by_enumeration(p: np.ndarray, top_p: float, top_k: int, min_p: float) -> np.ndarray:
    """Return the ids that vLLM's filters keep, in their order, most likely first."""
    order = np.argsort(-p)
    order = order[p[order] >= min_p * p.max()][:top_k]
    left = p[order] / p[order].sum()
    mass_before = np.cumsum(left) - left
    return order[mass_before < top_p]


@pytest.fixture(scope="module")
def sampled(qwen3: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list, list]:
    """Sample from kept sets token by token; returns table, distributions and sets."""
    random = np.random.default_rng(5)
    model = AutoModelForCausalLM.from_pretrained(qwen3, dtype=torch.float32).eval()
    rows, distributions, sets = [], [], []
    for temperature in (1.0, 0.7, 1.3):
        ids, kept, log_probs = [7, 11], [], []
        for _ in range(24):
            with torch.no_grad():
                logits = model(torch.tensor([ids])).logits[0, -1].double().numpy() / temperature
            p = np.exp(logits - logits.max())
            p /= p.sum()
            own = kept_by_enumeration(p, **SAMPLING)
            token = random.choice(own, p=p[own] / p[own].sum())
            ids.append(int(token))
            kept.append(own.tolist())
            log_probs.append(float(np.log(p[token] / p[own].sum())))
            distributions.append(p)
            sets.append(own)
        rows.append(
            {
                "prompt_ids": ids[:2],
                "response_ids": ids[2:],
                "rollout_log_probs": log_probs,
                "rollout_kept_ids": kept,
                "temperature": temperature,
                **SAMPLING,
            }
        )
    path = tmp_path_factory.mktemp("kept") / "kept.parquet"
    lists = pa.list_(pa.list_(pa.int32()))
    kept_ids = pa.array([row.pop("rollout_kept_ids") for row in rows], lists)
    pq.write_table(pa.Table.from_pylist(rows).append_column("rollout_kept_ids", kept_ids), path)
    return path, distributions, sets


def score(policy: str, model: Path, table: Path):
    spec = parse_policy(policy, str(model))
    rows = decode(first_batch(table))
    return BACKENDS["hf"].load(spec, 256, Path("engine.log")).score(rows, lambda tokens: None), rows


@pytest.mark.parametrize("support", ["rollout", "own"])
def test_log_probs_over_kept_sets_are_those_of_the_enumerated_distribution(support, qwen3, sampled):
    table, distributions, sets = sampled
    scores, _ = score(f"kept=hf:float32,support={support},entropy=true", qwen3, table)
    recorded = np.concatenate(pq.read_table(table)["rollout_log_probs"].to_pylist())
    np.testing.assert_allclose(scores.log_probs, recorded, atol=1e-5)  # a forward's own rounding
    whole, _ = score("old=hf:float32", qwen3, table)
    mass = [p[own].sum() for p, own in zip(distributions, sets, strict=True)]
    np.testing.assert_allclose(np.exp(whole.log_probs - scores.log_probs), mass, atol=1e-6)
    entropies = []
    for p, own in zip(distributions, sets, strict=True):
        q = p[own] / p[own].sum()
        entropies.append(-(q * np.log(q)).sum())
    np.testing.assert_allclose(scores.entropy, entropies, atol=1e-5)


@pytest.mark.slow
def test_kept_sets_of_the_sample_are_as_close_to_float64_as_float32_can_be(tmp_path):
    """12 rows at temperatures 0.5 to 2.15; docs/engines.md states these numbers (shown by -s).

    The references run transformers' own forward pass and sum over each recorded set in float64.
    """
    sample = Path(__file__).parents[2] / "sample_data"
    rows = pq.read_table(sample / "top_p.parquet").slice(0, 12)
    warm = pa.array(0.5 + 0.15 * np.arange(12))
    rows = rows.set_column(rows.column_names.index("temperature"), "temperature", warm)
    pq.write_table(rows, tmp_path / "rows.parquet")
    checkpoint = sample / "policy" / "step_8"
    scores, decoded = score(
        "kept=hf:float32,support=rollout", checkpoint, tmp_path / "rows.parquet"
    )
    sampled = decoded.token_lists["rollout_kept_ids"].lengths > 0
    for dtype, most_rms, most in ((torch.float32, 1e-6, 1e-5), (torch.float64, 2e-6, 5e-5)):
        model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=dtype).eval()
        references = []
        for row in rows.to_pylist():
            prompt, response = row["prompt_ids"], row["response_ids"]
            with torch.no_grad():
                logits = model(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1]
            logits = logits.double() / row["temperature"]
            for token, kept, logit in zip(response, row["rollout_kept_ids"], logits, strict=True):
                if kept:
                    references.append((logit[token] - logit[kept].logsumexp(0)).item())
        off = scores.log_probs[sampled].astype(np.float64) - references
        rms, largest = np.sqrt(np.mean(off**2)), np.abs(off).max()
        print(f"{len(off):,} tokens, {dtype}: rms {rms:.2g}, largest {largest:.2g}")  # noqa: T201
        assert rms < most_rms
        assert largest < most


def test_the_mean_ratio_is_the_kept_mass_before_and_1_after_the_replay(qwen3, sampled):
    """E[ratio] under the sampler, as an exact sum over its kept sets."""
    _, distributions, sets = sampled
    for p, own in list(zip(distributions, sets, strict=True))[::8]:
        logits = torch.from_numpy(np.log(p)).float().repeat(len(own), 1)
        one_set = RecordedSets(Ragged(np.tile(own, len(own)), np.arange(len(own) + 1) * len(own)))
        whole, over_set = (
            head_module.token_scores(
                logits,
                torch.from_numpy(own.copy()),
                torch.ones(len(own), dtype=torch.float64),
                entropy=False,
                top_k=0,
                kept=kept,
            )[:, 0]
            .double()
            .numpy()
            for kept in (None, lambda scaled, made=one_set: made.mask(slice(0, None), scaled))
        )
        q = p[own] / p[own].sum()
        assert (q * np.exp(whole - np.log(q))).sum() == pytest.approx(p[own].sum(), abs=1e-6)
        assert (q * np.exp(over_set - np.log(q))).sum() == pytest.approx(1.0, abs=1e-6)


def test_chunks_and_buckets_do_not_mix_kept_sets(qwen3, sampled, monkeypatch):
    table, _, _ = sampled
    whole, _ = score("kept=hf:float32,support=rollout", qwen3, table)
    monkeypatch.setitem(head_module.MOST_ROWS, "cpu", 5)
    cut, _ = score("kept=hf:float32,support=rollout,batch_tokens=30", qwen3, table)
    np.testing.assert_allclose(cut.log_probs, whole.log_probs, atol=1e-6)


def test_a_token_outside_the_trainers_own_set_has_probability_0(qwen3, sampled, tmp_path):
    """The trainer's top-p set differs from the sampler's if their distributions differ."""
    table = pq.read_table(sampled[0])
    narrow = table.drop_columns("top_k").append_column("top_k", pa.array([1, 1, 1], pa.int64()))
    pq.write_table(narrow, tmp_path / "narrow.parquet")
    scores, _ = score("own=hf:float32,support=own", qwen3, tmp_path / "narrow.parquet")
    likeliest = [own[0] for own in sampled[2]]
    taken = np.concatenate(table["response_ids"].to_pylist())
    np.testing.assert_allclose(
        scores.log_probs, np.where(likeliest == taken, 0.0, -np.inf), atol=1e-6
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "sampling",
    [(1.0, 0, 0.0), (0.9, -1, 0.0), (1.0, 7, 0.0), (1.0, 0, 0.1), (0.7, 12, 0.01), (0.0, 0, 0.0)],
)
def test_own_sets_are_those_that_vllm_samples_from(sampling):
    from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p_pytorch

    top_p, top_k, min_p = sampling
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(40, 500, generator=generator) * 3
    own = OwnSets(*(np.full(40, float(value)) for value in sampling)).mask(slice(0, 40), logits)
    left = logits.clone()
    probabilities = left.softmax(-1)  # MinPLogitsProcessor.apply
    left[probabilities < min_p * probabilities.amax(-1, keepdim=True)] = -torch.inf
    k = torch.full((40,), top_k if top_k > 0 else 500)
    filtered = apply_top_k_top_p_pytorch(left, k, torch.full((40,), top_p))
    assert torch.equal(own, filtered.isfinite())


def plan(table: Path, model: Path, policy: str = "kept=hf:float32,support=rollout"):
    spec, out = parse_policy(policy, str(model)), table.with_name("out.parquet")
    return plan_scoring(open_table(table), [spec], out, SILENT.say)


def changed(table: Path, folder: Path, change) -> Path:
    rows = pq.read_table(table).to_pylist()
    change(rows)
    schema = pq.read_schema(table)
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), folder / "changed.parquet")
    return folder / "changed.parquet"


def test_a_sampled_token_outside_its_set_is_refused_before_an_engine_starts(
    qwen3, sampled, tmp_path
):
    def shift(rows):
        for row in rows[1:]:
            kept = row["rollout_kept_ids"]
            row["rollout_kept_ids"] = [[319], *kept[:-1]]

    with pytest.raises(RcdiagError, match=r"row 1: column `rollout_kept_ids` lacks token 0 \(id"):
        plan(changed(sampled[0], tmp_path, shift), qwen3)


def test_a_token_without_kept_ids_is_refused_if_it_was_sampled(qwen3, sampled, tmp_path):
    def drop(rows):
        rows[2]["rollout_kept_ids"][3] = []

    table = changed(sampled[0], tmp_path, drop)
    with pytest.raises(RcdiagError, match=r"row 2: .* has no ids for token 3 \(id"):
        plan(table, qwen3)
    masked = pq.read_table(table)
    mask = [[1] * 24, [1] * 24, [1] * 3 + [0] + [1] * 20]
    column = pa.array(mask, pa.list_(pa.uint8()))
    pq.write_table(masked.append_column("response_mask", column), table)
    assert plan(table, qwen3).survey.ids_in_lists > 100


def test_ids_beyond_the_vocabulary_are_refused(qwen3, sampled, tmp_path):
    def widen(rows):
        rows[0]["rollout_kept_ids"][0].append(4000)

    with pytest.raises(RcdiagError, match=r"row 0: column `rollout_kept_ids` holds token id 4000"):
        plan(changed(sampled[0], tmp_path, widen), qwen3)


def test_own_sets_need_every_sampling_parameter(qwen3, sampled, tmp_path):
    policy = "own=hf:float32,support=own"
    pq.write_table(pq.read_table(sampled[0]).drop_columns("min_p"), tmp_path / "without.parquet")
    with pytest.raises(RcdiagError, match="`min_p`"):
        plan(tmp_path / "without.parquet", qwen3, policy)

    def forget(rows):
        rows[1]["top_k"] = None

    with pytest.raises(RcdiagError, match="row 1: column `top_k` is null"):
        plan(changed(sampled[0], tmp_path, forget), qwen3, policy)


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ("kept=vllm:bfloat16,support=rollout", "vLLM scores the whole distribution only"),
        ("kept=hf:float32,support=rollout,top_k=3", "a kept set may have fewer tokens"),
    ],
)
def test_unsupported_options_with_kept_sets_are_refused(policy, words, qwen3, sampled):
    with pytest.raises(RcdiagError, match=words):
        plan(sampled[0], qwen3, policy)


def test_parts_are_smaller_where_kept_sets_are_large(qwen3, sampled, monkeypatch):
    monkeypatch.setattr("rcdiag.engines.scoring.MOST_IDS_PER_PART", 300)
    assert len(plan(sampled[0], qwen3).ranges) == 3

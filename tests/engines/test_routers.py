"""Replay of recorded experts, against a loop over tokens and experts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    Glm4MoeConfig,
    GptOssConfig,
    MixtralConfig,
    OlmoeConfig,
    Qwen2MoeConfig,
    Qwen3_5MoeTextConfig,
    Qwen3MoeConfig,
    Qwen3NextConfig,
)

from rcdiag.engines import BACKENDS
from rcdiag.engines.hf.engine import HfEngine
from rcdiag.engines.notation import parse_policy
from rcdiag.errors import RcdiagError
from rcdiag.table.opening import open_table
from rcdiag.table.stream import decode, read_chunks
from rcdiag.table.trajectories import Scores, Trajectories

pytestmark = pytest.mark.engine

LAYERS, EXPERTS, TOP_K, VOCABULARY, ROWS = 3, 6, 2, 90, 8
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "num_experts_per_tok": TOP_K,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "tie_word_embeddings": False,
}
QWEN = {**SIZES, "head_dim": 16, "moe_intermediate_size": 24, "num_experts": EXPERTS}
# Layers of linear attention (gated delta rule) and one of softmax attention.
LINEAR = {
    "layer_types": ["linear_attention", "linear_attention", "full_attention"],
    "shared_expert_intermediate_size": 24,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
CONFIGS = {
    "qwen3_moe": lambda: Qwen3MoeConfig(**QWEN, norm_topk_prob=True),
    "unnormalised": lambda: Qwen3MoeConfig(**QWEN, norm_topk_prob=False),
    # The first layer is dense.
    "dense_first": lambda: Qwen3MoeConfig(**QWEN, norm_topk_prob=True, mlp_only_layers=[0]),
    "mixtral": lambda: MixtralConfig(**SIZES, num_local_experts=EXPERTS),
    "qwen2_moe": lambda: Qwen2MoeConfig(**QWEN, shared_expert_intermediate_size=24),
    "qwen3_next": lambda: Qwen3NextConfig(**QWEN, **LINEAR, norm_topk_prob=True),
    "qwen3_5_moe": lambda: Qwen3_5MoeTextConfig(**QWEN, **LINEAR),
    "olmoe": lambda: OlmoeConfig(**SIZES, num_experts=EXPERTS, norm_topk_prob=False),
    "glm4_moe": lambda: Glm4MoeConfig(
        **SIZES,
        head_dim=16,
        moe_intermediate_size=24,
        n_routed_experts=EXPERTS,
        n_shared_experts=1,
        n_group=1,
        topk_group=1,
        first_k_dense_replace=1,
    ),
    "deepseek_v3": lambda: DeepseekV3Config(
        **SIZES,
        moe_intermediate_size=24,
        n_routed_experts=EXPERTS,
        n_group=2,
        topk_group=1,
        n_shared_experts=1,
        first_k_dense_replace=1,
        q_lora_rank=None,
        kv_lora_rank=16,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=16,
        routed_scaling_factor=2.5,
    ),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {}
    for kind, config in CONFIGS.items():
        torch.manual_seed(0)
        made[kind] = tmp_path_factory.mktemp("models") / kind
        AutoModelForCausalLM.from_config(config()).save_pretrained(made[kind])
    return made


def draw_experts(random: np.random.Generator, layers: int) -> list[int]:
    """Draw the experts of a token, layer by layer."""
    return np.concatenate([random.permutation(EXPERTS)[:TOP_K] for _ in range(layers)]).tolist()


def make_table(path: Path, layers: int = LAYERS, change=lambda experts: experts) -> Trajectories:
    """Make rows with random experts; some tokens, and each last one, have none."""
    random = np.random.default_rng(3)
    responses = [random.integers(0, VOCABULARY, n) for n in random.integers(2, 20, ROWS)]
    experts = [
        [
            [] if token == len(ids) - 1 or random.random() < 0.2 else draw_experts(random, layers)
            for token in range(len(ids))
        ]
        for ids in responses
    ]
    columns = {
        "prompt_ids": [random.integers(0, VOCABULARY, n) for n in random.integers(1, 9, ROWS)],
        "response_ids": responses,
        "rollout_routed_experts": pa.array(change(experts), pa.list_(pa.list_(pa.uint16()))),
    }
    pq.write_table(pa.table(columns), path)
    return rows_of(path)


def rows_of(path: Path) -> Trajectories:
    return decode(next(read_chunks(open_table(path), [(0, ROWS)])))


def score(model: Path, rows: Trajectories, options: str = "") -> Scores:
    return HfEngine(parse_policy(f"r3=hf:float32{options}", str(model))).score(rows, lambda n: None)


class LoopedExperts(torch.nn.Module):
    """A layer of experts that processes tokens and their experts one by one."""

    def __init__(self, layer: torch.nn.Module, norm: bool) -> None:
        super().__init__()
        self.layer, self.norm = layer, norm
        self.given: list[list[int]] = []  # by token; empty: the largest gates

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        flat = states[0]
        made = torch.zeros_like(flat)
        experts = self.layer.experts
        for index, state in enumerate(flat):
            probabilities = (self.layer.gate.weight.double() @ state.double()).softmax(0)
            chosen = self.given[index] or probabilities.topk(TOP_K).indices.tolist()
            total = sum(probabilities[one] for one in chosen) if self.norm else 1.0
            for one in chosen:
                gate, up = (experts.gate_up_proj[one] @ state).chunk(2)
                out = experts.down_proj[one] @ (torch.nn.functional.silu(gate) * up)
                made[index] += (probabilities[one] / total).float() * out
        if hasattr(self.layer, "shared_expert"):
            shared = self.layer.shared_expert_gate(flat).sigmoid() * self.layer.shared_expert(flat)
            made = made + shared
        return made[None]


@torch.no_grad()
def looped(folder: Path, rows: Trajectories) -> np.ndarray:
    """Compute log-probs of response tokens with the column's experts, row by row."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    norm = getattr(model.config, "norm_topk_prob", True)
    loops = []
    for number, layer in enumerate(model.model.layers):
        if hasattr(layer.mlp, "experts"):
            layer.mlp = LoopedExperts(layer.mlp, norm)
            loops.append((number, layer.mlp))
    lists = rows.token_lists["rollout_routed_experts"]
    made = []
    for row in range(len(rows)):
        prompt, response = rows.prompt_ids.row(row), rows.response_ids.row(row)
        first = rows.response_ids.offsets[row]
        experts = [lists.row(first + index).tolist() for index in range(len(response))]
        for number, loop in loops:
            own = slice(number * TOP_K, (number + 1) * TOP_K)
            loop.given = [[]] * len(prompt) + [one[own] for one in experts]
        ids = torch.from_numpy(np.concatenate([prompt, response]))[None].long()
        log_probs = model(ids).logits[0].double().log_softmax(-1)
        at = torch.arange(len(prompt), ids.shape[1])
        made.append(log_probs[at - 1, ids[0, at]].numpy())
    return np.concatenate(made)


@pytest.mark.parametrize(
    "kind", ["qwen3_moe", "unnormalised", "dense_first", "mixtral", "qwen2_moe", "qwen3_5_moe"]
)
def test_given_experts_equal_a_loop_over_tokens_and_experts(kind, models, tmp_path):
    rows = make_table(tmp_path / "table.parquet")
    forced = score(models[kind], rows, ",experts=rollout").log_probs
    expected = looped(models[kind], rows)
    assert np.abs(forced - expected).max() < 2e-6 * np.abs(expected).max()
    assert np.abs(forced - score(models[kind], rows).log_probs).mean() > 0.05


@pytest.mark.parametrize("kind", list(CONFIGS))
def test_replaying_the_models_own_experts_changes_no_bit(kind, models, tmp_path):
    path = tmp_path / "table.parquet"
    plain = score(models[kind], make_table(path))
    recorded = score(models[kind], rows_of(path), ",record_experts=true")
    assert np.array_equal(plain.log_probs, recorded.log_probs)
    rows = rows_of(path)
    lengths = rows.response_ids.lengths
    lists = [part.tolist() for part in np.split(recorded.routed_experts, np.cumsum(lengths)[:-1])]
    table = pq.read_table(path).drop_columns("rollout_routed_experts")
    own = pa.array(lists, pa.list_(pa.list_(pa.uint16())))
    pq.write_table(table.append_column("own_routed_experts", own), path)
    again = score(models[kind], rows_of(path), ",experts=own,record_experts=true")
    assert np.array_equal(again.log_probs, plain.log_probs)
    assert np.array_equal(again.routed_experts, recorded.routed_experts)


def test_gates_of_gpt_oss_are_the_softmax_of_the_chosen_logits(tmp_path):
    """Normalising over the chosen experts equals the softmax over all, divided by their sum.

    Its attention sinks need eager attention.
    """
    sizes = {**SIZES, "head_dim": 16, "num_local_experts": EXPERTS}
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(GptOssConfig(**sizes)).save_pretrained(tmp_path / "gpt")
    rows = make_table(tmp_path / "table.parquet")
    options = ",attention=eager,record_experts=true"
    plain = score(tmp_path / "gpt", rows, options)
    forced = score(tmp_path / "gpt", rows, f"{options},experts=rollout")
    recorded = rows.token_lists["rollout_routed_experts"]
    known = np.flatnonzero(recorded.lengths)
    taken = [forced.routed_experts[token].tolist() for token in known]
    assert taken == [recorded.row(token).tolist() for token in known]
    assert np.abs(forced.log_probs - plain.log_probs).max() > 0.05


def test_recorded_experts_equal_the_given_ones(models, tmp_path):
    rows = make_table(tmp_path / "table.parquet")
    taken = score(models["mixtral"], rows, ",experts=rollout,record_experts=true").routed_experts
    lists = rows.token_lists["rollout_routed_experts"]
    for token in np.flatnonzero(lists.lengths):
        assert taken[token].tolist() == lists.row(token).tolist()


def test_a_column_may_leave_out_dense_layers(models, tmp_path):
    """verl and vLLM store every layer, others only layers with a router."""
    rows = make_table(tmp_path / "all.parquet")
    short = make_table(
        tmp_path / "short.parquet",
        change=lambda rows: [[one[TOP_K:] for one in row] for row in rows],
    )
    both = [
        score(models["dense_first"], one, ",experts=rollout").log_probs for one in (rows, short)
    ]
    assert np.array_equal(*both)


def with_token(value):
    """Put a list into row 2, token 1."""

    def change(rows):
        rows[2][1] = value
        return rows

    return change


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ([0, 1], "has 2 experts, and the model has 6"),
        ([0, 1] * 2 + [0, 6], r"the experts \[0, 6\] in layer 2; a router chooses 2 different"),
        ([0, 1, 3, 3, 0, 1], r"the experts \[3, 3\] in layer 1"),
    ],
)
def test_experts_that_a_router_cannot_choose_are_refused(value, says, models, tmp_path):
    rows = make_table(tmp_path / "table.parquet", change=with_token(value))
    with pytest.raises(RcdiagError, match=f"row 2, response token 1: .*{says}"):
        score(models["qwen3_moe"], rows, ",experts=rollout")


def test_a_model_without_routers_is_refused(qwen3, tmp_path):
    with pytest.raises(RcdiagError, match="architecture `qwen3` has no router"):
        HfEngine(parse_policy("r3=hf:float32,record_experts=true", str(qwen3)))


@pytest.mark.parametrize(
    ("policy", "says", "way_out"),
    [
        ("r3=vllm:float32,experts=rollout", "cannot be given to vLLM's routers", "score with hf"),
        ("r3=vllm,record_experts=true", "vLLM's routers choose", "score with hf"),
        ("r3=hf,experts=rollout,compile=true", "compiles routers too", "leave compile=true out"),
    ],
)
def test_engines_without_routing_replay_refuse_before_they_start(policy, says, way_out):
    def checked() -> None:
        spec = parse_policy(policy, "model")
        BACKENDS[spec.backend].check(spec)

    with pytest.raises(RcdiagError, match=says) as refused:
        checked()
    assert way_out in refused.value.hint


def test_gates_of_another_kind_are_refused(models, monkeypatch):
    """A router with other gates must not be replayed with rcdiag's."""
    from rcdiag.engines.hf import routers

    monkeypatch.setattr(routers, "gates_of", lambda router, logits, experts: logits[:, :TOP_K])
    with pytest.raises(RcdiagError, match="`mixtral` weights its experts in a way"):
        HfEngine(parse_policy("r3=hf:float32,experts=rollout", str(models["mixtral"])))

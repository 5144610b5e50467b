"""Train a tiny mixture of experts, sample from it with vLLM, score the samples in float32.

One seeded command on a CPU: `python sample_data/moe.py`. The table holds the experts that each side
chose for every token: `rollout_routed_experts` by vLLM in bfloat16, and `old_routed_experts` by
the model in float32.

A second complete run with OMP_NUM_THREADS=1 gave the shipped files bit for bit: weights, tokens,
log-probs and experts; only the time in the metadata differed. It ran on the same kind of CPU (AMD
EPYC with avx512_bf16) with torch 2.13 and vLLM 0.32. Kernels that round bfloat16 differently give
other weights and samples.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

import pyarrow.parquet as pq
import torch
from grpo import set_advantages
from policy import make_tokenizer, round_to_bf16, save_policy, shared_settings
from problems import draw_problem
from progress import log
from sampler import Sampler
from settings import HERE, RL_MODES, SAMPLES, SEED, SFT_MODES
from sft import SftTrainer, sft_loss
from tables import metadata, rollout_columns, write_table
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM
from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

import rcdiag
from rcdiag.engines.checkpoint import fingerprint

FOLDER = HERE / "moe"
TABLE, LOG = HERE / "moe.parquet", HERE / "moe_stages.json"
EXPERTS, TOP_K = 8, 2
PROMPTS, STREAM = 32, 200  # number of prompts, with 8 samples each; number of their random stream
REPLAY = "hf:float32,experts=rollout"
BALANCE = 0.01  # weight of the loss that keeps experts in use, as in the Switch Transformer
TRAINING = {"steps": 800, "peak": 3e-3, "flat": 0.4, "ramp": 150}


def make_model(tokenizer, seed: int) -> Qwen3MoeForCausalLM:
    """Make the untrained model in float32: 4 layers of 8 experts, 2 experts per token."""
    torch.manual_seed(seed)
    config = Qwen3MoeConfig(
        **shared_settings(tokenizer),
        hidden_size=128,
        moe_intermediate_size=128,
        num_experts=EXPERTS,
        num_experts_per_tok=TOP_K,
        norm_topk_prob=True,
        num_hidden_layers=4,
        num_attention_heads=4,
    )
    return Qwen3MoeForCausalLM(config).float()


def balanced_loss(model, ids: torch.Tensor, learn: torch.Tensor) -> torch.Tensor:
    """Return the cross entropy of the tokens to learn plus the routers' balancing loss."""
    routers = []
    hooks = [
        layer.mlp.gate.register_forward_hook(lambda *call: routers.append(call[2][0]))
        for layer in model.model.layers
    ]
    loss = sft_loss(model, ids, learn)
    for hook in hooks:
        hook.remove()
    return loss + BALANCE * load_balancing_loss_func(tuple(routers), EXPERTS, TOP_K)


def train(tokenizer) -> dict:
    """Train the mixture on worked problems and save it; returns figures of the training."""
    torch.set_num_threads(1)
    shutil.rmtree(FOLDER, ignore_errors=True)
    model = make_model(tokenizer, SEED)
    round_to_bf16(model.parameters())
    trainer = SftTrainer(model, tokenizer, SFT_MODES, SEED, balanced_loss)
    loss = trainer.train(**TRAINING)
    log(f"trained: loss {loss:.4f}, {trainer.tokens:,} tokens")
    save_policy(model, tokenizer, FOLDER)
    size = sum(parameter.numel() for parameter in model.parameters())
    return {"parameters": size, "steps": trainer.step, "tokens": trainer.tokens, "loss": loss}


class ExpertWatch:
    """Records the experts that vLLM's routers choose, by request and in token order.

    `enable_return_routed_experts` needs vLLM's second model runner, which needs Triton and so a
    GPU. On a CPU this class sets the same callback on every router.
    """

    def __init__(self, engine) -> None:
        """Attach to an engine that runs in this process."""
        self.chosen: dict[str, list[torch.Tensor]] = {}  # request -> [tokens, layers, top-k] each
        engine.collective_rpc(self.listen)

    def listen(self, worker) -> None:
        """Set the routers' callbacks, and split the experts of each engine step by request."""
        from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner

        runner, layers = worker.model_runner, {}
        for module in runner.model.modules():
            if isinstance(module, MoERunner):
                layer = module.layer_id
                module.router.set_capture_fn(
                    lambda experts, layer=layer: layers.__setitem__(layer, experts.clone())
                )
        execute = runner.execute_model

        def execute_and_sort(scheduled, *arguments, **options):
            made = execute(scheduled, *arguments, **options)
            counts, first = scheduled.num_scheduled_tokens, 0
            for request in runner.input_batch.req_ids if counts else ():
                last = first + counts[request]
                step = torch.stack([layers[layer][first:last] for layer in sorted(layers)], 1)
                self.chosen.setdefault(request, []).append(step)
                first = last
            return made

        runner.execute_model = execute_and_sort

    def of_responses(self, rollouts) -> list[list[list[int]]]:
        """Return the experts of the response tokens of all rollouts; the last token has none."""
        requests = sorted(self.chosen, key=lambda name: int(name.split("-")[0]))
        rows = []
        for request, rollout in zip(requests, rollouts, strict=True):
            chosen = torch.cat(self.chosen[request]).flatten(1)
            read = chosen[len(rollout.prompt_ids) :].tolist()
            if len(read) != len(rollout.ids) - 1:
                sys.exit(f"{len(read)} tokens with experts in a response of {len(rollout.ids)}")
            rows.append([*read, []])
        return rows


def sample(tokenizer, path: Path) -> None:
    """Sample rollouts with vLLM in bfloat16, and write them with their experts."""
    sampler = Sampler(FOLDER, tokenizer, SEED)
    rng = random.Random(SEED * 1000 + STREAM)
    problems = [draw_problem(rng, RL_MODES) for _ in range(PROMPTS)]
    watch = ExpertWatch(sampler.engine)
    rollouts = sampler.rollouts(problems, SAMPLES)
    set_advantages(rollouts)
    columns = rollout_columns(rollouts, 0, 0, 1.0)
    for name in ("num_turns", "old_log_probs"):
        columns.pop(name)
    columns["rollout_routed_experts"] = watch.of_responses(rollouts)
    about = metadata(sampler.version, "step_0", "step_0", 1.0)["policies"]["rollout"]
    about |= {"model": "sample_data/moe", "weights_fingerprint": fingerprint(FOLDER)}
    write_table(path, columns, {"policies": {"rollout": about}})


def score(sampled: Path) -> None:
    """Score the rollouts with rcdiag as the trainer, and record the experts that it chooses."""
    scored = sampled.with_name("scored.parquet")
    policies = {"old": "hf:float32,record_experts=true"}
    os.environ["OMP_NUM_THREADS"] = "1"  # of the engine, whose sums then have one order
    for name in [name for name in os.environ if name.startswith("VLLM_")]:
        del os.environ[name]  # the sampler's, which the engine would note as its own
    rcdiag.score(sampled, model=FOLDER, policies=policies, output=scored)
    table = pq.read_table(scored)
    about = json.loads(table.schema.metadata[b"rcdiag"])["policies"]
    # Without a path of this machine; all rows have one temperature.
    about["old"] |= {"model": "sample_data/moe", "temperature": 1.0}
    columns = {name: table[name].to_pylist() for name in table.column_names}
    write_table(TABLE, columns, {"policies": about})


def figures() -> dict:
    """Return the figures that README.md states, computed by rcdiag."""
    result = rcdiag.score(TABLE, model=FOLDER, policies={"r3": REPLAY})
    rows = pq.read_table(TABLE, columns=["reward", "finish_reason"]).to_pydict()
    return {
        "sequences": result.num_sequences,
        "sampled_tokens": result.num_tokens,
        "mean_reward": statistics.fmean(rows["reward"]),
        "truncated": sum(reason != "stop" for reason in rows["finish_reason"]),
        "k3": result.mismatch["k3_kl"].value,
        "routing": json.loads(result.to_json())["routing"],
    }


def main() -> None:
    """Train, sample, score; `--sample` uses the existing trained model."""
    tokenizer = make_tokenizer(SEED, SFT_MODES)
    made = json.loads(LOG.read_text()) if "--sample" in sys.argv else train(tokenizer)
    with tempfile.TemporaryDirectory() as scratch:
        sampled = Path(scratch) / "sampled.parquet"
        sample(tokenizer, sampled)
        score(sampled)
    made |= figures()
    LOG.write_text(json.dumps(made, indent=1) + "\n")
    log(f"done: reward {made['mean_reward']:.3f}, k3 {made['k3']:.3g}")


if __name__ == "__main__":
    main()

"""Parts that all stages share: policy, sampling engine, scoring, and checks of log-probs."""

import random
import statistics
import sys
from pathlib import Path

import torch
from grpo import score, set_advantages
from policy import make_model, make_tokenizer, round_to_bf16, save_policy
from problems import draw_problem
from progress import log
from sampler import Rollout, Sampler
from settings import POLICY, RL_MODES, SEED, SFT_MODES, SHIPPED
from tables import mismatch
from transformers import AutoModelForCausalLM

LISTS = ("prompt_ids", "response_ids", "response_mask")


class Run:
    """The state of one run: policy, engine, held-out problems and the log."""

    def __init__(self, scratch: Path):
        """Make tokenizer and untrained policy, and start the engine on it."""
        self.log = {"seed": SEED, "sft": [], "grpo": [], "checks": {}}
        self.tokenizer = make_tokenizer(SEED, SFT_MODES)
        self.model = make_model(self.tokenizer, SEED)
        round_to_bf16(self.model.parameters())
        save_policy(self.model, self.tokenizer, scratch)
        self.sampler = Sampler(scratch, self.tokenizer, SEED)
        size = sum(p.numel() for p in self.model.parameters())
        self.log["parameters"], self.log["vocabulary"] = size, len(self.tokenizer)
        log(f"vLLM {self.sampler.version} is up; policy of {size:,} parameters")

    def problems(self, stream: int, count: int, modes: dict[str, float]):
        """Draw problems from a numbered random stream, independent of the training stream."""
        rng = random.Random(SEED * 1000 + stream)
        return [draw_problem(rng, modes) for _ in range(count)]

    def pass_rate(self) -> float:
        """Measure pass@1 at temperature 1 on 512 held-out problems."""
        self.sampler.load(self.model)
        rollouts = self.sampler.rollouts(self.problems(900, 512, RL_MODES), 1)
        return sum(r.reward for r in rollouts) / len(rollouts)

    def check_engine(self) -> None:
        """Fail unless the engine, after a reload, scores tokens as the trainer's weights do."""
        rollouts = self.sampler.rollouts(self.problems(901, 16, RL_MODES), 1)
        engine = self.sampler.score([r.prompt_ids + r.ids for r in rollouts])
        score(self.model, rollouts)
        gaps = [
            abs(a - b)
            for r, row in zip(rollouts, engine, strict=True)
            for a, b in zip(r.old_log_probs, row[len(r.prompt_ids) - 1 :], strict=True)
        ]
        mean = sum(gaps) / len(gaps)
        self.log["checks"].setdefault("engine_mean_abs_difference", []).append(mean)
        if mean > 0.02:
            sys.exit(f"the engine does not hold the trainer's weights: mean gap {mean:.4f}")


def finish(model, rollouts, temperature: float = 1.0) -> dict:
    """Add the trainer's log-probs and the advantages to rollouts; returns their summary."""
    score(model, rollouts, temperature)
    set_advantages(rollouts)
    lengths = [len(r.ids) for r in rollouts]
    return {
        "mean_reward": statistics.fmean(r.reward for r in rollouts),
        "mean_length": statistics.fmean(lengths),
        "median_length": statistics.median(lengths),
        "min_length": min(lengths),
        "max_length": max(lengths),
        "tokens": sum(lengths),
        "sampled_tokens": sum(sum(r.mask) for r in rollouts),
        "truncated": sum(r.finish_reason != "stop" for r in rollouts),
        "mean_turns": statistics.fmean(r.turns for r in rollouts),
        **mismatch(rollouts),
    }


def load_policy(step: int):
    """Load a shipped policy as a user would, in float32."""
    folder = POLICY / f"step_{step}"
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def check_shipped(run: Run, columns: dict) -> None:
    """Fail unless every shipped policy reproduces the recorded log-probs of its step."""
    for step in SHIPPED:
        rows = [i for i, s in enumerate(columns["step"]) if s == step]
        rollouts = [Rollout(None, 0, *(columns[name][i] for name in LISTS)) for i in rows]
        score(load_policy(step), rollouts)
        recorded = torch.tensor([v for i in rows for v in columns["old_log_probs"][i]])
        again = torch.tensor([v for r in rollouts for v in r.old_log_probs])
        gap = (again - recorded).abs().max().item()
        run.log["checks"][f"step_{step}_max_abs_difference"] = gap
        if not gap < 1e-5:
            sys.exit(f"policy/step_{step} does not reproduce its log-probs: {gap:.2e}")

"""Sampling with vLLM in bfloat16: one engine in this process that accepts weight updates."""

import os
from dataclasses import dataclass, field
from pathlib import Path

import torch
from policy import weights
from problems import CALL_END, RESULT, RESULT_END, Problem, calculate, grade

MAX_TOKENS = 512
MAX_CALLS = 12
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_PLUGINS": "",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "2",
}


@dataclass
class Rollout:
    """One sampled response with the log-probs that the engine recorded while decoding."""

    problem: Problem
    group: int
    prompt_ids: list[int]
    ids: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    finish_reason: str = ""
    turns: int = 0
    text: str = ""
    reward: float = 0.0
    advantage: float = 0.0
    old_log_probs: list[float] = field(default_factory=list)

    def add(self, ids, log_probs, sampled: int) -> None:
        """Append tokens, sampled by the policy (1) or written by the calculator (0)."""
        self.ids += ids
        self.log_probs += log_probs
        self.mask += [sampled] * len(ids)


def repack_head(model) -> None:
    """Make the engine's output head repack its weights."""
    model.lm_head.quant_method.process_weights_after_loading(model.lm_head)


class Sampler:
    """A vLLM engine without prefix caching whose weights follow the trainer's."""

    def __init__(self, folder: Path, tokenizer, seed: int):
        """Start the engine on a saved policy."""
        os.environ.update(ENVIRONMENT)
        import vllm  # reads its environment at import

        self.vllm, self.tokenizer, self.version = vllm, tokenizer, vllm.__version__
        self.engine = vllm.LLM(
            str(folder),
            dtype="bfloat16",
            seed=seed,
            max_model_len=1024,
            enforce_eager=True,
            enable_prefix_caching=False,
            max_num_seqs=256,
            disable_log_stats=True,
        )
        # The engine may set its own number of threads; the trainer shares this process.
        torch.set_num_threads(2)

    def load(self, model) -> None:
        """Push the model's weights into the running engine."""
        self.engine.collective_rpc("reload_weights", kwargs={"weights_iterator": weights(model)})
        # vLLM's CPU build keeps a packed copy of a tied head and does not repack it on a reload.
        self.engine.apply_model(repack_head)
        self.engine.reset_prefix_cache()

    def generate(self, token_ids, budgets, temperature: float, stop: list[int]):
        """Generate one continuation per token list, with the recorded log-prob of each token."""
        prompts = [self.vllm.TokensPrompt(prompt_token_ids=ids) for ids in token_ids]
        parameters = [
            self.vllm.SamplingParams(
                temperature=temperature,
                top_p=1.0,
                top_k=-1,
                max_tokens=budget,
                logprobs=0,
                stop_token_ids=stop,
                detokenize=False,
            )
            for budget in budgets
        ]
        outputs = self.engine.generate(prompts, parameters, use_tqdm=False)
        return [output.outputs[0] for output in outputs]

    def score(self, token_ids) -> list[list[float]]:
        """Return the engine's prefill log-probs of given tokens, from the second token on."""
        parameters = self.vllm.SamplingParams(max_tokens=1, prompt_logprobs=0, detokenize=False)
        prompts = [self.vllm.TokensPrompt(prompt_token_ids=ids) for ids in token_ids]
        outputs = self.engine.generate(prompts, parameters, use_tqdm=False)
        return [
            [entry[t].logprob for t, entry in zip(ids[1:], o.prompt_logprobs[1:], strict=True)]
            for ids, o in zip(token_ids, outputs, strict=True)
        ]

    def rollouts(
        self, problems, samples: int, temperature: float = 1.0, tools: bool = False
    ) -> list[Rollout]:
        """Sample and grade groups of responses; with tools, calls are answered turn by turn."""
        stop = [self.tokenizer.convert_tokens_to_ids(CALL_END)] if tools else []
        prompts = self.tokenizer([p.prompt for p in problems])["input_ids"]
        every = [
            Rollout(problem, group, prompts[group])
            for group, problem in enumerate(problems)
            for _ in range(samples)
        ]
        active = every
        while active:
            results = self.generate(
                [r.prompt_ids + r.ids for r in active],
                [MAX_TOKENS - len(r.ids) for r in active],
                temperature,
                stop,
            )
            for rollout, result in zip(active, results, strict=True):
                self.take_turn(rollout, result)
            active = [r for r in active if not r.finish_reason]
        for rollout in every:
            rollout.text = self.tokenizer.decode(rollout.ids).removesuffix(self.tokenizer.eos_token)
            rollout.reward = grade(rollout.text, rollout.problem.answer)
            rollout.reward *= rollout.finish_reason == "stop"
        return every

    def take_turn(self, rollout: Rollout, result) -> None:
        """Append one generated turn and, after a call, the calculator's answer."""
        ids = list(result.token_ids)
        entries = zip(ids, result.logprobs, strict=True)
        rollout.add(ids, [entry[token].logprob for token, entry in entries], 1)
        rollout.turns += 1
        if ids[-1] == self.tokenizer.eos_token_id or result.finish_reason == "length":
            rollout.finish_reason = result.finish_reason
            return
        if rollout.turns > MAX_CALLS:
            rollout.finish_reason = "max_turns"
            return
        expression = self.tokenizer.decode(ids).removesuffix(CALL_END).rpartition("<call>")[2]
        answer = self.tokenizer(f"{RESULT}{calculate(expression)}{RESULT_END}")["input_ids"]
        if len(rollout.ids) + len(answer) >= MAX_TOKENS:
            rollout.finish_reason = "length"
            return
        rollout.add(answer, [float("nan")] * len(answer), 0)

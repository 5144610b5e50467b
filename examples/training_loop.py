"""A training loop that records: REINFORCE on a toy policy, in seconds, without a dump of a trainer.

    python examples/training_loop.py dump/
    rcdiag score dump/

The policy is a table of next-token logits. The sampler computes in bfloat16 and the trainer in
float32, as engines and trainers do, so that `rcdiag score` finds a small and honest mismatch.
"""

from __future__ import annotations

import sys

import torch

import rcdiag

VOCABULARY, PROMPTS, SAMPLES, LENGTH, STEPS, TEMPERATURE = 64, 8, 8, 24, 4, 0.8
END = 0  # the token that ends a response


def log_probs(weights: torch.Tensor, prompts: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Log-probs of the tokens at the temperature, [rows, tokens], in the dtype of the weights."""
    before = torch.cat([prompts[:, None], tokens[:, :-1]], dim=1)
    every = (weights[before] / TEMPERATURE).float().log_softmax(-1)
    return every.gather(-1, tokens[..., None])[..., 0]


def sample(weights: torch.Tensor, prompts: torch.Tensor) -> torch.Tensor:
    """Tokens of a response for each prompt, [rows, tokens]; after the end comes padding."""
    columns = [prompts]
    for _ in range(LENGTH):
        law = (weights[columns[-1]] / TEMPERATURE).float().softmax(-1)
        columns.append(torch.multinomial(law, 1)[:, 0])
    return torch.stack(columns[1:], dim=1)


def main(folder: str) -> None:
    torch.manual_seed(0)
    weights = (torch.randn(VOCABULARY, VOCABULARY) * 2).requires_grad_()
    optimizer = torch.optim.SGD([weights], lr=1.0)
    metadata = {
        "policies": {
            "rollout": {"dtype": "bfloat16", "temperature": TEMPERATURE},
            "old": {"dtype": "float32", "temperature": TEMPERATURE},
        }
    }
    with rcdiag.Recorder(folder, metadata=metadata) as recorder:
        for step in range(STEPS):
            prompts = torch.arange(1, PROMPTS + 1).repeat_interleave(SAMPLES)
            sampler = weights.detach().bfloat16()
            tokens = sample(sampler, prompts)
            ended = (tokens == END).int().cumsum(1)
            mask = ((ended == 0) | ((ended == 1) & (tokens == END))).int()
            reward = (tokens * mask).sum(1).float() / (VOCABULARY * LENGTH)
            group = reward.view(PROMPTS, SAMPLES)
            advantage = (group - group.mean(1, keepdim=True)).flatten()
            old = log_probs(weights, prompts, tokens)
            recorder.add(
                response_ids=tokens,
                response_mask=mask,
                attention_mask=mask,
                prompt_ids=prompts[:, None].tolist(),
                rollout_log_probs=log_probs(sampler, prompts, tokens),
                old_log_probs=old,
                group_id=[f"{step}-{prompt}" for prompt in prompts.tolist()],
                reward=reward,
                advantage=advantage,
                temperature=TEMPERATURE,
                step=step,
            )
            loss = -(old * mask * advantage[:, None]).sum() / mask.sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main(sys.argv[1])

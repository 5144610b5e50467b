"""Group-relative policy optimization of the policy, in float32 with bfloat16-valued weights."""

import random
import statistics

import torch
from policy import round_to_bf16
from sampler import Rollout

CLIP = 0.2
MINIBATCHES = 4
TOKENS_PER_PASS = 8192


def set_advantages(rollouts: list[Rollout]) -> None:
    """Set (reward - mean) / (std + 1e-6) within each group, with the unbiased deviation."""
    groups: dict[int, list[Rollout]] = {}
    for rollout in rollouts:
        groups.setdefault(rollout.group, []).append(rollout)
    for group in groups.values():
        rewards = [r.reward for r in group]
        mean, deviation = statistics.fmean(rewards), statistics.stdev(rewards)
        for rollout in group:
            rollout.advantage = (rollout.reward - mean) / (deviation + 1e-6)


def passes(rollouts: list[Rollout]):
    """Yield lists of rollouts of similar length, each of about TOKENS_PER_PASS tokens."""
    ordered = sorted(rollouts, key=lambda r: len(r.prompt_ids) + len(r.ids))
    group: list[Rollout] = []
    for rollout in ordered:
        width = len(rollout.prompt_ids) + len(rollout.ids)
        if group and (len(group) + 1) * width > TOKENS_PER_PASS:
            yield group
            group = []
        group.append(rollout)
    yield group


def log_probs(model, rollouts: list[Rollout], temperature: float) -> torch.Tensor:
    """Return the flat float32 log-probs of all response tokens of one pass."""
    rows = [r.prompt_ids + r.ids for r in rollouts]
    width = max(map(len, rows))
    # Padding stands at the right, where causal attention never sees it.
    ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    wanted = torch.zeros_like(ids, dtype=torch.bool)
    for index, rollout in enumerate(rollouts):
        wanted[index, len(rollout.prompt_ids) : len(rows[index])] = True
    hidden = model.model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
    logits = model.lm_head(hidden[wanted[:, 1:]]) / temperature
    targets = ids[wanted]
    return torch.log_softmax(logits, -1).gather(-1, targets[:, None])[:, 0]


def score(model, rollouts: list[Rollout], temperature: float = 1.0) -> None:
    """Store the trainer's log-probs with the rollouts: NaN where the calculator wrote."""
    with torch.no_grad():
        for group in passes(rollouts):
            values = log_probs(model, group, temperature).split([len(r.ids) for r in group])
            for rollout, row in zip(group, values, strict=True):
                masked = row.masked_fill(torch.tensor(rollout.mask) == 0, float("nan"))
                rollout.old_log_probs = masked.tolist()


def policy_loss(model, group: list[Rollout], tokens: int) -> torch.Tensor:
    """Return the clipped policy loss of one pass as its share of the minibatch's token mean."""
    new = log_probs(model, group, 1.0)
    old = torch.tensor([v for r in group for v in r.old_log_probs])
    advantage = torch.tensor([r.advantage for r in group for _ in r.ids])
    ratio = (new - old).exp()
    clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
    return -torch.minimum(ratio * advantage, clipped * advantage).sum() / tokens


class GrpoTrainer:
    """AdamW on a float32 master copy; the model always holds it rounded to bfloat16."""

    def __init__(self, model, rate: float, seed: int):
        """Copy the weights into the master copy and set up its optimizer."""
        self.model, self.rng = model, random.Random(seed)
        self.parameters = list(model.parameters())
        self.masters = [p.detach().clone().requires_grad_() for p in self.parameters]
        self.optimizer = torch.optim.AdamW(
            self.masters, lr=rate, betas=(0.9, 0.95), weight_decay=0.0
        )

    def update(self, rollouts: list[Rollout]) -> float:
        """Take one pass over the rollouts in minibatches and return the mean gradient norm."""
        rollouts = rollouts[:]
        self.rng.shuffle(rollouts)
        size = len(rollouts) // MINIBATCHES
        return statistics.fmean(
            self.one_step(rollouts[i * size : (i + 1) * size]) for i in range(MINIBATCHES)
        )

    def one_step(self, minibatch: list[Rollout]) -> float:
        """Take one optimizer step and return the gradient norm before clipping."""
        tokens = sum(len(r.ids) for r in minibatch)
        for group in passes(minibatch):
            policy_loss(self.model, group, tokens).backward()
        for master, parameter in zip(self.masters, self.parameters, strict=True):
            master.grad, parameter.grad = parameter.grad, None
        norm = torch.nn.utils.clip_grad_norm_(self.masters, 1.0)
        self.optimizer.step()
        round_to_bf16(self.parameters, self.masters)
        return norm.item()

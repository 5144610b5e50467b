"""Supervised training of the policy on worked problems; the loss excludes calculator tokens."""

import math
import random

import torch
from policy import round_to_bf16
from problems import ASSISTANT, MAX_OPS, RESULT, RESULT_END, draw_problem
from progress import log
from torch.nn.functional import cross_entropy

TOKENS_PER_BATCH = 4096
CHUNK = 600


def encode(tokenizer, problems) -> list[tuple[list[int], list[int]]]:
    """Turn worked problems into token ids and 0/1 weights of the tokens to learn."""
    start, result, end = tokenizer.convert_tokens_to_ids([ASSISTANT, RESULT, RESULT_END])
    rows = []
    for ids in tokenizer([p.prompt + p.solution for p in problems])["input_ids"]:
        ids.append(tokenizer.eos_token_id)
        learn, active = [], False
        for token in ids:
            # The calculator writes the result span, so the policy must not learn to.
            learn.append(int(active and token != result))
            active = {start: True, result: False, end: True}.get(token, active)
            if token == end:
                learn[-1] = 0
        rows.append((ids, learn))
    return rows


def batches(rows, rng: random.Random, pad: int):
    """Yield padded batches of rows of similar length, each of about TOKENS_PER_BATCH tokens."""
    rows = sorted(rows, key=lambda row: len(row[0]))
    groups, group = [], []
    for row in rows:
        if group and (len(group) + 1) * len(row[0]) > TOKENS_PER_BATCH:
            groups.append(group)
            group = []
        group.append(row)
    groups.append(group)
    rng.shuffle(groups)
    for group in groups:
        width = len(group[-1][0])
        ids = torch.tensor([r[0] + [pad] * (width - len(r[0])) for r in group])
        learn = torch.tensor([r[1] + [0] * (width - len(r[1])) for r in group], dtype=torch.bool)
        yield ids, learn


def sft_loss(model, ids: torch.Tensor, learn: torch.Tensor) -> torch.Tensor:
    """Return the mean cross entropy of the tokens to learn, computed under bf16 autocast."""
    with torch.autocast("cpu", torch.bfloat16):
        hidden = model.model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
        logits = model.lm_head(hidden[learn[:, 1:]])
    return cross_entropy(logits.float(), ids[:, 1:][learn[:, 1:]])


class SftTrainer:
    """Trainer with Muon for the matrices of the body, and AdamW for embeddings and norms.

    Of the optimizers that were tried it needed the fewest steps.
    """

    def __init__(self, model, tokenizer, modes: dict[str, float], seed: int, loss=sft_loss):
        """Set up both optimizers and the random stream of problems."""
        self.model, self.tokenizer, self.modes, self.loss = model, tokenizer, modes, loss
        self.rng = random.Random(seed)
        self.step, self.tokens, self.stream = 0, 0, None
        body, rest = [], []
        for name, parameter in model.named_parameters():
            (body if parameter.ndim == 2 and "embed" not in name else rest).append(parameter)
        self.optimizers = [
            torch.optim.Muon(body, momentum=0.95, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(rest, betas=(0.9, 0.98), weight_decay=0.0),
        ]

    def problem_batches(self, ramp: int):
        """Yield batches forever; problems reach their full length after `ramp` steps."""
        while True:
            limit = max(3, min(MAX_OPS, MAX_OPS * self.step // ramp))
            problems = [draw_problem(self.rng, self.modes, limit) for _ in range(CHUNK)]
            rows = encode(self.tokenizer, problems)
            yield from batches(rows, self.rng, self.tokenizer.pad_token_id)

    def train(self, steps: int, peak: float, flat: float, ramp: int) -> float:
        """Train some steps (warm-up, then flat, then cosine to 2%) and return the last mean loss.

        The parameters end rounded to bfloat16 values, so the policy can be stored as it is.
        """
        self.stream = self.stream or self.problem_batches(ramp)
        losses = []
        for index in range(steps):
            done = max(0.0, (index / steps - flat) / (1 - flat))
            warm = min(1.0, (self.step + 1) / 50)
            losses.append(self.one_step(peak * warm * (0.51 + 0.49 * math.cos(math.pi * done))))
            if (index + 1) % 50 == 0:
                mean = sum(losses[-50:]) / 50
                log(f"sft step {self.step}: loss {mean:.3f}, {self.tokens:,} tokens")
        round_to_bf16(self.model.parameters())
        return sum(losses[-50:]) / len(losses[-50:])

    def one_step(self, rate: float) -> float:
        """Take one optimizer step at a learning rate and return its loss."""
        ids, learn = next(self.stream)
        loss = self.loss(self.model, ids, learn)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.param_groups[0]["lr"] = rate
            optimizer.step()
            optimizer.zero_grad()
        self.step += 1
        self.tokens += int(ids.numel())
        return loss.item()

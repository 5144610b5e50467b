"""Tables without a fault, including hard ones: long, heavy-tailed, few rows, equal columns."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch import Tensor

from tests.faults.fault import SAMPLING, Effect, fault, log_uniform
from tests.faults.law import Law
from tests.faults.prompts import END
from tests.faults.recipe import Draft, Plan, Random, Recipe, engine, shared_answers, trainer
from tests.faults.sampling import KEPT, Answers, Scores, contexts_of, score

VERSIONS = 6  # number of noise draws at each context of the pool


@fault("engine-noise", SAMPLING, plan="any", weight=2.0)
def engine_noise(recipe: Recipe, random: Random) -> Effect:
    return Effect(note="bfloat16 engine, float32 trainer", side="none", strength=0.0)


@fault("engine-noise", SAMPLING, plan="tools")
def engine_noise_of_turns(recipe: Recipe, random: Random) -> Effect:
    return Effect(note="multi-turn, no numbers where the tool wrote", side="none", strength=0.0)


@fault("engine-noise", SAMPLING, plan="steps")
def engine_noise_of_steps(recipe: Recipe, random: Random) -> Effect:
    return Effect(note="three steps, synced at each", side="none", strength=0.0, step_column=True)


@fault("engine-noise", SAMPLING)
def engine_noise_at_a_temperature(recipe: Recipe, random: Random) -> Effect:
    temperature = round(float(random.uniform(0.3, 1.4)), 2)
    recipe.sample_by(Law(temperature=temperature))
    recipe.trainer_temperature = temperature
    return Effect(note=f"T {temperature}, handled right", side="none", strength=temperature)


@fault("engine-noise", SAMPLING)
def engine_noise_in_few_rows(recipe: Recipe, random: Random) -> Effect:
    count = int(random.integers(24, 40))

    def few(draft: Draft, random: Random) -> None:
        draft.kept_rows = np.arange(min(count, len(draft.answers.lengths)))

    recipe.edits.append(few)
    return Effect(note=f"{count} rows", side="none", strength=count)


@fault("engine-noise", SAMPLING)
def bfloat16_on_both_sides(recipe: Recipe, random: Random) -> Effect:
    recipe.change_side("trainer", lambda network: network.with_options(rounding="prefill"))
    recipe.facts["trainer_dtype"] = "bfloat16"
    return Effect(note="bfloat16 on both sides", side="none", strength=0.0)


@fault("healthy", SAMPLING)
def float32_on_both_sides(recipe: Recipe, random: Random) -> Effect:
    recipe.sample_with(trainer)
    recipe.facts["sampler_dtype"] = "float32"
    return Effect(note="float32 on both sides", side="none", strength=0.0)


@fault("healthy", SAMPLING)
def bitwise_on_policy(recipe: Recipe, random: Random) -> Effect:
    def same(draft: Draft, random: Random) -> None:
        draft.columns["old"] = draft.columns["rollout"].copy()
        draft.entropies["old"] = draft.entropies["rollout"].copy()

    recipe.edits.append(same)
    recipe.facts.update(bitwise=True, trainer_dtype="bfloat16")
    return Effect(
        note="one batch-invariant engine on both sides",
        side="none",
        strength=0.0,
        only=("engine-noise", "columns-identical"),
    )


@fault("engine-noise", SAMPLING, plan="plain", weight=1.0)
def long_responses(recipe: Recipe, random: Random) -> Effect:
    return _long(recipe, random, 4_000, int(random.integers(40, 72)))


@fault("engine-noise", SAMPLING, plan="plain", weight=0.7)
def very_long_responses(recipe: Recipe, random: Random) -> Effect:
    return _long(recipe, random, 30_000, int(random.integers(12, 20)))


@fault("engine-noise", SAMPLING, plan="plain", weight=1.0)
def heavy_tails(recipe: Recipe, random: Random) -> Effect:
    return _long(recipe, random, 200, 128, degrees=float(random.uniform(1.6, 2.5)))


def _long(
    recipe: Recipe, random: Random, length: int, rows: int, degrees: float | None = None
) -> Effect:
    noise = log_uniform(random, 0.004, 0.015)
    seed = int(random.integers(2**31))

    def answers(recipe: Recipe) -> Answers:
        made = _drawn(recipe.plan, np.random.default_rng(seed), length, rows, noise, degrees)
        recipe.scores = lambda recipe, answers: made[1]
        return made[0]

    recipe.answers, recipe.honest_sampler, recipe.honest_trainer = answers, False, False
    recipe.facts["made_tokens"] = True
    tail = "" if degrees is None else f", tails of {degrees:.1f} degrees of freedom"
    return Effect(note=f"{rows} rows of about {length}{tail}", side="none", strength=noise)


@cache
def _pool(plan: Plan) -> tuple[Tensor, np.ndarray]:
    """Return the sampler's logits at contexts of some responses, and the starts of responses."""
    answers = shared_answers(plan)
    rows = answers.rows(answers.ids)[:64]
    result = score(
        engine(plan.steps[0]), contexts_of(answers.prompts[:64]), rows, 0, keep_logits=True
    )
    assert result.logits is not None
    return result.logits, np.cumsum([0, *map(len, rows)])


def _drawn(
    plan: Plan, random: Random, length: int, rows: int, noise: float, degrees: float | None
) -> tuple[Answers, Scores]:
    """Draw tokens from the sampler at contexts of the pool; the trainer's logits have noise.

    Tokens are drawn from the sampler's distribution at each context, so E[ratio] = 1 exactly.
    """
    logits, starts = _pool(plan)
    law = logits.log_softmax(-1)
    lengths = np.maximum(random.lognormal(np.log(length), 0.15, rows).astype(np.int64), 8)
    places = np.concatenate([_walk(starts, int(n), random) for n in lengths])
    edges = law.exp().double().cumsum(-1).numpy()
    edges /= edges[:, -1:]
    flat = (edges + np.arange(len(edges))[:, None]).ravel()
    ids = np.searchsorted(flat, places + random.random(len(places)), "right") % law.shape[1]
    ids = ids.astype(np.int32)
    versions = random.integers(0, VERSIONS, len(places))
    trainer_law = _noisy(logits, noise, degrees, random)
    recorded = law.numpy()[places, ids].astype(np.float64)
    chosen = trainer_law[versions, places, ids]
    entropy = -(law.exp() * law).sum(-1).numpy()[places].astype(np.float64)
    kept = dict.fromkeys(KEPT, recorded)
    kept.update(entropy=entropy, raw_entropy=entropy, top=law.amax(-1).numpy()[places])
    prompts = [question.ids for _, question in plan.questions][: plan.rows]
    answers = Answers(
        [prompts[row % len(prompts)] for row in range(rows)],
        np.arange(rows) // 4,
        ids,
        lengths,
        np.ones(len(ids), np.bool_),
        np.zeros(len(ids), np.int64),
        kept,
        ["stop" if token == END else "length" for token in ids[np.cumsum(lengths) - 1]],
        (random.random(rows) < 0.5).astype(np.float64),
    )
    log_prob = chosen.astype(np.float64)
    return answers, Scores(log_prob, entropy, kept["top"], log_prob)


def _walk(starts: np.ndarray, length: int, random: Random) -> np.ndarray:
    """Return contexts of one long response, made of whole responses without their ends."""
    parts: list[np.ndarray] = []
    while sum(map(len, parts)) < length:
        row = int(random.integers(len(starts) - 1))
        parts.append(np.arange(starts[row], starts[row + 1] - 1))
    return np.concatenate(parts)[:length]


def _noisy(logits: Tensor, noise: float, degrees: float | None, random: Random) -> np.ndarray:
    """Return trainer's log-probs [versions, contexts, vocabulary] that differ by `noise` rms."""
    law = logits.log_softmax(-1)
    size = torch.ones(VERSIONS, len(logits), 1)
    if degrees is not None:
        drawn = random.standard_t(degrees, (VERSIONS, len(logits), 1))
        size = torch.from_numpy(np.clip(np.abs(drawn), 0.2, 25)).float()
    source = torch.Generator().manual_seed(int(random.integers(2**31)))
    errors = torch.randn((VERSIONS, *logits.shape), generator=source) * size
    first = (logits + 0.02 * errors).log_softmax(-1)
    rms = float((law.exp() * (first - law).square()).sum(-1).mean().sqrt())
    return (logits + 0.02 * noise / rms * errors).log_softmax(-1).numpy()

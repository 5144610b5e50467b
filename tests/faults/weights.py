"""Faults of weights: the sampler's are not the trainer's, or `old` is of another policy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from tests.faults import policies
from tests.faults.fault import SAMPLING, SCORING, Effect, either, fault, log_uniform
from tests.faults.law import Law
from tests.faults.network import EMBEDDING, Network, advance, empty_state, logits_of
from tests.faults.recipe import Random, Recipe, engine, shared_answers, trainer
from tests.faults.sampling import (
    KEPT,
    Answers,
    contexts_of,
    gathered,
    sample,
)


def older_than(step: int, random: Random) -> int:
    return int(random.choice([item for item in policies.STEPS if item != step]))


def declare(recipe: Recipe, sampler: str | None, old: str | None) -> None:
    """Declare the weights of both sides in the metadata; None = weights of no checkpoint."""
    recipe.facts.update(sampler_weights=sampler, trainer_weights=old)


@fault("stale-weights", SAMPLING, plan="plain", weight=2.0)
def stale_weights(recipe: Recipe, random: Random) -> Effect:
    step = recipe.plan.steps[0]
    older = older_than(step, random)
    fraction = 1.0 if random.random() < 0.5 else round(float(random.uniform(0.25, 1.3)), 2)
    recipe.sample_with(lambda s: policies.mixed(engine(s), policies.tensors(older), fraction))
    declare(recipe, f"step_{older}" if fraction == 1 else None, f"step_{step}")
    return Effect(note=f"{fraction} of the way to step {older}", side="sampler", strength=fraction)


@fault("weights-never-synced", SAMPLING, plan="steps", weight=1.5)
def weights_never_synced(recipe: Recipe, random: Random) -> Effect:
    last = int(random.choice([0, 4]))
    fraction = round(float(random.uniform(0.6, 1.0)), 2)

    def behind(step: int) -> Network:
        if step <= last:
            return engine(step)
        return policies.mixed(engine(step), policies.tensors(last), fraction)

    recipe.sample_with(behind)
    declare(recipe, None, "step_{step}")
    return Effect(
        note=f"no sync after step {last}, {fraction}",
        side="sampler",
        strength=fraction,
        step_column=True,
    )


@fault("reference-as-old", SCORING, plan="plain", weight=1.5)
def reference_as_old(recipe: Recipe, random: Random) -> Effect:
    other = older_than(recipe.plan.steps[0], random)
    recipe.train_with(lambda step: trainer(other))
    declare(recipe, f"step_{recipe.plan.steps[0]}", f"step_{other}")
    return Effect(note=f"old is of step {other}", side="trainer", strength=other)


@fault("old-after-update", SCORING, plan="plain")
def old_after_update(recipe: Recipe, random: Random) -> Effect:
    rate, count = log_uniform(random, 1e-5, 7e-5), int(random.integers(1, 4))
    answers = shared_answers(recipe.plan)
    updated = _updated(trainer(recipe.plan.steps[0]), answers, rate, count, random)
    recipe.train_with(lambda step: updated)
    return Effect(note=f"{count} updates at {rate:.1e}", side="trainer", strength=rate)


def _updated(
    network: Network, answers: Answers, rate: float, count: int, random: Random
) -> Network:
    """Return the weights after some steps of Adam on the policy gradient of a few of the rows."""
    tensors = {n: v.clone().requires_grad_() for n, v in network.tensors.items()}
    learner = torch.optim.Adam(list(tensors.values()), lr=rate)
    baseline = answers.reward.mean()
    ids = answers.rows(answers.ids)
    for _ in range(count):
        rows = random.choice(len(ids), 16, replace=False)
        whole = [np.concatenate([answers.prompts[row], ids[row]]) for row in rows]
        width = max(map(len, whole))
        tokens = torch.zeros(len(rows), width, dtype=torch.long)
        sampled = torch.zeros(len(rows), width)
        for place, row in enumerate(rows):
            tokens[place, : len(whole[place])] = torch.from_numpy(whole[place].astype(np.int64))
            sampled[place, len(answers.prompts[row]) : len(whole[place])] = 1.0
        state = empty_state(len(rows), width)
        positions = torch.arange(width).expand(len(rows), -1)
        twin = replace(network, tensors=tensors)
        with torch.enable_grad():
            real = torch.ones_like(tokens, dtype=torch.bool)
            hidden = advance(twin, state, tokens, positions, real)
            law = logits_of(twin, hidden[:, :-1]).log_softmax(-1)
            chosen = law.gather(2, tokens[:, 1:, None])[..., 0]
            advantage = torch.from_numpy(answers.reward[rows] - baseline).float()
            loss = -(advantage[:, None] * chosen * sampled[:, 1:]).sum() / sampled.sum()
            learner.zero_grad()
            loss.backward()
        learner.step()
    return replace(network, tensors={n: v.detach() for n, v in tensors.items()})


@fault("partial-sync", SAMPLING, plan="plain", weight=1.5)
def partial_sync(recipe: Recipe, random: Random) -> Effect:
    step = recipe.plan.steps[0]
    older = older_than(step, random)
    parts = {
        "attention": ("self_attn",),
        "MLPs": ("mlp",),
        "first layers": ("layers.0.", "layers.1."),
        "last layers": ("layers.3.", "layers.4."),
        "embedding": ("embed_tokens",),
    }
    which, times = either(random, *parts), round(float(random.uniform(1.0, 2.0)), 2)
    recipe.sample_with(
        lambda s: policies.mixed(engine(s), policies.tensors(older), times, parts[which])
    )
    return Effect(note=f"{which} of step {older}, {times} times", side="sampler", strength=times)


@fault("tied-head-desync", SAMPLING, plan="plain")
def tied_head_desync(recipe: Recipe, random: Random) -> Effect:
    older = older_than(recipe.plan.steps[0], random)
    times = round(float(random.uniform(1.0, 1.8)), 2)

    def old_head(step: int) -> Network:
        now = engine(step).tensors[EMBEDDING]
        then = policies.tensors(older)[EMBEDDING]
        return replace(engine(step), head=now + times * (then - now))

    recipe.sample_with(old_head)
    return Effect(note=f"head of step {older}, {times} times", side="sampler", strength=times)


@fault("shard-wrong", SCORING, plan="plain")
def shard_wrong(recipe: Recipe, random: Random) -> Effect:
    side, layer = either(random, "sampler", "trainer"), int(random.integers(0, 5))
    kind, axis = [("mlp.down_proj", 1), ("self_attn.o_proj", 1), ("mlp.up_proj", 0)][
        int(random.integers(3))
    ]
    name = f"model.layers.{layer}.{kind}.weight"
    recipe.change_side(side, lambda n: policies.halves_exchanged(n, name, axis))
    return Effect(note=f"{side}: halves of {name} exchanged", side=side, strength=layer)


@fault("vocab-shard-wrong", SCORING, plan="plain", weight=1.5)
def vocab_shard_wrong(recipe: Recipe, random: Random) -> Effect:
    ranks = int(random.choice([2, 4, 8]))
    rank, how = int(random.integers(ranks)), either(random, "left out of the sum", "zero")
    size = 1024 // ranks
    ids = (rank * size, (rank + 1) * size)

    def spoilt(network: Network) -> Network:
        if how == "left out of the sum":
            return network.with_options(missing_vocabulary=ids)
        head = network.tensors[EMBEDDING].clone()
        head[ids[0] : ids[1]] = 0
        return replace(network, head=head)

    recipe.change_side("trainer", spoilt)
    return Effect(note=f"rank {rank} of {ranks} is {how}", side="trainer", strength=ranks)


@fault("lora-missing", SAMPLING, plan="plain")
def lora_missing(recipe: Recipe, random: Random) -> Effect:
    step, how = recipe.plan.steps[0], either(random, "missing", "twice")
    scale = log_uniform(random, 0.04, 0.25)
    added = policies.low_rank(step, int(random.choice([4, 8, 16])), scale, random)
    times = -1.0 if how == "missing" else 1.0
    recipe.sample_with(lambda s: policies.plus(engine(s), added, times))
    return Effect(note=f"adapter {how}, scale {scale:.2f}", side="sampler", strength=scale)


@fault("replica-unsynced", SAMPLING, plan="plain", weight=1.5)
def replica_unsynced(recipe: Recipe, random: Random) -> Effect:
    plan = recipe.plan
    step = plan.steps[0]
    older, engines = older_than(step, random), int(random.integers(2, 5))
    fraction = round(float(random.uniform(0.7, 1.3)), 2)
    stale = policies.mixed(engine(step), policies.tensors(older), fraction)
    of_row = random.integers(0, engines, plan.rows)
    recipe.sampler = [stale if number == engines - 1 else engine(step) for number in of_row]
    recipe.honest_sampler = False
    stated = bool(random.random() < 0.6)
    if stated:
        recipe.facts["engines"] = [f"engine-{number}" for number in of_row]
    return Effect(
        note=f"one of {engines} engines near step {older}, stated: {stated}",
        side="sampler",
        strength=fraction,
        only=("stale-weights", "weights-differ") if stated else None,
    )


@fault("in-flight-update", SAMPLING, plan="plain", weight=1.5)
def in_flight_update(recipe: Recipe, random: Random) -> Effect:
    plan = recipe.plan
    step = plan.steps[0]
    older, stated = older_than(step, random), bool(random.random() < 0.5)
    fraction = round(float(random.uniform(0.8, 1.3)), 2)
    first = policies.mixed(engine(step), policies.tensors(older), fraction)
    # The update comes at one time for all rows, which began at different times.
    change = random.integers(15, 90, plan.rows)

    def answers(recipe: Recipe) -> Answers:
        made, versions = _sampled_in_two(recipe, first, change)
        if stated:
            recipe.facts["versions"] = np.where(versions, step, older)
        return made

    recipe.answers, recipe.honest_sampler = answers, False
    return Effect(
        note=f"from near step {older} to {step}, versions stated: {stated}",
        side="sampler",
        strength=fraction,
        only=("stale-weights", "weights-differ") if stated else None,
    )


def _sampled_in_two(
    recipe: Recipe, first: Network, change: np.ndarray
) -> tuple[Answers, np.ndarray]:
    """Sample up to the change with one network, then with the recipe's."""
    rows = recipe.plan.questions
    prompts = [question.ids for _, question in rows]
    ids, kept = sample(first, contexts_of(prompts), Law(), change, recipe.seed)
    cut = [row for row, tokens in enumerate(ids) if tokens[-1] != 1]
    before = [ids[row] for row in cut]
    contexts = contexts_of([np.concatenate([prompts[row], ids[row]]) for row in cut])
    limits = np.array([recipe.plan.longest - len(tokens) for tokens in before])
    more, values = sample(
        recipe.sampler[0], contexts, Law(), limits, recipe.seed + 1, written_before=before
    )
    lengths = [len(row) for row in ids]
    for place, row in enumerate(cut):
        ids[row] = np.concatenate([ids[row], more[place]])
        for name in KEPT:
            kept[name][row] = np.concatenate([kept[name][row], values[name][place]])
    later = [np.arange(len(row)) >= length for row, length in zip(ids, lengths, strict=True)]
    masks = [np.ones(len(row), np.bool_) for row in ids]
    turns = [np.zeros(len(row), np.int64) for row in ids]
    return gathered(rows, ids, masks, turns, kept), np.concatenate(later)

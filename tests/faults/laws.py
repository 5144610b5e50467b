"""Faults of the sampling distribution: temperatures, kept sets, penalties, and their record."""

from __future__ import annotations

import numpy as np

from tests.faults.fault import RECORDING, SAMPLING, Effect, either, fault, log_uniform
from tests.faults.law import Law
from tests.faults.policies import mixed, tensors
from tests.faults.prompts import encode
from tests.faults.recipe import Draft, Random, Recipe, engine, scored


def temperature_off_one(random: Random) -> float:
    if random.random() < 0.65:
        return round(float(random.uniform(0.5, 0.92)), 2)
    return round(float(random.uniform(1.1, 1.5)), 2)


@fault("temperature-raw-recorded", SAMPLING, weight=2.0)
def temperature_raw_recorded(recipe: Recipe, random: Random) -> Effect:
    temperature = temperature_off_one(random)
    recipe.sample_by(Law(temperature=temperature))
    recipe.recorded, recipe.trainer_temperature = "raw", temperature
    recipe.facts["recorded_temperature"] = 1.0
    return Effect(note=f"T {temperature}, recorded raw", side="recorder", strength=temperature)


@fault("temperature-raw-recorded", SAMPLING)
def one_replica_records_raw(recipe: Recipe, random: Random) -> Effect:
    """Record raw log-probs in one engine only, which the metadata do not mention."""
    temperature, engines = temperature_off_one(random), int(random.integers(2, 6))
    recipe.sample_by(Law(temperature=temperature))
    recipe.trainer_temperature = temperature
    of_row = random.integers(0, engines, recipe.plan.rows)
    stated = bool(random.random() < 0.6)
    if stated:
        recipe.facts["engines"] = [f"engine-{number}" for number in of_row]

    def raw(draft: Draft, random: Random) -> None:
        theirs = (of_row == engines - 1)[draft.answers.owner]
        draft.columns["rollout"][theirs] = draft.answers.kept["raw"][theirs]

    recipe.edits.append(raw)
    return Effect(
        note=f"T {temperature}, recorded raw by one of {engines} engines, stated: {stated}",
        side="recorder",
        strength=temperature,
    )


@fault("trainer-without-temperature", SAMPLING, weight=2.0)
def trainer_without_temperature(recipe: Recipe, random: Random) -> Effect:
    temperature = temperature_off_one(random)
    recipe.sample_by(Law(temperature=temperature))
    recipe.trainer_temperature = 1.0
    # Without a column the intended distribution is unknown.
    stated = bool(random.random() < 0.7)
    only = () if stated else ("sampler-ignores-temperature",)
    return Effect(
        note=f"T {temperature}, the trainer does not divide",
        side="trainer",
        strength=temperature,
        only=only,
        temperature_column=stated,
    )


@fault("sampler-ignores-temperature", SAMPLING, plan="plain", weight=2.0)
def sampler_ignores_temperature(recipe: Recipe, random: Random) -> Effect:
    temperature = temperature_off_one(random)
    recipe.trainer_temperature, recipe.honest_trainer = temperature, False
    recipe.facts["stated_temperature"] = temperature
    stated = bool(random.random() < 0.7)
    only = () if stated else ("trainer-without-temperature",)
    return Effect(
        note=f"the trainer divides by {temperature}, the sampler samples at 1",
        side="sampler",
        strength=temperature,
        only=only,
        temperature_column=stated,
    )


@fault("temperature-silent", SAMPLING, weight=1.5)
def temperature_silent(recipe: Recipe, random: Random) -> Effect:
    temperature = temperature_off_one(random)
    recipe.sample_by(Law(temperature=temperature))
    recipe.recorded, recipe.trainer_temperature = "raw", 1.0
    recipe.edits.append(raw_entropies)
    recipe.facts["recorded_temperature"] = 1.0
    return Effect(note=f"T {temperature}, both columns raw", side="recorder", strength=temperature)


def raw_entropies(draft: Draft, random: Random) -> None:
    draft.entropies["rollout"] = draft.answers.kept["raw_entropy"].copy()


@fault("log-probs-divided", SAMPLING)
def log_probs_divided(recipe: Recipe, random: Random) -> Effect:
    temperature = temperature_off_one(random)
    recipe.sample_by(Law(temperature=temperature))
    recipe.trainer_temperature = 1.0

    def divide(draft: Draft, random: Random) -> None:
        draft.columns["old"] = draft.columns["old"] / temperature

    recipe.edits.append(divide)
    return Effect(note=f"log-probs / {temperature}", side="trainer", strength=temperature)


def restricted(recipe: Recipe, random: Random, **kept: float) -> None:
    """Sample with a kept set, sometimes at a temperature that both sides use."""
    temperature = round(float(random.uniform(0.8, 1.3)), 2) if random.random() < 0.3 else 1.0
    recipe.sample_by(Law(temperature=temperature, **kept))  # type: ignore[arg-type]
    recipe.trainer_temperature = temperature


@fault("top-p-renormalised", SAMPLING, weight=1.5)
def top_p_renormalised(recipe: Recipe, random: Random) -> Effect:
    top_p = round(float(random.uniform(0.7, 0.97)), 2)
    restricted(recipe, random, top_p=top_p)
    return Effect(note=f"top-p {top_p}", side="recorder", strength=top_p)


@fault("top-k-renormalised", SAMPLING)
def top_k_renormalised(recipe: Recipe, random: Random) -> Effect:
    top_k = int(random.integers(2, 12))
    restricted(recipe, random, top_k=top_k)
    return Effect(note=f"top-k {top_k}", side="recorder", strength=top_k)


@fault("min-p-renormalised", SAMPLING)
def min_p_renormalised(recipe: Recipe, random: Random) -> Effect:
    min_p = round(log_uniform(random, 0.03, 0.3), 3)
    restricted(recipe, random, min_p=min_p)
    return Effect(note=f"min-p {min_p}", side="recorder", strength=min_p)


@fault("top-p-silent", SAMPLING)
def top_p_silent(recipe: Recipe, random: Random) -> Effect:
    top_p = round(float(random.uniform(0.6, 0.95)), 2)
    recipe.sample_by(Law(top_p=top_p))
    recipe.recorded, recipe.trainer_temperature = "raw", 1.0
    recipe.edits.append(raw_entropies)
    return Effect(note=f"top-p {top_p}, recorded raw", side="recorder", strength=top_p)


@fault("repetition-penalty", SAMPLING, weight=1.5)
def repetition_penalty(recipe: Recipe, random: Random) -> Effect:
    penalty = round(float(random.uniform(1.02, 1.25)), 3)
    recipe.sample_by(Law(repetition=penalty))
    recipe.trainer_temperature = 1.0
    return Effect(note=f"repetition penalty {penalty}", side="sampler", strength=penalty)


@fault("presence-penalty", SAMPLING, weight=1.5)
def presence_penalty(recipe: Recipe, random: Random) -> Effect:
    penalty = round(float(random.uniform(0.15, 1.2)), 2)
    recipe.sample_by(Law(presence=penalty))
    recipe.trainer_temperature = 1.0
    return Effect(note=f"presence penalty {penalty}", side="sampler", strength=penalty)


@fault("logit-bias", SAMPLING, weight=1.5)
def logit_bias(recipe: Recipe, random: Random) -> Effect:
    words = (" buys", " gets", " finds", " she", " he", " so", " and", ":", ",", " now", " has")
    chosen = random.choice(words, int(random.integers(2, 5)), replace=False)
    ids = sorted({int(encode(str(word))[-1]) for word in chosen})
    banned = random.random() < 0.4
    value = -100.0 if banned else round(float(random.choice([-1, 1]) * random.uniform(1, 4)), 1)
    recipe.sample_by(Law(bias=tuple((token, value) for token in ids)))
    recipe.trainer_temperature = 1.0
    return Effect(note=f"{value:+} on {len(ids)} tokens", side="sampler", strength=value)


@fault("min-tokens", SAMPLING)
def min_tokens(recipe: Recipe, random: Random) -> Effect:
    least = int(random.integers(60, 130))
    recipe.sample_by(Law(min_tokens=least))
    recipe.trainer_temperature = 1.0
    return Effect(note=f"no end before token {least}", side="sampler", strength=least)


@fault("draft-recorded", RECORDING, plan="plain")
def draft_recorded(recipe: Recipe, random: Random) -> Effect:
    share = float(random.choice([1.0, round(random.uniform(0.3, 0.8), 2)]))
    step = recipe.plan.steps[0]
    other = int(random.choice([item for item in (0, 4, 8) if item != step]))
    quality = either(random, "close", "far")

    def spoil(draft: Draft, random: Random) -> None:
        network = engine(other)
        if quality == "far":  # a larger distance from the target than any checkpoint
            network = mixed(network, tensors(step), -float(random.uniform(0.3, 1.0)))
        recipe_rows = [network] * len(draft.answers.lengths)
        drafted = scored(recipe, draft.answers, recipe_rows, 1.0, None).log_prob
        accepted = random.random(len(drafted)) < share
        draft.columns["rollout"] = np.where(accepted, drafted, draft.columns["rollout"])

    recipe.edits.append(spoil)
    return Effect(note=f"a {quality} draft's at {share:.0%}", side="recorder", strength=share)

"""Faults of storage: stored values that are no longer log-probs, in all or some tokens."""

from __future__ import annotations

import numpy as np
import torch

from tests.faults.fault import RECORDING, Effect, either, fault, log_uniform
from tests.faults.recipe import Draft, Random, Recipe


def column_of(random: Random) -> tuple[str, str]:
    """Draw the affected column and its side."""
    column = either(random, "rollout", "old")
    return column, "recorder" if column == "rollout" else "trainer"


def chosen_tokens(draft: Draft, random: Random, share: float, *, runs: bool) -> np.ndarray:
    """Draw sampled tokens, one by one or in runs of about six; at least three."""
    tokens = np.flatnonzero(draft.mask)
    count = max(int(share * len(tokens)), 3)
    if not runs:
        return random.choice(tokens, count, replace=False)
    starts = random.choice(tokens, max(count // 6, 1), replace=False)
    places = (starts[:, None] + np.arange(6)).ravel()
    return np.intersect1d(places, tokens)


@fault("nan-log-probs", RECORDING, plan="any")
def nan_log_probs(recipe: Recipe, random: Random) -> Effect:
    column, side = column_of(random)
    value = float(random.choice([np.nan, -np.inf]))
    share = log_uniform(random, 0.0005, 0.2)

    def spoil(draft: Draft, random: Random) -> None:
        draft.columns[column][chosen_tokens(draft, random, share, runs=False)] = value

    recipe.edits.append(spoil)
    return Effect(note=f"{value} at {share:.2%} of {column}", side=side, strength=share)


@fault("zero-placeholder", RECORDING, plan="any")
def zero_placeholder(recipe: Recipe, random: Random) -> Effect:
    column, side = column_of(random)
    share, runs = log_uniform(random, 0.03, 1.0), bool(random.integers(2))

    def spoil(draft: Draft, random: Random) -> None:
        draft.columns[column][chosen_tokens(draft, random, share, runs=runs)] = 0.0

    recipe.edits.append(spoil)
    return Effect(note=f"zeros at {share:.0%} of {column}, runs: {runs}", side=side, strength=share)


@fault("sentinel", RECORDING, plan="any")
def sentinel(recipe: Recipe, random: Random) -> Effect:
    column, side = column_of(random)
    value = float(random.choice([-9999.0, -100.0, -1000.0, -1e4, 1.0]))
    where = either(random, "first", "rare", "anywhere")
    share = log_uniform(random, 0.002, 0.1)

    def spoil(draft: Draft, random: Random) -> None:
        values = draft.columns[column]
        if where == "first":
            values[draft.ends - draft.answers.lengths + 1] = value
        elif where == "rare":
            tokens = np.flatnonzero(draft.mask)
            values[tokens[np.argsort(values[tokens])[: max(int(share * len(tokens)), 5)]]] = value
        else:
            values[chosen_tokens(draft, random, share, runs=False)] = value

    recipe.edits.append(spoil)
    return Effect(note=f"{value} at {where} tokens of {column}", side=side, strength=value)


@fault("floor-clip", RECORDING)
def floor_clip(recipe: Recipe, random: Random) -> Effect:
    column, side = column_of(random)
    share = log_uniform(random, 0.003, 0.1)

    def spoil(draft: Draft, random: Random) -> None:
        values = draft.columns[column]
        floor = round(float(np.quantile(values[draft.mask], share)), 1)
        draft.columns[column] = np.maximum(values, floor)

    recipe.edits.append(spoil)
    return Effect(note=f"floor at the {share:.1%} quantile of {column}", side=side, strength=share)


def rounded_columns(recipe: Recipe, random: Random, how: str) -> tuple[str, str]:
    columns = {"rollout": ("rollout",), "old": ("old",), "both": ("rollout", "old")}
    which = either(random, *columns)
    digits = int(random.integers(2, 5))

    def spoil(draft: Draft, random: Random) -> None:
        for column in columns[which]:
            values = draft.columns[column]
            if how == "decimals":
                draft.columns[column] = np.round(values, digits)
            else:
                kind = torch.bfloat16 if how == "bfloat16" else torch.float16
                draft.columns[column] = torch.from_numpy(values).to(kind).double().numpy()

    recipe.edits.append(spoil)
    return which, f"{digits} decimals" if how == "decimals" else how


@fault("stored-bfloat16", RECORDING, plan="any")
def stored_bfloat16(recipe: Recipe, random: Random) -> Effect:
    which, how = rounded_columns(recipe, random, "bfloat16")
    return Effect(note=f"{which} stored as {how}", side="storage", strength=how)


@fault("stored-float16", RECORDING, plan="any")
def stored_float16(recipe: Recipe, random: Random) -> Effect:
    which, how = rounded_columns(recipe, random, "float16")
    return Effect(note=f"{which} stored as {how}", side="storage", strength=how)


@fault("stored-rounded", RECORDING, plan="any")
def stored_rounded(recipe: Recipe, random: Random) -> Effect:
    which, how = rounded_columns(recipe, random, "decimals")
    return Effect(note=f"{which} stored with {how}", side="storage", strength=how)


@fault("log-base", RECORDING, plan="any")
def log_base(recipe: Recipe, random: Random) -> Effect:
    column, side = column_of(random)
    base = int(random.choice([2, 10]))

    def spoil(draft: Draft, random: Random) -> None:
        draft.columns[column] = draft.columns[column] / np.log(base)

    recipe.edits.append(spoil)
    return Effect(note=f"base {base} in {column}", side=side, strength=base)


@fault("probabilities-stored", RECORDING, plan="any")
def probabilities_stored(recipe: Recipe, random: Random) -> Effect:
    column, side = column_of(random)

    def spoil(draft: Draft, random: Random) -> None:
        draft.columns[column] = np.exp(draft.columns[column])

    recipe.edits.append(spoil)
    return Effect(note=f"probabilities in {column}", side=side, strength=1.0)


@fault("sign-flipped", RECORDING, plan="any")
def sign_flipped(recipe: Recipe, random: Random) -> Effect:
    column, side = column_of(random)

    def spoil(draft: Draft, random: Random) -> None:
        draft.columns[column] = -draft.columns[column]

    recipe.edits.append(spoil)
    return Effect(note=f"minus {column}", side=side, strength=-1.0)


@fault("cumulative-stored", RECORDING, weight=2.0)
def cumulative_stored(recipe: Recipe, random: Random) -> Effect:
    column, side = column_of(random)
    how = either(random, "running sums", "row means", "row sums")

    def spoil(draft: Draft, random: Random) -> None:
        made = {
            "running sums": np.cumsum,
            "row means": lambda row: np.full(len(row), row.mean()),
            "row sums": lambda row: np.full(len(row), row.sum()),
        }[how]
        rows = draft.answers.rows(draft.columns[column])
        draft.columns[column] = np.concatenate([made(row) for row in rows])

    recipe.edits.append(spoil)
    return Effect(note=f"{how} in {column}", side=side, strength=how)


@fault("columns-identical", RECORDING)
def columns_identical(recipe: Recipe, random: Random) -> Effect:
    copied, over = ("old", "rollout") if random.random() < 0.5 else ("rollout", "old")

    def spoil(draft: Draft, random: Random) -> None:
        draft.columns[over] = draft.columns[copied].copy()
        draft.entropies[over] = draft.entropies[copied].copy()

    recipe.edits.append(spoil)
    return Effect(note=f"{over} is a copy of {copied}", side="recorder", strength=over)


@fault("duplicated-rows", RECORDING, plan="any")
def duplicated_rows(recipe: Recipe, random: Random) -> Effect:
    share = log_uniform(random, 0.05, 1.0)

    def spoil(draft: Draft, random: Random) -> None:
        count = len(draft.answers.lengths)
        again = random.choice(count, max(int(share * count), 4), replace=False)
        rows = np.concatenate([np.arange(count), again])
        draft.kept_rows = np.sort(rows) if random.random() < 0.5 else rows

    recipe.edits.append(spoil)
    return Effect(note=f"{share:.0%} of the rows stand twice", side="storage", strength=share)


@fault("top-one-recorded", RECORDING)
def top_one_recorded(recipe: Recipe, random: Random) -> Effect:
    column, side = column_of(random)

    def spoil(draft: Draft, random: Random) -> None:
        top = draft.answers.kept["top"] if column == "rollout" else draft.trainer.top
        draft.columns[column] = top.copy()

    recipe.edits.append(spoil)
    return Effect(note=f"the likeliest token's in {column}", side=side, strength=1.0)


@fault("entropy-recorded", RECORDING)
def entropy_recorded(recipe: Recipe, random: Random) -> Effect:
    column, side = column_of(random)
    sign = float(random.choice([-1, 1]))

    def spoil(draft: Draft, random: Random) -> None:
        draft.columns[column] = sign * draft.entropies[column]

    recipe.edits.append(spoil)
    return Effect(note=f"{sign:+.0f} times the entropy in {column}", side=side, strength=sign)

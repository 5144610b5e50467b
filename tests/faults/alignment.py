"""Faults of alignment: values at wrong tokens, and masks over wrong tokens."""

from __future__ import annotations

import numpy as np
import torch

from tests.faults.fault import RECORDING, SAMPLING, SCORING, Effect, either, fault, log_uniform
from tests.faults.law import Law
from tests.faults.network import EMBEDDING, Network
from tests.faults.prompts import (
    CALL,
    CALL_END,
    END,
    PAD,
    RESULT,
    RESULT_END,
    decode,
    encode,
)
from tests.faults.recipe import Draft, Random, Recipe, scored
from tests.faults.sampling import Answers, Rows, Scores, contexts_of, score
from tests.faults.storage import column_of


def shifted(row: np.ndarray, by: int, fill: str) -> np.ndarray:
    """Return a row's values one token later (1) or earlier (-1)."""
    moved = np.roll(row, by)
    if fill == "zero":
        moved[0 if by > 0 else -1] = 0.0
    return moved


@fault("shift-by-one", RECORDING, weight=2.0)
def shift_by_one(recipe: Recipe, random: Random) -> Effect:
    column, side = column_of(random)
    by, fill = int(random.choice([-1, 1])), either(random, "zero", "roll")

    def spoil(draft: Draft, random: Random) -> None:
        rows = draft.answers.rows(draft.columns[column])
        draft.columns[column] = np.concatenate([shifted(row, by, fill) for row in rows])

    recipe.edits.append(spoil)
    return Effect(note=f"{column} moved by {by:+d}, {fill} at the end", side=side, strength=by)


@fault("shift-some-rows", RECORDING)
def shift_some_rows(recipe: Recipe, random: Random) -> Effect:
    column, side = column_of(random)
    by, fill = int(random.choice([-1, 1])), either(random, "zero", "roll")
    share = log_uniform(random, 0.05, 0.6)

    def spoil(draft: Draft, random: Random) -> None:
        rows = draft.answers.rows(draft.columns[column])
        count = max(int(share * len(rows)), 4)
        for row in random.choice(len(rows), count, replace=False):
            rows[row] = shifted(rows[row], by, fill)
        draft.columns[column] = np.concatenate(rows)

    recipe.edits.append(spoil)
    return Effect(note=f"{share:.0%} of {column}'s rows by {by:+d}", side=side, strength=share)


@fault("shift-after-tool", RECORDING, plan="tools")
def shift_after_tool(recipe: Recipe, random: Random) -> Effect:
    column, side = column_of(random)
    by = int(random.choice([-1, 1]))

    def spoil(draft: Draft, random: Random) -> None:
        turns = draft.answers.rows(draft.answers.turn)
        masks = draft.answers.rows(draft.answers.mask)
        rows = draft.answers.rows(draft.columns[column])
        for row, turn, mask in zip(rows, turns, masks, strict=True):
            later = np.flatnonzero((turn > 0) & mask)
            row[later] = np.roll(row[later], by)
        draft.columns[column] = np.concatenate(rows)

    recipe.edits.append(spoil)
    return Effect(note=f"{column} by {by:+d} from the second turn on", side=side, strength=by)


def fitted(row: np.ndarray, length: int) -> np.ndarray:
    """Return a row cut or padded with zeros, as in a padded batch."""
    return np.concatenate([row[:length], np.zeros(max(length - len(row), 0))])


@fault("rows-swapped", RECORDING, weight=2.0)
def rows_swapped(recipe: Recipe, random: Random) -> Effect:
    column, side = column_of(random)
    how = either(random, "within groups", "by length in blocks", "pairs of like length")
    share = log_uniform(random, 0.2, 1.0)

    def spoil(draft: Draft, random: Random) -> None:
        lengths = draft.answers.lengths
        order = np.arange(len(lengths))
        if how == "within groups":
            for group in np.unique(draft.answers.group):
                members = np.flatnonzero(draft.answers.group == group)
                order[members] = random.permutation(members)
        elif how == "by length in blocks":
            for first in range(0, len(order), 32):
                block = order[first : first + 32]
                order[first : first + 32] = block[np.argsort(lengths[block], kind="stable")]
        else:
            pairs = np.argsort(lengths, kind="stable")[: len(order) // 2 * 2].reshape(-1, 2)
            for one, other in pairs[random.random(len(pairs)) < share]:
                order[one], order[other] = other, one
        rows = draft.answers.rows(draft.columns[column])
        moved = [fitted(rows[order[row]], lengths[row]) for row in range(len(rows))]
        draft.columns[column] = np.concatenate(moved)

    recipe.edits.append(spoil)
    return Effect(note=f"{column}'s rows {how}", side=side, strength=how)


@fault("logits-not-shifted", RECORDING)
def logits_not_shifted(recipe: Recipe, random: Random) -> Effect:
    def spoil(draft: Draft, random: Random) -> None:
        draft.columns["old"] = draft.trainer.own.copy()

    recipe.edits.append(spoil)
    return Effect(note="log-probs under the logits that follow", side="trainer", strength=1.0)


@fault("mask-includes-tool", RECORDING, plan="tools", weight=2.0)
def mask_includes_tool(recipe: Recipe, random: Random) -> Effect:
    how = either(random, "zeros recorded", "scored by both")

    def spoil(draft: Draft, random: Random) -> None:
        tool = ~draft.answers.mask
        draft.mask[:] = True
        draft.columns["old"][tool] = draft.trainer.log_prob[tool]
        if how == "zeros recorded":
            draft.columns["rollout"][tool] = 0.0
            return
        engines = scored(recipe, draft.answers, recipe.sampler, recipe.law.temperature, None)
        draft.columns["rollout"][tool] = engines.log_prob[tool]

    recipe.edits.append(spoil)
    only = ("zero-placeholder",) if how == "zeros recorded" else ("engine-noise", "healthy")
    return Effect(note=f"tool tokens count, {how}", side="recorder", strength=how, only=only)


@fault("mask-drops-last", RECORDING)
def mask_drops_last(recipe: Recipe, random: Random) -> Effect:
    how = either(random, "masked", "cut")

    def spoil(draft: Draft, random: Random) -> None:
        if how == "masked":
            draft.mask[draft.ended] = False
        else:
            draft.cut_last = True

    recipe.edits.append(spoil)
    return Effect(note=f"the end token is {how}", side="recorder", strength=how)


@fault("eos-one-sided", RECORDING)
def eos_one_sided(recipe: Recipe, random: Random) -> Effect:
    column, side = column_of(random)
    zero = column == "rollout" or random.random() < 0.4

    def spoil(draft: Draft, random: Random) -> None:
        if zero:
            draft.columns[column][draft.ended] = 0.0
            return
        rows = draft.answers.rows(draft.answers.ids)
        targets = [np.where(row == END, PAD, row) for row in rows]
        padded = _with_targets(recipe, draft.answers, targets)
        draft.columns["old"][draft.ended] = padded.log_prob[draft.ended]

    recipe.edits.append(spoil)
    note = f"0 for the end token in {column}" if zero else "the trainer scores padding for the end"
    return Effect(note=note, side=side, strength=1.0)


def _with_targets(recipe: Recipe, answers: Answers, targets: Rows) -> Scores:
    contexts, rows = contexts_of(answers.prompts), answers.rows(answers.ids)
    temperature = recipe.trainer_temperature
    return score(
        recipe.trainer[0], contexts, rows, recipe.seed, temperature=temperature, targets=targets
    )


@fault("special-token-ids", SCORING, plan="tools")
def special_token_ids(recipe: Recipe, random: Random) -> Effect:
    pairs = [(CALL, RESULT), (CALL_END, RESULT_END), (END, CALL), (END, RESULT), (CALL, CALL_END)]
    one, other = pairs[int(random.integers(len(pairs)))]
    order = torch.arange(1024)
    order[one], order[other] = other, one

    def exchanged(network: Network) -> Network:
        return network.with_tensors(lambda n, v: v[order] if n == EMBEDDING else v)

    recipe.change_side("trainer", exchanged)
    return Effect(
        note=f"ids {one} and {other} exchanged", side="trainer", strength=f"{one}-{other}"
    )


@fault("retokenised", SAMPLING)
def retokenised(recipe: Recipe, random: Random) -> Effect:
    temperature = round(float(random.uniform(1.25, 1.6)), 2)
    recipe.sample_by(Law(temperature=temperature))
    recipe.trainer_temperature = temperature

    def scores(recipe: Recipe, answers: Answers) -> Scores:
        rows = answers.rows(answers.ids)
        again = [_encoded_again(row) for row in rows]
        result = scored(recipe, answers, recipe.trainer, temperature, None, again)
        ends = np.cumsum([len(row) for row in again])[:-1]
        columns = [
            np.concatenate(
                [
                    fitted(part, n)
                    for part, n in zip(np.split(v, ends), answers.lengths, strict=True)
                ]
            )
            for v in (result.log_prob, result.entropy, result.top, result.own)
        ]
        return Scores(*columns)

    recipe.scores, recipe.honest_trainer = scores, False
    return Effect(note=f"T {temperature}, text encoded again", side="trainer", strength=temperature)


def _encoded_again(row: np.ndarray) -> np.ndarray:
    again = encode(decode(row))
    return again if len(again) else row

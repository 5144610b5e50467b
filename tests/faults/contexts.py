"""Faults of context: the two sides see different tokens before a response."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.faults.fault import SAMPLING, SCORING, Effect, either, fault
from tests.faults.prompts import ASSISTANT, END, PAD, RESULT, RESULT_END, USER, encode
from tests.faults.recipe import Random, Recipe, View, engine
from tests.faults.sampling import Answers, Contexts, Rows, Scores, contexts_of, score


def see(recipe: Recipe, side: str, view: View) -> None:
    """Change the prompts as seen by one side."""
    if side == "sampler":
        recipe.sampler_view, recipe.honest_sampler = view, False
    else:
        recipe.trainer_view, recipe.honest_trainer = view, False


def edited(change: Callable[[np.ndarray], np.ndarray]) -> View:
    return lambda prompts, random: contexts_of([change(prompt) for prompt in prompts])


def side_of(random: Random) -> str:
    return either(random, "sampler", "trainer")


@fault("prompt-truncated", SCORING, weight=1.5)
def prompt_truncated(recipe: Recipe, random: Random) -> Effect:
    side, end = side_of(random), either(random, "first", "last")
    tokens = int(random.integers(24, 60))
    see(recipe, side, edited(lambda p: p[:tokens] if end == "first" else p[-tokens:]))
    return Effect(note=f"{side} sees the {end} {tokens} of the prompt", side=side, strength=tokens)


@fault("prompt-template", SCORING, weight=1.5)
def prompt_template(recipe: Recipe, random: Random) -> Effect:
    side = side_of(random)
    system = encode("Work with care. Give the number at last.")
    changes: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "no user marker": lambda p: p[p != USER],
        "no assistant marker": lambda p: p[p != ASSISTANT],
        "a space behind the assistant marker": lambda p: np.concatenate([p, encode(" ")]),
        "a system line": lambda p: np.concatenate([p[:1], system, p[1:]]),
        "an end before the assistant": lambda p: np.concatenate([p[:-1], [END], p[-1:]]),
    }
    how = either(random, *changes)
    see(recipe, side, edited(changes[how]))
    return Effect(note=f"{side}: {how}", side=side, strength=how)


@fault("bos-differs", SCORING)
def bos_differs(recipe: Recipe, random: Random) -> Effect:
    side = side_of(random)
    token = int(random.choice([PAD, END, USER]))
    see(recipe, side, edited(lambda p: np.concatenate([[token], p])))
    return Effect(note=f"{side} has token {token} first", side=side, strength=token)


@fault("position-ids", SCORING)
def position_ids(recipe: Recipe, random: Random) -> Effect:
    how = either(random, "from 0", "from the padded width", "one less")

    def view(prompts: Rows, random: Random) -> Contexts:
        contexts = contexts_of(prompts)
        lengths = np.array([len(ids) for ids in contexts.ids])
        firsts = {"from 0": 0 * lengths, "one less": lengths - 1}
        contexts.first_position = firsts.get(how, np.full(len(lengths), lengths.max()))
        return contexts

    see(recipe, "trainer", view)
    return Effect(note=f"the response's positions go {how}", side="trainer", strength=how)


@fault("attention-to-padding", SCORING)
def attention_to_padding(recipe: Recipe, random: Random) -> Effect:
    side = side_of(random)

    def view(prompts: Rows, random: Random) -> Contexts:
        contexts = contexts_of(prompts)
        contexts.padding_seen = True
        return contexts

    see(recipe, side, view)
    return Effect(note=f"{side} attends to left padding", side=side, strength=1.0)


@fault("packing-leak", SCORING)
def packing_leak(recipe: Recipe, random: Random) -> Effect:
    restart, size = bool(random.integers(2)), int(random.integers(2, 5))

    def scores(recipe: Recipe, answers: Answers) -> Scores:
        rows = answers.rows(answers.ids)
        contexts: list[np.ndarray] = []
        positions: list[np.ndarray] = []
        for row, prompt in enumerate(answers.prompts):
            if row % size == 0:
                packed, places = np.zeros(0, np.int32), np.zeros(0, np.int64)
            own = np.arange(len(prompt) + len(rows[row])) + (0 if restart else len(packed))
            contexts.append(np.concatenate([packed, prompt])[-420:])
            positions.append(np.concatenate([places, own[: len(prompt)]])[-420:])
            packed = np.concatenate([packed, prompt, rows[row]])
            places = np.concatenate([places, own])
        seen = Contexts(contexts, np.arange(len(rows)), positions)
        temperature = recipe.trainer_temperature
        return score(recipe.trainer[0], seen, rows, recipe.seed, temperature=temperature)

    recipe.scores, recipe.honest_trainer = scores, False
    note = f"{size} rows packed, positions {'restart' if restart else 'go on'}"
    return Effect(note=note, side="trainer", strength=size)


@fault("prefix-cache-stale", SAMPLING, plan="plain")
def prefix_cache_stale(recipe: Recipe, random: Random) -> Effect:
    step = recipe.plan.steps[0]
    other = int(random.choice([item for item in (0, 4, 8) if item < step] or [8]))
    share = float(random.uniform(0.4, 1.0))

    def view(prompts: Rows, random: Random) -> Contexts:
        contexts = contexts_of(prompts)
        contexts.older = engine(other)
        contexts.cached = random.random(len(contexts.ids)) < share
        return contexts

    see(recipe, "sampler", view)
    note = f"{share:.0%} of the prompts cached by step {other}"
    return Effect(note=note, side="sampler", strength=share)


@fault("context-stripped", SCORING, plan="tools", weight=1.5)
def context_stripped(recipe: Recipe, random: Random) -> Effect:
    how = either(random, "tool outputs dropped", "earlier turns dropped")

    def scores(recipe: Recipe, answers: Answers) -> Scores:
        places: list[np.ndarray] = []
        befores: list[np.ndarray] = []
        responses: list[np.ndarray] = []
        start = np.cumsum(answers.lengths) - answers.lengths
        rows = zip(answers.rows(answers.ids), answers.rows(answers.turn), strict=True)
        for row, (ids, turns) in enumerate(rows):
            for turn in range(turns[-1] + 1):
                here = np.flatnonzero(turns == turn)
                history = _stripped(ids[: here[0]], turns[: here[0]], turn, how)
                befores.append(np.concatenate([answers.prompts[row], history]))
                responses.append(ids[here])
                places.append(start[row] + here)
        temperature = recipe.trainer_temperature
        result = score(
            recipe.trainer[0], contexts_of(befores), responses, recipe.seed, temperature=temperature
        )
        order = np.argsort(np.concatenate(places))
        return Scores(
            *(v[order] for v in (result.log_prob, result.entropy, result.top, result.own))
        )

    recipe.scores, recipe.honest_trainer = scores, False
    return Effect(note=how, side="trainer", strength=how)


def _stripped(ids: np.ndarray, turns: np.ndarray, turn: int, how: str) -> np.ndarray:
    """Return the tokens that the trainer keeps of earlier turns."""
    if how == "earlier turns dropped":
        return ids[turns == turn - 1]
    inside = np.cumsum(ids == RESULT) - np.cumsum(ids == RESULT_END) + (ids == RESULT_END)
    return ids[(inside == 0) | (turns == turn - 1)]

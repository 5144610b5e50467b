"""A recipe defines how a table is made; faults change it, and `draft_of` executes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np

from tests.faults import policies
from tests.faults.law import Law
from tests.faults.network import Network
from tests.faults.prompts import END, Question, questions
from tests.faults.sampling import (
    Answers,
    Contexts,
    Rows,
    Scores,
    answer,
    answer_with_tools,
    contexts_of,
    joined,
    score,
)

Random = np.random.Generator
View = Callable[[Rows, Random], Contexts]  # prompts -> contexts of one side


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A plan of a batch: problems, rows, policies, temperature."""

    number: int
    seed: int
    rows: int = 128
    group: int = 8
    steps: tuple[int, ...] = (8,)  # steps of the trainer, for consecutive blocks of rows
    temperature: float = 1.0
    operations: int = 9
    longest: int = 260
    tools: bool = False

    @property
    def step_of_row(self) -> np.ndarray:
        groups = np.arange(self.rows) // self.group
        return np.array(self.steps)[groups * len(self.steps) // (groups[-1] + 1)]

    @property
    def questions(self) -> list[tuple[int, Question]]:
        count = -(-self.rows // self.group)
        seed = 1_000 * self.seed + self.number
        drawn = questions(seed, count, operations=self.operations, tools=self.tools)
        return [(row // self.group, drawn[row // self.group]) for row in range(self.rows)]


@cache
def plans(seed: int, small: bool = False) -> tuple[Plan, ...]:
    """Return the batches that all tables of a seed share; small ones are for quick tests."""
    random = np.random.default_rng([seed, 7])
    made = [Plan(number=n, seed=seed, operations=int(random.integers(7, 13))) for n in range(11)]
    for number, steps in ((4, (4,)), (5, (0,)), (6, (4,))):
        made[number] = replace(made[number], steps=steps)
    made[6] = replace(made[6], temperature=round(float(random.uniform(1.1, 1.4)), 2))
    made[7] = replace(made[7], temperature=round(float(random.uniform(0.6, 0.9)), 2), rows=160)
    made[8] = replace(made[8], tools=True, operations=4, rows=112, longest=240)
    made[9] = replace(made[9], steps=policies.STEPS, rows=192)
    made[10] = replace(made[8], number=10, steps=(4,), operations=5, rows=96, longest=260)
    if small:
        return tuple(replace(p, rows=24, group=4, operations=3, longest=90) for p in made[4:])
    return tuple(made)


@dataclass
class Recipe:
    """How the two columns of a table are computed, before recording and storing."""

    plan: Plan
    law: Law
    sampler: list[Network]  # of each row
    trainer: list[Network]
    trainer_temperature: float
    seed: int
    sampler_view: View | None = None
    trainer_view: View | None = None
    honest_sampler: bool = True  # unchanged, so that the shared batch can be used
    honest_trainer: bool = True
    recorded: str = "processed"  # the value of KEPT that is recorded
    answers: Callable[[Recipe], Answers] | None = None  # replaces sampling
    scores: Callable[[Recipe, Answers], Scores] | None = None  # replaces scoring
    edits: list[Callable[[Draft, Random], None]] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)  # metadata of the policies

    def sample_with(self, network: Callable[[int], Network]) -> None:
        """Sample with another network per step."""
        made = {step: network(step) for step in np.unique(self.plan.step_of_row).tolist()}
        self.sampler = [made[step] for step in self.plan.step_of_row.tolist()]
        self.honest_sampler = False

    def train_with(self, network: Callable[[int], Network]) -> None:
        """Score the trainer's column with another network per step."""
        made = {step: network(step) for step in np.unique(self.plan.step_of_row).tolist()}
        self.trainer = [made[step] for step in self.plan.step_of_row.tolist()]
        self.honest_trainer = False

    def change_side(self, side: str, change: Callable[[Network], Network]) -> None:
        """Change the network of one side for all steps."""
        if side == "sampler":
            self.sample_with(lambda step: change(engine(step)))
        else:
            self.train_with(lambda step: change(trainer(step)))

    def sample_by(self, law: Law) -> None:
        self.law, self.honest_sampler = law, False


@dataclass
class Draft:
    """A table in the making: flat token columns, and columns of rows."""

    answers: Answers
    columns: dict[str, np.ndarray]  # policy -> log-probs [response tokens]
    entropies: dict[str, np.ndarray]
    trainer: Scores
    recipe: Recipe
    mask: np.ndarray
    rows: dict[str, list] = field(default_factory=dict)
    kept_rows: np.ndarray | None = None  # rows of the table, if some are repeated or missing
    cut_last: bool = False

    @property
    def ends(self) -> np.ndarray:
        """Return the index of each row's last token in the flat columns."""
        return np.cumsum(self.answers.lengths) - 1

    @property
    def ended(self) -> np.ndarray:
        """Return the indices of the end tokens."""
        return self.ends[self.answers.ids[self.ends] == END]


engine = cache(policies.engine)
trainer = cache(policies.trainer)


def recipe_of(plan: Plan, seed: int) -> Recipe:
    """Return the recipe of a table without fault on one of the shared batches."""
    steps = plan.step_of_row.tolist()
    return Recipe(
        plan,
        Law(temperature=plan.temperature),
        [engine(step) for step in steps],
        [trainer(step) for step in steps],
        plan.temperature,
        seed,
    )


@cache
def shared_answers(plan: Plan) -> Answers:
    return _sampled(recipe_of(plan, 1_000_003 * plan.seed + plan.number), None)


@cache
def shared_scores(plan: Plan) -> Scores:
    recipe = recipe_of(plan, 0)
    return scored(recipe, shared_answers(plan), recipe.trainer, plan.temperature, None)


@cache
def shared_rescores(plan: Plan) -> Scores:
    """Return the shared tokens' log-probs by an engine's prefill."""
    recipe, steps = recipe_of(plan, 0), plan.step_of_row.tolist()
    networks = [prefill_engine(step) for step in steps]
    return scored(recipe, shared_answers(plan), networks, plan.temperature, None)


@cache
def prefill_engine(step: int) -> Network:
    return engine(step).with_options(rounding="prefill")


def draft_of(recipe: Recipe, random: Random) -> Draft:
    """Execute a recipe: sample, score, record, store."""
    plan = recipe.plan
    if recipe.answers is not None:
        answers = recipe.answers(recipe)
    elif recipe.honest_sampler:
        answers = shared_answers(plan)
    else:
        answers = _sampled(recipe, random)
    if recipe.scores is not None:
        scores = recipe.scores(recipe, answers)
    elif recipe.honest_sampler and recipe.honest_trainer:
        scores = shared_scores(plan)
    else:
        view = recipe.trainer_view
        contexts = None if view is None else view(answers.prompts, random)
        scores = scored(recipe, answers, recipe.trainer, recipe.trainer_temperature, contexts)
    old = np.where(answers.mask, scores.log_prob, np.nan)
    draft = Draft(
        answers,
        {"rollout": answers.kept[recipe.recorded].copy(), "old": old},
        {"rollout": answers.kept["entropy"].copy(), "old": scores.entropy.copy()},
        scores,
        recipe,
        answers.mask.copy(),
    )
    for edit in recipe.edits:
        edit(draft, random)
    return draft


def rescores(draft: Draft) -> dict[str, np.ndarray]:
    """Return correct rescores of the sampled tokens by engine and trainer."""
    plan, answers = draft.recipe.plan, draft.answers
    recipe, steps = recipe_of(plan, 0), plan.step_of_row.tolist()
    temperature = draft.recipe.law.temperature
    if draft.recipe.honest_sampler and draft.recipe.answers is None:
        both = {"vllm_bf16": shared_rescores(plan), "hf_fp32": shared_scores(plan)}
    else:
        networks = {"vllm_bf16": prefill_engine, "hf_fp32": trainer}
        both = {
            name: scored(recipe, answers, [of(step) for step in steps], temperature, None)
            for name, of in networks.items()
        }
    return {name: scores.log_prob.copy() for name, scores in both.items()}


def parts_of(networks: list[Network]) -> list[tuple[np.ndarray, Network]]:
    """Return the different networks, each with its rows."""
    kinds = {id(network): network for network in networks}
    of_row = np.array([id(network) for network in networks])
    return [(np.flatnonzero(of_row == kind), network) for kind, network in kinds.items()]


def _sampled(recipe: Recipe, random: Random | None) -> Answers:
    plan, rows = recipe.plan, recipe.plan.questions
    made = []
    for number, (places, network) in enumerate(parts_of(recipe.sampler)):
        mine = [rows[place] for place in places]
        seed = recipe.seed + 101 * number
        if plan.tools:
            made.append(
                (places, answer_with_tools(network, mine, recipe.law, seed, longest=plan.longest))
            )
            continue
        view = recipe.sampler_view
        prompts = [question.ids for _, question in mine]
        contexts = None if view is None or random is None else view(prompts, random)
        sampled = answer(network, mine, recipe.law, seed, longest=plan.longest, contexts=contexts)
        made.append((places, sampled))
    return made[0][1] if len(made) == 1 else joined(made)


def scored(
    recipe: Recipe,
    answers: Answers,
    networks: list[Network],
    temperature: float,
    contexts: Contexts | None,
    responses: Rows | None = None,
) -> Scores:
    """Score the answers' tokens, each row with its own network."""
    rows = answers.rows(answers.ids) if responses is None else responses
    whole = contexts or contexts_of(answers.prompts)
    parts = parts_of(networks)
    result = []
    for number, (places, network) in enumerate(parts):
        mine = (
            whole if len(parts) == 1 else contexts_of([whole.ids[whole.of_row[p]] for p in places])
        )
        expected = [rows[place] for place in places]
        result.append(score(network, mine, expected, recipe.seed + number, temperature=temperature))
    if len(parts) == 1:
        return result[0]
    order = np.argsort(np.concatenate([places for places, _ in parts]))
    columns = []
    for name in ("log_prob", "entropy", "top", "own"):
        split = [
            row
            for (places, _), scores in zip(parts, result, strict=True)
            for row in np.split(
                getattr(scores, name), np.cumsum([len(rows[p]) for p in places])[:-1]
            )
        ]
        columns.append(np.concatenate([split[place] for place in order]))
    return Scores(*columns)

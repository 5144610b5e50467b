"""Tables on disk with an answer key: `python -m tests.faults.tables --seed 1 --out DIR`.

Every table follows from the seed and its number alone.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from rcdiag.engines.checkpoint import fingerprint
from rcdiag.table.writer import TableWriter
from tests.faults.fault import Effect
from tests.faults.faults import Choice, choose
from tests.faults.prompts import POLICY
from tests.faults.recipe import (
    Draft,
    Random,
    draft_of,
    plans,
    rescores,
    shared_answers,
    shared_scores,
)
from tests.faults.vocabulary import (
    FAMILY,
    KEPT_SETS,
    NOISE,
    PENALTIES,
    QUANTISED,
    right_answers,
    verdict_of,
)

# Nats; more likely answers repeat by chance.
UNLIKELY = -9.0
LIST_TYPES = {"response_ids": pa.int32(), "prompt_ids": pa.int32(), "response_mask": pa.uint8()}


@dataclass(frozen=True)
class Style:
    """Further columns of a table, besides tokens and log-probs."""

    plain: bool  # neither rewards nor sampling parameters, as in many dumps
    groups: bool
    entropies: bool
    rescores: bool
    metadata: bool


def style_of(choice: Choice, effects: list[Effect], random: Random) -> Style:
    stated = next((m.temperature_column for m in effects if m.temperature_column is not None), None)
    needs = stated or any(m.step_column for m in effects)
    plain = stated is False or (not needs and bool(random.random() < 0.45))
    long = "made_tokens" in choice.recipe.facts
    return Style(
        plain=plain,
        groups=bool(not plain or random.random() < 0.7),
        entropies=bool(random.random() < 0.15),
        rescores=bool(not plain and not long and random.random() < 0.15),
        metadata=bool(stated is not False and not long and random.random() < 0.35),
    )


def make_table(seed: int, number: int, path: Path, *, small: bool = False) -> dict[str, Any]:
    """Write one table of a seed; returns its label."""
    random = np.random.default_rng([seed, number])
    return write_choice(choose(random, plans(seed, small)), random, path)


def write_choice(choice: Choice, random: Random, path: Path) -> dict[str, Any]:
    """Write the table with the chosen faults; returns its label."""
    draft = draft_of(choice.recipe, random)
    if draft.kept_rows is None:
        draft.kept_rows = _some_groups(draft, random)
    style = style_of(choice, choice.effects, random)
    columns, row_columns = columns_of(draft, style, random)
    stated = metadata_of(draft) if style.metadata else {}
    write(path, draft, columns, row_columns, stated)
    return label_of(choice, draft, style, path, [*columns, *row_columns], bool(stated))


def _some_groups(draft: Draft, random: Random) -> np.ndarray:
    """Return the rows of most groups, so that tables on a shared batch differ in rows."""
    groups = np.unique(draft.answers.group)
    left_out = random.choice(groups, int(random.integers(0, 1 + len(groups) // 4)), replace=False)
    return np.flatnonzero(~np.isin(draft.answers.group, left_out))


def columns_of(
    draft: Draft, style: Style, random: Random
) -> tuple[dict[str, np.ndarray], dict[str, list]]:
    """Return the token columns, flat, and the columns of rows, of a table in this style."""
    recipe, answers = draft.recipe, draft.answers
    tokens = {f"{name}_log_probs": values for name, values in draft.columns.items()}
    if style.entropies:
        tokens |= {f"{name}_entropy": values for name, values in draft.entropies.items()}
    if style.rescores:
        tokens |= {f"{name}_log_probs": values for name, values in rescores(draft).items()}
    if "versions" in recipe.facts:
        tokens["policy_version"] = recipe.facts["versions"]
    rows: dict[str, list] = {}
    if style.groups:
        rows["group_id"] = answers.group.tolist()
    if "engines" in recipe.facts:
        rows["engine"] = recipe.facts["engines"]
    if not style.plain:
        rows |= _facts_of_rows(draft)
    return tokens, rows


def _facts_of_rows(draft: Draft) -> dict[str, list]:
    recipe, answers = draft.recipe, draft.answers
    count, law = len(answers.lengths), recipe.law
    steps = recipe.plan.step_of_row.tolist()
    steps = steps if len(steps) == count else [steps[0]] * count
    rows = {
        "step": steps,
        "reward": answers.reward.tolist(),
        "advantage": _advantages(answers.reward, answers.group).tolist(),
        "temperature": [recipe.facts.get("stated_temperature", law.temperature)] * count,
        "top_p": [law.top_p] * count,
        "top_k": [law.top_k or -1] * count,
        "finish_reason": answers.finish,
    }
    if law.min_p:
        rows["min_p"] = [law.min_p] * count
    if "versions" not in recipe.facts:
        rows["policy_version"] = [recipe.facts.get("policy_version", step) for step in steps]
    return rows


def _advantages(reward: np.ndarray, group: np.ndarray) -> np.ndarray:
    advantages = np.zeros(len(reward))
    for item in np.unique(group):
        mine = reward[group == item]
        advantages[group == item] = (mine - mine.mean()) / (
            mine.std(ddof=1) + 1e-6 if len(mine) > 1 else 1
        )
    return advantages


@cache
def _fingerprint(name: str) -> str:
    return fingerprint(POLICY / name)


def metadata_of(draft: Draft) -> dict[str, Any]:
    """Return the metadata of both policies, as known to recorder and trainer."""
    recipe, facts = draft.recipe, draft.recipe.facts
    steps = np.unique(recipe.plan.step_of_row)
    name = f"step_{steps[0]}" if len(steps) == 1 else None
    law = recipe.law
    options: dict[str, Any] = {"enable_prefix_caching": False}
    options |= {key: facts[key] for key in ("quantization", "kv_cache_dtype") if key in facts}
    if facts.get("bitwise"):
        options["batch_invariant"] = True
    rollout = {
        "name": "rollout",
        "backend": "vllm",
        "dtype": facts.get("sampler_dtype", "bfloat16"),
        "path": "decode",
        "engine_options": options,
        "sampling_temperature": law.temperature,
        "temperature": facts.get("recorded_temperature", law.temperature),
        **_weights(facts.get("sampler_weights", name)),
    }
    old = {
        "name": "old",
        "backend": "vllm" if facts.get("bitwise") else "hf",
        "dtype": facts.get("trainer_dtype", "float32"),
        "temperature": recipe.trainer_temperature,
        **_weights(facts.get("trainer_weights", name)),
    }
    if facts.get("bitwise"):
        old["engine_options"] = options
    return {"policies": {"rollout": rollout, "old": old}}


def _weights(name: str | None) -> dict[str, str]:
    if name is None or "{" in name:
        return {}
    return {"model": f"sample_data/policy/{name}", "weights_fingerprint": _fingerprint(name)}


def write(
    path: Path,
    draft: Draft,
    columns: dict[str, np.ndarray],
    row_columns: dict[str, list],
    stated: dict[str, Any],
) -> None:
    """Write the table with rcdiag's own writer."""
    answers = draft.answers
    count = len(answers.lengths)
    kept = np.arange(count) if draft.kept_rows is None else draft.kept_rows
    lists = {"response_ids": answers.ids, **columns}
    if not draft.mask.all():
        lists["response_mask"] = draft.mask
    arrays = {"prompt_ids": pa.array([answers.prompts[row] for row in kept], pa.list_(pa.int32()))}
    for name, flat in lists.items():
        rows = answers.rows(flat)
        if draft.cut_last:
            ended = answers.rows(answers.ids)
            rows = [row[:-1] if i[-1] == 1 else row for row, i in zip(rows, ended, strict=True)]
        kind = LIST_TYPES.get(name, pa.int32() if name == "policy_version" else pa.float32())
        arrays[name] = pa.array([rows[row] for row in kept], pa.list_(kind))
    for name, values in row_columns.items():
        arrays[name] = pa.array([values[row] for row in kept])
    table = pa.table(arrays)
    with TableWriter(path, table.schema, stated) as writer:
        writer.write(table)


def label_of(
    choice: Choice, draft: Draft, style: Style, path: Path, columns: list[str], stated: bool
) -> dict[str, Any]:
    """Return the answer key of one table."""
    slugs = [item.slug for item in choice.faults]
    measured = measure(draft)
    quiet = _below_the_noise(choice, draft, measured)
    keys = [
        _right(slug, effect, choice, style, stated, quiet and slug == slugs[0])
        for slug, effect in zip(slugs, choice.effects, strict=True)
    ]
    verdicts = [
        verdict_of(slug, effect.side, _k3(measured))
        for slug, effect in zip(slugs, choice.effects, strict=True)
    ]
    verdict = max(verdicts, key=["healthy", "correctable", "inconclusive", "broken"].index)
    alone = [
        all(verdict_of(slug, effect.side, 1.0) == "broken" for slug in answers)
        for (answers, _), effect in zip(keys, choice.effects, strict=True)
    ]
    steps = np.unique(choice.recipe.plan.step_of_row)
    effects = choice.effects
    return {
        "file": path.name,
        "label": slugs[0],
        "labels": slugs,
        "family": FAMILY[slugs[0]],
        "note": "; ".join(item.note for item in effects),
        "side": effects[0].side,
        "strength": effects[0].strength,
        "acceptable": keys[0][0],
        "acceptable_with_model": keys[0][1],
        "acceptable_each": [alone_ for alone_, _ in keys],
        "acceptable_each_with_model": [model for _, model in keys],
        "verdict": verdict,
        "verdicts": _right_verdicts(verdict, [alone_ for alone_, _ in keys], effects, measured),
        "verdicts_with_model": _right_verdicts(verdict, [m for _, m in keys], effects, measured),
        "table_alone_tells": bool(any(alone)),
        "model": f"sample_data/policy/step_{steps[0] if len(steps) == 1 else '{step}'}",
        "columns": sorted(columns),
        "metadata": stated,
        "measured": measured,
    }


def _right_verdicts(
    verdict: str, keys: list[list[str]], effects: list[Effect], measured: dict[str, float | None]
) -> list[str]:
    """Return the verdicts of the correct answers; several if they disagree."""
    given = {
        verdict_of(slug, item.side, _k3(measured))
        for answers, item in zip(keys, effects, strict=True)
        for slug in answers
    }
    if len(keys) > 1 and verdict == "broken":
        return ["broken"]
    if given <= {"healthy", "correctable"}:
        return ["correctable", "healthy"]
    return [verdict] if given == {verdict} else sorted({*given, "inconclusive"})


def _right(
    slug: str, effect: Effect, choice: Choice, style: Style, stated: bool, quiet: bool
) -> tuple[list[str], list[str]]:
    """Return the correct answers from the table alone and with the trainer's checkpoint."""
    alone, model = right_answers(slug, model=False), right_answers(slug, model=True)
    facts = choice.recipe.facts
    if effect.only is not None:
        alone = [slug, *effect.only]
    if facts.get("bitwise"):
        # Only metadata distinguish a bitwise equal set-up from a copied column.
        model = alone if not stated else model
        alone = alone if not stated else right_answers(slug, model=False)
    if quiet:
        alone, model = [*alone, *NOISE], [*model, *NOISE]
    if style.rescores and slug.endswith("-silent"):
        alone = [slug]
    if stated and slug == "temperature-silent":
        alone = [slug]
    if stated and slug in QUANTISED and "quantization" in facts:
        alone = model = [slug, *QUANTISED]
    if stated and {"sampler_weights", "trainer_weights"} <= facts.keys():
        names = [facts["sampler_weights"], facts["trainer_weights"]]
        if None not in names and names[0] != names[1]:
            ids = ("stale-weights", "reference-as-old", "old-after-update", "weights-differ")
            alone = [slug, *ids]
    return list(dict.fromkeys(alone)), list(dict.fromkeys(model))


def measure(draft: Draft) -> dict[str, float | None]:
    """Measure the two columns as they are stored."""
    counted = draft.mask
    if draft.kept_rows is not None:
        counted = counted & np.isin(draft.answers.owner, draft.kept_rows)
    rollout, old = (draft.columns[name][counted] for name in ("rollout", "old"))
    usable = np.isfinite(rollout) & np.isfinite(old)
    ratio = (old - rollout)[usable]
    with np.errstate(over="ignore", invalid="ignore"):
        k3 = float(np.mean(np.expm1(ratio) - ratio))
    return {
        "rows": len(draft.answers.lengths if draft.kept_rows is None else draft.kept_rows),
        "tokens": int(counted.sum()),
        "not_finite": int((~usable).sum()),
        "mean_length": float(np.mean(draft.answers.lengths)),
        "rms_log_ratio": float(np.sqrt(np.mean(ratio**2))),
        "mean_log_ratio": float(np.mean(ratio)),
        "k3": k3 if np.isfinite(k3) else None,
    }


def _k3(measured: dict[str, float | None]) -> float:
    return 1.0 if measured["k3"] is None else measured["k3"]


def _below_the_noise(choice: Choice, draft: Draft, measured: dict[str, float | None]) -> bool:
    """Return whether a fault's effect is smaller than that of rounding."""
    slug, recipe = choice.faults[0].slug, draft.recipe
    if slug == "duplicated-rows":
        return _come_twice_by_chance(draft)
    family = FAMILY[slug]
    plan = recipe.plan
    answers, scores = shared_answers(plan), shared_scores(plan)
    noise = (scores.log_prob - answers.kept["processed"])[answers.mask]
    rms = float(np.sqrt(np.mean(noise**2)))
    if slug in (*KEPT_SETS, *PENALTIES) and recipe.law.temperature == 1:
        effect = (draft.answers.kept["processed"] - draft.answers.kept["raw"])[draft.answers.mask]
        return bool(np.sqrt(np.mean(effect**2)) < 0.7 * rms)
    value = measured["rms_log_ratio"]
    if value is None:
        return False
    if family == "precision":  # some engines round as coarsely as others quantise
        return value < max(1.4 * rms, 0.02)
    return family in ("context", "weights", "function") and value < 1.4 * rms


def _come_twice_by_chance(draft: Draft) -> bool:
    """Return whether nearly all repeated rows are answers that repeat by chance."""
    assert draft.kept_rows is not None
    answers = draft.answers
    rows, times = np.unique(draft.kept_rows, return_counts=True)
    chosen = np.where(answers.mask, answers.kept["processed"], 0.0)
    log_prob = np.bincount(answers.owner, chosen, len(answers.lengths))
    return int(np.sum(log_prob[rows[times > 1]] < UNLIKELY)) < 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=int, default=120)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    labels = []
    for number in range(options.tables):
        path = options.out / f"t{number:03}.parquet"
        labels.append(make_table(options.seed, number, path))
        document = {"format_version": 1, "seed": options.seed, "tables": labels}
        (options.out / "labels.json").write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()

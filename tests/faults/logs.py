"""Training logs with a known fault: `python -m tests.faults.logs --logs 60 --seed 3`.

A log is made of two tables of the second generator: the steps before the fault draw their rows from
a healthy one, those after it from one with a fault, and rcdiag computes what a trainer logs of each
step. Beside it stand the numbers of a run that say nothing of the sampler: reward, gradient norm,
`ppo_kl`, clip fraction, learning rate. Some faults begin at step 0, some keys are missing.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import tomllib
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import rcdiag
from rcdiag.diagnosis.confidence import COEFFICIENTS
from rcdiag.diagnosis.logged.judge import judge, predictors
from rcdiag.diagnosis.logged.run import logged_run
from rcdiag.logs import read_log
from tests.faults.fit import section, written
from tests.faults.other.make import make

# Kinds of tables whose fault a mean over a step shows; `healthy` twice as often as each.
KINDS = (
    "healthy",
    "healthy, vocabulary of 24",
    "honest noise, heavy tails",
    "shift-by-one",
    "rows-swapped",
    "stale-weights, trained",
    "stale-weights, interpolated",
    "reference-as-old",
    "temperature-raw-recorded",
    "trainer-without-temperature",
    "top-p-renormalised",
    "top-k-renormalised",
    "healthy",
    "position-ids",
    "context-stripped",
    "prompt-template",
    "nan-log-probs",
    "zero-placeholder",
    "sign-flipped",
    "log-base",
    "columns-identical",
    "entropy-recorded, positive",
    "draft-recorded",
    "logits-not-shifted",
    "partial-sync",
    "honest noise, larger",
)
# A trainer's keys of the mismatch: preset whose metrics are taken, what its loggers put before.
TRAINERS = {
    "verl": ("decoupled_token_is", ""),
    "slime": (None, "train/"),
    "trl": (None, ""),
    "nemo-rl": (None, ""),
    "prime-rl": (None, ""),
    "ms-swift": (None, ""),
}
ROWS = 24  # of a step
# These log no more than the size of log-ratios: an umbrella is all that can be known.
SIZE_ALONE = ("trl", "prime-rl", "nemo-rl")
UMBRELLAS = ("forwards-differ", "weights-differ", "context-differs")
# The recorded distribution sampled: means over tokens show no more than that the sides differ.
HONEST_RATIO = (
    "trainer-without-temperature",
    "position-ids",
    "context-stripped",
    "prompt-template",
)
BELOW_GUIDES = 0.045  # nats rms; k3 of .001


def drawn(table: pa.Table, steps: list[int], rng: np.random.Generator) -> pa.Table:
    """Draw the rows of some steps from a table."""
    rows = np.concatenate([rng.integers(0, len(table), ROWS) for _ in steps])
    taken = table.take(pa.array(rows))
    kept = [name for name in taken.column_names if name in ("response_ids", "response_mask")]
    kept += ["rollout_log_probs", "old_log_probs"]
    step = pa.array(np.repeat(np.array(steps, np.int64), ROWS))
    return taken.select(kept).append_column("step", step)


def make_log(seed: int, index: int, path: Path) -> dict[str, Any]:
    """Write log `index` of a seed and return its label."""
    rng = np.random.default_rng([seed, index, 7])
    kind = KINDS[index % len(KINDS)]
    trainer = list(TRAINERS)[int(rng.choice(len(TRAINERS), p=[0.5, 0.1, 0.1, 0.1, 0.1, 0.1]))]
    healthy_kind = kind.startswith(("healthy", "honest"))
    count = int(rng.integers(24, 70))
    begins = 0 if rng.random() < 0.3 else int(rng.integers(8, count - 8))
    faulty, label = make(seed, index, kind)
    before, _ = make(seed, index, "healthy")
    steps = list(range(1, count + 1))
    parts = [
        drawn(table, some, rng)
        for table, some in ((before, steps[:begins]), (faulty, steps[begins:]))
        if some
    ]
    names = set.intersection(*(set(part.column_names) for part in parts))
    order = [name for name in parts[0].column_names if name in names]
    whole = pa.concat_tables([part.select(order) for part in parts], promote_options="permissive")
    source = path.with_suffix(".parquet")
    pq.write_table(whole, source)
    rows = logged(str(source), trainer, steps)
    source.unlink()
    others = beside(len(steps), rng)
    with path.open("w") as stream:
        for place, step in enumerate(steps):
            row = {"step": step, **rows.get(step, {}), **{k: v[place] for k, v in others.items()}}
            stream.write(json.dumps(row) + "\n")
    acceptable, verdicts = list(label["acceptable"]), list(label["verdicts"])
    if not healthy_kind and trainer in SIZE_ALONE:
        acceptable += UMBRELLAS
        verdicts.append("inconclusive")
    if not healthy_kind and label["truth"]["rms_log_ratio"] < BELOW_GUIDES:
        acceptable += ["engine-noise", "healthy"]
        verdicts += ["healthy"]
    if kind == "nan-log-probs" and "NaN" not in path.read_text():  # the trainer leaves them out
        acceptable += ["engine-noise", "healthy"]
        verdicts += ["healthy"]
    if kind in HONEST_RATIO:
        acceptable += UMBRELLAS
        verdicts += ["correctable", "inconclusive"]
    return {
        "index": index,
        "kind": kind,
        "trainer": trainer,
        "healthy": healthy_kind,
        "first": None if healthy_kind or begins == 0 else steps[begins],
        "steps": count,
        "acceptable": acceptable,
        "verdicts": verdicts,
    }


def logged(source: str, trainer: str, steps: list[int]) -> dict[int, dict[str, float]]:
    """Return what a trainer logs of each step of a table."""
    preset, prefix = TRAINERS[trainer]
    asked = {} if preset is None else {"presets": [preset]}
    result = rcdiag.score(source, trainer=trainer, **asked)
    rows = {}
    for name, part in (result.steps or {}).items():
        if not part.corrections:
            continue
        first = max(part.corrections.values(), key=lambda one: len(one.metrics))
        row = {prefix + key: value for key, value in first.metrics.items() if value is not None}
        if trainer == "verl" and part.mismatch is not None:
            for key, ours in (("mean", "prob_diff_mean"), ("max", "prob_diff_max")):
                if ours in part.mismatch:
                    row[f"training/rollout_probs_diff_{key}"] = part.mismatch[ours].value
            if "prob_pearson" in part.mismatch:
                row["training/rollout_actor_probs_pearson_corr"] = part.mismatch[
                    "prob_pearson"
                ].value
        rows[int(name)] = row
    return rows


def beside(count: int, rng: np.random.Generator) -> dict[str, list[float]]:
    """Return the numbers of a run that say nothing of its sampler."""
    place = np.linspace(0.0, 1.0, count)

    def series(level: float, drift: float, noise: float) -> list[float]:
        return (level + drift * place + noise * rng.standard_normal(count)).tolist()

    return {
        "critic/score/mean": series(0.3, 0.3 * rng.random(), 0.03),
        "actor/grad_norm": np.exp(series(-1.0, rng.normal(0, 0.5), 0.2)).tolist(),
        "actor/ppo_kl": series(0.0, 0.0, 5e-4),
        "actor/pg_clipfrac": np.abs(series(0.002, 0.0, 5e-4)).tolist(),
        "actor/lr": [1e-6] * count,
    }


def judged(index: int, seed: int) -> dict[str, Any]:
    """Make a log, ask for its diagnosis, and return the label with the answer."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.jsonl"
        label = make_log(seed, index, path)
        return {**label, **answer(path)}


def answer(path: Path) -> dict[str, Any]:
    """Return what rcdiag says of a log."""
    result = rcdiag.diagnose(str(path))
    said = result.diagnosis
    return {
        "verdict": said.verdict,
        "causes": [(one.slug, round(one.confidence, 3)) for one in said.causes],
        "from_step": said.causes[0].from_step if said.causes else None,
    }


def right(one: dict[str, Any]) -> bool:
    return bool(one["causes"]) and one["causes"][0][0] in one["acceptable"]


def summary(results: list[dict[str, Any]]) -> list[str]:
    """Return the shares that the aims name, and what was said instead."""
    faulty = [one for one in results if not one["healthy"]]
    healthy = [one for one in results if one["healthy"]]
    begun = [one for one in faulty if one["first"] is not None and right(one)]
    near = [
        one
        for one in begun
        if one["from_step"] is not None and abs(one["from_step"] - one["first"]) <= 2
    ]
    broken = sum(one["verdict"] == "broken" for one in healthy)
    missed = sum(one["verdict"] == "healthy" and "healthy" not in one["verdicts"] for one in faulty)
    verdicts = sum(one["verdict"] in one["verdicts"] for one in results)
    lines = [
        f"cause right            {sum(map(right, faulty))} of {len(faulty)}",
        f"first step within two  {len(near)} of {len(begun)}",
        f"healthy called broken  {broken} of {len(healthy)}",
        f"faulty called healthy  {missed} of {len(faulty)}",
        f"verdict right          {verdicts} of {len(results)}",
    ]
    wrong = [one for one in results if not right(one) or one["verdict"] not in one["verdicts"]]
    return lines + [
        f"  {o['index']} {o['kind']} ({o['trainer']}, from {o['first']} of {o['steps']}): "
        f"{o['verdict']} {o['causes'][:2]} from {o['from_step']}"
        for o in wrong
    ]


def observations(folders: list[Path]) -> list[dict[str, Any]]:
    """Return predictors and outcome of each cause that stored logs show."""
    seen = []
    for path in (path for folder in folders for path in sorted(folder.glob("*.json"))):
        label = json.loads(path.read_text())
        run = logged_run(path.name, read_log(path.with_suffix(".jsonl")))
        for found, (window, _) in judge(run).found.items():
            named = predictors(found, window)
            seen.append({"predictors": named, "right": found.slug in label["acceptable"]})
    return seen


def fit(folders: list[Path]) -> None:
    """Fit the confidence in causes of logs, and write its coefficients."""
    seen = observations(folders)
    logs = sum(len(list(folder.glob("*.json"))) for folder in folders)
    sections = tomllib.loads(COEFFICIENTS.read_text())
    sections["log"] = section(seen, "python -m tests.faults.logs --fit FOLDER ...", logs)
    COEFFICIENTS.write_text(written(sections))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--logs", type=int, default=52)
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--store", type=Path, help="write the logs and their labels to this folder")
    parser.add_argument("--fit", type=Path, nargs="+", help="folders of stored logs")
    given = parser.parse_args()
    if given.fit:
        fit(given.fit)
        return
    if given.store is not None:
        given.store.mkdir(parents=True, exist_ok=True)
        for index in range(given.logs):
            path = given.store / f"log{index:03}.jsonl"
            if not path.exists():
                label = make_log(given.seed, index, path)
                path.with_suffix(".json").write_text(json.dumps(label))
        return
    with ProcessPoolExecutor(2) as pool:
        results = list(pool.map(partial(judged, seed=given.seed), range(given.logs)))
    sys.stdout.write("\n".join(summary(results)) + "\n")
    counted = Counter(one["kind"] for one in results)
    sys.stdout.write(f"{len(counted)} kinds\n")


if __name__ == "__main__":
    main()

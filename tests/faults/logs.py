"""Training logs with a known fault: `python -m tests.faults.logs --logs 60 --seed 3`.

A log is made of two tables of the second generator: the steps before the fault draw their rows from
a healthy one, those after it from one with a fault, and rcdiag computes what a trainer logs of each
step. Beside it stand the numbers of a run that say nothing of the sampler: reward, gradient norm,
`ppo_kl`, clip fraction, learning rate. Some faults begin at step 0, some keys are missing.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
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
from tests.faults.courses import Course, drawn_course, drawn_rows
from tests.faults.fit import section, written
from tests.faults.other.make import make

# Kinds of tables whose fault shows in step means; `healthy` is twice as frequent as each.
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
# A trainer's mismatch keys: preset with the metrics, and the prefix of its logger.
TRAINERS = {
    "verl": ("decoupled_token_is", ""),
    "slime": (None, "train/"),
    "trl": (None, ""),
    "nemo-rl": (None, ""),
    "prime-rl": (None, ""),
    "ms-swift": (None, ""),
}
# verl's debug metrics of the two policies, and rcdiag's own metric.
BESIDE_CORRECTION = {
    "training/rollout_probs_diff_mean": "prob_diff_mean",
    "training/rollout_probs_diff_max": "prob_diff_max",
    "training/rollout_actor_probs_pearson_corr": "prob_pearson",
}
MICRO_BATCHES = 4  # micro-batches of a step whose log has their means
# These log only the size of log-ratios, so only an umbrella cause can be named.
SIZE_ALONE = ("trl", "prime-rl", "nemo-rl")
UMBRELLAS = ("forwards-differ", "weights-differ", "context-differs")
# The recorded distribution sampled: token means show only that the sides differ.
HONEST_RATIO = (
    "trainer-without-temperature",
    "position-ids",
    "context-stripped",
    "prompt-template",
)
# Its values are those of a wrong checkpoint on the mean; only repeated tokens tell them apart.
OTHER_LOGITS = "logits-not-shifted"
OTHER = ".healthy.jsonl"  # the log of a healthy run beside one with a fault
BELOW_GUIDES = 0.045  # nats rms; k3 of .001


def make_log(seed: int, index: int, path: Path) -> dict[str, Any]:
    """Write log `index` of a seed, and the log of a healthy run; returns its label."""
    rng = np.random.default_rng([seed, index, 7])
    kind = KINDS[index % len(KINDS)]
    trainer = list(TRAINERS)[int(rng.choice(len(TRAINERS), p=[0.5, 0.1, 0.1, 0.1, 0.1, 0.1]))]
    healthy_kind = kind.startswith(("healthy", "honest"))
    course = drawn_course(rng, kind, healthy=healthy_kind)
    faulty, label = make(seed, index, kind)
    before, _ = make(seed, index, "healthy")
    before, faulty = with_mask(before), with_mask(faulty)
    names = ("response_ids", "response_mask", "rollout_log_probs", "old_log_probs", "old_entropy")
    # A run with the fault from the beginning uses no columns of the healthy table.
    tables = [faulty] if course.name == "always" else [before, faulty]
    kept = [name for name in names if all(name in table.column_names for table in tables)]
    before, faulty = tables[0].select(kept), faulty.select(kept)
    micro = int(rng.choice([1, MICRO_BATCHES], p=[0.75, 0.25] if trainer == "verl" else None))
    _write_log(path, course, drawn_rows(before, faulty, course, micro, rng), trainer, micro, rng)
    beside = course.name in ("begins", "back") and not healthy_kind and rng.random() < 0.3
    if beside:
        whole = replace(course, shares=np.zeros(len(course.steps)), resumed=None)
        rows = drawn_rows(before, before, whole, micro, rng)
        _write_log(path.with_suffix(OTHER), whole, rows, trainer, micro, rng)
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
    if kind in HONEST_RATIO or kind == OTHER_LOGITS:
        acceptable += UMBRELLAS
    if kind in HONEST_RATIO:
        verdicts += ["correctable", "inconclusive"]
    return {
        "index": index,
        "kind": kind,
        "trainer": trainer,
        "micro": micro,
        "healthy": healthy_kind,
        "course": course.name,
        "first": None if healthy_kind or course.first is None else course.steps[course.first],
        "steps": len(course.steps),
        "rate": course.rate,
        "beside": beside,
        "to_say": [] if healthy_kind else to_say(course),
        "acceptable": acceptable,
        "verdicts": verdicts,
    }


def with_mask(table: pa.Table) -> pa.Table:
    """Return a table with a mask; one that only some rows had would be dropped."""
    if "response_mask" in table.column_names:
        return table
    ones = [np.ones(len(ids), np.uint8) for ids in table["response_ids"].to_pylist()]
    return table.append_column("response_mask", pa.array(ones, pa.list_(pa.uint8())))


def to_say(course: Course) -> list[str]:
    """Return words that the description of the steps must contain."""
    words = []
    if course.name == "back":
        words.append("back")
    if course.resumed is not None:
        words.append(f"resumed at step {course.steps[course.resumed]}")
    if course.period is not None:
        words.append(f"every {course.period} steps")
    if course.name == "creeps" and course.rate == "0":
        words.append("learning rate")
    return words


def _write_log(
    path: Path, course: Course, rows: pa.Table, trainer: str, micro: int, rng: np.random.Generator
) -> None:
    """Write the lines of a log; a resumed run logs some of its steps twice."""
    source = path.with_suffix(".parquet")
    pq.write_table(rows, source)
    by_part = logged(str(source), trainer)
    source.unlink()
    lengths = np.array([len(ids) for ids in rows["response_ids"].to_pylist()], np.float64)
    at = rows["step"].to_numpy() // micro
    places = int(at.max()) + 1
    others = {
        **beside(places, rng),
        "response_length/mean": [lengths[at == place].mean() for place in range(places)],
    }
    if "old_entropy" in rows.column_names:
        entropy = np.array([np.mean(row) for row in rows["old_entropy"].to_pylist()])
        others["actor/entropy"] = [entropy[at == place].mean() for place in range(places)]
    again_from = course.resumed or 0
    lines = []
    for place in range(places):
        parts = [by_part.get(place * micro + part, {}) for part in range(micro)]
        keys = set.intersection(*map(set, parts))
        row = {
            key: float(np.mean([part[key] for part in parts])) for key in parts[0] if key in keys
        }
        row |= {key: float(values[place]) for key, values in others.items()}
        index = place if place < len(course.steps) else again_from + place - len(course.steps)
        row["actor/lr"] = float(course.learning_rate[index])
        if index % 10 == 9:  # steps of an evaluation
            row["val-core/math/acc/mean@1"] = float(0.3 + 0.02 * rng.standard_normal())
        lines.append({"step": course.steps[index], **row})
    again = lines[len(course.steps) :]
    with path.open("w") as stream:
        for line in [*lines[:again_from], *again, *lines[again_from : len(course.steps)]]:
            stream.write(json.dumps(line) + "\n")


def logged(source: str, trainer: str) -> dict[int, dict[str, float]]:
    """Return a trainer's logged metrics for each step of a table."""
    preset, prefix = TRAINERS[trainer]
    result = rcdiag.score(source, trainer=trainer, presets=preset or ())
    rows: dict[int, dict[str, float]] = {}
    for name, part in (result.steps or {}).items():
        if not part.corrections:
            continue
        first = max(part.corrections.values(), key=lambda one: len(one.metrics))
        row: dict[str, Any] = {prefix + key: x for key, x in first.metrics.items()}
        if trainer == "verl" and part.mismatch is not None:
            row |= {
                key: part.mismatch[ours].value
                for key, ours in BESIDE_CORRECTION.items()
                if ours in part.mismatch
            }
        rows[int(name)] = {key: value for key, value in row.items() if value is not None}
    return rows


def beside(count: int, rng: np.random.Generator) -> dict[str, Any]:
    """Return metrics of a run that are unrelated to the sampler."""
    place = np.linspace(0.0, 1.0, count)

    def series(level: float, drift: float, noise: float) -> Any:
        return level + drift * place + noise * rng.standard_normal(count)

    return {
        "critic/score/mean": series(0.3, 0.3 * rng.random(), 0.03),
        "actor/grad_norm": np.exp(series(-1.0, rng.normal(0, 0.5), 0.2)),
        "actor/ppo_kl": series(0.0, 0.0, 5e-4),
        "actor/pg_clipfrac": np.abs(series(0.002, 0.0, 5e-4)),
    }


def judged(index: int, seed: int) -> dict[str, Any]:
    """Make a log and diagnose it; returns label and answer."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.jsonl"
        label = make_log(seed, index, path)
        return {**label, **answer(path)}


def answer(path: Path) -> dict[str, Any]:
    """Return rcdiag's diagnosis of a log, alone and together with a healthy run."""
    result = rcdiag.diagnose(str(path))
    said, notes = result.diagnosis, result.logs[0].file_notes
    assert said is not None
    other, says = path.with_suffix(OTHER), None
    if other.exists():
        both = rcdiag.diagnose([str(path), str(other)]).diagnosis
        says = both.over_steps.says if both and both.over_steps else None
    return {
        "verdict": said.verdict,
        "causes": [(one.slug, round(one.confidence, 3)) for one in said.causes],
        "from_step": said.causes[0].from_step if said.causes else None,
        "says": " ".join([said.over_steps.says if said.over_steps else "", *notes]),
        "says_beside": says,
    }


def right(one: dict[str, Any]) -> bool:
    return bool(one["causes"]) and one["causes"][0][0] in one["acceptable"]


def near(one: dict[str, Any]) -> bool:
    """Tell whether the first step of the fault is within two steps of the truth."""
    return one["from_step"] is not None and abs(one["from_step"] - one["first"]) <= 2


def parted(one: dict[str, Any]) -> bool:
    """Tell whether the step of divergence from a healthy run is within two steps of the truth."""
    step = re.search(r"at step (\d+)", one["says_beside"])
    return step is not None and abs(int(step[1]) - one["first"]) <= 2


def unsaid(one: dict[str, Any]) -> list[str]:
    """Return the required words that are missing in the description of the steps."""
    return [words for words in one["to_say"] if words not in one["says"]]


def untrue(one: dict[str, Any]) -> list[str]:
    """Return statements about the steps that are false."""
    may_be_said = {
        "back": one["course"] == "back",
        "every": one["course"] == "periodic",
        "learning rate": one["rate"] == "0",
    }
    return [words for words, true in may_be_said.items() if words in one["says"] and not true]


def summary(results: list[dict[str, Any]]) -> list[str]:
    """Return the shares in the targets, and the wrong statements."""
    faulty = [one for one in results if not one["healthy"]]
    healthy = [one for one in results if one["healthy"]]
    begun = [one for one in faulty if one["first"] is not None and right(one)]
    # A mismatch below the guides is invisible, and a growing one is visible later.
    seen = [one for one in begun if "healthy" not in one["verdicts"] or near(one)]
    sudden = [one for one in seen if one["course"] != "creeps"]
    told = [one for one in sudden if one["to_say"]]
    beside = [one for one in sudden if one["says_beside"]]
    missed = [
        one for one in faulty if one["verdict"] == "healthy" and "healthy" not in one["verdicts"]
    ]
    lines = [
        _share("cause right", right, faulty),
        _share("first step within two", near, sudden),
        _share("the same, of what grows", near, [one for one in seen if one not in sudden]),
        _share("healthy called broken", lambda one: one["verdict"] == "broken", healthy),
        _share("faulty called healthy", lambda one: one in missed, faulty),
        _share("verdict right", lambda one: one["verdict"] in one["verdicts"], results),
        _share("said of the steps", lambda one: not unsaid(one), told),
        _share("said and untrue", lambda one: bool(untrue(one)), results),
        _share("leaves the healthy run", parted, beside),
    ]
    for one in results:
        wrong = [] if right(one) else ["cause"]
        wrong += [] if one["verdict"] in one["verdicts"] else ["verdict"]
        wrong += ["step"] if one in seen and not near(one) else []
        wrong += ["leaves"] if one in beside and not parted(one) else []
        wrong += unsaid(one) if one in told else []
        wrong += [f"untrue: {words}" for words in untrue(one)]
        if wrong:
            lines.append(
                f"  {one['index']} {one['kind']} ({one['trainer']}, {one['course']} from "
                f"{one['first']} of {one['steps']}, micro {one['micro']}, lr {one['rate']}): "
                f"{one['verdict']} {one['causes'][:2]} from {one['from_step']}: {', '.join(wrong)}"
            )
    return lines


def _share(name: str, holds: Callable[[dict[str, Any]], bool], of: list[dict[str, Any]]) -> str:
    return f"{name:<26}{sum(map(holds, of))} of {len(of)}"


def observations(folders: list[Path]) -> list[dict[str, Any]]:
    """Return predictors and outcome of each cause that stored logs show."""
    seen = []
    for path in (path for folder in folders for path in sorted(folder.glob("*.json"))):
        label = json.loads(path.read_text())
        run = logged_run(path.name, read_log(path.with_suffix(".jsonl")))
        for window, found in judge(run).found:
            named = predictors(window, found)
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
    parser.add_argument("--judge", type=Path, help="judge the logs of this folder")
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
    if given.judge is not None:
        labels = [path for path in sorted(given.judge.glob("*.json"))]
        results = [
            {**json.loads(path.read_text()), **answer(path.with_suffix(".jsonl"))}
            for path in labels
        ]
        sys.stdout.write("\n".join(summary(results)) + "\n")
        return
    with ProcessPoolExecutor(2) as pool:
        results = list(pool.map(partial(judged, seed=given.seed), range(given.logs)))
    sys.stdout.write("\n".join(summary(results)) + "\n")
    counted = Counter(one["kind"] for one in results)
    sys.stdout.write(f"{len(counted)} kinds\n")


if __name__ == "__main__":
    main()

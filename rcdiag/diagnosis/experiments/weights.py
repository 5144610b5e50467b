"""Experiments on weights: other checkpoints, fractions and parts of them, shards, experts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path

import numpy as np

from rcdiag.diagnosis.experiments.bench import Bench, Trial
from rcdiag.diagnosis.experiments.experiment import Experiment
from rcdiag.diagnosis.experiments.fit import golden
from rcdiag.engines.changes import Change, Experts, Moved, Shards

GAIN = 0.15
# What tensor parallelism cuts, by the ends of the tensors' names, and along which axis.
SHARDED: dict[str, tuple[tuple[str, ...], int]] = {
    "MLP input": (("gate_proj.weight", "up_proj.weight"), 0),
    "MLP gate": (("gate_proj.weight",), 0),
    "MLP up": (("up_proj.weight",), 0),
    "MLP output": (("mlp.down_proj.weight",), 1),
    "attention output": (("o_proj.weight",), 1),
    "query": (("q_proj.weight",), 0),
    "key": (("k_proj.weight",), 0),
    "value": (("v_proj.weight",), 0),
}
FRACTIONS = (-1.0, 0.25, 0.5, 0.75, 1.5, 2.0)


def run_checkpoints(bench: Bench) -> Iterator[Trial]:
    """Try the weights of other checkpoints, whole."""
    for folder in bench.checkpoints:
        if bench.out_of_time:
            return
        change = Moved(folder)
        trial = bench.pass_trial(
            "checkpoints", "stale-weights", f"weights of {folder.name}", bench.screen, change
        )
        if trial is not None and trial.gain > GAIN:
            rows = bench.scene.rows if trial.left.within(bench.scene.noise) else bench.confirm
            trial = (
                bench.pass_trial("checkpoints", "stale-weights", trial.setting, rows, change)
                or trial
            )
        if trial is not None:
            yield trial


def run_fractions(bench: Bench) -> Iterator[Trial]:
    """Try fractions of the way to another checkpoint, in all tensors and in parts of them."""
    layers = bench.forward.tensors.layers
    parts = [
        ("all", "stale-weights"),
        ("head", "tied-head-desync"),
        ("attention", "partial-sync"),
        ("mlp", "partial-sync"),
        ("embedding", "partial-sync"),
        ("norms", "partial-sync"),
    ]
    best: Trial | None = None
    for folder in bench.checkpoints:
        for part, slug in parts:
            found = _fraction(bench, folder, part, slug)
            if found is None:
                return
            if best is None or found.left.nats < best.left.nats:
                best = found
            if best.left.within(bench.scene.noise):
                yield _confirmed(bench, best)
                return
    # Which layers stayed behind: each layer for itself, then the set of those that tell.
    for folder in bench.checkpoints[:1] if layers <= 64 else ():
        sets = [f"layers.{layer}" for layer in range(layers)]
        some: list[tuple[float, int, Trial]] = []
        for layer, part in enumerate(sets):
            trial = _moved(bench, folder, 1.0, part, "partial-sync")
            if trial is None:
                return
            some.append((trial.gain, layer, trial))
        some.sort(reverse=True, key=lambda one: one[0])
        if some[0][0] > 0.02:
            chosen: list[int] = []
            reached = -np.inf
            for _, layer, _ in some:
                part = "layers." + "+".join(str(one) for one in sorted([*chosen, layer]))
                found = _fraction(bench, folder, part, "partial-sync")
                if found is None or found.gain <= reached + 0.02:
                    continue
                chosen.append(layer)
                reached = found.gain
                if best is None or found.left.nats < best.left.nats:
                    best = found
                if best.left.within(bench.scene.noise):
                    break
    if best is not None:
        yield _confirmed(bench, best)


def _moved(bench: Bench, folder: Path, fraction: float, part: str, slug: str) -> Trial | None:
    """Try weights that went a fraction of the way to a checkpoint in one part of the model."""
    if bench.out_of_time:
        return None
    where = {"all": "all tensors", "head": "the output head", "mlp": "the MLPs"}.get(part, part)
    return bench.pass_trial(
        "fractions",
        slug,
        f"{where} {fraction:.2f} of the way to {folder.name}",
        bench.screen,
        Moved(folder, fraction, part),
        values={"fraction": fraction},
    )


def _fraction(bench: Bench, folder: Path, part: str, slug: str) -> Trial | None:
    """Find the fraction of the way to a checkpoint that suits one part of the model best."""
    trials = []
    for fraction in (1.0, 0.5):
        trial = _moved(bench, folder, fraction, part, slug)
        if trial is None:
            return None
        trials.append(trial)
    best = max(trials, key=lambda trial: trial.gain)
    if best.gain < 0.05:
        return best
    for fraction in FRACTIONS:
        trial = _moved(bench, folder, fraction, part, slug)
        if trial is None:
            return best
        trials.append(trial)
    trials.sort(key=lambda trial: trial.values["fraction"])
    index = int(np.argmin([trial.left.nats for trial in trials]))
    best = trials[index]
    if best.left.within(bench.scene.noise):
        return best
    low = trials[max(index - 1, 0)].values["fraction"]
    high = trials[min(index + 1, len(trials) - 1)].values["fraction"]

    def loss(fraction: float) -> float:
        trial = _moved(bench, folder, fraction, part, slug)
        if trial is None:
            return np.inf
        trials.append(trial)
        return trial.left.nats

    golden(loss, low, high, steps=6)
    return min(trials, key=lambda trial: trial.left.nats)


def _confirmed(bench: Bench, trial: Trial) -> Trial:
    """Try the best fraction on more rows."""
    if trial.gain < GAIN:
        return trial
    made = bench.pass_trial(
        "fractions", trial.slug, trial.setting, bench.confirm, trial.change, values=trial.values
    )
    return made or trial


def run_prefix(bench: Bench) -> Iterator[Trial]:
    """Try prompts whose keys and values were made by another checkpoint's weights."""
    for folder in bench.checkpoints:
        if bench.out_of_time:
            return
        passages = [one for one in bench.passages(bench.screen) if one.prefix > 1]
        if passages:
            yield bench.trial(
                "stale-prefix",
                "prefix-cache-stale",
                f"the prompt's keys and values of {folder.name}",
                bench.forward.after_other_prefix(passages, folder),
                bench.scene.tokens_of([one.row for one in passages]),
            )


def shard_changes(bench: Bench) -> list[tuple[str, Shards]]:
    """List ranks of tensors in each other's place, by layer."""
    shapes = bench.forward.tensors.shapes
    changes: list[tuple[str, Shards]] = []
    for layer in range(bench.forward.tensors.layers):
        own = {
            name.split(f".layers.{layer}.")[1]: name
            for name in shapes
            if f".layers.{layer}." in name and len(shapes[name]) == 2
        }
        groups = {
            words: (tuple(name for end, name in own.items() if end.endswith(ends)), axis)
            for words, (ends, axis) in SHARDED.items()
        }
        for words, (tensors, axis) in groups.items():
            if not tensors:
                continue
            for at, of, exchanged in ((0, 1, True), (0, 1, False), (1, 0, False)):
                what = "exchanged" if exchanged else f"rank {at} a copy of rank {of}"
                changes.append(
                    (
                        f"{words} of layer {layer}, 2 ranks: {what}",
                        Shards(tensors, axis, 2, at, of, exchanged),
                    )
                )
    return changes


def run_shards(bench: Bench) -> Iterator[Trial]:
    """Try ranks of one layer's tensors in each other's place, then of more ranks."""
    found = yield from _best_of(bench, "shards", "shard-wrong", shard_changes(bench))
    if found is None or found[0].left.within(bench.scene.noise):
        return
    trial, change = found
    if trial.gain < 0.1:
        return
    assert isinstance(change, Shards)
    finer = [
        (
            f"{trial.setting.split(',')[0]}, {ranks} ranks: {at} and {of}",
            Shards(change.tensors, change.axis, ranks, at, of, exchanged),
        )
        for ranks in (4, 8)
        for at, of in combinations(range(ranks), 2)
        for exchanged in (True, False)
    ]
    yield from _best_of(bench, "shards", "shard-wrong", finer)


def _best_of(bench: Bench, name: str, slug: str, changes: Sequence[tuple[str, Change]]):
    """Try changes one by one until one explains all; yield the best, tried on more rows."""
    best: tuple[Trial, Change] | None = None
    for words, change in changes:
        if bench.out_of_time:
            break
        trial = bench.pass_trial(name, slug, words, bench.screen[::2], change)
        if trial is not None and (best is None or trial.left.nats < best[0].left.nats):
            best = trial, change
            if trial.left.within(bench.scene.noise) and trial.gain > 1.0:
                break
    if best is not None:
        trial, change = best
        if trial.gain > GAIN:
            trial = bench.pass_trial(name, slug, trial.setting, bench.confirm, change) or trial
        yield trial
        best = trial, change
    return best


def run_experts(bench: Bench) -> Iterator[Trial]:
    """Try two experts of a layer in each other's place."""
    changes = [
        (f"experts {one} and {other} of layer {layer} exchanged", Experts(layer, one, other))
        for layer, count in bench.forward.tensors.experts.items()
        for one, other in combinations(range(count), 2)
    ]
    yield from _best_of(bench, "experts", "moe-expert-wrong", changes)


CHECKPOINTS = Experiment(
    name="checkpoints",
    slugs=("stale-weights", "reference-as-old", "draft-recorded", "weights-never-synced"),
    asks="Are these the weights of another checkpoint?",
    run=run_checkpoints,
    passes=lambda bench: float(max(len(bench.checkpoints), 1)),
    worth=lambda bench: 4.0 if bench.checkpoints else 0.0,
)
FRACTIONS_OF_WAY = Experiment(
    name="fractions",
    slugs=("partial-sync", "tied-head-desync", "stale-weights", "old-after-update"),
    asks="Did some tensors stay at another checkpoint, or are weights between two?",
    run=run_fractions,
    passes=lambda bench: 20.0 * max(len(bench.checkpoints), 1),
    worth=lambda bench: 4.0 if bench.checkpoints else 0.0,
)
STALE_PREFIX = Experiment(
    name="stale-prefix",
    slugs=("prefix-cache-stale",),
    asks="Are the prompt's keys and values of another checkpoint?",
    run=run_prefix,
    passes=lambda bench: 2.0 * max(len(bench.checkpoints), 1),
    worth=lambda bench: 1.0 if bench.checkpoints else 0.0,
    sides=("sampler",),
)
SHARDS = Experiment(
    name="shards",
    slugs=("shard-wrong",),
    asks="Are ranks of a tensor in each other's place?",
    run=run_shards,
    passes=lambda bench: 24.0 * bench.forward.tensors.layers / 2.0,
    worth=lambda bench: 0.5,
)
EXPERTS = Experiment(
    name="experts",
    slugs=("moe-expert-wrong",),
    asks="Are two experts in each other's place?",
    run=run_experts,
    passes=lambda bench: 10.0,
    worth=lambda bench: 1.0 if bench.forward.tensors.experts else 0.0,
)

WEIGHTS: Sequence[Experiment] = (CHECKPOINTS, FRACTIONS_OF_WAY, STALE_PREFIX, SHARDS, EXPERTS)

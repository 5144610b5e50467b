"""Experiments on weights: other checkpoints, fractions and parts of them, shards, experts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
from msgspec.structs import replace

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
# Parts of a model that stay behind together -> the cause that this is.
PARTS: dict[str, str] = {
    "all": "stale-weights",
    "head": "tied-head-desync",
    "attention": "partial-sync",
    "mlp": "partial-sync",
    "embedding": "partial-sync",
    "norms": "partial-sync",
}
WORDS = {"all": "all tensors", "head": "the output head", "mlp": "the MLPs"}
STEP_ALONG = 0.25  # fraction of the way at which the direction of a checkpoint is measured
ALONG = 0.03  # share of the residuals along a direction, below which no fraction of it explains
MOST_LAYERS = 4


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
    """Try fractions of the way to another checkpoint, in all tensors and in parts of them.

    A small step towards a checkpoint gives the direction in which its log-probs lie; the fraction
    is where the recorded column lies along it.
    """
    found = _along(bench, list(PARTS))
    if not found or found[0][0] < ALONG:
        return
    best = _best_fraction(bench, found[:3])
    if best is None or not (best.left.within(bench.scene.noise) and best.tells):
        layers = [f"layers.{layer}" for layer in range(bench.forward.tensors.layers)]
        folder = found[0][1].folder
        some = _along(bench, layers, [folder])
        chosen: list[str] = []
        for _, change in some[:MOST_LAYERS]:
            chosen.append(change.part.removeprefix("layers."))
            part = "layers." + "+".join(sorted(chosen, key=int))
            trial = _moved(bench, Moved(folder, 1.0, part))
            if trial is not None and (best is None or trial.left.nats < best.left.nats):
                best = trial
            elif len(chosen) > 1:
                chosen.pop()
        if best is not None:
            best = _refined(bench, best)
    if best is not None:
        yield _confirmed(bench, best)


def _refined(bench: Bench, best: Trial) -> Trial:
    """Search the fraction of layers that stayed behind."""
    behind = best.change
    if not (isinstance(behind, Moved) and behind.part.startswith("layers.")):
        return best
    trial = _best_fraction(bench, [(0.0, behind)])
    return trial if trial is not None and trial.left.nats < best.left.nats else best


def _along(
    bench: Bench, parts: Sequence[str], folders: Sequence[Path] | None = None
) -> list[tuple[float, Moved]]:
    """Return changes by the share of the residuals that lies along them, with their fractions."""
    found: list[tuple[float, Moved]] = []
    for folder in folders or bench.checkpoints:
        for part in parts:
            trial = _moved(bench, Moved(folder, STEP_ALONG, part))
            if trial is None:
                continue
            side, at = bench.side, trial.at
            honest = side.honest[at]
            width = bench.scene.noise * side.reach[at] + side.grain[at] + 1e-3
            along = np.clip((trial.predicted - honest) / STEP_ALONG / width, -1e3, 1e3)
            left = np.clip((side.recorded[at] - honest) / width, -1e3, 1e3)
            size = float(along @ along)
            if size <= 0.0:
                continue
            fraction = float(along @ left) / size
            share = fraction**2 * size / max(float(left @ left), 1e-9)
            found.append((share, Moved(folder, float(np.clip(fraction, -2.0, 3.0)), part)))
    return sorted(found, key=lambda one: -one[0])


def _best_fraction(bench: Bench, changes: Sequence[tuple[float, Moved]]) -> Trial | None:
    """Search the fraction of a few changes around where they begin; return the best trial."""
    trials: list[Trial] = []
    for _, change in changes:

        def loss(fraction: float, change: Moved = change) -> float:
            trial = _moved(bench, replace(change, fraction=fraction))
            if trial is None:
                return np.inf
            trials.append(trial)
            return trial.left.nats

        start = change.fraction
        loss(1.0)
        golden(loss, 0.5 * start, 2.0 * start, steps=4)
    return min(trials, key=lambda trial: trial.left.nats, default=None)


def _moved(bench: Bench, change: Moved) -> Trial | None:
    """Try weights that went a fraction of the way to a checkpoint in one part of the model."""
    if bench.out_of_time:
        return None
    where = WORDS.get(change.part, change.part)
    return bench.pass_trial(
        "fractions",
        PARTS.get(change.part, "partial-sync"),
        f"{where} {change.fraction:.2f} of the way to {change.folder.name}",
        bench.screen,
        change,
        values={"fraction": change.fraction},
    )


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
    few = bench.screen[::2]
    for words, change in changes:
        if bench.out_of_time:
            break
        # What happened makes every row better; nearly all changes are out after the first one.
        first = bench.pass_trial(name, slug, words, few[:1], change)
        if best is not None and (first is None or first.gain < 0.0):
            continue
        trial = bench.pass_trial(name, slug, words, few, change)
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
    passes=lambda bench: 20.0 + 6.0 * len(bench.checkpoints),
    worth=lambda bench: 40.0 if bench.checkpoints else 0.0,
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

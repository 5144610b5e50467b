"""Experiments on weights: other checkpoints, fractions of the way to them, shards, experts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from rcdiag.diagnosis.experiments.fit import golden
from rcdiag.diagnosis.experiments.hypothesis_tester import (
    HypothesisTest,
    HypothesisTester,
    experiment,
    smallest,
)
from rcdiag.diagnosis.experiments.thresholds import SLIGHT_GAIN
from rcdiag.diagnosis.thresholds import FEW, ROUNDING, TRIED
from rcdiag.engines.changes import Change, Moved, Shards, SwappedExperts

# Tensors that tensor parallelism shards, by the ends of their names, and the axis.
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
# Parts of a model that may keep older weights together -> the cause to name then.
PARTS: dict[str, str] = {
    "all": "stale-weights",
    "head": "tied-head-desync",
    "attention": "partial-sync",
    "mlp": "partial-sync",
    "embedding": "partial-sync",
    "norms": "partial-sync",
}
WORDS = {"all": "all tensors", "head": "the output head", "mlp": "the MLPs"}
STEP_ALONG = 0.25  # fraction of the way to a checkpoint at which its direction is measured


@experiment(
    slugs=(
        *("partial-sync", "tied-head-desync", "stale-weights", "old-after-update"),
        *("reference-as-old", "draft-recorded", "weights-never-synced"),
    ),
    passes=lambda tester: 20.0 + 6.0 * len(tester.checkpoints),
    worth=lambda tester: 40.0 if tester.checkpoints else 0.0,
)
def fractions(tester: HypothesisTester) -> Iterator[HypothesisTest]:
    """Try weights a fraction of the way to another checkpoint, in all tensors or in parts.

    A step towards a checkpoint gives the direction in which log-probs change; the fraction is the
    projection of the recorded column on this direction.
    """
    found = _along(tester, list(PARTS))
    if not found or found[0][0] < FEW:
        return
    best = _best_fraction(tester, found[:3])
    if best is None or not (best.residual.within(tester.sample.noise) and best.is_significant):
        best = smallest([best, *_layers(tester, best, found[0][1].folder)])
        change = None if best is None else best.change
        if isinstance(change, Moved) and change.part.startswith("layers."):
            best = smallest([best, _best_fraction(tester, [(0.0, change)])])
    if best is not None:
        yield tester.confirmed(best, SLIGHT_GAIN)


def _layers(
    tester: HypothesisTester, best: HypothesisTest | None, folder: Path
) -> Iterator[HypothesisTest]:
    """Try layers with older weights: the likeliest one, and each further one that explains more."""
    layers = [f"layers.{layer}" for layer in range(tester.forward.tensors.layers)]
    chosen: list[str] = []
    for _, change in _along(tester, layers, [folder])[:TRIED]:
        chosen.append(change.part.removeprefix("layers."))
        part = "layers." + "+".join(sorted(chosen, key=int))
        test = _moved(tester, Moved(folder, 1.0, part))
        if test is not None and (best is None or test.residual.nats < best.residual.nats):
            best = test
            yield test
        elif len(chosen) > 1:
            chosen.pop()


def _along(
    tester: HypothesisTester, parts: Sequence[str], folders: Sequence[Path] | None = None
) -> list[tuple[float, Moved]]:
    """Return changes of each part with the fraction that fits best.

    They are sorted by the share of squared residuals that they explain, the largest first.
    """
    found: list[tuple[float, Moved]] = []
    for folder in folders or tester.checkpoints:
        for part in parts:
            test = _moved(tester, Moved(folder, STEP_ALONG, part))
            if test is None:
                continue
            side, at = tester.side, test.at
            expected = side.expected[at]
            width = tester.sample.noise * side.sensitivity[at] + side.resolution[at] + ROUNDING
            along = np.clip((test.predicted - expected) / STEP_ALONG / width, -1e3, 1e3)
            residual = np.clip((side.recorded[at] - expected) / width, -1e3, 1e3)
            size = float(along @ along)
            if size <= 0.0:
                continue
            fraction = float(along @ residual) / size
            share = fraction**2 * size / max(float(residual @ residual), 1e-9)
            found.append((share, Moved(folder, float(np.clip(fraction, -2.0, 3.0)), part)))
    return sorted(found, key=lambda one: -one[0])


def _best_fraction(
    tester: HypothesisTester, changes: Sequence[tuple[float, Moved]]
) -> HypothesisTest | None:
    """Search the best fraction of each change, around its own and at 1; return the best test."""
    tests: list[HypothesisTest] = []
    for _, change in changes:

        def loss(fraction: float, change: Moved = change) -> float:
            test = _moved(tester, replace(change, fraction=fraction))
            if test is None:
                return np.inf
            tests.append(test)
            return test.residual.nats

        start = change.fraction
        loss(1.0)
        golden(loss, 0.5 * start, 2.0 * start, steps=4)
    return smallest(tests)


def _moved(tester: HypothesisTester, change: Moved) -> HypothesisTest | None:
    """Test weights that are a fraction of the way to a checkpoint in one part of the model."""
    if tester.out_of_time:
        return None
    where = WORDS.get(change.part, change.part)
    return tester.test_pass(
        PARTS.get(change.part, "partial-sync"),
        f"{where} {change.fraction:.2f} of the way to {change.folder.name}",
        change=change,
        values={"fraction": change.fraction},
    )


@experiment(
    slugs=("prefix-cache-stale",),
    passes=lambda tester: 2.0 * max(len(tester.checkpoints), 1),
    worth=lambda tester: 1.0 if tester.checkpoints else 0.0,
    sides=("sampler",),
)
def stale_prefix(tester: HypothesisTester) -> Iterator[HypothesisTest]:
    """Try prompts whose keys and values were made by another checkpoint's weights."""
    for folder in tester.checkpoints:
        if tester.out_of_time:
            return
        passages = [one for one in tester.passages(tester.screen) if one.prefix > 1]
        if passages:
            yield tester.test(
                "prefix-cache-stale",
                f"the prompt's keys and values of {folder.name}",
                tester.forward.after_other_prefix(passages, folder),
                tester.sample.tokens_of([one.row for one in passages]),
            )


def shard_changes(tester: HypothesisTester) -> list[tuple[str, Shards]]:
    """List exchanged or copied shards of two ranks, for each layer and kind of tensor."""
    shapes = tester.forward.tensors.shapes
    changes: list[tuple[str, Shards]] = []
    for layer in range(tester.forward.tensors.layers):
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


@experiment(
    slugs=("shard-wrong",),
    passes=lambda tester: 24.0 * tester.forward.tensors.layers / 2.0,
    worth=lambda tester: 0.5,
)
def shards(tester: HypothesisTester) -> Iterator[HypothesisTest]:
    """Try exchanged or copied shards of one layer's tensors, with 2 ranks, then with 4 and 8."""
    test = _best_change(tester, "shard-wrong", shard_changes(tester))
    if test is None:
        return
    yield test
    if test.residual.within(tester.sample.noise) or test.gain < SLIGHT_GAIN:
        return
    change = test.change
    assert isinstance(change, Shards)
    finer = [
        (
            f"{test.setting.split(',')[0]}, {ranks} ranks: {at} and {of}",
            replace(change, ranks=ranks, at=at, of=of, exchanged=exchanged),
        )
        for ranks in (4, 8)
        for at, of in combinations(range(ranks), 2)
        for exchanged in (True, False)
    ]
    if (best := _best_change(tester, "shard-wrong", finer)) is not None:
        yield best


def _best_change(
    tester: HypothesisTester, slug: str, changes: Sequence[tuple[str, Change]]
) -> HypothesisTest | None:
    """Return the best of the changes, confirmed on more rows.

    The search ends at the first change that explains everything.
    """
    few = tester.screen[::2]

    def tests() -> Iterator[HypothesisTest | None]:
        found = False
        for words, change in changes:
            # The right change improves every row, so one row rejects nearly all others.
            first = tester.test_pass(slug, words, change=change, rows=few[:1])
            if found and (first is None or first.gain < 0.0):
                yield None
            else:
                test = tester.test_pass(slug, words, change=change, rows=few)
                found = found or test is not None
                yield test

    best = tester.best_of(
        tests(), lambda test: test.residual.within(tester.sample.noise) and test.gain > 1.0
    )
    return None if best is None else tester.confirmed(best, SLIGHT_GAIN)


@experiment(
    slugs=("moe-expert-wrong",),
    passes=lambda tester: 10.0,
    worth=lambda tester: 1.0 if tester.forward.tensors.experts else 0.0,
)
def experts(tester: HypothesisTester) -> Iterator[HypothesisTest]:
    """Try to exchange any two experts of a layer."""
    changes = [
        (f"experts {one} and {other} of layer {layer} exchanged", SwappedExperts(layer, one, other))
        for layer, count in tester.forward.tensors.experts.items()
        for one, other in combinations(range(count), 2)
    ]
    if (best := _best_change(tester, "moe-expert-wrong", changes)) is not None:
        yield best


WEIGHTS = (fractions, stale_prefix, shards, experts)

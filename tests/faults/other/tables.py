"""Make a table and its label from a plan (models, sampling, content of each column)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from tests.faults.other.models import (
    BOS,
    TOOL,
    Model,
    Noise,
    random_weights,
    set_entropy,
)
from tests.faults.other.sampling import (
    Sample,
    Sampling,
    Scores,
    View,
    generate,
    plain_view,
    score,
)

# vocabulary -> (odds, fewest and most tokens of a table)
SIZES = {
    24: (0.08, 6_000, 30_000),
    192: (0.27, 6_000, 60_000),
    4096: (0.40, 5_000, 12_000),
    16384: (0.20, 3_500, 6_000),
    50176: (0.05, 3_000, 3_500),
}
SILENT = Noise()


@dataclass
class Fault:
    """One fault of a table and the acceptable answers to it from the table alone.

    `family` decides the right verdict: `honest` and `weights` by the size of the log-ratio,
    `broken` always broken, `open` where the columns show nothing, `alone` where nothing is
    compared, `entropy` where a column of entropies shows it, given enough tokens.
    """

    slug: str
    family: str
    also: tuple[str, ...] = ()  # other acceptable causes
    verdicts: tuple[str, ...] = ()  # other acceptable verdicts
    size: float | None = None  # rms log-ratio (nats) that the fault alone makes, where known
    faint: bool = False  # may be smaller than the engines' noise


@dataclass
class Columns:
    """Flat token columns and row columns, which a fault may edit before they are written."""

    lengths: np.ndarray
    tokens: np.ndarray
    mask: np.ndarray
    rollout: np.ndarray
    old: np.ndarray
    extra: dict[str, np.ndarray] = field(default_factory=dict)  # flat, by token
    rows: dict[str, Any] = field(default_factory=dict)  # by row
    repeat: np.ndarray | None = None  # rows to write, in this order; default: each one once
    drop: tuple[str, ...] = ()

    @property
    def offsets(self) -> np.ndarray:
        return np.concatenate([[0], np.cumsum(self.lengths)])

    @property
    def row_of(self) -> np.ndarray:
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    @property
    def place(self) -> np.ndarray:
        return np.arange(len(self.tokens)) - np.repeat(self.offsets[:-1], self.lengths)

    def split(self, flat: np.ndarray) -> list[np.ndarray]:
        return np.split(flat, self.offsets[1:-1])


class Plan:
    """The settings of a healthy table; a fault changes some of them."""

    def __init__(self, rng: np.random.Generator, **fixed: Any) -> None:
        self.rng, self.fixed = rng, fixed
        sizes = list(SIZES)
        odds = np.array([SIZES[size][0] for size in sizes])
        self.vocabulary = int(fixed.get("vocabulary", rng.choice(sizes, p=odds / odds.sum())))
        _, fewest, most = SIZES[self.vocabulary]
        tokens = fixed.get("tokens", self.between(fewest, most))
        rows = int(np.clip(self.between(80, 400), 80, max(80, tokens / 40)))
        self.rows = int(fixed.get("rows", rows))
        self.mean_length = tokens / self.rows
        self.experts = int(fixed.get("experts", 0))
        low, high = {24: (0.3, 2.2), 192: (0.2, 3.0)}.get(self.vocabulary, (0.15, 3.2))
        self.entropy = float(fixed.get("entropy", self.between(low, high)))
        self.step_count = int(fixed.get("steps", rng.choice([1, 1, 1, 2, 3, 4, 6])))
        self.group_size = int(fixed.get("group_size", rng.choice([1, 1, 4, 8, 16])))
        self.strength = float(rng.random())
        self.tools = bool(fixed.get("tools", rng.random() < 0.15))
        self.engines = int(fixed.get("engines", rng.choice([0, 0, 2, 4])))

        base = Model(random_weights(rng, self.vocabulary, zipf=rng.uniform(0.5, 1.2),
                                    experts=self.experts))  # fmt: skip
        hazard = float(fixed.get("hazard", 0.5 / self.mean_length))
        self.model = set_entropy(rng, base, self.entropy, hazard)
        self._rows()

        self.sampler_models = [self.model]
        self.sampler_which = np.zeros(self.rows, int)
        self.trainer_models = [self.model]
        self.trainer_which = np.zeros(self.rows, int)
        self.switch: np.ndarray | None = None
        self.prefix: Model | None = None
        self.sampling = Sampling()
        self.record = "sampled"  # which log-prob of the sample is recorded
        self.trainer_temperature = 1.0
        self.trainer_change: Callable[[np.ndarray], np.ndarray] | None = None
        self.late: Callable[[Plan, Sample, Columns], Model] | None = None
        self.view: Callable[[int, np.ndarray, np.ndarray], View] = lambda row, prompt, response: (
            plain_view(prompt, response)
        )
        self.edits: list[Callable[[Columns, Sample, Scores], None]] = []
        self.metadata: dict[str, Any] = {}
        self.floor = float(fixed.get("floor", self.between(0.002, 0.015)))
        # None: the floor, one half of the variance on each side.
        self.sampler_noise: Noise | None = None
        self.trainer_noise: Noise | None = None

    def _rows(self) -> None:
        rng, rows = self.rng, self.rows
        self.group = np.arange(rows) // self.group_size
        groups = int(self.group.max()) + 1
        lengths = self.fixed.get("prompt_lengths", (4, 40))
        prompts = [self.prompt_tokens(int(rng.integers(*lengths))) for _ in range(groups)]
        self.prompts = [prompts[group] for group in self.group]
        step_of_group = np.sort(np.arange(groups) % self.step_count)
        self.step = step_of_group[self.group]
        self.step_count = int(self.step.max()) + 1
        spread = self.between(1.2, 2.5)
        lengths = self.mean_length * np.exp(rng.uniform(-np.log(spread), np.log(spread), rows))
        self.lengths = np.clip(lengths, 8, 1500).astype(int)
        self.engine = rng.integers(0, self.engines, rows) if self.engines else None
        self.forced: np.ndarray | None = None
        if self.tools:
            self.lengths = np.maximum(self.lengths, 24)
            self.forced = np.full((rows, int(self.lengths.max())), -1)
            for row, length in enumerate(self.lengths):
                begin = int(length * rng.uniform(0.25, 0.5))
                end = begin + int(np.clip(length * rng.uniform(0.1, 0.25), 3, 40))
                self.forced[row, begin:end] = self.prompt_tokens(end - begin)
                self.forced[row, begin] = TOOL

    def between(self, low: float, high: float) -> float:
        """Draw a number between the two, uniform in the logarithm."""
        return float(low * (high / low) ** self.rng.random())

    def graded(self, low: float, high: float) -> float:
        """Return a number between the two by the table's strength, which the label states."""
        return float(low * (high / low) ** self.strength)

    def prompt_tokens(self, count: int) -> np.ndarray:
        ids = self.rng.integers(4, self.vocabulary, count)
        if count:
            ids[0] = BOS
        return ids

    # Sizes are calibrated on a pilot, a short fault-free sample of the plan's own model.

    @cached_property
    def pilot(self) -> Sample:
        count, length = (10, 32) if self.vocabulary > 10_000 else (16, 60)
        self.pilot_prompts = [self.prompts[i % self.rows] for i in range(count)]
        return generate(
            self.rng,
            [self.model],
            np.zeros(count, int),
            self.pilot_prompts,
            np.full(count, length),
            sampling=Sampling(),
            noise=SILENT,
        )

    @cached_property
    def pilot_views(self) -> list[View]:
        rows = self.pilot.rows(self.pilot.tokens)
        return [plain_view(p, r) for p, r in zip(self.pilot_prompts, rows, strict=True)]

    @cached_property
    def pilot_own(self) -> np.ndarray:
        return self.pilot_scores(self.model)

    def pilot_scores(self, model: Model, noise: Noise = SILENT) -> np.ndarray:
        return score(model, self.pilot_views, self.rng, noise).log_probs

    def rms(self, model: Model, noise: Noise = SILENT) -> float:
        """Return the rms log-ratio (nats) of a model to the plan's own on the pilot's tokens."""
        return float(np.sqrt(((self.pilot_scores(model, noise) - self.pilot_own) ** 2).mean()))

    def solve(self, size: Callable[[float], float], target: float) -> float:
        """Return the scale at which `size(scale)`, an rms in nats, is `target`."""
        scale = 0.02
        for _ in range(6):
            now = size(scale)
            if abs(np.log(max(now, 1e-9) / target)) < 0.05:
                break
            scale *= float(np.clip(target / max(now, 1e-9), 0.02, 20.0))
        return scale

    def noise(self, target: float, **kind: Any) -> Noise:
        """Return noise on one side that gives log-ratios of `target` nats rms."""
        kind = {"scale": 1.0, **kind}
        router = kind.pop("router", 0.0)

        def made(scale: float) -> Noise:
            return Noise(**{**kind, "scale": scale * kind["scale"], "router": scale * router})

        pilot_kind = {**kind, "row_scale": None}

        def size(scale: float) -> float:
            noise = Noise(**{**pilot_kind, "scale": scale * kind["scale"],
                             "router": scale * router})  # fmt: skip
            return self.rms(self.model, noise)

        return made(self.solve(size, target))

    # Make the table.

    def run(self) -> tuple[Columns, dict[str, Any], Sample]:
        rng = self.rng
        if self.sampler_noise is None or self.trainer_noise is None:
            half = self.noise(self.floor / np.sqrt(2.0)) if self.floor else SILENT
            self.sampler_noise = half if self.sampler_noise is None else self.sampler_noise
            self.trainer_noise = half if self.trainer_noise is None else self.trainer_noise
        sample = generate(
            rng,
            self.sampler_models,
            self.sampler_which,
            self.prompts,
            self.lengths,
            sampling=self.sampling,
            noise=self.sampler_noise,
            forced=self.forced,
            switch=self.switch,
            prefix=self.prefix,
        )
        responses = sample.rows(sample.tokens)
        columns = Columns(
            lengths=sample.lengths,
            tokens=sample.tokens,
            mask=sample.free.astype(np.uint8),
            rollout=getattr(sample, self.record).copy(),
            old=np.zeros(0),
        )
        self._row_columns(columns, sample)
        trainer_models = self.trainer_models
        if self.late:
            trainer_models = [self.late(self, sample, columns)]
        scores = Scores(*(np.zeros(len(sample.tokens)) for _ in range(3)))
        for m in np.unique(self.trainer_which):
            chosen = np.flatnonzero(self.trainer_which == m)
            views = [self.view(row, self.prompts[row], responses[row]) for row in chosen]
            part = score(
                trainer_models[m],
                views,
                rng,
                self.trainer_noise,
                temperature=self.trainer_temperature,
                change=self.trainer_change,
            )
            where = np.isin(sample.row_of, chosen)
            for name in ("log_probs", "entropy", "top_one"):
                getattr(scores, name)[where] = getattr(part, name)
        columns.old = scores.log_probs.copy()
        columns.extra.update(self._extras(sample, scores))
        free = sample.free
        ratio = np.exp(np.clip(columns.old - sample.sampled, -50, 50))[free]
        truth = {
            "mean_ratio": float(ratio.mean()),
            "entropy": float(sample.raw_entropy[free].mean()),
            "sampled_to_recorded_kl": float(sample.divergence[free].mean())
            if self.record == "raw"
            else 0.0,
            "surprise_z": _z(-sample.raw[free] - sample.raw_entropy[free]),
            "kept_mass": float(sample.kept_mass[free].mean()),
        }
        for edit in self.edits:
            edit(columns, sample, scores)
        counted = columns.mask.astype(bool)
        with np.errstate(invalid="ignore", over="ignore"):
            ratio = (columns.old - columns.rollout)[counted]
        ratio = ratio[np.isfinite(ratio)]
        truth.update(
            rms_log_ratio=float(np.sqrt((np.clip(ratio, -1e3, 1e3) ** 2).mean())),
            rows=len(columns.lengths if columns.repeat is None else columns.repeat),
            tokens=int(counted.sum()),
            mean_length=float(columns.lengths.mean()),
            vocabulary=self.vocabulary,
            floor=self.floor,
        )
        return columns, truth, sample

    def _row_columns(self, columns: Columns, sample: Sample) -> None:
        """Return rewards (from a response's tokens), advantages by group and optional columns."""
        rng, rows = self.rng, columns.rows
        worth = rng.standard_normal(self.vocabulary)
        mean = np.array([worth[ids].mean() for ids in sample.rows(sample.tokens)])
        mean = (mean - mean.mean()) / (mean.std() + 1e-9) + 0.7 * rng.standard_normal(self.rows)
        reward = mean if rng.random() < 0.3 else (mean > np.quantile(mean, 0.6)).astype(float)
        advantage = np.zeros(self.rows)
        for group in np.unique(self.group):
            own = self.group == group
            values = reward[own] if own.sum() > 1 else reward
            advantage[own] = (reward[own] - values.mean()) / (values.std() + 1e-6)
        self.advantage = advantage
        rows["prompt_ids"] = self.prompts
        stopped = sample.lengths < self.lengths
        optional: dict[str, Any] = {
            "sample_id": [f"r{row}" for row in range(self.rows)],
            "finish_reason": np.where(stopped, "stop", "length").tolist(),
            "step": self.step + 40,
        }
        if rng.random() < 0.7:
            optional.update(reward=reward)
            if rng.random() < 0.6:
                optional.update(advantage=advantage)
        if self.group_size > 1 or rng.random() < 0.5:
            optional["group_id"] = self.group
        if self.engine is not None:
            optional["engine"] = self.engine
        wanted = self.fixed.get("columns", ())
        if "advantage" in wanted:
            optional.update(reward=reward, advantage=advantage)
        for name, values in optional.items():
            sure = name in wanted or name in ("reward", "advantage", "group_id", "engine")
            sure |= name == "step" and self.step_count > 1
            if sure or rng.random() < 0.5:
                rows[name] = values

    def _extras(self, sample: Sample, scores: Scores) -> dict[str, np.ndarray]:
        wanted = self.fixed.get("columns", ())
        extra = {}
        if "old_entropy" in wanted or self.rng.random() < 0.2:
            extra["old_entropy"] = scores.entropy
        if self.rng.random() < 0.1 and not self.fixed.get("no_rollout_entropy"):
            extra["rollout_entropy"] = (
                sample.entropy if self.record == "sampled" else sample.raw_entropy
            )
        return extra


def _z(values: np.ndarray) -> float:
    return float(values.mean() / (values.std() / np.sqrt(len(values)) + 1e-12))


def to_arrow(columns: Columns, plan: Plan) -> pa.Table:
    offsets = pa.array(columns.offsets, pa.int32())
    # Trainers and engines store float32; some dumps go through JSON and are float64.
    kind = pa.float64() if plan.rng.random() < 0.2 else pa.float32()

    def by_token(flat: np.ndarray, type_: pa.DataType) -> pa.Array:
        with np.errstate(over="ignore"):
            flat = flat.astype(type_.to_pandas_dtype())
        return pa.ListArray.from_arrays(offsets, pa.array(flat, type_))

    data: dict[str, pa.Array] = {
        "response_ids": by_token(columns.tokens, pa.int32()),
        "rollout_log_probs": by_token(columns.rollout, kind),
        "old_log_probs": by_token(columns.old, kind),
    }
    if not columns.mask.all() or plan.rng.random() < 0.5:
        data["response_mask"] = by_token(columns.mask, pa.uint8())
    for name, flat in columns.extra.items():
        integer = flat.dtype.kind == "i"
        data[name] = by_token(flat, pa.int32() if integer else pa.float32())
    for name, values in columns.rows.items():
        type_ = pa.list_(pa.int32()) if name == "prompt_ids" else None
        data[name] = pa.array(values, type_)
    table = pa.table({name: column for name, column in data.items() if name not in columns.drop})
    if columns.repeat is not None:
        groups = columns.rows.get("group_id")
        table = table.take(pa.array(columns.repeat))
        if groups is not None and "renumbered" in plan.fixed:
            # A merged dump: the second copy's groups continue the numbering of the first.
            copy = np.arange(len(table)) >= len(columns.lengths)
            again = table["group_id"].to_numpy() + copy * (int(np.max(groups)) + 1)
            at = table.column_names.index("group_id")
            table = table.set_column(at, "group_id", pa.array(again))
    if plan.metadata:
        table = table.replace_schema_metadata({"rcdiag": json.dumps(plan.metadata)})
    return table


def label(faults: list[Fault], truth: dict[str, Any]) -> dict[str, Any]:
    """Return a table's answer key: acceptable causes and verdicts from the table alone."""
    rms, tokens, length = truth["rms_log_ratio"], truth["tokens"], truth["mean_length"]
    keys: list[dict[str, Any]] = []
    verdicts: set[str] = set()
    broken = any(fault.family == "broken" for fault in faults)
    for fault in faults:
        acceptable = [fault.slug, *fault.also]
        small = fault.size is not None and fault.size < 1.5 * truth["floor"]
        hidden = fault.faint and rms < 1.3 * truth["floor"]
        if hidden:
            verdicts |= {"healthy", "correctable", "inconclusive"}
        if fault.family == "weights" and (small or rms < 0.02):
            # No larger than the rounding of the engines.
            hidden = True
        if hidden:
            acceptable += ["engine-noise", "healthy"]
        keys.append({"slug": fault.slug, "acceptable": acceptable, "visible": not hidden})
        family = fault.family
        if family == "entropy":
            # Are there enough tokens to show that they are likelier than the entropies say?
            family = "broken" if abs(truth["surprise_z"]) > 5.0 else "open"
            keys[-1]["acceptable"] += [] if family == "broken" else ["engine-noise", "healthy"]
        if family == "broken":
            verdicts |= {"broken"}
        elif family == "open":
            verdicts |= {"healthy", "correctable", "inconclusive"}
        elif not broken and family in ("honest", "weights"):
            verdicts |= honest_verdicts(family, rms, tokens, length)
        if len(faults) == 1:
            verdicts |= set(fault.verdicts)
    return {
        "slug": faults[0].slug,
        "faults": keys,
        "acceptable": list(dict.fromkeys(slug for key in keys for slug in key["acceptable"])),
        "verdicts": sorted(verdicts),
    }


def honest_verdicts(family: str, rms: float, tokens: int, length: float) -> set[str]:
    """Return verdicts by cost: effective share exp(-rms^2) of tokens, to the length for rows.

    In borderline cases both verdicts are acceptable. `inconclusive` is acceptable where tokens
    sampled from the trainer (mean ratio about 1 + rms^2) look like tokens that the sampler drew.
    """
    verdicts = set()
    if rms < (0.06 if family == "honest" else 0.03):
        verdicts.add("healthy")
    if rms > 0.01 or family == "weights" or length * rms**2 > 0.05:
        verdicts.add("correctable")
    if rms > 0.01 and (rms * np.sqrt(tokens) < 4.0 or rms > 1.2):
        verdicts.add("inconclusive")
    return verdicts

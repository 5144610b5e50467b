"""The tables of `same_results.py`: about a hundred generated ones, and parts of the sample data.

All numbers are sums and products of uniform doubles of PCG64, without any library's logarithm or
normal distribution, so the bytes are the same with every numpy and on every machine.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

GENERATED = 100
SAMPLES = ("rollouts", "multi_turn", "stale", "temperature")
VOCABULARY = 50


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The properties of a generated table."""

    seed: int
    rows: int
    longest: int
    empty: float = 0.0  # share of rows without a token
    steps: int | None = None
    group: str = "none"  # none, ones, eights, fours, mixed, texts, single
    mask: str = "none"  # none, ones, holes, turns, rows, all
    nan: str = "none"  # none, masked, few, old_row, infinite
    spread: str = "small"  # same, tiny, small, wide, shifted, extreme
    single: bool = False  # log-probs as float32
    entropy: tuple[str, ...] = ()
    reward: str = "none"  # none, binary, real, gaps, equal
    advantage: str = "none"  # none, row, token, gaps
    policies: tuple[str, ...] = ()  # in addition to rollout and old
    version: str = "none"  # none, row, token
    temperature: str = "none"  # none, one, many, gaps


class Draw:
    """Random numbers from plain arithmetic."""

    def __init__(self, seed: int) -> None:
        self._generator = np.random.Generator(np.random.PCG64(seed))

    def uniform(self, count: int) -> np.ndarray:
        return self._generator.random(count)

    def skewed(self, count: int) -> np.ndarray:
        """Return numbers from 0 to 1, mostly near 0, by products: powers are not portable."""
        numbers = self.uniform(count)
        return numbers * numbers * numbers

    def normal(self, count: int) -> np.ndarray:
        """Return nearly normal numbers: twelve uniform ones less six."""
        return self._generator.random((12, count)).cumsum(axis=0)[-1] - 6.0

    def below(self, limit: int, count: int) -> np.ndarray:
        return (self.uniform(count) * limit).astype(np.int64)

    def pick(self, *choices):
        return choices[int(self.below(len(choices), 1)[0])]


def shapes() -> list[Shape]:
    """Return the generated tables by number: most are random, the last ones are corner cases."""
    corners = _corners()
    return [_drawn(seed) for seed in range(GENERATED - len(corners))] + corners


def _drawn(seed: int) -> Shape:
    draw = Draw(1000 + seed)
    return Shape(
        seed=seed,
        rows=int(4 + draw.below(29, 1)[0]),
        longest=draw.pick(1, 4, 12, 25, 40, 60),
        empty=draw.pick(0.0, 0.0, 0.1, 0.3),
        steps=draw.pick(None, None, None, None, None, None, 1, 2, 2, 3),
        group=draw.pick("none", "ones", "eights", "eights", "fours", "mixed", "texts"),
        mask=draw.pick("none", "ones", "holes", "holes", "turns", "rows"),
        nan=draw.pick("none", "none", "masked", "masked", "few", "old_row"),
        spread=draw.pick("same", "tiny", "small", "small", "wide", "wide", "shifted", "extreme"),
        single=draw.pick(True, False, False),
        entropy=draw.pick((), ("rollout",), ("old",), ("rollout", "old")),
        reward=draw.pick("binary", "binary", "binary", "binary", "real", "real", "gaps", "none"),
        advantage=draw.pick("none", "none", "none", "none", "none", "row", "token", "gaps"),
        policies=draw.pick((), ("current",), ("engine",), ("engine", "engine_again", "current")),
        version=draw.pick("none", "none", "row", "token"),
        temperature=draw.pick("none", "one", "many", "gaps"),
    )


def _corners() -> list[Shape]:
    plain = Shape(seed=0, rows=24, longest=30, group="eights", reward="binary", mask="holes")
    large = replace(plain, rows=400, longest=24, steps=2, entropy=("rollout", "old"))
    corners = [
        large,
        replace(large, rows=640, longest=12, steps=None, spread="wide", policies=("current",)),
        replace(large, rows=320, spread="extreme", group="mixed", nan="masked", single=True),
        replace(large, rows=300, steps=3, spread="tiny", policies=("engine", "current")),
        replace(plain, steps=5, advantage="row", policies=("current", "engine")),
        replace(plain, steps=5, spread="wide", nan="masked", empty=0.2, mask="rows"),
        replace(plain, spread="same", group="ones"),
        replace(plain, spread="same", policies=("current", "engine", "engine_again")),
        replace(plain, spread="extreme", longest=60, reward="real"),
        replace(plain, spread="extreme", group="ones", advantage="token"),
        replace(plain, mask="all"),
        replace(plain, empty=1.0),
        replace(plain, rows=1, group="none"),
        replace(plain, rows=2, longest=1, mask="none"),
        replace(plain, group="single", entropy=("old",)),
        replace(plain, nan="infinite"),
        replace(plain, nan="few", steps=2, policies=("current",)),
        replace(plain, reward="equal", advantage="none"),
        replace(plain, rows=40, longest=60, spread="wide", entropy=("rollout", "old")),
        replace(plain, rows=8, group="ones", reward="real", policies=("engine", "engine_again")),
        replace(plain, mask="turns", temperature="many", version="token", nan="masked"),
        replace(plain, group="texts", steps=2, reward="gaps", advantage="row", single=True),
    ]
    return [replace(shape, seed=900 + at) for at, shape in enumerate(corners)]


def make_table(shape: Shape) -> pa.Table:
    """Generate a table."""
    draw = Draw(shape.seed)
    rows = np.arange(shape.rows)
    lengths = 1 + draw.below(shape.longest, shape.rows)
    lengths[draw.uniform(shape.rows) < shape.empty] = 0
    count = int(lengths.sum())
    mask = _mask(shape, draw, lengths)
    columns: dict[str, pa.Array] = {
        "sample_id": pa.array([f"s{row}" for row in rows]),
        "prompt_ids": _lists(draw.below(VOCABULARY, 2 * shape.rows), rows * 0 + 2, pa.int32()),
        "response_ids": _lists(draw.below(VOCABULARY, count), lengths, pa.int32()),
    }
    if shape.mask != "none":
        columns["response_mask"] = _lists(mask, lengths, pa.uint8())
    for name, values in _log_probs(shape, draw, count).items():
        spoiled = _spoil(shape, draw, name, values, mask, lengths)
        kind = pa.float32() if shape.single else pa.float64()
        columns[f"{name}_log_probs"] = _lists(spoiled, lengths, kind)
    for name in shape.entropy:
        values = 3.0 * draw.skewed(count)
        columns[f"{name}_entropy"] = _lists(values, lengths, pa.float64())
    columns |= _row_columns(shape, draw, rows, lengths)
    return pa.table(columns)


def _lists(values: np.ndarray, lengths: np.ndarray, kind: pa.DataType) -> pa.Array:
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(offsets, pa.array(values).cast(kind, safe=False))


def _mask(shape: Shape, draw: Draw, lengths: np.ndarray) -> np.ndarray:
    count = int(lengths.sum())
    mask = np.ones(count, dtype=np.uint8)
    position = np.arange(count) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    drawn = draw.uniform(count)
    if shape.mask in ("holes", "rows"):
        mask[drawn < 0.2] = 0
    if shape.mask == "rows":
        mask[np.repeat(draw.uniform(len(lengths)) < 0.3, lengths)] = 0
    if shape.mask == "turns":
        mask[position % 9 >= 6] = 0
    if shape.mask == "all":
        mask[:] = 0
    return mask


def _log_probs(shape: Shape, draw: Draw, count: int) -> dict[str, np.ndarray]:
    """Return log-probs by policy; each is an earlier one plus its own noise."""
    spread = {"same": 0.0, "tiny": 0.002, "small": 0.03, "wide": 0.4}.get(shape.spread, 0.05)
    log_probs = {"rollout": -0.01 - 7.0 * draw.skewed(count)}
    for name in ("engine", "old", "engine_again", "current"):
        noise = spread * draw.normal(count) - 0.5 * spread**2
        base = log_probs[
            "engine" if name == "engine_again" and "engine" in log_probs else "rollout"
        ]
        base = log_probs["old"] if name == "current" else base
        if name == "engine_again":
            noise *= 0.01
        if name == "old" and shape.spread == "shifted":
            noise -= 0.1
        log_probs[name] = np.minimum(base + noise, -1e-9)
    if shape.spread == "extreme":
        for name in ("rollout", "old"):
            log_probs[name] = np.where(
                draw.uniform(count) < 0.015, log_probs[name] - 40.0, log_probs[name]
            )
    return {name: log_probs[name] for name in ("rollout", "old", *shape.policies)}


def _spoil(
    shape: Shape, draw: Draw, name: str, values: np.ndarray, mask: np.ndarray, lengths: np.ndarray
) -> np.ndarray:
    """Return log-probs with errors, and with the fillers that trainers write for masked tokens."""
    drawn = draw.uniform(len(values))
    if shape.nan in ("masked", "few"):
        values = np.where(mask == 0, np.nan, values)
    if shape.nan == "few":
        values = np.where(drawn < 0.02, np.nan, values)
    if shape.nan == "old_row" and name == "old":
        values = np.where(np.repeat(np.arange(len(lengths)) == 1, lengths), np.nan, values)
    if shape.nan == "infinite":
        values = np.where(drawn < 0.01, -np.inf, values)
    return values


def _row_columns(
    shape: Shape, draw: Draw, rows: np.ndarray, lengths: np.ndarray
) -> dict[str, pa.Array]:
    """Return the columns with one value per row, and the advantages and versions of tokens."""
    count, tokens = len(rows), int(lengths.sum())
    sizes = {"ones": 1, "eights": 8, "fours": 4, "texts": 4, "single": count}
    columns: dict[str, object] = {}
    if shape.steps is not None:
        columns["step"] = rows * shape.steps // count + 7
    if shape.group == "mixed":
        columns["group_id"] = np.cumsum(draw.uniform(count) < 0.35)
    elif shape.group == "texts":
        columns["group_id"] = [f"problem {row // 4}" for row in rows]
    elif shape.group != "none":
        columns["group_id"] = rows // sizes[shape.group]
    reward = (draw.uniform(count) < 0.5).astype(np.float64)
    if shape.reward == "real":
        reward = draw.normal(count)
    if shape.reward == "equal":
        reward = np.ones(count)
    if shape.reward == "gaps":
        reward[draw.uniform(count) < 0.1] = np.nan
    if shape.reward != "none":
        columns["reward"] = reward
    advantage = draw.normal(count)
    if shape.advantage == "gaps":
        advantage[0] = np.nan
    if shape.advantage in ("row", "gaps"):
        columns["advantage"] = advantage
    if shape.advantage == "token":
        columns["advantages"] = _lists(draw.normal(tokens), lengths, pa.float32())
    if shape.version == "row":
        columns["policy_version"] = draw.below(3, count)
    if shape.version == "token":
        columns["policy_version"] = _lists(draw.below(3, tokens), lengths, pa.int32())
    if shape.temperature == "one":
        columns["temperature"] = np.ones(count)
    if shape.temperature == "many":
        columns["temperature"] = 0.5 + draw.below(3, count) * 0.25
    if shape.temperature == "gaps":
        columns["temperature"] = pa.array([None if row % 5 == 0 else 0.75 for row in rows])
    return {name: pa.array(values) for name, values in columns.items()}


def short_groups(table: pa.Table, groups: int, step: int | None = None) -> pa.Table:
    """Return the whole prompt groups with the fewest tokens, which train quickly."""
    if step is not None:
        table = table.filter(np.array(table["step"].to_pylist()) == step)
    names = np.array(table["group_id"].to_pylist())
    tokens = np.array([len(row) for row in table["response_ids"].to_pylist()])
    totals = {str(name): int(tokens[names == name].sum()) for name in sorted(set(names))}
    chosen = sorted(totals, key=lambda name: (totals[name], name))[:groups]
    return table.filter(np.isin(names, chosen))


def write_tables(folder: Path, sample_data: Path) -> str:
    """Write all tables as parquet into a folder; return a checksum of the generated ones."""
    checksum = hashlib.sha256()
    for number, shape in enumerate(shapes()):
        table = make_table(shape)
        pq.write_table(table, folder / f"t{number:02}.parquet", row_group_size=256)
        checksum.update(repr(shape).encode())
        for name in table.column_names:
            checksum.update(repr((name, table[name].to_pylist())).encode())
    samples = {name: pq.read_table(sample_data / f"{name}.parquet") for name in SAMPLES}
    rollouts = samples["rollouts"]
    cuts = {
        "short_stale": short_groups(samples["stale"], 3),
        "short_turns": short_groups(samples["multi_turn"], 2),
        "short_steps": pa.concat_tables(short_groups(rollouts, 1, step) for step in (0, 1, 2)),
        "two_steps": rollouts.filter(np.isin(rollouts["step"].to_numpy(), [3, 4])),
    }
    for name, table in cuts.items():
        pq.write_table(table, folder / f"{name}.parquet")
    # For joins: some rows are missing, some have other tokens, all have other log-probs.
    stale = samples["stale"].select(["sample_id", "response_ids", "rollout_log_probs"])
    other = [[token + (row == 4) for token in ids] for row, ids in enumerate(_ids(stale))]
    kind = stale.schema.field("response_ids").type
    stale = stale.set_column(1, "response_ids", pa.array(other, kind)).slice(2, 200)
    pq.write_table(
        stale.rename_columns(["sample_id", "response_ids", "other_log_probs"]),
        folder / "other.parquet",
    )
    return checksum.hexdigest()


def _ids(table: pa.Table) -> list[list[int]]:
    return table["response_ids"].to_pylist()

"""Who is wrong: each side's column against the honest one, at the temperature that suits it."""

from __future__ import annotations

import numpy as np

from rcdiag.diagnosis.experiments.bench import Array
from rcdiag.diagnosis.experiments.fit import FLOAT32, searched, unexplained
from rcdiag.diagnosis.experiments.scene import Flags, Scene, Side
from rcdiag.diagnosis.signs.storage import StoredColumn

TEMPERATURES = (0.1, 0.2, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.5, 1.8, 2.2, 3.0)
# Share of tokens that an honest engine leaves far off: more are a fault of few tokens.
FEW_OFF = 0.004
EXACT = 3e-5  # scale of the noise of two float32 passes
UNEVEN = 10.0  # tail from which on a dense trainer's column is not its own model's but for rounding
SCANNED = 1_500  # law tokens on which temperatures are searched


def side_of(scene: Scene, name: str, policy: str) -> Side:
    """Compare a policy's column with the honest ones: raw, at the stated temperature, at any."""
    recorded = scene.recorded(policy)
    known = scene.usable & np.isfinite(recorded)
    made = _side(scene, name, policy, recorded, known, np.ones(len(scene)))
    stated = scene.stated_temperature
    if np.any(stated != 1.0):
        other = _side(scene, name, policy, recorded, known, stated)
        if other.left.nats < made.left.nats - 0.01:
            made = other
    if made.explained:
        return made
    temperature = scanned_temperature(scene, made)
    if temperature is None:
        return made
    other = _side(scene, name, policy, recorded, known, np.full(len(scene), temperature))
    return other if other.left.within(scene.noise) else made


def at_temperature(scene: Scene, side: Side, temperature: Array) -> Side:
    """Return a side held against the honest column at other temperatures, [tokens]."""
    return _side(scene, side.name, side.policy, side.recorded, side.known, temperature)


def _side(
    scene: Scene, name: str, policy: str, recorded: Array, known: Flags, temperature: Array
) -> Side:
    honest = scene.honest_at(temperature)
    reach = scene.reach_at(honest) / temperature  # noise of logits is divided as they are
    grain = _grain(scene, recorded, known)
    left = unexplained(recorded[known], honest[known], reach[known], grain[known])
    uneven = name == "trainer" and not scene.experts and left.scale > EXACT and left.tail > UNEVEN
    return Side(
        name=name,
        policy=policy,
        recorded=recorded,
        known=known,
        temperature=temperature,
        honest=honest,
        reach=reach,
        grain=grain,
        left=left,
        explained=(
            left.scale <= scene.noise
            and left.within(scene.noise)
            and left.outlying(2.5 * scene.noise) < FEW_OFF
            and not uneven
        ),
    )


def _grain(scene: Scene, recorded: Array, known: Flags) -> Array:
    """Return what a column's storage can tell apart, [tokens] nats: half a step of its grid."""
    others = np.full(int(known.sum()), np.nan)
    column = StoredColumn(values=recorded[known], other=others, row_of=scene.owner[known])
    if column.grid is None:
        return np.full(len(scene), FLOAT32)
    return FLOAT32 + column.grid.step(recorded) / 2.0


def scanned_temperature(scene: Scene, side: Side) -> float | None:
    """Find one temperature that explains a column better than 1 does; None without one."""
    chosen = np.flatnonzero(side.known[scene.law_at])
    if len(chosen) < 50:
        return None
    few = chosen[np.unique(np.linspace(0, len(chosen) - 1, SCANNED).astype(np.int64))]
    law, at = scene.law.take(few), scene.law_at[few]
    recorded, reach, grain = side.recorded[at], scene.reading.reach[at], side.grain[at]

    def loss(log_temperature: float) -> float:
        return unexplained(recorded, law.at(float(np.exp(log_temperature))), reach, grain).nats

    log_temperature, least = searched(loss, np.log(TEMPERATURES).tolist(), steps=14)
    own = unexplained(recorded, side.honest[at], reach, grain).nats
    return float(np.exp(log_temperature)) if least < own - 0.1 else None

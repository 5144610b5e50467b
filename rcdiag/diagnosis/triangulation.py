"""Which of recorded, re-scored and trainer log-probs disagrees with the others beyond noise.

The noise floor is the k2 of one policy against itself, scored in other batches. The
procedure is rcdiag's proposal.
"""

from __future__ import annotations

from collections.abc import Mapping

from rcdiag.diagnosis.rules import level
from rcdiag.diagnosis.thresholds import HALF
from rcdiag.results import MetricValue, NoiseFloor, Triangulation
from rcdiag.statistics.metrics.divergences import K3_KL


def at_floor(apart: MetricValue, floor: NoiseFloor | None) -> bool | None:
    """Tell whether a pair's k2 is consistent with the noise floor; None where that is unknown."""
    if floor is None:
        return None
    low = apart.value if apart.low is None else apart.low
    high = floor.k2.value if floor.k2.high is None else floor.k2.high
    return low is not None and high is not None and low <= high


VERDICTS = {
    "trainer": "engine-against-trainer",
    "sampler": "generation-against-rescoring",
    "engine": "rescoring-stands-apart",
}


def triangulate(
    distances: Mapping[tuple[str, str], MetricValue],
    sampler: str,
    engine: str,
    trainer: str,
    floor: NoiseFloor | None,
) -> Triangulation:
    """Find the one of three that disagrees with the other two, if one does.

    `distances` holds the k2 of every ordered pair.
    """
    names = {"sampler": sampler, "engine": engine, "trainer": trainer}
    # The k2 of each pair, under the role that the pair leaves out.
    apart = {
        "trainer": distances[sampler, engine],
        "engine": distances[sampler, trainer],
        "sampler": distances[engine, trainer],
    }
    noise = all(at_floor(distance, floor) for distance in apart.values())
    odd = None if noise else _odd(apart)
    if odd is None:
        near = all(at_floor(distance, floor) or healthy(distance) for distance in apart.values())
        agreement = "three-agree" if near else "three-differ"
    else:
        agreement = VERDICTS[odd]
    pairs = (
        ("trainer", sampler, engine),
        ("engine", sampler, trainer),
        ("sampler", engine, trainer),
    )
    return Triangulation(
        sampler_policy=sampler,
        engine_policy=engine,
        trainer_policy=trainer,
        k2={f"{one}~{other}": apart[left_out] for left_out, one, other in pairs},
        agreement=agreement,
        odd_one_out=None if odd is None else names[odd],
    )


def healthy(apart: MetricValue) -> bool:
    """Tell whether the guide of k3 calls a k2 healthy; the two are equal to second order."""
    assert K3_KL.guide is not None
    return level(K3_KL.guide, apart.value) == "ok"


def _odd(apart: Mapping[str, MetricValue]) -> str | None:
    """Return the one of three from which the other two are far, and that they agree against.

    Two agree if their k2 is below a quarter of either's to the third (half of the rms log-ratio),
    with disjoint intervals.
    """
    odd = min(apart, key=lambda name: apart[name].value or 0.0)
    small = apart[odd]
    larger = [value for name, value in apart.items() if name != odd]
    upper = small.value if small.high is None else small.high
    lowest = min(
        (distance.value if distance.low is None else distance.low) or 0.0 for distance in larger
    )
    if upper is None or lowest <= 0.0 or upper > HALF**2 * lowest:
        return None
    return odd

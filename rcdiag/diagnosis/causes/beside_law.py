"""What differs beside a law of the sampler that is named: what is left once the law is taken off.

What a law does to a context is not known without the logits, but what it cannot do is. A kept set
makes no log-ratio positive; a temperature leaves every token at least the probability that it has
where all others are one token; neither knows whether a token occurred before.
"""

from __future__ import annotations

import numpy as np

from rcdiag.diagnosis.case import Array, Flags
from rcdiag.diagnosis.causes.cause import Suspicion, fact
from rcdiag.diagnosis.causes.laws import BROKEN
from rcdiag.diagnosis.causes.noise import MOST_IN_TAIL
from rcdiag.diagnosis.causes.penalties import penalty
from rcdiag.diagnosis.causes.temperatures import power_of_laws
from rcdiag.diagnosis.estimates import mean_ratio
from rcdiag.diagnosis.signs import HONEST, Signs

TEMPERATURES = (
    *("temperature-raw-recorded", "trainer-without-temperature", "sampler-ignores-temperature"),
)
# Laws under which the sampler lacks a part: no log-ratio is positive but for noise.
ONE_SIDED = (
    *("truncated-law", "top-p-renormalised", "top-k-renormalised", "min-p-renormalised"),
    "min-tokens",
)
# Laws of which two tokens of one context tell what is left besides, and how much that is in nats,
# at the median.
SUMS, BEYOND = ("vocab-shard-wrong", "log-probs-divided"), 0.08
PENALTIES = ("penalty", "logit-bias")
# Honest noise has half of its squares on either side.
HALF = 0.5**0.5
# An engine whose rows go so many times as far against the law as those of the quietest does.
APART, FEWEST_OF_ENGINE = 3.0, 100
# Tokens of like ratio, after which hardly any of a larger one comes: of these, that share.
MANY_OF_RATIO, FEW_BEYOND = 24, 0.1
BESIDE = 0.75  # confidence of what a law leaves without a name


def beside_law(signs: Signs, law: str, *, moved: bool) -> tuple[str, Suspicion] | None:
    """Look for a second cause beside a law that is named; return its slug and what tells it.

    Where rows had been `moved`, some may stand where they do not belong yet.
    """
    if law in PENALTIES:
        return None
    told = penalty(signs)
    if told is not None:
        return "penalty", told
    told = _kept_set_beside(signs) if law == "temperature-raw-recorded" else None
    if told is not None:
        return "truncated-law", told
    if law in SUMS:
        told = _by_forks(signs)
        return None if told is None else ("forwards-differ", told)
    against = _against(signs, law)
    if against is None or moved:
        return None
    told = _one_engine(signs, against)
    if told is not None:
        return "replica-unsynced", told
    told = _difference(signs, law, against)
    return None if told is None else ("forwards-differ", told)


def _against(signs: Signs, law: str) -> Array | None:
    """Return by how much each log-ratio is beyond what the law can make, nats, [tokens].

    With p = softmax(z) and p_a of p to the power a: log p_a = a log p - log sum p^a. All tokens but
    one together have 1 - p, and a sum of powers above 1 is at most the power of the sum, and at
    least that for powers below 1; so that p^a / (p^a + (1 - p)^a) bounds p_a.
    """
    if law in ONE_SIDED:
        return np.maximum(signs.law.log_ratio, 0.0)
    power = power_of_laws(signs) if law in TEMPERATURES else None
    if power is None:
        return None
    tokens = signs.law.tokens
    trainer = np.minimum(tokens.trainer, -1e-12)
    others = np.log(-np.expm1(trainer))
    bound = power * trainer - np.logaddexp(power * trainer, power * others)
    beyond = bound - tokens.sampler if power > 1.0 else tokens.sampler - bound
    return np.clip(beyond, 0.0, None)


def _most_by_noise(signs: Signs, law: str) -> float:
    """Return how far honest noise goes against a law, nats rms; a power above 1 makes it larger."""
    power = power_of_laws(signs) if law in TEMPERATURES else None
    return HONEST * HALF * max(power or 1.0, 1.0)


def _difference(signs: Signs, law: str, against: Array) -> Suspicion | None:
    squares = np.sort(against**2)[::-1]
    size = float(np.sqrt(squares.mean()))
    most = _most_by_noise(signs, law)
    few = max(len(squares) // 1000, 1)
    if size <= most:
        return None
    tail = float(squares[:few].sum() / squares.sum())
    # Other experts at a few tokens are no fault.
    if tail > MOST_IN_TAIL and float(np.sqrt(squares[few:].mean())) <= most:
        return None
    return Suspicion(
        confidence=BESIDE,
        message=f"Beside that law the two forward passes differ: log-ratios go {size:.2g} nats rms "
        "beyond what it can make, as under other weights, precision or model function.",
        evidence=[fact("rms of log-ratios beyond the law", "more than noise", rms=size, most=most)],
        side="engine",
        also_possible=["weights-differ", "stale-weights", "quantised-weights", "replica-unsynced"],
        verdict="correctable",
    )


def _one_engine(signs: Signs, against: Array) -> Suspicion | None:
    """Look for engines whose rows alone go against the law that all have."""
    names = signs.case.facts.engine
    if names is None:
        return None
    engine = np.asarray(names, dtype=str)
    owner = signs.law.tokens.owner
    labels, of_row = np.unique(engine, return_inverse=True)
    count = np.bincount(of_row[owner], minlength=len(labels))
    squares = np.bincount(of_row[owner], against**2, len(labels))
    usable = count >= FEWEST_OF_ENGINE
    if usable.sum() < 2:
        return None
    rms = np.sqrt(squares / np.maximum(count, 1))
    quiet = float(rms[usable].min())
    loud: Flags = usable & (rms > max(APART * quiet, HONEST))
    if not loud.any() or quiet > HONEST:
        return None
    theirs = loud[of_row]
    which = ", ".join(str(label) for label in labels[loud])
    by_engine = dict(zip(labels.tolist(), np.round(rms, 5).tolist(), strict=True))
    return Suspicion(
        confidence=0.9,
        message=f"Beside that law rows of {which} differ by {float(rms[loud].max()):.2g} nats rms, "
        f"those of the other engines by {quiet:.2g}: that replica has other weights.",
        evidence=[
            fact(
                "rms of log-ratios beyond the law, by engine",
                "one stands apart",
                **by_engine,
            )
        ],
        share_of_rows=float(theirs.mean()),
        also_possible=["stale-weights", "weights-differ"],
    )


def _kept_set_beside(signs: Signs) -> Suspicion | None:
    """Look for a kept set at the temperature that the record lacks.

    Where the trainer's law sampled, E[1 / ratio] is 1. A flatter record has more outside of any
    kept set than the trainer's law, so that the kept tokens' share of it is less.
    """
    power, law = power_of_laws(signs), signs.law
    mean, z = law.inverse_mean
    few = power is None or power >= 1.0 or signs.case.picked_tokens
    if few or z > -law.tokens.as_far(BROKEN) or not _ends_abruptly(signs):
        return None
    return Suspicion(
        confidence=BESIDE,
        message=f"Beside that law E[1 / ratio] is {mean_ratio(mean)} ({z:+.0f} standard errors "
        "from 1): the sampler could not take what the law at that temperature gives, as under a "
        "kept set.",
        evidence=[fact("E[1 / ratio]", "mass that the sampler could not take", value=mean, z=z)],
        also_possible=["top-p-renormalised", "top-k-renormalised", "min-p-renormalised"],
    )


def _ends_abruptly(signs: Signs) -> bool:
    """Tell whether tokens that the record finds likelier stop at some ratio, as a kept set ends.

    At a low temperature rare tokens are so much rarer that hardly one comes, and E[1 / ratio] lacks
    what the record gives them. Their number then falls from one doubling of 1 / ratio to the next
    by half, and a little more as the record gives less to rarer tokens.
    """
    law, group = signs.law, signs.case.facts.group
    above = law.log_ratio < 0.0
    owner = law.tokens.owner[above]
    _, prompt = np.unique(owner if group is None else group[owner], return_inverse=True)
    values = np.round(law.log_ratio[above], 3)
    # A group's like responses hold the same token in the same context.
    values = np.unique(np.stack([prompt, law.tokens.token_id[above], values]), axis=1)[2]
    counts = np.bincount((-values / np.log(2.0)).astype(np.int64))
    beyond = counts.sum() - np.cumsum(counts)
    return bool(np.any((counts >= MANY_OF_RATIO) & (beyond <= FEW_BEYOND * counts)))


def _by_forks(signs: Signs) -> Suspicion | None:
    """Look for what is left between two tokens of one context, which share the law's sum."""
    forks = signs.forks
    if forks is None or forks.left <= BEYOND:
        return None
    return Suspicion(
        confidence=BESIDE,
        message=f"Beside that law the two forward passes differ: two tokens of one context are "
        f"{forks.left:.2g} nats further apart on one side, as under other weights, precision or "
        "model function.",
        evidence=[
            fact("log-prob between two tokens of a context", "more is left", left=forks.left)
        ],
        side="engine",
        also_possible=["weights-differ", "stale-weights", "quantised-weights", "penalty"],
        verdict="correctable",
    )

"""Genuine differences between two forward passes; one of these causes is always named.

If no narrower cause fits, it is `forwards-differ`: two passes that differ without structure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rcdiag.diagnosis.causes.cause import (
    CLEAR,
    EXACT,
    GUESS,
    LIKELY,
    WEAK,
    Suspicion,
    fact,
    one_of,
    shipped,
    shipped_family,
)
from rcdiag.diagnosis.causes.lag import lags, looks_like_other_weights, one_behind
from rcdiag.diagnosis.causes.noise import NOISE, SOME_ROWS, is_engine_noise, structures
from rcdiag.diagnosis.causes.penalties import penalty
from rcdiag.diagnosis.causes.weights import WEIGHTS, declared_weights
from rcdiag.diagnosis.features import (
    BITWISE,
    ENGINE_NOISE,
    LARGE_MISMATCH,
    Features,
    LogRatios,
)
from rcdiag.diagnosis.features.declared import QUANTISED
from rcdiag.diagnosis.features.uniform_guess import below_a_uniform_guess
from rcdiag.diagnosis.thresholds import (
    COARSE,
    LARGER,
    MOST,
    MOST_IDS,
    MUCH_LARGER,
    NEARLY_ALL,
    PART,
    SHOWN,
)
from rcdiag.diagnosis.validity import INVALID
from rcdiag.formats import listed, plural, rough, share_of


class Pattern(NamedTuple):
    """Where two passes differ, as the end of a sentence, and what may be the cause."""

    where: str
    possible: Sequence[str]  # slugs
    verdict: str | None = None  # None: the verdict that the cause has anywhere
    actions: Sequence[str] | None = None  # None: those of the cause anywhere


def _forwards_differ(features: Features) -> Suspicion | None:
    if is_engine_noise(features):
        return None
    rms, validity = features.log_ratios.rms, features.validity
    looks = (
        _other_tokens,
        _at_few_places,
        _at_random,
        _not_sampled,
        _in_some_rows,
        _in_some_turns,
        _until_resets,
    )
    found = (pattern for look in looks if (pattern := look(features)) is not None)
    where, possible, verdict, actions = next(found, None) or _without_pattern(features)
    explained = validity.answer == INVALID or verdict == "broken"  # not by weights that lag
    behind = "" if explained else one_behind(features)
    if behind and "stale-weights" not in possible:
        possible = ["stale-weights", *possible]
    return Suspicion(
        confidence=CLEAR if rms > LARGE_MISMATCH else WEAK,
        message=f"The two forward passes differ ({rms:.2g} nats rms){where}.{behind}",
        evidence=[fact("rms log-ratio", "not rounding alone", rms=rms), validity.evidence],
        also_possible=list(possible),
        verdict=verdict,
        actions=actions,
    )


def _other_tokens(features: Features) -> Pattern | None:
    """Look for rows whose tokens the trainer finds less likely than a uniform guess would."""
    rows = below_a_uniform_guess(features.case.tokens)
    if not rows.any():
        return None
    return Pattern(
        f"; in {int(rows.sum())} of {len(rows)} rows `{features.case.trainer}` gives the tokens "
        "less than a uniform guess would: it scored other tokens, or the same tokens in another "
        "context",
        (
            "retokenised",
            "context-differs",
            "special-token-ids",
            "prompt-truncated",
            "logits-not-shifted",
        ),
        "broken",
    )


def of_few_tokens(features: Features) -> Suspicion:
    """Name the difference of too few tokens to judge by its size alone."""
    rms = features.log_ratios.rms
    small = rms < features.engine_noise
    return Suspicion(
        slug="engine-noise" if small else "forwards-differ",
        confidence=GUESS,
        message=f"They differ by {rms:.2g} nats rms, "
        f"{'no more' if small else 'more'} than by the rounding of two engines.",
        evidence=[fact("rms log-ratio", "rounding" if small else "not rounding alone", rms=rms)],
        also_possible=["forwards-differ"] if small else ["weights-differ", "context-differs"],
        verdict="inconclusive",
    )


def _at_few_places(features: Features) -> Pattern | None:
    """Name the tokens or rows that hold most squared log-ratios, where the others are rounding."""
    few, invalid = features.few_places, features.validity.answer == INVALID
    if few is None:
        return None
    verdict = "inconclusive" if few.too_few and not invalid else None
    case, tokens, first = features.case, features.case.tokens, int(few.places[0])
    count = len(few.places)
    held = (
        f"{'it holds' if count == 1 else 'they hold'} {few.held:.0%} of the squared log-ratios, "
        f"and all others agree to rounding ({few.rms_of_others:.2g} nats rms)"
    )
    if few.of_rows:
        rows = listed(case.row[few.places].tolist(), SHOWN)
        prompts = f" (all of {plural(few.prompts, 'prompt')})" if few.prompts else ""
        where = f", most in row{'s' * (count > 1)} {rows}{prompts}: {held}"
        actions = [_row_to_compare(features, first)]
        possible = ["retokenised", "context-differs", "prompt-truncated", "prefix-cache-stale"]
        of_sampler = ("temperature-raw-recorded", "draft-recorded")
        of_trainer = ("stale-weights", "trainer-without-temperature")
        possible += of_sampler if invalid else of_trainer
        return Pattern(where, possible, verdict, actions)
    row = case.row[tokens.owner[first]]
    where = (
        f", most {'' if count == 1 else f'at {count} tokens, the largest '}in row {row}, token "
        f"{tokens.position[first]}, where `{case.sampler}` is {tokens.sampler[first]:.3g} and "
        f"`{case.trainer}` {tokens.trainer[first]:.3g}: {held}"
    )
    actions = [f"Score row {row} again on both sides: the value that changes is the wrong one."]
    return Pattern(where, ["sentinel", "special-token-ids", "moe-routing"], verdict, actions)


def _row_to_compare(features: Features, row: int) -> str:
    """Say which row to compare, and its first token with a large log-ratio, if it has one."""
    case, begin = features.case, int(features.log_ratios.first_large[row])
    has_one = begin < len(case.tokens)
    at = f" from token {case.tokens.position[begin]} on" if has_one else ""
    return (
        f"Compare ids, text, weights and temperature that both sides had in row {case.row[row]}"
        f"{at}, and the numbers of ids and log-probs."
    )


def _without_pattern(features: Features) -> Pattern:
    """Describe a difference by its size; its structures may be those of single rows or ids."""
    possible = ["weights-differ", "context-differs", "quantised-weights"]
    # A fault of single rows or ids, too few here for its own test.
    possible += ["prompt-truncated"] if SOME_ROWS in structures(features) else []
    if features.log_ratios.tail_share > PART:
        possible += ["special-token-ids", "logit-bias"]
    return Pattern(_beside_rounding(features), possible)


def _beside_rounding(features: Features) -> str:
    """Compare the mismatch with the expected rounding, as the end of the sentence on its size."""
    rms, found = features.log_ratios.rms, structures(features)
    times = rms / features.expected_rounding
    engines = "two engines" if features.of_bfloat16 == 1.0 else features.precisions.precisions
    why = "if weights are in sync, model code, context or precision differ"
    if times < LARGER:
        unlike = "but rarely is"
        if found:
            unlike = f"but log-ratios {' and '.join(found[:2])}, unlike rounding"
        large = f"The rounding of {engines} can be that large at these probabilities"
        return f". {large}, {unlike}: {why}"
    expected = f", {rough(times)} times the expected rounding of {engines}"
    if rms < ENGINE_NOISE:  # the rounding of bfloat16, coarser than that declared
        return (
            f"{expected}, but no more than if matrix products are of lower precision: see whether "
            "one side multiplies in TF32 (torch.backends.cuda.matmul.allow_tf32) or under an "
            "autocast that the metadata do not name"
        )
    if found:
        return f"{expected}; log-ratios {' and '.join(found[:2])}: {why}"
    return f"{expected}, and the table does not show why: {why}"


def _not_sampled(features: Features) -> Pattern | None:
    """Describe the difference where the recorded distribution did not sample (INVALID).

    A trainer's distribution sums to 1 whatever its weights, precision, context and function, so
    that E[ratio] would be 1 if the recorded distribution had sampled.
    """
    if features.validity.answer != INVALID:
        return None
    if (ids := _ids_apart(features.log_ratios)) is not None:
        return Pattern(
            f" at token ids {ids} alone, by the same amount in all contexts: a bias on their "
            "logits, or the trainer knows other tokens by these ids",
            ["logit-bias", "special-token-ids", "vocab-shard-wrong"],
        )
    if features.validity.lacks_support:
        return Pattern(
            ": the sampler could not take all tokens of the trainer's distribution, or the "
            "trainer's probabilities do not sum to 1",
            ["truncated-law", "penalty", "vocabulary-padding"],
        )
    sampler, trainer = features.case.sampler, features.case.trainer
    return Pattern(
        ": the recorded log-probs are of another distribution, or the trainer's probabilities do "
        "not sum to 1",
        ["temperature-raw-recorded", "draft-recorded", "vocab-shard-wrong"],
        actions=[
            "Score some responses again with the sampler's engine, weights and temperature. If "
            f"that is not `{sampler}`, another distribution was recorded; if it is, look at the "
            f"softmax of `{trainer}`: padding, shards of the vocabulary, a bias on logits."
        ],
    )


def _at_random(features: Features) -> Pattern | None:
    """Look for a trainer that gives the same token after the same context several log-probs."""
    repeated = features.repeated_tokens
    if repeated is None or not repeated.trainer_is_random:
        return None
    sampler, trainer = repeated.apart
    return Pattern(
        ": where two rows have the same token after the same context, its log-probs differ by "
        f"{trainer:.2g} nats in `{features.case.trainer}` and by {sampler:.2g} in "
        f"`{features.case.sampler}` (medians of {len(repeated.trainer):,} pairs): the trainer's "
        "values are random, or depend on the rest of their batch",
        ["dropout-in-trainer", "attention-to-padding", "packing-leak", "batch-noise"],
        "broken",
        [
            "Score the same rows with the trainer twice, in another order. If the columns differ, "
            "switch dropout off, LoRA's too, and check the attention masks of padded and packed "
            "rows."
        ],
    )


def _ids_apart(log_ratios: LogRatios) -> str | None:
    """Name the few token ids that hold nearly all squared log-ratios, each with its constant."""
    if log_ratios.predicted_by_id < NEARLY_ALL:
        return None
    ids, index = np.unique(log_ratios.tokens.token_id, return_inverse=True)
    squares = np.bincount(index, log_ratios.values**2)
    apart = squares > COARSE**2 * np.bincount(index)
    held = float(squares[apart].sum()) > NEARLY_ALL * float(squares.sum())
    return ", ".join(map(str, ids[apart])) if held and apart.sum() <= MOST_IDS else None


def _in_some_rows(features: Features) -> Pattern | None:
    """Look for rows that agree to rounding while all others differ a lot."""
    rms = features.location.rms_of_rows
    rms = rms[np.isfinite(rms)]
    at_rounding = float(np.mean(rms < ENGINE_NOISE))
    large = float(np.mean(rms > MUCH_LARGER * LARGE_MISMATCH))
    if not (min(at_rounding, large) > PART and at_rounding + large > MOST):
        return None
    return Pattern(
        f" in some rows, while {share_of(at_rounding)} agree to rounding: another replica, "
        "packing, padding, a cache, a prompt limit, a few token ids, or text that was encoded "
        "again",
        (
            *("replica-unsynced", "packing-leak", "retokenised", "context-differs"),
            *("prompt-truncated", "special-token-ids"),
        ),
    )


def _in_some_turns(features: Features) -> Pattern | None:
    """Look for turns of the responses that differ more than the other turns."""
    turns, rms = features.by_turn.outliers, features.by_turn.rms
    if not len(turns):
        return None
    apart = np.isin(features.by_turn.number, turns)
    return Pattern(
        f" most in turn {', '.join(map(str, turns))} of the responses: "
        f"{rms[apart].max():.2g} nats rms in the median row, other turns {rms[~apart].max():.2g}",
        ("context-differs", "context-stripped", "retokenised", "prefix-cache-stale"),
    )


def _until_resets(features: Features) -> Pattern | None:
    """Look for a mismatch that grows over the steps until something resets it."""
    resets, lag = features.location.resets, lags(features.case)
    if not resets:
        return None
    grows = f", more at every step until a reset ({len(resets)} in all), as errors that accumulate "
    if lag is not None and np.ptp(lag) == 0.0:
        return Pattern(
            f"{grows}in a cache do: `step` minus `policy_version` is the same in every row, so "
            "that no weight sync is late",
            ("prefix-cache-stale",),
        )
    return Pattern(
        f"{grows}in a cache, or between weight syncs, do",
        ("prefix-cache-stale", "stale-weights", "weights-differ"),
    )


def _by_rescore(features: Features) -> Suspicion | None:
    """Find the side at fault by re-scores of both sides."""
    engine, model = features.rescored
    if engine is None or model is None or features.log_ratios.rms < ENGINE_NOISE:
        return None
    case = features.case
    noise = max(features.between(engine, model).rms, BITWISE)
    trainer = features.between(model, str(case.trainer))
    sampler = features.between(case.sampler, engine)
    facts = [
        fact(
            "rms log-ratio",
            "against the re-scores",
            **{
                f"{case.sampler} and {engine}": sampler.rms,
                f"{case.trainer} and {model}": trainer.rms,
                f"{engine} and {model}": noise,
            },
        )
    ]
    apart = (
        f"differ by {max(trainer.rms, sampler.rms):.2g} nats rms, the two re-scores by {noise:.2g}"
    )
    if trainer.rms > MUCH_LARGER * max(noise, sampler.rms):
        named = _fault(trainer, "reference-as-old", "forwards-differ")
        text = f"`{case.trainer}` is not what the trainer's model gives (`{model}`): they {apart}"
    elif sampler.rms > max(LARGER * noise, MUCH_LARGER * trainer.rms):
        coarse = "quantised-weights" if sampler.rms < COARSE else "forwards-differ"
        named = _fault(sampler, "weights-differ", coarse)
        text = (
            f"`{case.sampler}` is not what the engine gives with the trainer's weights "
            f"(`{engine}`): they {apart}"
        )
    elif max(trainer.rms, sampler.rms) < PART * noise and LARGE_MISMATCH < noise < COARSE:
        named = "quantised-weights"
        text = (
            f"`{engine}` reproduces `{case.sampler}` and `{model}` reproduces `{case.trainer}`, "
            f"but with the same weights the two re-scores differ by {noise:.2g} nats rms: the "
            "engine does not compute what the trainer's model does"
        )
    else:
        return None
    return Suspicion(
        slug=named,
        confidence=LIKELY,
        message=f"{text}.",
        evidence=facts,
        side="trainer" if trainer.rms > sampler.rms else "sampler",
        verdict="broken" if trainer.rms > sampler.rms else None,
    )


def _fault(log_ratios: LogRatios, of_weights: str, otherwise: str) -> str:
    """Name the fault of a column that differs from its re-score, by the tokens that differ."""
    if log_ratios.first_tokens > MUCH_LARGER:
        return "context-differs"
    return of_weights if looks_like_other_weights(log_ratios) else otherwise


def _quantised(features: Features) -> Suspicion | None:
    """Read from the metadata that the sampler's weights are quantised, and how."""
    text = features.declared.sampler.quantisation
    if text is None or features.declared.weights_differ:
        return None
    slug = next(slug for part, slug in QUANTISED.items() if part in text)
    return Suspicion(
        slug=slug,
        confidence=EXACT,
        message=f"Metadata says that the sampler's weights are quantised ({text}); "
        f"log-ratios are {features.log_ratios.rms:.2g} nats rms.",
        evidence=[fact("quantisation of the sampler", "declared", declared=text)],
        also_possible=["stale-weights"],
    )


# These causes change log-prob differences within one context by more than a power, so that the
# residual is no evidence of a second fault.
NOT_A_POWER = ("penalty", "logit-bias", "logit-softcap")


def beside_sampling_cause(features: Features, named: str) -> Suspicion | None:
    """Look for a second cause next to `named`."""
    if named in NOT_A_POWER:
        return None
    if (found := penalty(features)) is not None:
        return found
    prefixes = features.shared_prefixes
    if prefixes is None or prefixes.residual <= COARSE:
        return None
    return Suspicion(
        slug="forwards-differ",
        confidence=WEAK,
        message="Besides, the two forward passes differ: the log-probs of two tokens of one "
        f"context are {prefixes.residual:.2g} nats further apart on one side, as with other "
        "weights, precision or model code.",
        evidence=[
            fact(
                "log-prob differences in a context",
                "no single factor explains them",
                unexplained=prefixes.residual,
            )
        ],
        also_possible=["weights-differ", "stale-weights", "quantised-weights", "penalty"],
        verdict="correctable",
    )


DIFFERENCE = (
    *WEIGHTS,
    *shipped_family(("fp8-weights", "int8-weights", "int4-weights"), "difference", _quantised),
    shipped(
        "reference-as-old",
        "difference",
        lambda features: (
            one_of("reference-as-old", declared_weights)(features)
            or one_of("reference-as-old", _by_rescore)(features)
        ),
    ),
    shipped("quantised-weights", "difference", one_of("quantised-weights", _by_rescore)),
    *NOISE,
    shipped("forwards-differ", "difference", _forwards_differ),
)

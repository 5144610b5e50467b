"""The judge names the fault of made-up tables, and none in the same tables without it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

import rcdiag
from rcdiag.diagnosis.case import Case, joined_cases
from rcdiag.diagnosis.causes.cause import Suspicion
from rcdiag.diagnosis.conclusion import verdict_of_cause
from rcdiag.diagnosis.features import Features, rescored_policies
from rcdiag.diagnosis.features.alignment import LEAST_COMPARED, Alignment
from rcdiag.diagnosis.validity import UNKNOWN
from tests.diagnosis.tables import (
    END,
    VOCABULARY,
    banned,
    bfloat16,
    capped,
    chain,
    changed,
    divided,
    drifted,
    first_tokens_differ,
    judged,
    made,
    min_p,
    noisy,
    normal,
    plain,
    presence_penalty,
    repetition_penalty,
    rerouted,
    shifted,
    single,
    swapped,
    taken_twice,
    tempered,
    top_k,
    top_p,
    with_tool_turns,
    with_values,
    without_shard,
    write,
)

ROWS = 128
EVERY = np.arange(ROWS)
HONEST = made()  # all responses are 60 tokens long
ENDING = made(ends=True, length=80, seed=1)
HEALTHY_VERDICTS = ("healthy", "correctable")


@cache
def long_responses() -> Case:
    return made(rows=16, length=4_000)


def at(temperature: float) -> np.ndarray:
    return np.full(ROWS, temperature)


@pytest.mark.parametrize(
    ("slug", "verdict"),
    [
        ("weights-never-synced", "inconclusive"),
        ("weights-differ", "inconclusive"),
        ("stale-weights", "correctable"),
    ],
)
def test_a_pattern_does_not_make_weights_valid_where_the_mean_ratio_cannot_tell(
    slug: str, verdict: str
) -> None:
    features = Features(made(plain, noisy(0.2), rows=10, length=40))
    assert features.validity.answer == UNKNOWN
    found = Suspicion(slug=slug, confidence=0.9, message="")
    assert verdict_of_cause(features, found) == verdict


def test_harmless_storage_is_no_verdict_on_a_table_too_small_to_compare() -> None:
    case = made(plain, noisy(1.0), rows=6, length=30)
    other = with_values(case, "old", lambda v: v.astype(np.float16).astype(np.float64))
    diagnosis = judged(other)
    assert [cause.slug for cause in diagnosis.causes] == ["stored-float16"]
    assert diagnosis.verdict == "inconclusive"
    assert diagnosis.summary.startswith(
        "180 sampled tokens with log-probs of both sides are too few"
    )


def test_empty_responses_leave_the_verdict_open() -> None:
    diagnosis = judged(HONEST.heads(0))
    assert (diagnosis.verdict, diagnosis.causes) == ("inconclusive", [])
    assert "0 sampled tokens" in diagnosis.summary


def some(case: Case, share: float, value: float) -> Callable[[np.ndarray], np.ndarray]:
    """Replace a share of the values by a constant."""
    chosen = np.random.default_rng(3).random(len(case.mask)) < share
    return lambda values: np.where(chosen, value, values)


def by_row(case: Case, change: Callable[[np.ndarray], np.ndarray]):
    """Transform the values of each row separately."""

    def whole(values: np.ndarray) -> np.ndarray:
        parts = np.split(values, case.start[1:])
        return np.concatenate([np.broadcast_to(change(part), part.shape) for part in parts])

    return whole


STORAGE: dict[str, tuple[str, str, Callable[[np.ndarray], np.ndarray]]] = {
    "nan": ("nan-log-probs", "broken", some(ENDING, 0.01, np.nan)),
    "all nan": ("nan-log-probs", "broken", lambda v: v * np.nan),
    "infinite": ("nan-log-probs", "broken", some(ENDING, 0.01, -np.inf)),
    "all infinite": ("nan-log-probs", "broken", lambda v: np.full_like(v, -np.inf)),
    "sentinel -9999": ("sentinel", "broken", some(ENDING, 0.005, -9999.0)),
    "sentinel -100": ("sentinel", "broken", some(ENDING, 0.005, -100.0)),
    "floor": ("floor-clip", "broken", lambda v: np.maximum(v, -4.0)),
    "zeros": ("zero-placeholder", "broken", some(ENDING, 0.1, 0.0)),
    "bfloat16": ("stored-bfloat16", "healthy", bfloat16),
    "float16": ("stored-float16", "healthy", lambda v: v.astype(np.float16).astype(np.float64)),
    "2 decimals": ("stored-rounded", "healthy", lambda v: np.round(v, 2)),
    "base 10": ("log-base", "broken", lambda v: v / np.log(10.0)),
    "base 2": ("log-base", "broken", lambda v: v / np.log(2.0)),
    "probabilities": ("probabilities-stored", "broken", np.exp),
    "sign": ("sign-flipped", "broken", np.negative),
    "sign of a tenth of the rows": (
        "sign-flipped",
        "broken",
        lambda v: np.where(ENDING.owner % 10 == 0, -v, v),
    ),
    "some positive": ("nan-log-probs", "broken", some(ENDING, 0.002, 0.5)),
    "some huge": (
        "nan-log-probs",
        "broken",
        lambda v: np.where((ENDING.position == 0) & (ENDING.owner % 8 == 0), 1e30, v),
    ),
    "running sums": ("cumulative-stored", "broken", by_row(ENDING, np.cumsum)),
    "means of rows": ("cumulative-stored", "broken", by_row(ENDING, np.mean)),
    "constant": ("sentinel", "broken", lambda v: np.full_like(v, -1.0)),
}


@pytest.mark.parametrize("policy", ["rollout", "old"])
@pytest.mark.parametrize("fault", STORAGE)
def test_storage_faults_are_named(fault: str, policy: str) -> None:
    slug, verdict, change = STORAGE[fault]
    diagnosis = judged(with_values(ENDING, policy, change))
    first = diagnosis.causes[0]
    assert (first.slug, diagnosis.verdict) == (slug, verdict)
    # The repaired table is judged again, and has no second cause.
    assert {cause.slug for cause in diagnosis.causes[1:]} <= {"engine-noise"}
    assert all(cause.verdict == "healthy" for cause in diagnosis.causes[1:])
    if not slug.startswith("stored"):
        assert first.side == ("recorder" if policy == "rollout" else "trainer")


def test_one_decimal_is_too_few() -> None:
    diagnosis = judged(with_values(ENDING, "rollout", lambda v: np.round(v, 1)))
    assert (diagnosis.causes[0].slug, diagnosis.verdict) == ("stored-rounded", "broken")


@pytest.mark.parametrize("fault", ["nan", "sentinel -9999", "probabilities", "sign", "bfloat16"])
def test_storage_faults_are_found_in_one_column(fault: str) -> None:
    slug, _, change = STORAGE[fault]
    case = with_values(ENDING, "rollout", change)
    alone = replace(case, trainer=None, log_probs={"rollout": case.log_probs["rollout"]})
    diagnosis = judged(alone)
    assert [cause.slug for cause in diagnosis.causes] == [slug]
    # Without prompts no checkpoint can score the table.
    assert diagnosis.next[0].command == "rcdiag score table.parquet OTHER_DUMP"


def test_one_valid_column_is_inconclusive() -> None:
    alone = replace(ENDING, trainer=None, log_probs={"rollout": ENDING.log_probs["rollout"]})
    diagnosis = judged(alone)
    assert (diagnosis.verdict, diagnosis.causes) == ("inconclusive", [])
    assert diagnosis.pair == {"sampler": "rollout"}


def entropies_in_place(sign: float, *, stated: bool) -> Case:
    case = made(seed=2, entropies=["rollout"])
    columns = {**case.log_probs, "rollout": sign * case.entropy["rollout"]}
    return replace(case, log_probs=columns, entropy=case.entropy if stated else {})


def likeliest(logits, state):
    """Give every token the log-prob of the most likely one."""
    law = normal(logits + 0.01 * state.rng.standard_normal(logits.shape))
    return np.broadcast_to(law.max(axis=1, keepdims=True), law.shape)


RECORDING: dict[str, tuple[str, str, Callable[[], Case]]] = {
    "identical": (
        "columns-identical",
        "inconclusive",
        lambda: with_values(HONEST, "old", lambda v: HONEST.log_probs["rollout"]),
    ),
    "twenty rows twice": ("duplicated-rows", "broken", lambda: taken_twice(HONEST, 20)),
    "entropy": ("entropy-recorded", "broken", lambda: entropies_in_place(1.0, stated=True)),
    "minus entropy": ("entropy-recorded", "broken", lambda: entropies_in_place(-1.0, stated=True)),
    "unstated": ("entropy-recorded", "broken", lambda: entropies_in_place(-1.0, stated=False)),
    "top one": (
        "top-one-recorded",
        "broken",
        lambda: made(plain, noisy(0.01), recorded=likeliest, sharpness=2.5),
    ),
    "the trainer sampled": (
        "weights-differ",
        "broken",
        lambda: made(plain, noisy(0.01), recorded=drifted(0.4)),
    ),
}


@pytest.mark.parametrize("fault", RECORDING)
def test_recording_faults_are_named(fault: str) -> None:
    slug, verdict, case = RECORDING[fault]
    diagnosis = judged(case())
    assert (diagnosis.causes[0].slug, diagnosis.verdict) == (slug, verdict)


def test_values_of_repeated_rows_are_no_floor() -> None:
    """In eight copies of a table its lowest value occurs eight times."""
    rows = len(HONEST.lengths)
    copies = [replace(HONEST, row=HONEST.row + copy * rows) for copy in range(8)]
    causes = judged(joined_cases(copies)).causes
    assert [cause.slug for cause in causes] == ["duplicated-rows"]


def tool_text_unmasked() -> Case:
    """Count tool text as sampled: recorded as 0, and unlikely for the trainer."""
    masked = with_tool_turns(HONEST, 0.0)
    rare = -np.random.default_rng(4).exponential(6.0, len(masked.mask)) - 0.5
    old = np.where(masked.mask, masked.log_probs["old"], rare)
    return replace(
        masked, mask=np.ones_like(masked.mask), log_probs={**masked.log_probs, "old": old}
    )


def tool_text_scored_by_both(dominates: bool = False) -> Case:
    """Count tool text as sampled, scored by both sides, with a marker at each call.

    Where it dominates, half of each response is such markers.
    """
    masked = with_tool_turns(HONEST, 0.0)
    rng, long = np.random.default_rng(4), masked.position >= 30
    tool = ~masked.mask | (dominates & long)
    marker = tool & ((masked.position == 20) | long)
    law = np.where(marker, -14.0, -rng.exponential(2.0, len(tool)))
    columns = {
        name: np.where(tool, law + 0.01 * rng.standard_normal(len(tool)), values)
        for name, values in masked.log_probs.items()
    }
    ids = np.where(marker, VOCABULARY + 1, masked.token_id).astype(np.int32)
    return replace(masked, mask=np.ones_like(masked.mask), token_id=ids, log_probs=columns)


def ends_cut(reason: str) -> Case:
    """Cut the end token of every response."""
    last = np.zeros(len(ENDING.mask), np.bool_)
    last[ENDING.start + ENDING.lengths - 1] = True
    kept = ~last
    return replace(
        ENDING,
        lengths=ENDING.lengths - 1,
        token_id=ENDING.token_id[kept],
        mask=ENDING.mask[kept],
        log_probs={name: values[kept] for name, values in ENDING.log_probs.items()},
        entropy={},
        facts=replace(ENDING.facts, finish_reason=[reason] * ROWS),
    )


def end_token(value: Callable[[np.ndarray], np.ndarray], policy: str) -> Case:
    is_end = ENDING.token_id == END
    return with_values(ENDING, policy, lambda v: np.where(is_end, value(v), v))


def other_ids(policy: str) -> Case:
    ids = np.argsort(-np.bincount(ENDING.token_id))[1:3]
    noise = np.random.default_rng(5).normal(0.0, 1.0, len(ENDING.mask))
    return with_values(
        ENDING, policy, lambda v: np.where(np.isin(ENDING.token_id, ids), v - 12.0 + noise, v)
    )


ALIGNMENT: dict[str, tuple[str, Callable[[str], Case]]] = {
    "all rows": ("shift-by-one", lambda policy: shifted(ENDING, policy, EVERY >= 0)),
    "some rows": ("shift-some-rows", lambda policy: shifted(ENDING, policy, EVERY % 8 == 0)),
    "after a tool": (
        "shift-after-tool",
        lambda policy: shifted(with_tool_turns(HONEST, np.nan), policy, EVERY >= 0, after=28),
    ),
    "forty rows exchanged": ("rows-swapped", lambda policy: swapped(HONEST, policy, 20)),
    "six rows exchanged": ("rows-swapped", lambda policy: swapped(HONEST, policy, 3)),
    "end token 0": ("eos-one-sided", lambda policy: end_token(lambda v: 0.0 * v, policy)),
    "end token low": ("eos-one-sided", lambda policy: end_token(lambda v: v - 10.0, policy)),
    "ids": ("special-token-ids", other_ids),
    "tool text": ("mask-includes-tool", lambda policy: tool_text_unmasked()),
    "tool text scored": ("mask-includes-tool", lambda policy: tool_text_scored_by_both()),
    "much tool text scored": ("mask-includes-tool", lambda policy: tool_text_scored_by_both(True)),
    "ends cut": ("mask-drops-last", lambda policy: ends_cut("stop")),
}


@pytest.mark.parametrize("policy", ["rollout", "old"])
@pytest.mark.parametrize("fault", ALIGNMENT)
def test_alignment_faults_are_named(fault: str, policy: str) -> None:
    slug, case = ALIGNMENT[fault]
    diagnosis = judged(case(policy))
    assert (diagnosis.causes[0].slug, diagnosis.verdict) == (slug, "broken")
    assert {cause.slug for cause in diagnosis.causes[1:]} <= {"engine-noise"}


def test_ends_that_are_cut_are_named_in_a_table_of_one_policy() -> None:
    case = ends_cut("stop")
    alone = replace(case, trainer=None, log_probs={"rollout": case.log_probs["rollout"]})
    diagnosis = judged(alone)
    assert [cause.slug for cause in diagnosis.causes] == ["mask-drops-last"]
    assert diagnosis.verdict == "broken"


def test_responses_at_the_length_limit_lack_no_end_token() -> None:
    assert judged(ends_cut("length")).causes[0].slug == "engine-noise"


def test_masked_tool_text_is_no_fault() -> None:
    scored = tool_text_scored_by_both()
    masked = replace(scored, mask=with_tool_turns(HONEST, 0.0).mask)
    assert judged(masked).causes[0].slug == "engine-noise"


def test_tool_text_in_one_row_of_sixteen_is_found() -> None:
    """Few prompts call the tool; its marker is as improbable in each of them."""
    case = with_tool_turns(HONEST, 0.0)
    marker = (case.owner % 16 == 0) & (case.position >= 30)
    noise = np.random.default_rng(4).normal(-9.0, 0.01, (2, len(marker)))
    columns = {
        name: np.where(marker, values, recorded)
        for values, (name, recorded) in zip(noise, case.log_probs.items(), strict=True)
    }
    ids = np.where(marker, VOCABULARY + 1, case.token_id).astype(np.int32)
    causes = judged(replace(case, token_id=ids, log_probs=columns)).causes
    assert [cause.slug for cause in causes] == ["mask-includes-tool"]


def test_rare_ids_of_a_long_table_are_not_tool_text() -> None:
    """Of 64,000 tokens about sixty have an id with probability 1/1000 everywhere."""
    long = long_responses()
    rare = np.random.default_rng(5).random(len(long.token_id)) < 0.001
    values = {name: np.where(rare, np.log(0.001), v) for name, v in long.log_probs.items()}
    case = replace(long, token_id=np.where(rare, VOCABULARY, long.token_id), log_probs=values)
    assert "mask-includes-tool" not in {cause.slug for cause in judged(case).causes}


DUE = [int(i) for i in np.argsort(-np.bincount(chain(0).argmax(axis=1))) if i != END][:2]
ENGINE = noisy(0.01)
LAW: dict[str, tuple[str, Callable[[], Case]]] = {
    **{
        f"raw {t}": (
            "temperature-raw-recorded",
            lambda t=t: made(tempered(t), recorded=plain, temperature=at(t)),
        )
        for t in (0.5, 0.7, 1.2, 1.5)
    },
    "raw, undeclared": (
        "temperature-raw-recorded",
        lambda: made(tempered(0.7), recorded=plain),
    ),
    **{
        f"without {t}": (
            "trainer-without-temperature",
            lambda t=t: made(tempered(t), ENGINE, temperature=at(t)),
        )
        for t in (0.5, 0.7, 1.2, 1.5)
    },
    **{
        f"ignored {t}": (
            "sampler-ignores-temperature",
            lambda t=t: made(plain, noisy(0.01, tempered(t)), temperature=at(t)),
        )
        for t in (0.5, 0.7, 1.2)
    },
    "divided": (
        "log-probs-divided",
        lambda: made(plain, divided(0.7), temperature=at(0.7)),
    ),
    "divided, normalised record": (
        "log-probs-divided",
        lambda: made(tempered(1.3), divided(1.3), temperature=at(1.3)),
    ),
    "top-p": ("top-p-renormalised", lambda: made(top_p(0.9), ENGINE, top_p=at(0.9))),
    "top-p .5": ("top-p-renormalised", lambda: made(top_p(0.5), ENGINE, top_p=at(0.5))),
    "top-k": ("top-k-renormalised", lambda: made(top_k(20), ENGINE, top_k=at(20))),
    "min-p": ("min-p-renormalised", lambda: made(min_p(0.05), ENGINE, min_p=at(0.05))),
    "undeclared": ("truncated-law", lambda: made(top_p(0.9), ENGINE)),
    "banned": ("logit-bias", lambda: made(banned(DUE), ENGINE)),
    "min tokens": (
        "truncated-law",
        lambda: made(banned([END], 12), ENGINE, ends=True, rows=400),
    ),
    "presence": ("penalty", lambda: made(presence_penalty(0.5), ENGINE)),
    "repetition": ("penalty", lambda: made(repetition_penalty(1.2), ENGINE)),
    "shard": ("vocab-shard-wrong", lambda: made(plain, without_shard(50, 80))),
    "capped": ("logit-softcap", lambda: made(plain, noisy(0.01, capped(15.0)), prompts=True)),
    "silent temperature": (
        "temperature-silent",
        lambda: made(tempered(0.8), ENGINE, recorded=plain, entropies=["old"]),
    ),
    "silent top-p": (
        "top-p-silent",
        lambda: made(top_p(0.9), ENGINE, recorded=plain, entropies=["old"], top_p=at(0.9)),
    ),
}


@pytest.mark.parametrize("fault", LAW)
def test_faults_of_the_sampling_distribution_are_named(fault: str) -> None:
    slug, case = LAW[fault]
    diagnosis = judged(case())
    assert (diagnosis.causes[0].slug, diagnosis.verdict) == (slug, "broken")


@pytest.mark.parametrize("share", [0.3, 0.5, 0.8])
def test_a_kept_set_is_never_taken_for_other_weights(share: float) -> None:
    assert judged(made(top_p(share), ENGINE)).verdict == "broken"


def about(**policies: dict[str, str]) -> dict[str, object]:
    return {"policies": policies}


def mixed(one: Case, other: Case, tokens: np.ndarray) -> Case:
    """Replace some tokens by those of another table with responses of the same lengths."""
    columns = {
        name: np.where(tokens, other.log_probs[name], values)
        for name, values in one.log_probs.items()
    }
    ids = np.where(tokens, other.token_id, one.token_id)
    return replace(one, log_probs=columns, token_id=ids)


STALE = made(plain, drifted(0.08))


def stale_by_fingerprint() -> Case:
    rollout = {"weights_fingerprint": "aaaaaaaa", "model": "ckpt/step_0"}
    old = {"weights_fingerprint": "bbbbbbbb", "model": "ckpt/step_8"}
    return replace(STALE, metadata=about(rollout=rollout, old=old))


def one_replica_behind() -> Case:
    engines = [f"engine {row % 4}" for row in EVERY]
    case = mixed(HONEST, STALE, (EVERY % 4 == 1)[HONEST.owner])
    return replace(case, facts=replace(case.facts, engine=engines))


def updated_in_flight() -> Case:
    late = HONEST.position >= 30
    facts = replace(HONEST.facts, policy_version=late.astype(np.int64), version_by_token=True)
    return replace(mixed(HONEST, STALE, ~late), facts=facts)


def by_step(tables: list[Case]) -> Case:
    """Take sixteen rows of each step from its table."""
    step = EVERY // 16
    case = tables[0]
    for index, table in enumerate(tables):
        case = mixed(case, table, (step == index)[case.owner])
    return replace(case, facts=replace(case.facts, step=step))


def never_synced() -> Case:
    return by_step([HONEST, *(made(plain, drifted(0.03 * step)) for step in range(1, 8))])


def other_heads() -> Case:
    shift = 0.3 * np.random.default_rng(9).standard_normal(VOCABULARY)
    return made(plain, changed(lambda logits, state: logits + shift, ENGINE))


DIFFERENCE: dict[str, tuple[set[str], str, Callable[[], Case]]] = {
    "fingerprints": ({"stale-weights"}, "correctable", stale_by_fingerprint),
    "drift": ({"weights-differ"}, "correctable", lambda: STALE),
    "replica": ({"replica-unsynced"}, "correctable", one_replica_behind),
    "in flight": ({"in-flight-update"}, "correctable", updated_in_flight),
    "never synced": ({"weights-never-synced"}, "correctable", never_synced),
    "heads": ({"tied-head-desync", "weights-differ"}, "correctable", other_heads),
    "other prompts": (
        {"context-differs"},
        "broken",
        lambda: made(plain, first_tokens_differ(1.0)),
    ),
    "declared fp8": (
        {"fp8-weights"},
        "correctable",
        lambda: replace(made(noise=0.05), metadata=about(rollout={"quantization": "fp8"})),
    ),
    "declared w4a16": (
        {"int4-weights"},
        "correctable",
        lambda: replace(made(noise=0.05), metadata=about(rollout={"quantization": "w4a16"})),
    ),
    "noise": ({"engine-noise"}, "healthy", lambda: HONEST),
}


@pytest.mark.parametrize("fault", DIFFERENCE)
def test_differences_of_two_forward_passes_are_named(fault: str) -> None:
    slugs, verdict, case = DIFFERENCE[fault]
    diagnosis = judged(case())
    assert diagnosis.causes[0].slug in slugs
    assert diagnosis.verdict == verdict


def test_an_advised_command_names_the_table() -> None:
    bare = replace(made(noise=0.15), source="run/dump.parquet")
    (cause,) = judged(bare).causes
    commands = [action.command for action in cause.actions]
    assert commands == [None, None]
    facts = replace(bare.facts, prompt_length=np.full(len(bare.lengths), 20))
    (cause,) = judged(replace(bare, facts=facts)).causes
    assert cause.slug == "forwards-differ"
    command = "rcdiag compare run/dump.parquet --model CKPT --ladder engine"
    assert (cause.actions[0].text[-9:], cause.actions[0].command) == ("precision", command)


def test_a_fault_of_the_last_step_has_from_step() -> None:
    broken = made(tempered(0.6), recorded=plain)
    diagnosis = judged(by_step([*[HONEST] * 7, broken]))
    first = diagnosis.causes[0]
    assert (diagnosis.verdict, first.slug) == ("broken", "temperature-raw-recorded")
    assert first.from_step == 7
    assert diagnosis.summary.startswith("At step 7, the last, k3 is ")


def test_two_faults_are_both_named() -> None:
    case = made(tempered(0.7), recorded=plain, temperature=at(0.7))
    broken = with_values(case, "rollout", some(case, 0.01, np.nan))
    slugs = [cause.slug for cause in judged(broken).causes]
    assert slugs == ["nan-log-probs", "temperature-raw-recorded"]


HEALTHY: dict[str, Callable[[int], Case]] = {
    "dense": lambda seed: made(seed=seed),
    "ending": lambda seed: made(seed=seed, ends=True, length=200),
    "30 rows": lambda seed: made(seed=seed, rows=30),
    "30 rows, drift": lambda seed: made(plain, drifted(0.05), seed=seed, rows=30),
    "turns, NaN where masked": lambda seed: with_tool_turns(made(seed=seed), np.nan),
    "turns, 1e9 where masked": lambda seed: with_tool_turns(made(seed=seed), 1e9),
    "temperature .7": lambda seed: made(tempered(0.7), seed=seed, temperature=at(0.7)),
    "temperature 1.3": lambda seed: made(tempered(1.3), seed=seed, temperature=at(1.3)),
    "penalty on both sides": lambda seed: made(presence_penalty(0.5), seed=seed),
    "bfloat16 on both sides": lambda seed: with_values(
        with_values(made(seed=seed), "old", bfloat16), "rollout", bfloat16
    ),
    "entropies": lambda seed: made(seed=seed, entropies=["rollout", "old"]),
    "steps": lambda seed: made(seed=seed, step=EVERY // 16),
    "engines": lambda seed: made(seed=seed, engine=[f"engine {row % 4}" for row in EVERY]),
    "stale": lambda seed: made(plain, drifted(0.05), seed=seed),
}


# Rerouted experts and noisy engines leave large log-ratios, but E[ratio] = 1.
LOUD: dict[str, Callable[[int], Case]] = {
    "loud": lambda seed: made(seed=seed, noise=0.05),
    "experts .02": lambda seed: made(plain, rerouted(0.2, 0.02), seed=seed),
    "experts .04": lambda seed: made(plain, rerouted(0.3, 0.05), seed=seed),
    "experts .06": lambda seed: made(plain, rerouted(0.5, 0.04), seed=seed),
    "heavy tails": lambda seed: made(plain, noisy(0.04, degrees=3.0), seed=seed),
    "softened noise": lambda seed: made(plain, noisy(0.08), seed=seed),
}


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("table", LOUD)
def test_engine_noise_is_never_a_fault(table: str, seed: int) -> None:
    assert judged(LOUD[table](seed)).verdict != "broken"


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("table", HEALTHY)
def test_tables_without_a_fault_are_not_repaired(table: str, seed: int) -> None:
    diagnosis = judged(HEALTHY[table](seed))
    assert diagnosis.verdict in HEALTHY_VERDICTS


def test_length_alone_is_no_fault() -> None:
    diagnosis = judged(long_responses())
    assert diagnosis.verdict in HEALTHY_VERDICTS
    assert diagnosis.causes[0].slug == "engine-noise"


def test_two_rows_do_not_tell_which_distribution_sampled_however_long_they_are() -> None:
    diagnosis = judged(made(rows=2, length=8_000))
    assert diagnosis.verdict == "inconclusive"
    assert diagnosis.causes[0].slug == "engine-noise"


def test_length_alone_gives_no_error_finding(tmp_path: Path) -> None:
    path = write(long_responses(), tmp_path / "long.parquet")
    result = rcdiag.score(path, presets="disabled")
    assert result.diagnosis is not None
    assert result.diagnosis.causes[0].slug == "engine-noise"
    beyond = [
        finding for finding in result.findings if "rounding of two engines" in finding.message
    ]
    assert {finding.severity for finding in beyond} <= {"note"}
    assert {"error", "warning"}.isdisjoint(finding.severity for finding in result.findings)


def test_bitwise_columns_are_never_a_fault() -> None:
    case = with_values(HONEST, "old", lambda v: HONEST.log_probs["rollout"])
    assert judged(case).verdict in ("healthy", "inconclusive")


BITWISE = {"backend": "vllm", "dtype": "bfloat16", "engine_options": {"batch_invariant": True}}


@pytest.mark.parametrize(
    ("rollout", "old", "first"),
    [
        (BITWISE, BITWISE, "healthy"),
        (BITWISE, {**BITWISE, "dtype": "float32"}, "columns-identical"),
        ({**BITWISE, "engine_options": {}}, BITWISE, "columns-identical"),
    ],
)
def test_equal_columns_of_two_batch_invariant_engines_are_not_a_copy(
    rollout: dict[str, object], old: dict[str, object], first: str
) -> None:
    equal = with_values(HONEST, "old", lambda v: HONEST.log_probs["rollout"])
    stated = replace(equal, metadata={"policies": {"rollout": rollout, "old": old}})
    assert judged(stated).causes[0].slug == first


def test_equal_columns_that_a_rescore_reproduces_are_not_a_copy() -> None:
    equal = with_values(HONEST, "old", lambda v: HONEST.log_probs["rollout"])
    again = equal.with_log_probs("vllm_bf16", equal.log_probs["rollout"])
    other = equal.with_log_probs("vllm_bf16", HONEST.log_probs["old"])
    assert judged(again).causes[0].slug == "healthy"
    assert judged(other).causes[0].slug == "columns-identical"


def test_declared_temperatures_are_the_first_evidence() -> None:
    result = rcdiag.diagnose("sample_data/temperature.parquet")
    (cause,) = result.diagnosis.causes
    assert cause.evidence[0] == {
        "name": "temperature, by column and metadata",
        "sampled": 0.7,
        "rollout": 1.0,
        "old": 0.7,
        "reads": "different",
    }
    assert "at temperature 0.7 (estimated 0.70)" in cause.message


@pytest.mark.parametrize(
    ("old", "slug"),
    [
        ({"dtype": "float32"}, "forwards-differ"),
        ({"dtype": "float32", "options": {"autocast": "bfloat16"}}, "engine-noise"),
        ({"dtype": "bfloat16"}, "engine-noise"),
    ],
)
def test_rounding_is_that_of_the_declared_precisions(old: dict[str, object], slug: str) -> None:
    case = made(noise=0.02)
    assert judged(case).causes[0].slug == "engine-noise"
    stated = {"policies": {"rollout": {"dtype": "float32"}, "old": old}}
    (cause,) = judged(replace(case, metadata=stated)).causes
    assert cause.slug == slug
    if slug == "forwards-differ":
        assert "the expected rounding of float32 against float32" in cause.message


@pytest.mark.parametrize(("noise", "fits"), [(0.004, True), (0.02, True), (0.3, False)])
def test_undeclared_coarse_products_are_named_where_the_size_fits(noise: float, fits: bool) -> None:
    """TF32 keeps 11 bits, bfloat16 8: both round more than declared float32 does."""
    float32 = {"dtype": "float32"}
    stated = {"policies": {"rollout": float32, "old": float32}}
    (cause,) = judged(replace(made(noise=noise), metadata=stated)).causes
    assert cause.slug == "forwards-differ"
    assert ("TF32" in cause.message) == fits


def test_tokens_that_are_all_certain_have_a_size_of_rounding() -> None:
    case = made(noise=0.02)
    certain = case.with_log_probs(case.sampler, np.zeros_like(case.log_probs[case.sampler]))
    assert 0.0 < Features(certain).expected_rounding < 1e-3
    assert 0.01 < Features(case).expected_rounding < 0.1


def test_policies_may_be_named_like_fields_of_evidence() -> None:
    case = made(tempered(0.7), recorded=plain, temperature=at(0.7))
    metadata = {"policies": {"name": {"temperature": 1.0}, "reads": {"temperature": 0.7}}}
    renamed = {"rollout": "name", "old": "reads"}
    case = replace(
        case,
        metadata=metadata,
        sampler="name",
        trainer="reads",
        log_probs={renamed[name]: column for name, column in case.log_probs.items()},
    )
    (cause,) = judged(case).causes
    assert cause.evidence[0]["reads"] == "different"


def test_a_floor_is_found_beside_another_temperature() -> None:
    raw = made(tempered(0.7), recorded=plain, temperature=at(0.7))
    floor = float(np.quantile(raw.log_probs["old"], 0.02))
    clipped = with_values(raw, "old", lambda v: np.maximum(v, floor))
    assert judged(clipped).causes[0].slug == "floor-clip"
    assert "floor-clip" not in [cause.slug for cause in judged(raw).causes]


def test_exchanged_rows_are_found_beside_another_distribution() -> None:
    penalty = made(repetition_penalty(1.25), trained=plain)
    assert judged(swapped(penalty, "rollout", 20)).causes[0].slug == "rows-swapped"
    assert "rows-swapped" not in [cause.slug for cause in judged(penalty).causes]


def test_few_tokens_are_inconclusive() -> None:
    diagnosis = judged(made(rows=30, length=5))
    assert [cause.slug for cause in diagnosis.causes] == ["engine-noise"]
    assert diagnosis.verdict == "inconclusive"
    assert "150 sampled tokens" in diagnosis.summary


@pytest.mark.parametrize(("size", "named"), [(0.06, True), (0.4, False)])
def test_an_engine_that_reproduces_its_column_is_coarse_itself(size: float, named: bool) -> None:
    """The model reproduces the trainer's column, and the engine the sampler's."""
    case = made(plain, noisy(size))
    rounding = 0.002 * np.random.default_rng(0).standard_normal(len(case.mask))
    case = case.with_log_probs("vllm_bf16", case.log_probs["rollout"] + rounding)
    case = case.with_log_probs("hf_fp32", case.log_probs["old"])
    cause = judged(case).causes[0]
    assert (cause.slug == "quantised-weights") == named
    assert ("reproduces `rollout`" in cause.message) == named


def test_served_and_program_policies_count_as_rescored() -> None:
    policies = {"again": {"backend": "server"}, "own": {"backend": "command"}}
    case = replace(made(noisy(0.01)), metadata={"policies": policies})
    for name, column in (("again", "rollout"), ("own", "old")):
        case = case.with_log_probs(name, case.log_probs[column])
    assert rescored_policies(case) == ("again", "own")


def test_equal_columns_are_a_copy_if_the_engine_gives_other_values() -> None:
    case = made(noisy(0.01))
    exact = case.log_probs["old"]
    engine = exact + 0.01 * np.random.default_rng(3).standard_normal(len(exact))
    columns = {"rollout": exact, "old": exact, "hf_fp32": exact}
    assert judged(replace(case, log_probs=columns)).causes[0].slug != "columns-identical"
    again = replace(case, log_probs={**columns, "vllm_bf16": engine})
    assert judged(again).causes[0].slug == "columns-identical"


def test_a_low_temperature_and_a_kept_set_have_low_confidence_without_evidence() -> None:
    def named(**facts: np.ndarray) -> tuple[str, float]:
        case = made(top_p(0.9), ENGINE, recorded=plain, entropies=["old"], **facts)
        first = judged(case).causes[0]
        return first.slug, first.confidence

    declared, sure = named(top_p=at(0.9))
    assert declared == "top-p-silent"
    slug, confidence = named()
    assert slug in ("top-p-silent", "temperature-silent")
    assert confidence < sure


def test_unlikely_tokens_of_equal_columns_may_be_of_a_bias_instead_of_a_temperature() -> None:
    """Surprisals above the entropy do not tell a higher temperature from bans and penalties."""
    law = changed(lambda logits, state: logits - 0.5 * (logits == logits.max(axis=1)[:, None]))
    first = judged(made(law, ENGINE, recorded=plain, entropies=["old"])).causes[0]
    assert first.slug == "temperature-silent"
    assert {"logit-bias", "repetition-penalty"} <= set(first.also_possible)


@pytest.mark.parametrize("policy", ["rollout", "old"])
def test_exchanged_rows_are_found_beside_rows_too_short_to_match(policy):
    case = swapped(HONEST, policy, 3)
    short = made(length=LEAST_COMPARED - 1, seed=2)
    mixed = joined_cases([short, case, short])
    alone, places = Alignment(case).best_row, np.arange(len(mixed.lengths))
    assert (alone != EVERY).sum() == 6
    expected = places.copy()
    expected[len(short.lengths) :][: len(alone)] = len(short.lengths) + alone
    assert Alignment(mixed).best_row.tolist() == expected.tolist()
    assert Alignment(short).best_row.tolist() == np.arange(len(short.lengths)).tolist()


def test_a_first_token_without_a_value_is_a_placeholder_not_another_prompt() -> None:
    case = made(rows=64, seed=2)
    values = np.where(case.position == 0, 0.0, case.log_probs["rollout"])
    diagnosis = judged(case.with_log_probs("rollout", values))
    assert diagnosis.causes[0].slug == "zero-placeholder"
    assert "64 values of `rollout` are exactly 0, at the first token" in diagnosis.summary
    assert [cause.slug for cause in diagnosis.causes][1:] in ([], ["engine-noise"])


def test_placeholders_are_found_beside_tokens_that_round_to_certain() -> None:
    """At a low temperature most float32 log-probs are exactly 0."""
    sharp = made(plain, noisy(0.0), sharpness=4.0, rows=200, seed=2)
    certain = {
        name: np.where(values > -0.02, 0.0, values) for name, values in sharp.log_probs.items()
    }
    case = replace(sharp, log_probs=certain)
    assert np.mean(certain["rollout"] == 0.0) > 0.5
    holes = with_values(case, "rollout", some(case, 0.05, 0.0))
    assert judged(holes).causes[0].slug == "zero-placeholder"
    assert "zero-placeholder" not in [cause.slug for cause in judged(case).causes]


def test_zeros_of_shifted_rows_are_not_placeholders() -> None:
    """Their zeros are at other tokens, of which the other side is not certain."""
    law = tempered(0.6)
    case = made(law, law, plain, sharpness=3.0, rows=200, seed=2)
    case = with_values(case, "old", lambda values: np.where(values > -0.02, 0.0, values))
    moved = judged(shifted(case, "rollout", np.arange(200) % 4 == 0))
    slugs = [cause.slug for cause in moved.causes]
    assert slugs == ["shift-some-rows", "temperature-raw-recorded"]


@pytest.mark.parametrize("ends", [True, False])
def test_an_end_token_banned_in_few_rows_is_detected_by_the_end_of_the_ban(ends: bool) -> None:
    """Without an end token that responses share nothing can have been banned up to a position."""
    case = made(rows=52, length=80, seed=5)
    if ends:
        ids = np.where(case.token_id == 1, 2, case.token_id)
        case = replace(case, token_id=np.where(case.position == 79, 1, ids).astype(np.int32))
    due = (case.owner % 4 == 0) & np.isin(case.position, (26, 33, 40))
    # In some contexts the end is nearly certain, in others one of several tokens.
    fall = np.zeros(len(due))
    fall[due] = np.linspace(0.1, 10.0, due.sum())
    kept_from = with_values(case, "old", lambda values: values - fall)
    ratio = np.exp(kept_from.log_probs["old"] - kept_from.log_probs["rollout"])
    lacking = np.bincount(case.owner, 1.0 - ratio)
    assert lacking.sum() < 4.0 * np.sqrt(np.sum(lacking**2))  # the mean alone does not decide
    cause = judged(kept_from).causes[0]
    assert (cause.slug == "min-tokens") == ends
    assert not ends or (cause.verdict, "positions up to 40" in cause.message) == ("broken", True)


@pytest.mark.parametrize(("nearly_sure", "placeholders"), [(False, False), (True, True)])
def test_zeros_of_kept_sets_are_not_placeholders_beside_other_contexts(
    nearly_sure: bool, placeholders: bool
) -> None:
    """A full distribution has nearly certain tokens beside exact zeros; one-token sets do not."""
    case = made(top_p(0.5), ENGINE, rows=200, seed=3)
    chance = np.random.default_rng(1).random(len(case.mask))
    old = np.where(chance < 0.05, -8.0, case.log_probs["old"])
    case = case.with_log_probs("old", old)
    if nearly_sure:
        rollout = case.log_probs["rollout"]
        whole = np.where((rollout == 0.0) & (chance > 0.05), -1e-4 * (1 + chance), rollout)
        case = case.with_log_probs("rollout", single(whole))
    assert np.sum((case.log_probs["rollout"] == 0.0) & (old < -0.9)) > 50
    named = [cause.slug for cause in judged(case).causes]
    assert ("zero-placeholder" in named) == placeholders

"""Generated tables match their answer key, and are reproducible from the seed."""

from __future__ import annotations

from functools import cache

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from rcdiag.table.opening import open_table
from tests.faults import policies
from tests.faults.evaluate import Judged, Thresholds, shortfalls, summary
from tests.faults.fault import FAULTS, Fault
from tests.faults.faults import spoilt
from tests.faults.law import Law
from tests.faults.recipe import Draft, Plan, draft_of, plans, recipe_of
from tests.faults.sampling import contexts_of, score
from tests.faults.tables import make_table, measure, write_choice
from tests.faults.vocabulary import FAMILY

SMALL = plans(3, small=True)
HONEST = [item for item in FAULTS if FAMILY[item.slug] == "nothing wrong"]
STORED = [item for item in FAULTS if FAMILY[item.slug] in ("storage", "alignment", "recording")]


pytestmark = pytest.mark.usefixtures("one_thread")


def drafted(fault: Fault, seed: int = 0) -> Draft:
    random = np.random.default_rng(seed)
    return draft_of(spoilt([fault], random, SMALL).recipe, random)


@cache
def without_fault(plan: Plan = SMALL[0]) -> Draft:
    return draft_of(recipe_of(plan, 1), np.random.default_rng(0))


def by_slug(slug: str) -> Fault:
    return next(item for item in FAULTS if item.slug == slug)


@cache
def spoilt_draft(slug: str, note: str) -> Draft:
    """Return a table with a fault whose note contains some words, on `without_fault`'s plan."""
    for seed in range(200):
        random = np.random.default_rng(seed)
        choice = spoilt([by_slug(slug)], random, SMALL[:1])
        if note in choice.effects[0].note:
            return draft_of(choice.recipe, random)
    raise AssertionError(f"no {slug} with {note!r}")


def ratio(draft: Draft) -> np.ndarray:
    return (draft.columns["old"] - draft.columns["rollout"])[draft.mask]


def rows(draft: Draft, column: str) -> list[np.ndarray]:
    return draft.answers.rows(draft.columns[column])


@pytest.mark.engine
def test_the_network_equals_transformers():
    from transformers import AutoModelForCausalLM

    answers = without_fault().answers
    model = AutoModelForCausalLM.from_pretrained(
        "sample_data/policy/step_4", dtype=torch.float32
    ).eval()
    contexts, ids = contexts_of(answers.prompts), answers.rows(answers.ids)
    ours = answers.rows(score(policies.trainer(4), contexts, ids, 0).log_prob)
    for row in (0, 5, 11):
        whole = np.concatenate([answers.prompts[row], ids[row]]).astype(np.int64)
        with torch.inference_mode():
            law = model(torch.from_numpy(whole)[None]).logits[0].log_softmax(-1)
        start = len(answers.prompts[row])
        theirs = law[start - 1 : -1].gather(1, torch.from_numpy(whole[start:])[:, None])[:, 0]
        assert np.abs(theirs.numpy() - ours[row]).max() < 5e-5


def test_a_distribution_keeps_the_right_tokens_and_sums_to_one():
    logits = torch.randn(50, 40, generator=torch.Generator().manual_seed(0)) * 3
    none = torch.zeros(50, 40, dtype=torch.bool)
    plain = logits.log_softmax(-1)
    for law in (Law(top_p=0.8), Law(top_k=5), Law(min_p=0.1), Law(temperature=0.7, top_k=9)):
        made = law.processed(logits, none, none, 0)
        assert torch.allclose(made.exp().sum(-1), torch.ones(50), atol=1e-5)
    kept = torch.isfinite(Law(top_p=0.8).processed(logits, none, none, 0))
    mass = (plain.exp() * kept).sum(-1)
    assert (mass >= 0.8).all()
    least = torch.where(kept, plain, torch.inf).amin(-1).exp()
    assert (mass - least < 0.8 + 1e-6).all()
    assert (torch.isfinite(Law(top_k=5).processed(logits, none, none, 0)).sum(-1) == 5).all()
    seen = none.clone()
    seen[:, 3] = True
    pushed = Law(presence=0.5).processed(logits, none, seen, 0)
    assert torch.allclose(
        (pushed - plain)[:, 3] - (pushed - plain)[:, 4], torch.tensor(-0.5), atol=1e-4
    )
    assert (Law(min_tokens=4).processed(logits, none, none, 3)[:, 1] == -torch.inf).all()


def test_tables_depend_only_on_seed_and_number(tmp_path):
    one = make_table(5, 4, tmp_path / "one.parquet", small=True)
    make_table(5, 5, tmp_path / "between.parquet", small=True)
    other = make_table(5, 4, tmp_path / "other.parquet", small=True)
    assert {**one, "file": ""} == {**other, "file": ""}
    first, second = (pq.read_table(tmp_path / f"{n}.parquet") for n in ("one", "other"))
    assert first.equals(second)


@pytest.mark.parametrize(
    "number",
    [
        *range(3),
        *(pytest.param(number, marks=pytest.mark.slow) for number in range(3, len(HONEST))),
    ],
)
def test_tables_without_fault_have_mean_ratio_one(number):
    draft = drafted(HONEST[number], number)
    excess = np.expm1(ratio(draft))
    sums = np.bincount(draft.answers.owner[draft.mask], weights=excess)
    error = np.sqrt(np.sum(sums**2))
    assert abs(sums.sum()) <= 4 * error + 1e-9
    rms = measure(draft)["rms_log_ratio"]
    assert rms is not None
    assert rms < 0.06


def test_noise_without_fault_has_the_size_of_engines():
    rms = measure(without_fault(SMALL[1]))["rms_log_ratio"]
    assert rms is not None
    assert 0.002 < rms < 0.015


@pytest.mark.parametrize("number", range(len(STORED)))
def test_recording_and_storage_faults_change_the_table(number):
    fault = STORED[number]
    # Text sometimes encodes to the same tokens: one of several batches must differ.
    seeds = range(number, number + (8 if fault.slug == "retokenised" else 1))
    assert any(changes(fault, seed) for seed in seeds)


def changes(fault: Fault, seed: int) -> bool:
    """Tell whether a fault changes the content of a table."""
    random = np.random.default_rng(seed)
    choice = spoilt([fault], random, SMALL)
    draft = draft_of(choice.recipe, random)
    clean = without_fault(choice.recipe.plan)
    same = (
        np.array_equal(draft.mask, clean.mask)
        and draft.kept_rows is None
        and not draft.cut_last
        and all(
            np.array_equal(draft.columns[name], clean.columns[name], equal_nan=True)
            for name in ("rollout", "old")
        )
    )
    return not same


@pytest.mark.parametrize("by", [-1, 1])
def test_a_shift_is_undone_by_its_inverse(by):
    draft = spoilt_draft("shift-by-one", f"old moved by {by:+d}, roll")
    back = np.concatenate([np.roll(row, -by) for row in rows(draft, "old")])
    assert np.array_equal(back, without_fault().columns["old"])


def test_swapped_rows_are_a_permutation():
    draft = spoilt_draft("rows-swapped", "within groups")
    moved = (
        "old"
        if np.array_equal(draft.columns["rollout"], without_fault().columns["rollout"])
        else "rollout"
    )
    for group in np.unique(draft.answers.group):
        members = np.flatnonzero(draft.answers.group == group)
        before = sorted(rows(without_fault(), moved)[row][0] for row in members)
        assert sorted(rows(draft, moved)[row][0] for row in members) == before


def test_stored_numbers_are_on_the_grid_of_their_type():
    draft = spoilt_draft("stored-bfloat16", "both")
    values = torch.from_numpy(draft.columns["old"])
    assert torch.equal(values.bfloat16().double(), values)
    rounded = spoilt_draft("stored-rounded", "old stored with 2").columns["old"]
    assert np.allclose(rounded * 100, np.round(rounded * 100), atol=1e-9)


def test_another_base_is_a_constant_factor():
    draft = spoilt_draft("log-base", "base 2 in old")
    assert np.allclose(draft.columns["old"] * np.log(2), without_fault().columns["old"])


def test_running_sums_are_undone_by_differences():
    draft = spoilt_draft("cumulative-stored", "running sums in old")
    back = np.concatenate([np.diff(row, prepend=0.0) for row in rows(draft, "old")])
    assert np.allclose(back, without_fault().columns["old"])


def test_a_kept_set_raises_log_probs_by_at_most_the_lost_mass():
    draft = spoilt_draft("top-p-renormalised", "top-p 0.8")
    kept = draft.answers.kept
    gain = kept["processed"] - kept["raw"]
    if draft.recipe.law.temperature == 1:
        assert (gain >= -1e-5).all()
        assert (gain <= -np.log(draft.recipe.law.top_p) + 1e-5).all()


def test_a_penalty_changes_only_tokens_in_its_context():
    draft = spoilt_draft("presence-penalty", "")
    first = draft.ends - draft.answers.lengths + 1
    gain = draft.answers.kept["processed"] - draft.answers.kept["raw"]
    assert np.abs(gain[first]).max() < 1e-5
    assert np.abs(gain).max() > 0.01


def test_raw_log_probs_are_those_before_the_temperature():
    draft = spoilt_draft("temperature-raw-recorded", "T 0.6")
    honest_ratio = draft.columns["old"] - draft.answers.kept["processed"]
    assert np.std(ratio(draft)) > 5 * np.std(honest_ratio)
    assert np.array_equal(draft.columns["rollout"], draft.answers.kept["raw"])


@pytest.mark.parametrize("slug", ["stale-weights", "prompt-truncated", "int4-weights"])
def test_forward_pass_faults_are_above_the_noise(slug):
    rms = measure(spoilt_draft(slug, ""))["rms_log_ratio"]
    noise = measure(without_fault())["rms_log_ratio"]
    assert rms is not None
    assert noise is not None
    assert rms > 2 * noise


@pytest.mark.weekly
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.slug}-{fault.spoil.__name__}")
def test_every_fault_makes_a_table_that_opens(fault, tmp_path):
    random = np.random.default_rng(1)
    label = write_choice(spoilt([fault], random, SMALL), random, tmp_path / "table.parquet")
    table = open_table(tmp_path / "table.parquet")
    assert table.num_rows >= 12
    assert {"rollout", "old"} <= set(table.policies)
    assert label["acceptable"][0] == label["acceptable_with_model"][0] == fault.slug
    assert label["verdict"] in label["verdicts"]


def judged(label: str, key: list[str], named: dict[str, float], verdict: str) -> Judged:
    family = FAMILY[label]
    facts = {
        "label": label,
        "labels": [label],
        "family": family,
        "acceptable_each": [key],
        "acceptable_each_with_model": [key],
        "verdict": "healthy" if family == "nothing wrong" else "broken",
        "verdicts": ["healthy"] if family == "nothing wrong" else ["broken"],
        "verdicts_with_model": ["broken"],
        "table_alone_tells": True,
    }
    return Judged(label=facts, verdict=verdict, causes=tuple(named.items()), seconds=1.0)


def test_a_summary_counts_correct_missed_and_false_alarms():
    answers = [
        judged("shift-by-one", ["shift-by-one"], {"shift-by-one": 0.9}, "broken"),
        judged("shift-by-one", ["shift-by-one"], {"engine-noise": 0.9}, "healthy"),
        judged("engine-noise", ["engine-noise", "healthy"], {"healthy": 0.7}, "healthy"),
        judged("engine-noise", ["engine-noise", "healthy"], {"sentinel": 0.7}, "broken"),
    ]
    result = summary(answers)
    assert result["right"] == {"share": 0.5, "tables": 2}
    assert result["fix_called_fine_or_correct"] == {"share": 0.5, "tables": 2}
    assert result["healthy_called_fix"] == {"share": 0.5, "tables": 2}
    assert result["confusions"]["shift-by-one"] == {"engine-noise": 1}
    assert [item["right"] for item in result["calibration"]] == [0.5, 0.5]
    assert len(shortfalls(result, Thresholds())) == 3
    assert shortfalls(result, Thresholds(right=0.5, fix_missed=0.5, false_alarms=0.5)) == []

"""All commands and the API carry one diagnosis of a table, and act on it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _pytest.mark import ParameterSet

import rcdiag as api
from rcdiag.diagnosis.case import Case
from tests.cli.conftest import rcdiag  # noqa: F401
from tests.diagnosis.tables import (
    drifted,
    first_tokens_differ,
    made,
    noisy,
    plain,
    shifted,
    tempered,
    top_p,
    with_values,
    write,
)

ROWS, COMMANDS = 64, ("score", "compare", "sweep", "replay")
# The page of a sweep takes seconds.
WITH_PAGES = ("score", "compare", pytest.param("sweep", marks=pytest.mark.slow), "replay")
EVERY = np.arange(ROWS)


def quick(command: str) -> tuple[object, ...]:
    """A command with what makes it quick: no test here reads a sweep's thresholds."""
    return (command, "--thresholds", 4) if command == "sweep" else (command,)


def small(*laws: Any, **options: Any) -> Case:
    return made(*laws, rows=ROWS, length=30, **options)


def stored(change: Callable[[np.ndarray], np.ndarray], policy: str = "rollout") -> Case:
    return with_values(small(), policy, change)


def with_nan(values: np.ndarray) -> np.ndarray:
    values[::50] = np.nan
    return values


STEPS = EVERY // 16
TABLES: dict[str, tuple[str, str, Callable[[], Case]]] = {
    "fine": ("fine", "engine-noise", small),
    "drift": ("correct", "weights-differ", lambda: small(plain, drifted(0.1))),
    "temperature": (
        "fix",
        "temperature-raw-recorded",
        lambda: small(tempered(0.6), recorded=plain, temperature=np.full(ROWS, 0.6)),
    ),
    "top-p": ("fix", "truncated-law", lambda: small(top_p(0.8), noisy(0.01))),
    "prompts": ("fix", "context-differs", lambda: small(plain, first_tokens_differ(1.0))),
    "shift": ("fix", "shift-by-one", lambda: shifted(small(), "old", EVERY >= 0)),
    "some NaN": ("fix", "nan-log-probs", lambda: stored(with_nan)),
    "all NaN": ("fix", "nan-log-probs", lambda: stored(lambda v: v * np.nan)),
    "both NaN": (
        "fix",
        "nan-log-probs",
        lambda: with_values(stored(lambda v: v * np.nan), "old", lambda v: v * np.nan),
    ),
    "infinite": ("fix", "nan-log-probs", lambda: stored(lambda v: np.full_like(v, -np.inf))),
    "positive": ("fix", "sign-flipped", lambda: stored(np.negative)),
    "constant": ("fix", "sentinel", lambda: stored(lambda v: np.full_like(v, -1.0))),
    "copy": (
        "cannot-tell",
        "columns-identical",
        lambda: small().with_log_probs("old", small().log_probs["rollout"]),
    ),
    "steps": ("fine", "engine-noise", lambda: small(step=STEPS)),
}


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("diagnosed")
    advantages = np.random.default_rng(0).standard_normal(ROWS)
    return {
        name: write(case(), folder / f"{name.replace(' ', '-')}.parquet", advantage=advantages)
        for name, (_, _, case) in TABLES.items()
    }


def document(ran: Any) -> dict[str, Any]:
    return json.loads(ran.out)


def told(diagnosis: dict[str, Any]) -> tuple[Any, ...]:
    return json.dumps(diagnosis, sort_keys=True)


def _often(names: Iterable[str], *quick: str) -> list[ParameterSet]:
    """Return tables as parameters; all but the quick ones run nightly."""
    return [pytest.param(name, marks=() if name in quick else pytest.mark.slow) for name in names]


@pytest.mark.parametrize("name", _often(TABLES, "temperature", "drift", "some NaN", "steps"))
def test_every_command_carries_the_same_block(name, paths, rcdiag):  # noqa: F811
    verdict, slug, _ = TABLES[name]
    blocks = {}
    for command in COMMANDS:
        ran = rcdiag(*quick(command), paths[name], "--json")
        assert ran.code == 0, ran.err
        assert "Warning" not in ran.err
        blocks[command] = document(ran)["diagnosis"]
        if verdict == "fix":
            advice = " ".join(finding["fix"] for finding in document(ran)["findings"])
            assert "health is ok" not in advice
            assert "recommends" not in advice
        if command == "sweep":
            choice = document(ran)["recommendation"]["choice"]
            assert (choice is None) == (verdict == "fix") or verdict == "cannot-tell"
    assert blocks["score"]["verdict"] == verdict
    assert blocks["score"]["causes"][0]["slug"] == slug
    assert len({told(block) for block in blocks.values()}) == 1


@pytest.mark.parametrize("command", ["score", "replay"])
@pytest.mark.parametrize(("name", "against"), [("temperature", True), ("fine", False)])
def test_the_screen_says_where_no_preset_helps(command, name, against, paths, rcdiag):  # noqa: F811
    screen = " ".join(rcdiag(command, paths[name]).out.split())
    assert ("are wrong whatever their bounds" in screen) == against


@pytest.mark.parametrize("name", ["fine", "temperature", "all NaN"])
def test_the_api_says_the_same(name, paths, rcdiag):  # noqa: F811
    block = document(rcdiag("score", paths[name], "--json"))["diagnosis"]
    for call in (api.score, api.compare, api.sweep, api.replay):
        diagnosis = call(paths[name]).diagnosis
        assert diagnosis.verdict == block["verdict"]
        assert diagnosis.summary == block["summary"]
        assert [cause.slug for cause in diagnosis.causes] == [
            cause["slug"] for cause in block["causes"]
        ]


@pytest.mark.parametrize(
    ("name", "least"),
    [("temperature", "error"), ("drift", "warning"), ("all NaN", "error")],
)
def test_the_verdict_counts_for_the_exit_code(name, least, paths, rcdiag):  # noqa: F811
    ran = rcdiag("score", paths[name], "--fail-on", least)
    assert ran.code == 1
    assert f"verdict {TABLES[name][0]}" in ran.err


def test_a_verdict_below_the_level_does_not_count(paths, rcdiag):  # noqa: F811
    for name in ("drift", "copy"):
        assert "verdict" not in rcdiag("score", paths[name], "--fail-on", "error").err


@pytest.mark.parametrize("command", WITH_PAGES)
def test_a_report_has_the_words_of_the_screen(command, paths, tmp_path, rcdiag):  # noqa: F811
    result, html = tmp_path / "r.json", tmp_path / "r.html"
    screen = rcdiag(*quick(command), paths["temperature"], "--result", result).out
    again = rcdiag("report", result, "--html", html).out
    diagnosis = api.load_result(result).diagnosis
    for text in (screen, again, html.read_text()):
        words = " ".join(re.sub("</?code>", "`", text).split())
        assert "temperature-raw-recorded" in words
        assert diagnosis.summary.replace("`", "")[:60] in words.replace("`", "")


@pytest.mark.parametrize(
    "name", _often(["all NaN", "both NaN", "infinite", "positive", "constant"], "all NaN")
)
@pytest.mark.parametrize("command", WITH_PAGES)
def test_pages_of_tables_that_cannot_be_measured(command, name, paths, tmp_path, rcdiag):  # noqa: F811
    html = tmp_path / "r.html"
    ran = rcdiag(*quick(command), paths[name], "--html", html)
    assert ran.code == 0, ran.err
    assert "Warning" not in ran.err
    assert TABLES[name][1] in html.read_text()


@pytest.mark.parametrize("name", ["all NaN", "both NaN", "positive", "infinite"])
def test_numbers_without_meaning_are_null(name, paths, rcdiag):  # noqa: F811
    score = document(rcdiag("score", paths[name], "--json"))
    assert {value["value"] for value in score["mismatch"].values()} == {None}
    assert score["rows_left_out"] == ROWS


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("alone")

    def one(case: Case, policy: str) -> Case:
        return replace(case, log_probs={policy: case.log_probs[policy]})

    cases = {
        "honest": one(small(), "rollout"),
        "old": one(small(), "old"),
        "nan": one(stored(with_nan), "rollout"),
        "sign": one(stored(np.negative), "rollout"),
    }
    return {name: write(case, folder / f"{name}.parquet") for name, case in cases.items()}


@pytest.mark.parametrize("command", ["score", "compare"])
@pytest.mark.parametrize(
    ("name", "verdict", "column"),
    [
        ("honest", "cannot-tell", "old_log_probs"),
        ("old", "cannot-tell", "rollout_log_probs"),
        ("nan", "fix", "old_log_probs"),
        ("sign", "fix", "old_log_probs"),
    ],
)
def test_one_policy_is_diagnosed(command, name, verdict, column, alone, tmp_path, rcdiag):  # noqa: F811
    html = tmp_path / "r.html"
    ran = rcdiag(command, alone[name], "--json", "--html", html)
    assert ran.code == 0, ran.err
    result = document(ran)
    policy = "old" if name == "old" else "rollout"
    assert result["diagnosis"]["verdict"] == verdict
    assert result["diagnosis"]["pair"] == {"sampler": policy}
    step = result["diagnosis"]["next"][0]
    assert column in step["text"]
    assert step["command"] == f"rcdiag score {alone[name]} --model CKPT"
    if command == "score":
        assert {value["value"] for value in result["mismatch"].values()} == {None}
        assert (result["corrections"], result["steps"], result["target"]) == ({}, {}, "")
    else:
        assert list(result["policies"]) == [policy]
        assert (result["pairs"], result["nearest_policies"]) == ({}, [])
        assert result["ladder"]["whole"]["value"] is None
    one_line = f"the table has one policy, {policy}"
    assert one_line in html.read_text()
    assert one_line in " ".join(rcdiag(command, alone[name]).out.split())


def test_one_policy_has_its_result_in_python(alone):
    assert api.score(alone["nan"]).diagnosis.verdict == "fix"
    assert api.compare(alone["nan"]).diagnosis.verdict == "fix"


def test_what_needs_two_policies_says_how_to_get_them(alone, rcdiag):  # noqa: F811
    ran = rcdiag("sweep", alone["honest"])
    assert ran.code == 2
    assert "one policy, `rollout`; a sweep needs two" in ran.err
    assert "--model CKPT -o scored.parquet" in ran.err
    ran = rcdiag("replay", alone["honest"])
    assert (ran.code, "advantage" in ran.err) == (2, True)


@pytest.mark.parametrize("command", ["score", "compare"])
def test_a_policy_that_is_asked_for_and_missing_is_an_error(command, alone, rcdiag):  # noqa: F811
    for name in ("old", "elsewhere"):
        ran = rcdiag(command, alone["honest"], "--target", name)
        assert (ran.code, ran.out) == (2, "")
        assert f"{name}_log_probs" in ran.err


@pytest.mark.parametrize("command", WITH_PAGES)
def test_documents_without_a_diagnosis_are_read(command, paths, tmp_path, rcdiag):  # noqa: F811
    older = document(rcdiag(*quick(command), paths["drift"], "--json"))
    del older["diagnosis"]
    path, html = tmp_path / "older.json", tmp_path / "r.html"
    path.write_text(json.dumps(older))
    assert api.load_result(path).diagnosis is None
    ran = rcdiag("report", path, "--html", html)
    assert ran.code == 0, ran.err
    assert "not judged" in html.read_text()

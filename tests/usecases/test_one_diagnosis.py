"""All commands and the API give the same diagnosis of a table, and the same numbers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _pytest.mark import ParameterSet
from msgspec.structs import replace

import rcdiag as api
from rcdiag.diagnosis.case import Case
from rcdiag.formats import with_interval
from rcdiag.results import MetricValue
from tests.cli.conftest import Ran, Rcdiag, rcdiag, run_once
from tests.diagnosis.tables import write
from tests.usecases.diagnosed_tables import ROWS, TABLES, small, stored, with_nan, written

__all__ = ["rcdiag", "run_once"]  # fixtures
COMMANDS = ("score", "compare", "sweep", "replay")
# slow: the page of a sweep takes seconds.
WITH_PAGES = ("score", "compare", pytest.param("sweep", marks=pytest.mark.slow), "replay")


def quick(command: str) -> tuple[object, ...]:
    """Return a command with options that make it fast: tests here need no thresholds."""
    return (command, "--thresholds", 4) if command == "sweep" else (command,)


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> Tables:
    return Tables(tmp_path_factory.mktemp("diagnosed"))


class Tables:
    """Paths of the tables by name, each written on first use."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.paths = folder, dict[str, Path]()

    def __getitem__(self, name: str) -> Path:
        if name not in self.paths:
            self.paths[name] = written(name, self.folder)
        return self.paths[name]


@pytest.fixture(scope="module")
def ran(paths: Tables, run_once: Rcdiag) -> Callable[..., Ran]:
    """Return what a command printed about a table; each is run once."""

    @cache
    def run(command: str, name: str, *options: str) -> Ran:
        done = run_once(*quick(command), paths[name], *options)
        assert done.code == 0, done.err
        return done

    return run


def told(diagnosis: dict[str, Any]) -> str:
    return json.dumps(diagnosis, sort_keys=True)


def _often(names: Iterable[str], *quick: str) -> list[ParameterSet]:
    """Return tables as test parameters; all except the fast ones run nightly."""
    return [pytest.param(name, marks=() if name in quick else pytest.mark.slow) for name in names]


QUICK = list(TABLES)[:14]
# A value with its interval, as in sentences of findings.
WITH_INTERVAL = re.compile(r"(\w+) is (\S+) \((\S+) to (\S+?)\)")


def test_there_are_forty_tables():
    assert len(TABLES) >= 40
    assert {item.verdict for item in TABLES.values()} == {
        "healthy",
        "correctable",
        "broken",
        "inconclusive",
    }


@pytest.mark.parametrize("name", _often(TABLES, *QUICK))
def test_every_command_gives_the_same_diagnosis(name, ran):
    expected, results = TABLES[name], {}
    for command in COMMANDS:
        done = ran(command, name, "--json")
        assert "Warning" not in done.err
        results[command] = done.document
    blocks = {command: result["diagnosis"] for command, result in results.items()}
    assert blocks["score"]["verdict"] == expected.verdict
    causes = blocks["score"]["causes"]
    assert (causes[0]["slug"] if causes else "") == expected.slug
    assert len({told(block) for block in blocks.values()}) == 1
    advice_follows_the_verdict(expected.verdict, results)
    numbers_are_the_same(results)


def advice_follows_the_verdict(verdict: str, results: dict[str, Any]) -> None:
    """Check that no finding advises an action that another command refuses."""
    if verdict == "broken":
        for result in results.values():
            advice = " ".join(finding["fix"] for finding in result["findings"])
            assert "health ok" not in advice
            assert "recommends" not in advice
    advice = results["sweep"]["recommendation"]
    choice, undecided = advice["choice"], advice["answer"] == "cannot-distinguish"
    assert (choice is None) == (verdict == "broken" or undecided) or verdict == "inconclusive"
    fixes: dict[str, set[str]] = {}
    for result in results.values():
        for finding in result["findings"]:
            fixes.setdefault(finding["slug"], set()).add(finding["fix"])
    assert {slug for slug, texts in fixes.items() if len(texts) > 1} <= {"unsafe-update"}


def numbers_are_the_same(results: dict[str, Any]) -> None:
    """Check that a metric of a pair has the same value, interval and level everywhere."""
    score, compared, replayed = (results[name] for name in ("score", "compare", "replay"))
    pair = compared["pairs"][f"{score['behavior']}->{score['target']}"]["mismatch"]
    assert {name: pair[name] for name in score["mismatch"]} == score["mismatch"]
    steps = score["steps"]
    whole = score["mismatch"] if len(steps) < 2 else steps[str(replayed["step"])]["mismatch"]
    factor = replayed["factors"]["mismatch"]
    for name in ("k3_kl", "ess_seq"):
        assert as_said(factor[name]) == as_said(whole[name])
    for finding in score["findings"]:
        for name, *said in WITH_INTERVAL.findall(finding["message"]):
            value = score["mismatch"][name]
            ends = MetricValue(**{key: value[key] for key in ("value", "low", "high")})
            assert with_interval(ends) == f"{said[0]} ({said[1]} to {said[2]})"
    for slug in ("few-clusters", "non-finite-log-probs"):
        told_of = {
            count_of(finding)
            for result in results.values()
            for finding in result["findings"]
            if finding["slug"] == slug and " in step " not in finding["message"]
        }
        assert len(told_of) <= 1


def as_said(value: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(value[key] for key in ("value", "low", "high", "level"))


def count_of(finding: dict[str, Any]) -> str:
    """Return the count at the beginning of a finding."""
    return finding["message"].split()[0]


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal that has the size of the table on one line with its name."""
    monkeypatch.setenv("COLUMNS", "200")


@pytest.mark.parametrize("name", _often(TABLES, "temperature", "drift", "healthy"))
def test_every_screen_begins_with_the_same_lines(name, paths, ran, wide):
    tops = []
    for command in COMMANDS:
        top = ran(command, name).out.split("\nnumbers ")[0]
        # A replay is of one step, `diagnose` may read a part, and others may leave out rows.
        lines = re.sub(rf"{re.escape(paths[name].name)}, [^\n]*", "", top).splitlines()
        tops.append([" ".join(line.split()) for line in lines if line.strip()])
    # Where its numbers need the lines, a command leaves out some evidence and ruled-out causes.
    whole = max(tops, key=len)
    for top in tops:
        assert [line for line in whole if line in top] == top
        assert top[:3] == whole[:3]
    assert whole[0].startswith(TABLES[name].verdict)


@pytest.mark.parametrize("command", ["score", "replay"])
@pytest.mark.parametrize(("name", "against"), [("temperature", True), ("healthy", False)])
def test_the_screen_says_if_no_preset_helps(command, name, against, ran, wide):
    screen = " ".join(ran(command, name).out.split())
    assert ("No preset repairs this" in screen) == against


@pytest.mark.parametrize(
    ("name", "least"),
    [("temperature", "error"), ("drift", "warning"), ("all NaN", "error")],
)
def test_the_verdict_counts_for_the_exit_code(name, least, paths, rcdiag):
    ran = rcdiag("score", paths[name], "--fail-on", least)
    assert ran.code == 1
    assert f"verdict {TABLES[name].verdict}" in ran.err


def test_a_verdict_below_the_level_does_not_count(paths, rcdiag):
    assert "verdict" not in rcdiag("score", paths["drift"], "--fail-on", "error").err


def test_an_open_verdict_is_no_all_clear(paths, rcdiag):
    ran = rcdiag("score", paths["copy"], "--fail-on", "error")
    assert (ran.code, "verdict inconclusive" in ran.err) == (1, True)


@pytest.mark.parametrize("command", WITH_PAGES)
def test_a_report_has_the_sentences_of_the_screen(command, paths, tmp_path, rcdiag):
    result, html = tmp_path / "r.json", tmp_path / "r.html"
    screen = rcdiag(*quick(command), paths["temperature"], "--result", result).out
    again = rcdiag("report", result, "--html", html).out
    diagnosis = api.load_result(result).diagnosis
    for text in (screen, again, html.read_text()):
        words = " ".join(re.sub("</?code[^>]*>", "`", text).split())
        assert "temperature-raw-recorded" in words
        assert diagnosis.summary.replace("`", "")[:60] in words.replace("`", "")


@pytest.mark.parametrize(
    "name", _often(["all NaN", "both NaN", "infinite", "positive", "constant"], "all NaN")
)
@pytest.mark.parametrize("command", WITH_PAGES)
def test_pages_of_tables_that_cannot_be_measured(command, name, paths, tmp_path, rcdiag):
    html = tmp_path / "r.html"
    ran = rcdiag(*quick(command), paths[name], "--html", html)
    assert ran.code == 0, ran.err
    assert "Warning" not in ran.err
    assert TABLES[name].slug in html.read_text()


@pytest.mark.parametrize("name", ["all NaN", "both NaN", "positive", "infinite"])
def test_meaningless_numbers_are_null(name, ran):
    score = ran("score", name, "--json").document
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
        ("honest", "inconclusive", "old_log_probs"),
        ("old", "inconclusive", "rollout_log_probs"),
        ("nan", "broken", "old_log_probs"),
        ("sign", "broken", "old_log_probs"),
    ],
)
def test_one_policy_is_diagnosed(command, name, verdict, column, alone, tmp_path, rcdiag):
    html = tmp_path / "r.html"
    ran = rcdiag(command, alone[name], "--json", "--html", html)
    assert ran.code == 0, ran.err
    result = ran.document
    policy = "old" if name == "old" else "rollout"
    assert result["diagnosis"]["verdict"] == verdict
    assert result["diagnosis"]["pair"] == {"sampler": policy}
    step = result["diagnosis"]["next"][0]
    assert column in step["text"]
    assert step["command"] == f"rcdiag score {alone[name]} OTHER_DUMP"
    if command == "score":
        assert {value["value"] for value in result["mismatch"].values()} == {None}
        assert (result["corrections"], result["steps"], result["target"]) == ({}, {}, "")
    else:
        assert list(result["policies"]) == [policy]
        assert (result["pairs"], result["nearest_policies"]) == ({}, [])
        assert result["ladder"]["whole"]["value"] is None
    one_line = f"{policy} is the only policy"
    assert one_line in html.read_text()
    assert one_line in " ".join(rcdiag(command, alone[name]).out.split())


def test_one_policy_has_its_result_in_python(alone):
    assert api.score(alone["nan"]).diagnosis.verdict == "broken"
    assert api.compare(alone["nan"]).diagnosis.verdict == "broken"


def test_commands_that_need_two_policies_say_how_to_add_one(alone, rcdiag):
    ran = rcdiag("sweep", alone["honest"])
    assert ran.code == 2
    assert "the table has one policy, `rollout`; sweep needs two" in ran.err
    assert "--model CKPT -o scored.parquet" in ran.err
    ran = rcdiag("replay", alone["honest"])
    assert (ran.code, "the table has one policy" in " ".join(ran.err.split())) == (2, True)


@pytest.mark.parametrize("command", ["score", "compare"])
def test_a_requested_but_missing_policy_is_an_error(command, alone, rcdiag):
    for name in ("old", "elsewhere"):
        ran = rcdiag(command, alone["honest"], "--target", name)
        assert (ran.code, ran.out) == (2, "")
        assert f"{name}_log_probs" in ran.err


@pytest.mark.parametrize("command", WITH_PAGES)
def test_documents_without_a_diagnosis_are_read(command, ran, tmp_path, rcdiag):
    older = ran(command, "drift", "--json").document
    del older["diagnosis"]
    path, html = tmp_path / "older.json", tmp_path / "r.html"
    path.write_text(json.dumps(older))
    assert api.load_result(path).diagnosis is None
    done = rcdiag("report", path, "--html", html)
    assert done.code == 0, done.err
    assert "not judged" in html.read_text()

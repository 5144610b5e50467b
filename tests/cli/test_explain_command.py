"""`rcdiag explain`: on the screen, as JSON, and for unknown names."""

from __future__ import annotations

import json

import pytest

from rcdiag.glossary import explain, names


def test_one_name_on_the_screen(rcdiag):
    ran = rcdiag("explain", "k3_kl")
    assert ran.code == 0
    assert ran.out.startswith("k3_kl  metric\n")
    for label in ("what", "formula", "direction", "units", "healthy", "trainers", "example"):
        assert f"\n{label} " in ran.out
    assert ran.err == ""


def test_nothing_empty_is_shown(rcdiag):
    ran = rcdiag("explain", "current")
    assert "formula" not in ran.out
    assert "healthy" not in ran.out


def test_a_flag_that_only_a_document_has(rcdiag):
    ran = rcdiag("explain", "--mis-level")
    assert ran.code == 0
    shown = " ".join(ran.out.split())
    assert shown.startswith("tis_level setting what `mis_level` is the name of `tis_level` in the")
    assert "also called mis_level: the README of slime's MIS helper" in shown


def test_brackets_are_printed_literally(rcdiag):
    assert "[1/upper, 1/lower]" in rcdiag("explain", "mirrored-bounds").out
    assert "E[ratio - 1 - log_ratio]" in rcdiag("explain", "k3_kl").out


def test_a_cause_shows_symptoms_and_fixes_per_system(rcdiag):
    lines = rcdiag("explain", "temperature-raw-recorded").out.splitlines()
    assert lines[0] == "temperature-raw-recorded  cause"
    headings = [line.split("  ")[0] for line in lines if line[:1].strip()]
    assert headings[1:] == [
        *("what", "family", "at fault", "verdict", "shows", "similar"),
        *("fix", "fix in", "links", "see"),
    ]
    assert any(line.split()[:3] == ["fix", "in", "vLLM"] for line in lines)
    document = rcdiag("explain", "temperature-raw-recorded", "--json").document
    entry = explain("temperature-raw-recorded")
    assert document["entry"]["parts"] == entry.parts
    assert document["entry"]["links"] == entry.links


def test_all_names_are_listed_one_per_line(rcdiag):
    ran = rcdiag("explain")
    assert ran.code == 0
    lines = ran.out.splitlines()
    for listed in names().values():
        for name, line in listed.items():
            assert any(item.split() == f"{name} {line}".split() for item in lines), name


@pytest.mark.parametrize("name", ["k3_kl", "decoupled_token_is", "rollout_rs_token_k1_mean"])
def test_one_name_as_json(rcdiag, name):
    document = rcdiag("explain", name, "--json").document
    assert document["kind"] == "explain"
    assert document["format_version"] == 3
    assert document["provenance"]["command"].startswith("rcdiag explain")
    assert document["entry"]["what"] == explain(name).what
    assert document["entry"]["generations"] == explain(name).generations


def test_all_names_as_json(rcdiag):
    assert rcdiag("explain", "--json").document["names"] == names()


def test_an_unknown_name_ends_with_2_and_offers_near_ones(rcdiag):
    ran = rcdiag("explain", "k3kl")
    ran.refuses("error: there is no name `k3kl`", "k3_kl")


def test_every_name_of_a_result_is_explained(rcdiag, doubtful):
    ran = rcdiag("score", doubtful, "--json")
    document = json.loads(ran.out)
    result = [*document["mismatch"], *document["profiles"], *document["corrections"]]
    result += [item["slug"] for item in document["findings"]]
    result += [value["level"] for value in document["mismatch"].values() if value["level"]]
    for item in document["corrections"].values():
        result += [item["trainer"], *item["config"], *item["metrics"], *item["actual"]]
    for name in dict.fromkeys(result):
        assert explain(name).what

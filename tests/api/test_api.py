"""`import rcdiag`: loaded modules, public names, printing of results, and errors."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from importlib import resources
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import rcdiag
from rcdiag.results import KINDS, from_json
from tests.builders import write_table
from tests.cli.conftest import dump_with_shift
from tests.cli.sweep_tables import sampled_table
from tests.results.stored import stored

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "scipy", "matplotlib", "pyarrow", "polars", "numpy", "transformers", "vllm")
TIDY = ["kind", "step", "policies", "name", "metric", "value", "low", "high", "level"]
FUNCTIONS = [name for name in rcdiag.__all__ if inspect.isfunction(getattr(rcdiag, name))]


@pytest.fixture
def table(tmp_path) -> Path:
    """A table of two training steps with advantages."""
    columns = {"advantage": [1.0, -2.0, 4.0], "step": [4, 6, 6]}
    return dump_with_shift(tmp_path / "a.parquet", 0.1, **columns)


def test_the_import_loads_few_modules_and_nothing_heavy():
    code = (
        "import sys; before = set(sys.modules); import rcdiag; dir(rcdiag)\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    loaded = subprocess.check_output([sys.executable, "-c", code], text=True).split()
    assert not set(HEAVY) & set(loaded)
    assert len(loaded) < 60  # about 30; polars alone would load hundreds


def test_every_public_name_exists_and_is_listed():
    for name in rcdiag.__all__:
        assert getattr(rcdiag, name).__doc__ or name == "Result"
    assert set(rcdiag.__all__) <= set(dir(rcdiag))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        rcdiag.nothing  # noqa: B018


def test_no_module_hides_a_function():
    assert len(FUNCTIONS) >= 8
    modules = {path.stem for path in (ROOT / "rcdiag").iterdir()}
    assert modules & set(rcdiag.__all__) == set()


def test_the_package_is_typed():
    assert resources.files("rcdiag").joinpath("py.typed").is_file()


@pytest.mark.parametrize("name", [n for n in FUNCTIONS if n not in ("emit", "explain")])
def test_every_keyword_is_documented(name):
    function = getattr(rcdiag, name)
    output = inspect.getdoc(function) or ""
    if name in ("open_table", "load_result"):
        return
    for keyword in inspect.signature(function).parameters:
        assert f"\n    {keyword}: " in output, keyword


def test_every_signature_has_its_return_type():
    assert inspect.signature(rcdiag.score).return_annotation == "ScoreResult"


def test_a_table_prints_as_a_short_summary(table):
    opened = rcdiag.open_table(table)
    assert opened.policies == ["rollout", "old"]
    assert "advantage" in opened.columns
    assert len(repr(opened).splitlines()) < 20
    assert "3 rows" in repr(opened)
    assert "<pre>" in opened._repr_html_()


def test_a_list_of_files_is_one_table(table, tmp_path):
    columns = {"advantage": [1.0, 1.0, 1.0], "step": [7, 7, 7]}
    other = dump_with_shift(tmp_path / "b.parquet", 0.2, **columns)
    result = rcdiag.score([table, other], presets="disabled")
    assert result.num_sequences == 6
    assert list(result.steps) == ["4", "6", "7"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_result_prints_in_under_20_lines(kind):
    result = from_json(stored(kind), kind)
    lines = repr(result).splitlines()
    assert 1 <= len(lines) < 20
    assert lines[0].startswith(f"rcdiag {result.kind}: ")
    assert max(map(len, lines)) <= 130
    html = result._repr_html_()
    assert html.startswith("<div>")
    assert ("<table>" in html) == (kind != "convert")  # the stored result has no lists
    if getattr(result, "diagnosis", None) is not None:
        assert any(line.startswith(f"{result.diagnosis.verdict} (") for line in lines)
        assert result.diagnosis.verdict in html.split("<table>")[0]


def test_text_from_files_is_escaped_in_a_notebook(table):
    result = rcdiag.score(table, presets="disabled")
    finding = rcdiag.Finding(slug="<i>", severity="note", message="<script>", fix="<b>")
    result.findings.append(finding)
    assert "<script>" not in result._repr_html_()
    assert "&lt;script&gt;" in result._repr_html_()


def test_metrics_as_a_frame_by_step(table):
    result = rcdiag.score(table, presets=["decoupled_token_is", "disabled"])
    frame = result.frame()
    assert frame.drop("kind", "policies", "name").equals(result.frame("metrics"))
    assert frame.columns == TIDY
    assert frame["policies"].unique().to_list() == ["rollout->old"]
    assert frame.height == 3 * len(result.mismatch)
    assert frame["step"].unique().sort().to_list() == [None, 4, 6]
    (value,) = frame.filter(pl.col("step").is_null(), metric="k3_kl")["value"]
    assert value == result.mismatch["k3_kl"].value
    (value,) = frame.filter(step=6, metric="k3_kl")["value"]
    assert value == result.steps["6"].mismatch["k3_kl"].value


def test_rows_of_the_tidy_frame_are_the_numbers_of_the_result(table, tmp_path):
    swept = rcdiag.sweep(sampled_table(tmp_path / "t.parquet"), thresholds=4, candidate="seq_tis_3")
    (row,) = swept.frame().filter(name="seq_tis_3", metric="ess_seq_applied").rows(named=True)
    (setting,) = [item for item in swept.families["seq_tis"].rows if item.bounds == {"upper": 3.0}]
    assert (row["value"], row["low"]) == (
        setting.ess_seq_applied.value,
        setting.ess_seq_applied.low,
    )
    replayed = rcdiag.replay(table, presets="decoupled_token_is")
    numbers = replayed.frame().filter(name="decoupled_token_is")
    values = dict(zip(numbers["metric"], numbers["value"], strict=True))
    preset = replayed.presets["decoupled_token_is"]
    assert values["loss"] == preset.loss
    assert values["coefficients_norm"] == preset.coefficients.norm
    for key, value in preset.metrics.items():
        assert values[key] == value or np.isnan(value)


def test_corrections_as_a_frame(table):
    result = rcdiag.score(table, presets=["decoupled_token_is", "disabled"])
    frame = result.frame("corrections")
    assert frame.height == 6
    row = frame.row(0, named=True)
    correction = result.corrections["decoupled_token_is"]
    assert (row["step"], row["preset"]) == (None, "decoupled_token_is")
    assert row["weight_sum"] == correction.weight_sum
    assert row["ess_token_applied"] == correction.actual["ess_token_applied"]
    logged = result.frame("logged").filter(pl.col("step").is_null(), preset="decoupled_token_is")
    assert dict(zip(logged["metric"], logged["value"], strict=True)) == correction.metrics


def test_every_frame_of_every_kind(table, tmp_path):
    path = sampled_table(tmp_path / "t.parquet")
    compared, swept, replayed = (
        rcdiag.compare(path),
        rcdiag.sweep(path, thresholds=4),
        (rcdiag.replay(table)),
    )
    assert compared.frame().height == sum(len(item.mismatch) for item in compared.pairs.values())
    assert compared.frame("policies")["policy"].to_list() == list(compared.policies)
    settings = swept.frame("settings")
    assert settings.height == sum(len(item.rows) for item in swept.families.values())
    assert settings["ess_seq_applied"].is_not_null().any()
    assert swept.frame("candidates").height == len(swept.recommendation.candidates)
    presets = replayed.frame("presets")
    assert presets["preset"].to_list() == list(replayed.presets)
    assert presets["coefficients_norm"].to_list() == [
        item.coefficients.norm for item in replayed.presets.values()
    ]
    for result in (compared, swept, replayed):
        assert result.frame().columns == TIDY
        assert result.frame().equals(result.frame("tidy"))
        keys = ["step", "policies", "name", "metric"]
        assert not result.frame().select(keys).is_duplicated().any()
        assert result.frame("findings").height == len(result.findings)
        with pytest.raises(rcdiag.RcdiagError, match="frame nothing: not known"):
            result.frame("nothing")


def test_a_result_is_loaded_from_a_file_and_from_text(table, tmp_path):
    result = rcdiag.score(table, presets="disabled")
    result.save(tmp_path / "r.json")
    for source in (tmp_path / "r.json", str(tmp_path / "r.json"), result.to_json()):
        assert rcdiag.load_result(source).to_json() == result.to_json()
    written = rcdiag.report(tmp_path / "r.json", tmp_path / "r.html")
    assert written == [tmp_path / "r.html"]
    assert written[0].read_text() == rcdiag.report(result, tmp_path / "2.html")[0].read_text()


def test_progress_methods_are_called_during_the_work(table, monkeypatch):
    class Heard(rcdiag.Progress):
        def __init__(self) -> None:
            self.said: list[str] = []

        def say(self, text: str) -> None:
            self.said.append(text)

    heard = Heard()
    rcdiag.score(table, presets="disabled", output=table.with_name("o.parquet"), progress=heard)
    assert heard.said == [f"nothing to score: {table.with_name('o.parquet')} is not written"]


def test_the_library_prints_nothing(table, capsys):
    rcdiag.score(table)
    rcdiag.compare(table)
    rcdiag.replay(table)
    assert capsys.readouterr() == ("", "")


REFUSED = {
    "no such file": lambda table: rcdiag.score("none.parquet"),
    "ladder nope: not known": lambda table: rcdiag.score(table, ladder="nope", model="m"),
    "arithmetic int8: not known": lambda table: rcdiag.score(table, arithmetic="int8"),
    "no preset `x`": lambda table: rcdiag.score(table, presets="x"),
    "one or the other": lambda table: rcdiag.score(table, presets="x", trainer_config="c.yaml"),
    "`lr` (--lr) needs a model": lambda table: rcdiag.replay(table, lr=0.1),
    "optimizer lion: not known": lambda table: rcdiag.replay(table, model="m", optimizer="lion"),
    "`epochs=0` (--epochs 0): too small": lambda table: rcdiag.replay(table, model="m", epochs=0),
    "`evaluate` (--evaluate) needs `reward`": lambda table: rcdiag.replay(
        table, model="m", evaluate=3
    ),
    "advantage gae": lambda table: rcdiag.replay(table, advantage="gae"),
    "no table": lambda table: rcdiag.compare(),
    "cannot be mapped": lambda table: rcdiag.score(
        rcdiag.open_table(table), columns={"step": "reward"}
    ),
    "none.json: no such file": lambda table: rcdiag.load_result("none.json"),
    "not a result document": lambda table: rcdiag.load_result("/"),
    "not JSON": lambda table: rcdiag.load_result("{"),
    "no result": lambda table: rcdiag.report([], "page.html"),
    "already there": lambda table: rcdiag.report("a.json", table),
    "wanted the number of settings": lambda table: rcdiag.sweep(table, thresholds=1),
    "a whole number from": lambda table: rcdiag.sweep(table, thresholds=[1, 2]),
    "emit needs the result of a sweep": lambda table: rcdiag.emit(
        rcdiag.score(table, presets=["disabled"]), "verl"
    ),
    "emit needs the trainer": lambda table: rcdiag.emit(rcdiag.sweep(table, thresholds=2)),
    "trainer nope": lambda table: rcdiag.sweep(table, emit="nope"),
    "candidate=nope": lambda table: rcdiag.sweep(table, emit="verl", candidate="nope"),
    "there is no name": lambda table: rcdiag.explain("k3kl"),
}


@pytest.mark.parametrize("message", REFUSED)
def test_every_error_of_the_user_is_an_rcdiagerror_with_a_hint(table, message):
    with pytest.raises(rcdiag.RcdiagError) as caught:
        REFUSED[message](table)
    assert message in f"{caught.value.message} {caught.value.hint}"
    assert caught.value.hint


def test_emit_names_alternatives_if_the_trainer_lacks_the_recommendation(tmp_path):
    result = rcdiag.sweep(sampled_table(tmp_path / "t.parquet"), thresholds=4)
    document = json.loads(result.to_json())
    document["recommendation"]["choice"] = "k3_rs_0.01"
    text = rcdiag.emit(rcdiag.load_result(json.dumps(document)), "verl-0.7.0")
    assert text.startswith("# k3_rs_0.01: ")
    assert all(line.startswith("#") for line in text.splitlines())
    assert "--candidate " in text


def test_a_result_without_a_number_prints_no_empty_table(tmp_path):
    broken = dump_with_shift(tmp_path / "nan.parquet", float("nan"))
    result = rcdiag.score(broken, presets="disabled")
    assert "95% interval" not in repr(result)
    assert "<table>" not in result._repr_html_()
    assert repr(result).splitlines()[1].startswith("inconclusive: ")


def test_a_table_with_one_policy_is_printed_without_a_pair(tmp_path):
    path = write_table(
        tmp_path / "t.parquet", response_ids=[[1, 2]], rollout_log_probs=[[-0.5, -0.25]]
    )
    first = repr(rcdiag.score(path)).splitlines()[0]
    assert first == "rcdiag score: rollout alone, 1 sequence, 2 tokens"

"""The HTML report: self-contained, escaped, the same bytes for the same result."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from urllib.parse import unquote

import pytest
from msgspec import structs

import rcdiag
from rcdiag.errors import RcdiagError
from rcdiag.formats import number, percent
from rcdiag.pages.figures import FIGURES, applying
from rcdiag.pages.page import page, sha256
from rcdiag.pages.save import save_figures
from rcdiag.results import Finding, MetricValue, NamedCause, ScoreResult, from_json, to_json
from rcdiag.results.routing import ExpertChanges, Routing
from tests.builders import write_table

SHARE = MetricValue(value=0.1, low=0.05, high=0.2)
ROUTING = Routing(
    rerouting=ExpertChanges(
        routed_tokens=4,
        experts_chosen=2,
        rerouted=SHARE,
        rerouted_by_layer=[SHARE, SHARE],
        k2_same_experts=SHARE,
        k2_rerouted=SHARE,
        rerouted_share_of_squares=SHARE,
    )
)

OF_SCORE = [name for name, spec in FIGURES.items() if spec.kind == "score"]


@pytest.fixture(scope="module")
def result(tmp_path_factory) -> ScoreResult:
    path = tmp_path_factory.mktemp("tables") / "table.parquet"
    write_table(
        path,
        response_ids=[[5, 6, 7], [8], [9, 10]],
        response_mask=[[1, 0, 1], [1], [1, 1]],
        rollout_log_probs=[[-0.1, -1.0, -2.0], [-0.01], [-3.0, -0.5]],
        old_log_probs=[[-0.1, -1.2, -1.9], [-0.02], [-5.0, -0.4]],
        old_entropy=[[0.5, 0.1, 1.0], [0.01], [2.0, 0.3]],
        reward=[1.0, 0.0, -1.0],
        sample_id=["a", "b", "<b>c</b>"],
        step=[1, 1, 2],
        engine=["a", "b", "a"],
        policy_version=[0, 1, 1],
    )
    log = path.with_name("metrics.jsonl")
    steps = [{"step": n, "rollout_corr/kl": 0.1, "actor/grad_norm": 0.3} for n in (1, 2)]
    log.write_text("".join(f"{json.dumps(step)}\n" for step in steps))
    # A table without experts has no figure of differing experts.
    return structs.replace(rcdiag.score(path, logged=log), routing=ROUTING)


@pytest.fixture(scope="module")
def text(result) -> str:
    return page(result)


def test_every_figure_applies(result):
    assert [spec.name for spec in applying(result)] == OF_SCORE


def test_the_same_result_gives_the_same_bytes_also_after_a_round_trip(result, text):
    assert page(result) == text
    assert page(from_json(to_json(result), "r.json")) == text


def test_nothing_is_fetched_and_one_script_runs(text):
    assert "default-src 'none'" in text
    assert "base-uri 'none'; form-action 'none'" in text
    running = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    assert len(running) == 1
    assert f"script-src 'sha256-{sha256(running[0])}'" in text
    assert not re.findall(r"\beval\(|new Function|\son\w+=", text)
    outside = re.findall(r"""(?:src|href)=["'](?!#|data:)([^"']+)""", text)
    assert outside == []
    assert not re.findall(r"url\((?!#)", text)


class _Ids(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.references: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name == "id":
                self.ids.append(value or "")
            if name in ("aria-labelledby", "href", "xlink:href") and value:
                self.references.append(value.removeprefix("#"))


def test_ids_are_unique_and_references_resolve(text):
    parser = _Ids()
    parser.feed(text)
    assert len(parser.ids) == len(set(parser.ids))
    known = {*parser.ids, ""}
    assert [r for r in parser.references if r not in known and not r.startswith("data:")] == []


def test_text_of_the_table_is_escaped(result):
    evil = "</script><img src=x onerror=alert(1)>"
    finding = Finding(slug="x", severity="note", message=evil, fix=evil, evidence={"a": evil})
    text = page(structs.replace(result, findings=[finding], behavior="a"))
    assert "<img src=x" not in text
    assert text.count("<script>") == 1


def test_title_and_icon_show_verdict_dump_and_cause(result):
    assert result.diagnosis is not None
    cause = NamedCause(
        slug="temperature-raw-recorded",
        verdict="broken",
        confidence=0.97,
        side="recorder",
        share_of_rows=1.0,
        message="It was recorded before the temperature.",
    )
    diagnosed = structs.replace(result.diagnosis, verdict="broken", causes=[cause])
    text = page(structs.replace(result, diagnosis=diagnosed))
    assert "<title>broken: table.parquet, sampled at T, recorded before T</title>" in text
    icon = unquote(re.search(r'rel="icon" href="([^"]+)"', text)[1])
    assert "#b3261e" in icon
    assert ">b</text>" in icon


def test_a_tab_without_data_is_left_out(result, text):
    names = re.findall(r'<section class="tab" id="(\w+)"', text)
    assert names == ["diagnosis", "tokens", "corrections", "about"]
    bare = page(structs.replace(result, corrections={}))
    assert re.findall(r'<section class="tab" id="(\w+)"', bare) == ["diagnosis", "tokens", "about"]


def test_the_head_says_whether_the_page_holds_text(result, text):
    assert "<span>holds token ids, no text</span>" in text
    some = [structs.replace(s, texts=["a"] * len(s.log_ratio)) for s in result.worst_sequences]
    held = page(structs.replace(result, worst_sequences=some))
    assert f"<span>holds text of {len(some)} responses</span>" in held


@pytest.mark.slow  # tests/pages/test_added_figure.py saves some
def test_figures_are_saved_for_papers_with_their_numbers(result, tmp_path):
    written = save_figures(result, tmp_path / "plots")
    names = {path.name for path in written}
    for kind in ("pdf", "svg", "png"):
        assert {f"{name}.{kind}" for name in OF_SCORE} <= names
    starts = {".png": b"\x89PNG", ".svg": b"<?xm", ".pdf": b"%PDF"}
    for path in written:
        assert path.read_bytes()[:4] == starts.get(path.suffix, path.read_bytes()[:4])


def test_one_figure_is_saved_at_the_width_of_a_column_with_its_numbers(result, tmp_path):
    save_figures(result, tmp_path, only=["mismatch-by-position"], width=3.3)
    assert {path.stem for path in tmp_path.iterdir()} == {"mismatch-by-position"}
    width = re.search(r'width="([\d.]+)pt"', (tmp_path / "mismatch-by-position.svg").read_text())[1]
    assert float(width) == pytest.approx(3.3 * 72)
    head, *rows = (tmp_path / "mismatch-by-position.csv").read_text().splitlines()
    assert head.startswith("bin,tokens,share of tokens")
    bins = result.profiles["position"].bins
    assert [row.split(",")[1] for row in rows] == [str(bin_.tokens) for bin_ in bins]


def test_an_unknown_figure_is_refused_with_the_closest_name(result, tmp_path):
    with pytest.raises(RcdiagError, match="has no figure `mismatch-by-positon`") as error:
        save_figures(result, tmp_path, only=["mismatch-by-positon"])
    assert "mismatch-by-position" in str(error.value.hint)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0.00123456, "0.00123"),
        (1.0, "1"),
        (1.0 - 2.5e-8, "1.0000"),
        (1.0 - 8.9e-7, "1.0000"),
        (1.0 + 1.2e-5, "1.0000"),
        (1.0 + 2e-13, "1"),
        (0.95, "0.950"),
        (0.95194, "0.952"),
        (1.0629, "1.063"),
        (0.99787, "0.9979"),
        (1.00021, "1.0002"),
        (float("nan"), "nan"),
        (float("inf"), "inf"),
        (None, "n/a"),
    ],
)
def test_numbers_are_formatted_for_readers(value, words):
    assert number(value) == words


def test_a_share_that_rounds_to_zero_has_no_sign():
    assert percent(MetricValue(value=-0.0001)) == "0.0%"
    assert percent(MetricValue(value=-0.02)) == "-2.0%"

"""The examples of CONTRIBUTING.md, installed as one package, behave as the page says."""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from jsonschema import Draft202012Validator

from rcdiag.registry import GROUP
from rcdiag.results.schema import FOLDER
from tests.engines.toy_engine import PROBABILITIES, make_checkpoint
from tests.plugins import install, printed_with

TEXT = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text()
MODULES = dict(
    re.findall(r"^```python\n# acme/(\w+)\.py\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
)
SECTIONS = re.findall(r"^## Add an? (.*)$", TEXT, re.MULTILINE)
KINDS = ("metric", "check", "cause", "trainer", "reader", "log", "engine", "loss", "figure")

# Name of each definition -> part of the text that `explain` prints for it.
EXPLAINED = {
    "likelier_share": "E[1(log_ratio > 0)]",
    "short-responses": "look for an early stop token",
    "first-token-constant": "A placeholder appears at other tokens too.",
    "acme": "token weights with a cap (released 2026-01-01)",
    "acme-lines": "JSON lines with prompt, tokens and logps",
    "uniform": "a yardstick for other policies",
    "spo": "arXiv 2401.16025",
    "kept-tokens-by-preset": "the others are rejected",
}


# The logged mean weight: not the value that `acme_narrow` gives, so that the two differ.
LOGGED_MEAN = 0.25


@dataclass(frozen=True)
class Runs:
    """Output of the commands with the package installed: screens, documents, pages."""

    site: Path
    rows: list[dict[str, Any]]
    dump: Path
    screens: dict[str, str]  # command, or name given to `explain` -> stdout
    documents: dict[str, dict[str, Any]]  # command -> its result JSON
    pages: dict[str, str]
    scored: Path

    @property
    def recorded(self) -> np.ndarray:
        return np.concatenate([row["logps"] for row in self.rows])


def made_up_rows() -> list[dict[str, Any]]:
    random = np.random.default_rng(0)
    rows = []
    for row in range(24):
        length = int(random.integers(2, 12))
        sampled = random.uniform(-4.0, -0.5, length)
        sampled[0] = -1.5  # what the added cause looks for
        rows.append(
            {
                "prompt": [1, 2],
                "tokens": random.integers(0, len(PROBABILITIES), length).tolist(),
                "logps": sampled.tolist(),
                "old_log_probs": (sampled + random.normal(0.0, 0.05, length)).tolist(),
                "group_id": row // 2,
                "advantage": random.normal(),
            }
        )
    return rows


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("contributing")
    rows, dump, scored = made_up_rows(), folder / "dump.acme", folder / "scored.parquet"
    dump.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "run.log").write_text(f"ACME acme/weight_mean={LOGGED_MEAN}\n")
    modules = dict(MODULES)
    site = install(folder / "site", "acme", modules.pop("__init__"), **modules)
    checkpoint = make_checkpoint(folder / "checkpoint")

    def html(command: str) -> Path:
        return folder / f"{command}.html"

    score = ("score", dump, "--trainer", "acme")
    with_engine = ("--model", checkpoint, "--policy", "flat=uniform:float32", "--target", "flat")
    compare = ("compare", scored, "--target", "flat")
    replay = ("replay", dump, "--trainer", "acme", "--loss", "spo")
    results = {command: folder / f"{command}.json" for command in ("score", "compare", "replay")}
    files = ("-o", scored, "--html", html("score"), "--result", results["score"])
    made = ("--loss-setting", "spo_width=0.3", "--result", results["replay"], "-q")
    _, _, _, *printed = printed_with(
        site,
        (*score, *with_engine, *files, "-q"),
        (*replay, *made),
        (*score, "--logged", folder / "run.log", "--result", folder / "logged.json", "-q"),
        score,
        (*compare, "--result", results["compare"]),
        ("report", results["replay"], "--html", html("replay")),
        *(("explain", name) for name in EXPLAINED),
        *((command, "--help") for command in ("score", "replay")),
    )
    commands = ("score", "compare", "replay", *EXPLAINED, "score --help", "replay --help")
    screens = dict(zip(commands, printed, strict=True))
    results["logged"] = folder / "logged.json"
    return Runs(
        site=site,
        rows=rows,
        dump=dump,
        screens=screens,
        documents={command: json.loads(path.read_text()) for command, path in results.items()},
        pages={command: html(command).read_text() for command in ("score", "replay")},
        scored=scored,
    )


def test_every_kind_has_a_section_with_one_short_example() -> None:
    kinds = {"dump reader": "reader", "log reader": "log"}
    assert [kinds.get(section, section) for section in SECTIONS] == list(KINDS)
    assert set(MODULES) == {"__init__", *KINDS}
    assert TEXT.count("```python") == len(MODULES)
    assert max(len(code.splitlines()) for code in MODULES.values()) <= 37


def test_the_entry_point_of_the_page_is_the_installed_one(runs: Runs) -> None:
    (snippet,) = re.findall(r"^```toml\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    assert tomllib.loads(snippet)["project"]["entry-points"] == {GROUP: {"acme": "acme:register"}}
    (installed,) = runs.site.glob("*.dist-info/entry_points.txt")
    assert installed.read_text() == "[rcdiag.plugins]\nacme = acme:register\n"


@pytest.mark.parametrize("command", ["score", "compare", "replay"])
def test_result_documents_match_the_shipped_schema(runs: Runs, command: str) -> None:
    schema = json.loads((FOLDER / f"{command}.schema.json").read_text())
    Draft202012Validator(schema).validate(runs.documents[command])


def test_the_metric(runs: Runs) -> None:
    share = float(np.mean(runs.recorded < -np.log(len(PROBABILITIES))))
    value = runs.documents["score"]["mismatch"]["likelier_share"]
    assert value["value"] == pytest.approx(share)
    assert value["low"] < share < value["high"]
    assert value["level"] == "ok"
    pair = runs.documents["compare"]["pairs"]["rollout->flat"]["mismatch"]
    assert pair["likelier_share"]["value"] == value["value"]
    assert "likelier_share" in runs.screens["score"]
    assert "likelier_share" in runs.pages["score"]


@pytest.mark.parametrize("command", ["score", "compare", "replay"])
def test_the_check(runs: Runs, command: str) -> None:
    result = [item for item in runs.documents[command]["findings"] if "short" in item["slug"]]
    mean = len(runs.recorded) / len(runs.rows)
    assert [item["slug"] for item in result] == ["short-responses"]
    assert result[0]["severity"] == "warning"
    assert result[0]["evidence"] == {"mean_length": pytest.approx(mean)}
    for text in (runs.screens[command], runs.pages.get(command, result[0]["message"])):
        assert f"responses have {mean:.1f} sampled tokens on average" in text


@pytest.mark.parametrize("command", ["score", "compare", "replay"])
def test_the_cause(runs: Runs, command: str) -> None:
    diagnosis = runs.documents[command]["diagnosis"]
    first = diagnosis["causes"][0]
    assert (diagnosis["verdict"], first["slug"]) == ("broken", "first-token-constant")
    assert first["evidence"][0]["value"] == -1.5
    assert diagnosis["summary"] == "The first token of all 24 responses has log-prob -1.5."
    for text in (runs.screens[command], runs.pages.get(command, "first-token-constant")):
        assert "first-token-constant" in text


def test_the_trainer(runs: Runs) -> None:
    corrections = runs.documents["score"]["corrections"]
    assert list(corrections) == ["acme_narrow"]
    result = corrections["acme_narrow"]
    weights = np.minimum(np.exp(-np.log(len(PROBABILITIES)) - runs.recorded), 1.2)
    assert result["trainer"] == "acme-1.0"
    assert result["weight_sum"] == pytest.approx(weights.sum())
    assert result["metrics"] == {"acme/weight_mean": pytest.approx(weights.mean())}
    assert list(runs.documents["replay"]["presets"])[:1] == ["acme_narrow"]
    for command in ("score", "replay"):
        assert "acme_narrow" in runs.screens[command]
        assert "acme_narrow" in runs.pages[command]


def test_the_reader(runs: Runs) -> None:
    for command in ("score", "replay"):
        document = runs.documents[command]
        assert document["provenance"]["dump"] == [str(runs.dump)]
        assert document["num_sequences"] == len(runs.rows)
        assert document["num_tokens"] == len(runs.recorded)
        counted = f"{len(runs.rows)} responses, {len(runs.recorded)} tokens"
        assert counted in runs.screens[command]
        assert str(runs.dump) in runs.pages[command]
    table = pq.read_table(runs.scored)
    assert table["rollout_log_probs"].to_pylist() == [row["logps"] for row in runs.rows]
    assert table["response_ids"].to_pylist() == [row["tokens"] for row in runs.rows]


def test_the_log_reader(runs: Runs) -> None:
    logged = runs.documents["logged"]["logged"]
    (key,) = [one for one in logged["keys"] if one["key"] == "acme/weight_mean"]
    assert (logged["log_format"], key["theirs"]) == ("acme-log", LOGGED_MEAN)
    ours = runs.documents["logged"]["corrections"]["acme_narrow"]["metrics"]
    assert key["ours"] == pytest.approx(ours["acme/weight_mean"])


def test_the_engine(runs: Runs) -> None:
    scored = np.concatenate(
        [np.array(row) for row in pq.read_table(runs.scored)["flat_log_probs"].to_pylist()]
    )
    np.testing.assert_allclose(scored, -np.log(len(PROBABILITIES)), rtol=1e-6)
    policies = runs.documents["score"]["scoring"]
    assert (policies["flat"]["backend"], policies["flat"]["device"]) == ("uniform", "cpu")
    assert runs.documents["compare"]["policies"]["flat"]["setup"] == "uniform float32"
    assert "uniform float32" in runs.screens["compare"]
    assert "uniform" in runs.pages["score"]


def test_the_loss(runs: Runs) -> None:
    document = runs.documents["replay"]
    assert document["policy_loss"] == "spo"
    preset = document["presets"]["acme_narrow"]
    assert set(preset["metrics"]) >= {"ppo_kl"}
    # Current is old here, so that the ratio is 1 and the loss of a token is -A times its weight.
    old = np.concatenate([row["old_log_probs"] for row in runs.rows])
    weights = np.minimum(np.exp(old - runs.recorded), 1.2)
    advantages = np.concatenate([[row["advantage"]] * len(row["logps"]) for row in runs.rows])
    assert preset["loss"] == pytest.approx(-np.mean(advantages * weights))
    assert "spo loss" in runs.screens["replay"]
    assert "spo" in runs.pages["replay"]


def test_the_figure(runs: Runs) -> None:
    page = runs.pages["score"]
    assert 'id="kept-tokens-by-preset-title">Kept tokens by preset</h4>' in page
    assert '"label":"share of tokens that stay in the loss"' in page
    assert "the others are rejected.</figcaption>" in page
    assert "kept-tokens-by-preset" not in runs.pages["replay"]


@pytest.mark.parametrize(("name", "says"), EXPLAINED.items())
def test_explain(runs: Runs, name: str, says: str) -> None:
    assert says in " ".join(runs.screens[name].split())


@pytest.mark.parametrize(
    ("command", "names"),
    [("score", ("acme-1.0", "acme-lines", "uniform")), ("replay", ("spo",))],
)
def test_help(runs: Runs, command: str, names: tuple[str, ...]) -> None:
    words = re.findall(r"[\w.-]+", runs.screens[f"{command} --help"])
    assert {name.rstrip(",") for name in words} >= set(names)

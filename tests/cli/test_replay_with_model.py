"""`rcdiag replay --model` from the command line."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from rcdiag import load_result
from rcdiag.pages.replay.words import equal_updates
from tests.engine_models import make_model
from tests.usecases.replay.conftest import table_for

pytestmark = pytest.mark.engine
PRESETS = ("--preset", "decoupled_token_is", "--preset", "bypass_pg_is")
# A learning rate whose steps are visible in the digits of the screen.
STEP = ("--optimizer", "sgd", "--lr", "0.1", "--max-grad-norm", "0")


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Use one thread: layers this small are faster without a second one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "qwen3", "qwen3")


@pytest.fixture(scope="module")
def table(model, tmp_path_factory) -> Path:
    """A table without old log-probs, which the model computes."""
    return table_for(tmp_path_factory.mktemp("tables") / "table.parquet", model)


@pytest.fixture
def reward(tmp_path) -> Path:
    path = tmp_path / "reward.py"
    path.write_text("def one(prompt, response, row):\n    return float(len(response))\n")
    return path


def test_the_document_has_gradient_and_step_of_every_preset(rcdiag, model, table):
    ran = rcdiag("replay", table, "--model", model, *PRESETS, *STEP, "--json")
    assert ran.code == 0, ran.err
    document = ran.document
    assert list(document["presets"]) == ["decoupled_token_is", "bypass_pg_is", "naive"]
    for preset in document["presets"].values():
        assert preset["gradient"]["grad_norm"] > 0
        assert preset["gradient"]["cosine"].keys() >= {"value", "low", "high"}
        assert preset["after_step"]["kl_old_new"]["value"] > 1e-3
        assert preset["after_step"]["learning_rate"] == 0.1
        assert preset["health"]["not_judged"] == []
    assert document["model"]["checkpoint"] == str(model)
    assert (document["model"]["updates"], document["model"]["reference"]) == (3, "seq_is")
    assert document["factors"]["staleness"]["k3_kl"]["value"] == 0.0


def test_the_screen_holds_every_number_at_80_columns(rcdiag, model, table, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    ran = rcdiag("replay", table, "--model", model, *STEP, "-v")
    assert ran.code == 0, ran.err
    assert max(map(len, ran.out.splitlines())) <= 80
    document = rcdiag("replay", table, "--model", model, *STEP, "--json").out
    for group in equal_updates(load_result(io.StringIO(document))):
        (line,) = [
            item
            for item in ran.out.splitlines()
            if item.startswith(f"{group.title} ") and "%" in item
        ]
        assert "…" not in line
        if group.preset.gradient is not None and group.preset.loss is not None:
            assert f"{group.preset.gradient.grad_norm:.2g}" in line.split()


def test_fresh_rewards_and_the_saved_model(rcdiag, model, table, reward, tmp_path):
    saved = tmp_path / "saved"
    options = ("--preset", "bypass_pg_is", "--reference", "fresh", "--evaluate", 8)
    made = ("--reward", f"{reward}:one", "--save", saved, "--result", tmp_path / "r.json")
    ran = rcdiag("replay", table, "--model", model, *STEP, *options, *made, "-q")
    assert ran.code == 0, ran.err
    document = json.loads((tmp_path / "r.json").read_text())
    after = document["presets"]["bypass_pg_is"]["after_step"]
    assert after["reward_before"]["value"] > 0
    assert after["reward_after"]["value"] > 0
    again = rcdiag("replay", table, "--model", saved, "--preset", "bypass_pg_is", *STEP, "--json")
    expected = after["kl_rollout_new"]["value"]
    result = again.document["factors"]["mismatch"]["k3_kl"]["value"]
    assert result == pytest.approx(expected, rel=1e-4)
    refused = rcdiag("replay", table, "--model", model, *options[:2], "--save", saved)
    assert (refused.code, "already there" in refused.err) == (2, True)


def test_a_step_needs_no_tokenizer_and_rewards_of_text_do(
    rcdiag, model, table, reward, tmp_path, monkeypatch
):
    bare = tmp_path / "bare"
    shutil.copytree(model, bare, ignore=shutil.ignore_patterns("*token*"))
    assert {file.name for file in bare.iterdir()} >= {"config.json", "model.safetensors"}
    replay = ("replay", table, "--model", bare, "--preset", "bypass_pg_is", *STEP)
    ran = rcdiag(*replay, "--save", tmp_path / "saved", "--json")
    assert ran.code == 0, ran.err
    assert ran.document["presets"]["bypass_pg_is"]["after_step"]["kl_old_new"]["value"] > 1e-3

    def load(*_: object, **__: object) -> None:
        raise AssertionError("the model is loaded")

    monkeypatch.setattr("rcdiag.learning.trainee.Trainee.load", load)
    refused = rcdiag(*replay, "--reference", "fresh", "--reward", f"{reward}:one")
    assert refused.code == 2
    assert "no tokenizer in the folder" in refused.err


def test_a_reward_that_raises_is_an_error_without_traceback(rcdiag, model, table, reward):
    reward.write_text("def one(prompt, response, row):\n    return row['expected']\n")
    options = ("--reference", "fresh", "--reward", f"{reward}:one", "--preset", "disabled")
    ran = rcdiag("replay", table, "--model", model, *options)
    ran.refuses(
        "error: --reward: the function failed (KeyError: 'expected')",
        "hint: it takes (prompt, response, row) and returns a number",
    )


def test_report_renders_the_page_of_a_model_update_with_the_same_bytes(
    rcdiag, model, table, tmp_path
):
    options = ("--split", 2, "--result", tmp_path / "r.json", "--html", tmp_path / "a.html")
    ran = rcdiag("replay", table, "--model", model, *PRESETS, *STEP, *options, "-q")
    assert ran.code == 0, ran.err
    assert rcdiag("report", tmp_path / "r.json", "--html", tmp_path / "b.html", "-q").code == 0
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()
    document = json.loads((tmp_path / "r.json").read_text())
    assert document["presets"]["bypass_pg_is"]["split"]["minibatches"] == 2


def test_lora_trains_an_adapter_and_saves_it(rcdiag, model, table, tmp_path):
    before = {path.name: path.read_bytes() for path in model.iterdir()}
    options = ("--lora", 4, "--preset", "disabled", "--save", tmp_path / "saved", "--json")
    ran = rcdiag("replay", table, "--model", model, *STEP, *options)
    assert ran.code == 0, ran.err
    assert ran.document["model"]["lora_rank"] == 4
    assert (tmp_path / "saved" / "adapter_config.json").exists()
    assert {path.name: path.read_bytes() for path in model.iterdir()} == before

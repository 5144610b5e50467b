"""Definitions agree with their texts, and with what the trainer logs."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

from rcdiag import trainers
from rcdiag.corrections.trainer_means import Batch
from rcdiag.errors import RcdiagError
from rcdiag.glossary import explain
from rcdiag.trainers import (
    TRAINERS,
    families,
    find_trainer,
    spoken_name,
    trainers_not_computed,
)
from rcdiag.trainers.emit import on_sweep_page, writer_names, writers
from rcdiag.trainers.own_config import read_trainer_config
from rcdiag.trainers.plan import plan_corrections
from rcdiag.trainers.toml_words import read_terms
from rcdiag.usecases.corrected import CorrectionRows, asked_by
from tests.two_rows import toy_pair

PACKAGES = sorted({trainer.package for trainer in TRAINERS.values()})
# The metric in which each trainer logs the divisor of its weights.
FACTOR = {"verl": "rollout_corr/rollout_is_batch_norm_factor", "slime": "mis_batch_norm_factor"}
NORMALISED: dict[str, dict[str, Any]] = {
    "verl": {"rollout_is": "token", "rollout_is_batch_normalize": True},
    "slime": {"tis_batch_normalize": True},
}
OLD = ("verl-20250826", "verl-0.6.0", "verl-20251027")


def test_the_newest_generation_has_the_name_of_the_trainer() -> None:
    assert {name: trainer.name for name, trainer in families().items()} == {
        "verl": "verl-0.9",
        "slime": "slime",
        "trl": "trl-1.16",
        "trl-async": "trl-async-1.16",
        "axolotl": "axolotl-0.21",
        "openrlhf": "openrlhf-0.11.2",
        "skyrl": "skyrl-0.4",
        "nemo-rl": "nemo-rl",
        "areal": "areal-20260822",
        "ms-swift": "ms-swift-4.6",
        "prime-rl": "prime-rl-20260918",
        "roll": "roll",
        "open-instruct": "open-instruct",
        "miles": "miles",
        "rllm": "rllm-verl",
        "rlinf": "rlinf",
        "xtuner": "xtuner",
        "pipelinerl": "pipelinerl",
        "tunix": "tunix",
        "tinker-cookbook": "tinker-cookbook",
        "torchtitan": "torchtitan",
        "unsloth": "unsloth",
    }
    assert all(find_trainer(spoken_name(trainer)) is trainer for trainer in TRAINERS.values())


def test_settings_are_written_for_the_newest_and_for_older_ones() -> None:
    corrects_nothing = {"trl-async-1.16", "torchtitan"}
    written = [name for name, one in families().items() if one.name not in corrects_nothing]
    assert writer_names()[: len(written) + 1] == [*written, families()["verl"].name]
    assert set(TRAINERS) - set(writers()) == {*OLD, *corrects_nothing}
    assert on_sweep_page() == ["verl", "verl-0.7.0", *written[1:]]


@pytest.mark.parametrize("name", [name for name in writers() if TRAINERS[name].config.path])
def test_settings_are_located_as_their_texts_say(name: str) -> None:
    assert ".".join(TRAINERS[name].config.path) == TRAINERS[name].words.place


@pytest.mark.parametrize("package", PACKAGES)
def test_terms_refer_to_explained_names(package: str) -> None:
    for name, term in read_terms(package).items():
        told = " ".join(explain(name).generations.values())
        assert term.says
        assert all(text in told for text in term.says.values()), name


@pytest.mark.parametrize(
    "name", [name for name in TRAINERS if name not in OLD and TRAINERS[name].family in FACTOR]
)
def test_weights_are_divided_by_what_the_trainer_logs(name: str) -> None:
    """slime logs a mean over rows that counts empty rows as 0, and divides by another one."""
    trainer = TRAINERS[name]
    plan = plan_corrections(trainer, {"it": NORMALISED[trainer.family]})
    (correction,) = plan.corrections.values()
    rows = CorrectionRows.of({None: toy_pair()}, plan, asked_by(plan)).whole
    batch = Batch(rows)
    logged = trainer.metrics(batch, correction)[FACTOR[trainer.family]]
    if name == "slime":
        logged *= batch.all_rows / len(rows)
    assert trainer.normaliser(batch, correction) == pytest.approx(logged)
    assert trainer.normaliser(batch, correction) != pytest.approx(1.0)


@pytest.mark.parametrize("name", TRAINERS)
def test_without_normalisation_the_divisor_is_one(name: str) -> None:
    trainer = TRAINERS[name]
    off = {"tis_batch_normalize": False} if name == "slime" else {}
    plan = plan_corrections(trainer, {"it": off})
    rows = CorrectionRows.of({None: toy_pair()}, plan, asked_by(plan)).whole
    assert trainer.normaliser(Batch(rows), plan.corrections["it"]) == 1.0


@pytest.mark.parametrize("name", TRAINERS)
def test_rules_name_existing_losses_and_aggregations(name: str) -> None:
    rules = TRAINERS[name].update
    assert all(loss == item.name for loss, item in rules.losses.items())
    assert all(aggregation == item.name for aggregation, item in rules.aggregations.items())
    assert set(rules.fixed.values()) <= set(rules.aggregations)
    assert rules.defaults.aggregation in rules.aggregations


def test_names_of_generations_determine_their_folder():
    """The look-up of a trainer without importing other folders relies on this."""
    for folder in trainers.FOLDERS:
        family = folder.replace("_", "-")
        for trainer in importlib.import_module(f"rcdiag.trainers.{folder}").GENERATIONS:
            assert trainer.family == family
            assert f"{trainer.name}-".startswith(f"{family}-")
            assert find_trainer(trainer.name) is TRAINERS[trainer.name]
        assert find_trainer(family) is families()[family]
    folders = Path(trainers.__file__).parent.glob("*/__init__.py")
    assert {each.parent.name for each in folders} == set(trainers.FOLDERS)


def test_a_trainer_without_a_correction_is_explained_with_the_date() -> None:
    for name in ("llamafactory", "LLaMA-Factory", "llama_factory"):
        with pytest.raises(RcdiagError, match="no correction for it, as of commit") as error:
            find_trainer(name)
        assert error.value.message.startswith(f"trainer {name}: ")
        assert "verl" in error.value.hint
    with pytest.raises(RcdiagError, match="no such trainer"):
        find_trainer("llamafactor")


def test_a_file_of_a_trainer_that_is_not_computed_is_not_read_as_of_another(tmp_path) -> None:
    """Molt has OpenRLHF's flags with other values, Trinity-RFT a block with verl's names."""
    script = tmp_path / "run.sh"
    script.write_text(
        "python3 -m molt.cli.train_rl_ray --algo.advantage.is_correction_level geo "
        "--algo.advantage.is_correction_threshold 0.99 1.01"
    )
    with pytest.raises(RcdiagError, match="a file of labs-molt: rcdiag computes no corr"):
        read_trainer_config(script)
    config = tmp_path / "run.yaml"
    config.write_text(
        "algorithm: {algorithm_type: grpo, rollout_correction: {rollout_is: token}}\n"
        "buffer: {train_batch_size: 8}\n"
    )
    with pytest.raises(RcdiagError, match="a file of trinity-rft"):
        read_trainer_config(config)


def test_a_fork_uses_the_definitions_of_its_original() -> None:
    """vime has slime's flags and functions, verl-omni calls verl's functions."""
    assert find_trainer("vime") is find_trainer("slime")
    assert find_trainer("verl-omni") is find_trainer("verl")


def test_every_generation_has_a_date() -> None:
    dated = [one.words.released for one in TRAINERS.values()]
    dated += [text for one in TRAINERS.values() for text in one.words.also_called.values()]
    dated += [one.seen for one in trainers_not_computed().values()]
    assert [text for text in dated if not re.search(r"\b202\d-\d\d-\d\d\b", text)] == []
    assert not trainers_not_computed().keys() & {*TRAINERS, *families()}

"""Settings that were read are written in the trainer's own form, and read back as the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from rcdiag.corrections.bounds import equivalent
from rcdiag.corrections.correction import Correction, Rejection, Weighting
from rcdiag.errors import RcdiagError
from rcdiag.trainers import TRAINERS
from rcdiag.trainers.emit import emit
from rcdiag.trainers.own_config import read_trainer_config
from rcdiag.trainers.plan import plan_corrections
from tests.trainers.answers import read_answers
from tests.trainers.test_stored_answers import STORED


def correction_of_file(path: Path, trainer: str | None) -> Correction:
    found = read_trainer_config(path, trainer)
    return plan_corrections(found.trainer, {"it": found.settings}).corrections["it"]


@pytest.mark.parametrize("trainer", [name for name in STORED if TRAINERS[name].config.write])
def test_settings_survive_writing_and_reading(trainer: str, tmp_path: Path) -> None:
    file = tmp_path / "config"
    for case in read_answers(STORED[trainer]).corrections:
        if case.batch != "toy":
            continue
        correction = plan_corrections(TRAINERS[trainer], {"it": case.settings}).corrections["it"]
        file.write_text(emit(correction, trainer).text)
        for name in (trainer, None):
            assert equivalent(correction_of_file(file, name), correction), case.settings


@pytest.mark.parametrize(
    ("trainer", "text"),
    [
        ("trl", "vllm_importance_sampling_mode: token_truncate\n"),
        ("axolotl", "trl:\n  async_prefetch: true\n"),
        ("openrlhf", "--algo.advantage.is_correction_threshold 0.5 3.0"),
        ("ms-swift", "rollout_importance_sampling_mode: token_mask\n"),
    ],
)
def test_settings_are_written_in_the_form_of_the_trainer(trainer: str, text: str) -> None:
    lower = None if trainer == "ms-swift" else 1 / 3.0 if trainer == "axolotl" else 0.5
    outside = "zero" if trainer == "ms-swift" else "clip"
    correction = Correction(Weighting("token", 3.0, lower or 0.0, outside))
    assert text in emit(correction, trainer).text


TOKEN = Weighting("token", 2.0)


@pytest.mark.parametrize(
    ("correction", "trainer", "lacks"),
    [
        (Correction(Weighting("geometric", 2.0)), "trl", "weights of level geometric"),
        (Correction(TOKEN, (Rejection("token", 2.0),)), "trl", "rejection by token"),
        (Correction(TOKEN, veto=1e-4), "axolotl", "veto"),
        (Correction(TOKEN), "axolotl", "bounds other than 1 / cap and cap"),
        (Correction(Weighting("token", 2.0, 0.5, "zero")), "axolotl", "its mask masks nothing"),
        (Correction(Weighting("sequence", 2.0)), "openrlhf", "weights of level sequence"),
        (Correction(None, (Rejection("token", 2.0),)), "openrlhf", "keeps the loss mask"),
        (
            Correction(Weighting("token", 9.0), zeroing=(Rejection("token_tv", 0.1),)),
            "openrlhf",
            "two bounds at once",
        ),
        (Correction(Weighting("token", 2.0, 0.5, "zero")), "ms-swift", "lower bound of weights"),
        (Correction(Weighting("sequence", 2.0)), "ms-swift", "products of ratios"),
    ],
)
def test_corrections_that_a_trainer_lacks(correction: Correction, trainer: str, lacks: str) -> None:
    with pytest.raises(RcdiagError, match=lacks):
        emit(correction, trainer)

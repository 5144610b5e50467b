"""Corrections written as a trainer's settings are read back unchanged."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace

from rcdiag.corrections.bounds import equivalent
from rcdiag.corrections.correction import Correction, Rejection, Weighting
from rcdiag.errors import RcdiagError
from rcdiag.trainers import TRAINERS, find_trainer
from rcdiag.trainers.emit import emit, expresses, writers
from rcdiag.trainers.own_config import TrainerConfig, read_trainer_config
from rcdiag.trainers.plan import Plan, plan_corrections
from rcdiag.trainers.settings_text import digits
from rcdiag.usecases.sweep.candidates import CANDIDATES
from tests.corrections.batches import batches, seeded
from tests.corrections.builders import Padded, plan_of, presets_of, results_of
from tests.corrections.configs import configs_of
from tests.corrections.drawn_corrections import by_k, corrections_of
from tests.examples import dear

every_writer = pytest.mark.parametrize("trainer", writers())
# Corrections are drawn for these trainers; others write back the settings that they read.
FIRST_TWO = pytest.mark.parametrize(
    "trainer", [name for name in writers() if TRAINERS[name].family in ("verl", "slime")]
)
TOKEN = Weighting("token", 2.0)
GEO = Rejection("geometric", 1.001, 0.997)
# Corrections without a trainer's reading and without its metrics.
ANY = replace(
    find_trainer("verl"),
    metrics=lambda batch, correction: {},
)


def as_file(text: str, trainer: str | None) -> TrainerConfig:
    with TemporaryDirectory() as folder:
        path = Path(folder, "config.yaml")
        path.write_text(text)
        return read_trainer_config(path, trainer)


def plan_of_file(read: TrainerConfig) -> Plan:
    return plan_corrections(read.trainer, {"it": read.settings})


def numbers(plan: Plan, batch: Padded, within: float = 1e-12) -> tuple:
    result = results_of(plan, batch)["it"]
    # Bounds are written with 14 digits; NaN compares equal here.
    weights = (
        None if result.weight_sum is None else pytest.approx(result.weight_sum, within, 0, True)
    )
    return result.kept_tokens, result.kept_sequences, weights


def assert_reads_back(
    correction: Correction, trainer: str, batch: Padded, within: float = 1e-12
) -> None:
    """Check that the file gives the correction's numbers, with the trainer named and detected."""
    expected = numbers(Plan(ANY, {"it": {}}, {"it": correction}), batch, within)
    text = emit(correction, trainer).text
    detected = as_file(text, None)
    assert numbers(plan_of_file(detected), batch) == expected, text
    if detected.trainer.name != trainer:  # else naming it reads the same
        assert numbers(plan_of_file(as_file(text, trainer)), batch) == expected, (trainer, text)


@FIRST_TWO
@given(data=st.data(), seed=st.integers(0, 2**16), sd=st.sampled_from((0.02, 0.3, 1.0)))
@dear(60)
def test_a_written_correction_has_the_same_mask_and_weights(trainer, data, seed, sd):
    assert_reads_back(data.draw(corrections_of(trainer)), trainer, seeded(seed, sd=sd, bias=-0.01))


@every_writer
@given(data=st.data())
@dear(60)
def test_settings_that_a_trainer_reads_can_be_written_for_it(trainer, data):
    correction = plan_of(trainer, data.draw(configs_of(trainer))).corrections["it"]
    batch = data.draw(batches(kinds=("near", "wide", "far", "cancelling", "equal")))
    assert_reads_back(correction, trainer, batch)


@pytest.mark.parametrize("source", TRAINERS)
def test_presets_are_carried_to_every_trainer_that_can_express_them(source):
    moved = 0
    for name, correction in presets_of(source).corrections.items():
        for trainer in writers():
            if expresses(TRAINERS[trainer], correction):
                assert_moves(correction, trainer)
                moved += 1
            else:
                assert trainer != source, name
    # The veto of 0.6.0 zeroes weights, which no other generation does.
    assert moved >= {"verl-0.6.0": 0, "verl-20251027": 7}.get(source, 2)
    assert source != "verl-0.6.0" or moved == 0


@cache
def assert_moves(correction: Correction, trainer: str) -> None:
    """Presets of several trainers that are the same correction are carried alike."""
    # Some trainers add 1e-8 to counts that they divide by.
    assert_reads_back(correction, trainer, seeded(7, sd=0.05), within=1e-7)


@every_writer
def test_written_settings_replace_any_preset_that_a_configuration_has(trainer):
    """What they do not name must not go on rejecting, weighting or bypassing."""
    writer = TRAINERS[trainer]
    candidates = [one.correction for one in CANDIDATES.values()]
    for correction in [*candidates, *presets_of(trainer).corrections.values()]:
        if not expresses(writer, correction):
            continue
        written = emit(correction, trainer).settings
        for name, preset in writer.presets.items():
            read = writer.read({**writer.settings, **preset, **written})
            assert equivalent(correction, read), (name, correction)


def correction_of(name: str, **changes) -> Correction:
    return replace(
        {
            "icepop": Correction(Weighting("token", 5.0, 0.5, "zero")),
            "clip": Correction(Weighting("token", 2.0, 0.5, "clip")),
            "tis": Correction(TOKEN),
            "geo": Correction(TOKEN, (GEO,)),
            "two": Correction(TOKEN, (GEO, Rejection("token", 2.0, 0.5))),
            "k3": Correction(TOKEN, (Rejection("seq_mean_k3", 0.01),)),
            "rejection alone": Correction(None, (GEO,)),
            "geometric weights": Correction(Weighting("geometric", 2.0)),
        }[name],
        **changes,
    )


@pytest.mark.parametrize(
    ("correction", "trainer", "lacks", "who"),
    [
        (correction_of("tis", veto=1e-4), "verl", "verl-0.9 has no veto", "verl-0.7.0"),
        (correction_of("icepop"), "verl-0.7.1", "zeroed outside of bounds", "verl-0.9, verl-0.8.0"),
        (correction_of("icepop"), "verl-0.7.0", "zeroed outside of bounds", "verl-0.9, verl-0.8.0"),
        (
            Correction(Weighting("sequence", 2.0, 0.5, "zero")),
            "slime",
            "zeroed outside of bounds",
            "trl-1.16",
        ),
        (correction_of("clip"), "verl", "clipped from below", "slime"),
        (correction_of("two"), "verl-0.7.0", "two rejections", "verl-0.7.1"),
        (correction_of("two"), "slime", "two rejections", "verl-0.7.1"),
        (correction_of("k3"), "slime", "slime has no rejection by seq_mean_k3", "verl-0.9"),
        (correction_of("k3"), "verl-0.7.0", "rejection by seq_mean_k3", "verl-0.9"),
        (correction_of("rejection alone"), "slime", "rejection without weights", "verl-0.7.0"),
        (correction_of("geometric weights"), "verl", "weights of geometric means", "slime"),
        (correction_of("tis", mode="bypass", loss="reinforce"), "slime", "bypass", "verl-0.7.0"),
        (correction_of("tis", mode="bypass"), "verl", "in the loss of bypass mode", "no trainer"),
        (correction_of("tis", weights_applied=False), "verl", "logged only", "no trainer"),
        (correction_of("tis", loss="gspo", mode="bypass"), "verl", "loss `gspo`", "no trainer"),
        (
            correction_of("tis", veto=1e-4, veto_on_weights=True),
            "verl-0.7.0",
            "veto that zeroes weights",
            "no trainer",
        ),
        (
            correction_of("geo", rejections=(Rejection("geometric", 0.9, 1.1),)),
            "verl",
            "settings for it that it takes",
            "verl-0.8.0",
        ),
        # A product of ratios is clamped to e^+-20, a sum of k1 is not.
        (
            Correction(TOKEN, (Rejection("seq_sum_k1", 25.0, -25.0),)),
            "verl-0.7.0",
            "settings that do just this",
            "verl-0.9, verl-0.8.0, verl-0.7.1",
        ),
        (
            Correction(Weighting("geometric", 2.0), batch_normalize=True),
            "slime",
            "settings for it that it takes (tis_batch_normalize",
            "no trainer",
        ),
    ],
)
def test_a_missing_feature_names_trainers_that_have_it(correction, trainer, lacks, who):
    with pytest.raises(RcdiagError) as error:
        emit(correction, trainer)
    assert lacks in error.value.message
    assert who in error.value.hint
    assert find_trainer(trainer).name not in error.value.hint


def test_an_invalid_bound_is_refused():
    with pytest.raises(RcdiagError, match="a bound on ratios is -1"):
        emit(Correction(Weighting("token", -1.0)), "verl")
    with pytest.raises(RcdiagError, match=r"does not write settings of verl-0\.6\.0"):
        emit(Correction(TOKEN), "verl-0.6.0")


def test_k1_windows_are_mirrored_with_a_note():
    result = emit(correction_of("geo"), "verl")
    assert result.trainer == "verl-0.9"
    assert result.settings["rollout_rs"] == "seq_mean_k1"
    low, high = map(float, result.settings["rollout_rs_threshold"].split("_"))
    assert (low, high) == (pytest.approx(1 / 1.001, 1e-12), pytest.approx(1 / 0.997, 1e-12))
    assert "against -log_ratio: these keep geometric ratios from 0.997 to 1.001" in result.text
    mirrored = emit(Correction(None, (Rejection("token", 1 / 0.6, 1 / 1.6),)), "verl").settings
    assert mirrored["rollout_rs_threshold"] == "0.6_1.6"
    as_it_is = emit(correction_of("geo"), "verl-0.7.0").settings
    assert as_it_is["rollout_rs_threshold"] == 1.001
    assert as_it_is["rollout_rs_threshold_lower"] == 0.997


def test_strings_are_quoted_and_numbers_are_not():
    pops = Correction(Weighting("token", 5.0, 0.5, "zero"))
    for read in (yaml.safe_load, lambda text: yaml.load(text, Loader=yaml.BaseLoader)):
        document = read(emit(pops, "verl").text)
        assert document["algorithm"]["rollout_correction"]["rollout_is_threshold"] == "0.5_5.0"
    veto = Correction(TOKEN, veto=1e-5)
    text = emit(veto, "verl-0.7.0").text
    assert "rollout_token_veto_threshold: 1.0e-05" in text
    block = yaml.safe_load(text)["algorithm"]["rollout_correction"]
    assert block["rollout_token_veto_threshold"] == 1e-5
    assert yaml.safe_load(emit(veto, "slime").text)["rs_veto_threshold"] == 1e-5


@FIRST_TWO
def test_the_written_file_has_the_settings_and_no_findings(trainer):
    result = emit(correction_of("geo"), trainer)
    read = as_file(result.text, trainer)
    assert read.settings == result.settings
    assert read.findings == ()
    assert find_trainer(trainer).ignored({**find_trainer(trainer).settings, **read.settings}) == []


@given(value=st.floats(1e-12, 1e12))
def test_bounds_have_enough_digits(value):
    assert float(digits(value)) == pytest.approx(value, rel=1e-14, abs=0.0)
    assert digits(1.0 / (1.0 / 0.3)) == "0.3"
    assert digits(1e-6) == "1.0e-06"


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ({"rejections": (Rejection("token", 4.0, 0.5),)}, ("token_k1", np.log(2.0), -np.log(4.0))),
        ({"rejections": (Rejection("sequence", 2.0),)}, ("seq_sum_k1", np.inf, -np.log(2.0))),
        ({"rejections": (GEO,)}, ("seq_mean_k1", -np.log(0.997), -np.log(1.001))),
    ],
)
def test_ratio_windows_and_k1_windows_are_equivalent(a, b):
    one = Correction(TOKEN, **a)
    assert equivalent(one, Correction(TOKEN, (Rejection(*b),)))
    name, upper, lower = b
    mirrored = Rejection(name, -lower, -upper)
    assert not equivalent(one, Correction(TOKEN, (mirrored,)))


@given(data=st.data(), factor=st.sampled_from((1 + 1e-6, 1 - 1e-6, 1.5)))
def test_other_bounds_are_another_correction(data, factor):
    correction = data.draw(by_k(icepop=True))
    assert equivalent(correction, correction)
    assert not equivalent(correction, replace(correction, mode="other"))
    assert not equivalent(correction, replace(correction, veto=0.5))
    assume(correction.rejections)
    first, *others = correction.rejections
    moved = (replace(first, upper=first.upper * factor), *others)
    levels = {"token_k1", "seq_sum_k1", "seq_mean_k1", "token", "sequence", "geometric"}
    assume(len(correction.rejections) == 1 or not levels & {it.statistic for it in others})
    assert equivalent(correction, replace(correction, rejections=moved)) == (
        abs(np.log(factor)) * first.upper <= 1e-9 and first.statistic.startswith(("token_", "seq_"))
    )

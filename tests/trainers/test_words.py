"""Texts of trainers: complete, none orphaned, and correct."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from rcdiag.errors import RcdiagError
from rcdiag.glossary import explain
from rcdiag.losses.batch import loss_batch
from rcdiag.losses.evaluate import LossResult
from rcdiag.statistics.metrics import METRICS
from rcdiag.trainers import TRAINERS
from rcdiag.trainers.toml_file import expand, label
from rcdiag.trainers.toml_words import (
    KeyWords,
    SettingWords,
    read_generations,
    read_keys,
    read_renamed_presets,
    read_settings,
    read_terms,
)
from tests.corrections.builders import padded, result_of
from tests.losses.rules import default_settings, evaluate
from tests.trainers.toy import (
    BEHAVIOR,
    LENGTHS,
    LOG_RATIOS,
    by_losses,
    logged,
    replayed,
)

PACKAGES = tuple(dict.fromkeys(trainer.package for trainer in TRAINERS.values()))
PACKAGE_OF = {name: package for package in PACKAGES for name in read_generations(package)}


def all_logged(trainer: str) -> set[str]:
    return set(logged(trainer)).union(*by_losses(trainer).values())


def test_generations_are_those_of_the_registry() -> None:
    assert list(PACKAGE_OF) == list(TRAINERS)


def test_every_logged_key_has_a_text_and_no_text_is_orphaned() -> None:
    for trainer in TRAINERS:
        keys = read_keys(PACKAGE_OF[trainer]).values()
        known = {key.names[trainer] for key in keys if trainer in key.names}
        elsewhere = {key.names[trainer] for key in keys if trainer in key.names and key.result}
        assert known - elsewhere == all_logged(trainer)


def test_every_setting_has_a_text() -> None:
    for trainer in TRAINERS:
        assert set(TRAINERS[trainer].settings) <= set(read_settings(PACKAGE_OF[trainer]))


@pytest.mark.parametrize("package", PACKAGES)
def test_texts_of_settings_name_generations_that_have_them(package: str) -> None:
    for name, setting in read_settings(package).items():
        having = {item for item in read_generations(package) if name in TRAINERS[item].settings}
        assert having, name
        assert set(setting.generations) <= having, name


@pytest.mark.parametrize("package", PACKAGES)
def test_names_under_see_exist(package: str) -> None:
    words: list[KeyWords | SettingWords] = [
        *read_keys(package).values(),
        *read_settings(package).values(),
    ]
    for other in {other for item in words for other in item.see}:
        assert explain(other)


@pytest.mark.parametrize("package", PACKAGES)
def test_a_spelling_belongs_to_one_key(package: str) -> None:
    spellings = [item for key in read_keys(package).values() for item in key.spellings]
    assert len(spellings) == len(set(spellings))


def test_a_key_is_spelt_with_every_prefix() -> None:
    assert set(read_keys("rcdiag.trainers.verl")["kl"].spellings) == {
        *("kl", "mismatch/mismatch_kl", "rollout_corr/kl"),
        *("actor/kl", "actor/mismatch/mismatch_kl", "actor/rollout_corr/kl"),
    }
    assert "train/mis_kl" in read_keys("rcdiag.trainers.slime")["kl"].spellings


def test_old_and_new_preset_names_are_never_in_one_generation() -> None:
    for package in PACKAGES:
        for name, others in read_renamed_presets(package).items():
            having = [set(TRAINERS[item].presets) for item in read_generations(package)]
            assert any(name in presets for presets in having)
            assert not any(name in presets and presets & set(others) for presets in having)


# Examples with numbers.


def _value(key: KeyWords, trainer: str) -> float:
    if key.family != "losses":
        return logged(trainer)[key.names[trainer]]
    if key.result:
        return replayed(trainer, "vanilla").loss
    results = (replayed(trainer, loss) for loss in TRAINERS[trainer].update.losses)
    return next(
        result.metrics[key.names[trainer]]
        for result in results
        if key.names[trainer] in result.metrics
    )


def test_worked_numbers() -> None:
    for trainer in TRAINERS:
        for name, key in read_keys(PACKAGE_OF[trainer]).items():
            assert key.example, name
            if trainer in key.names and key.numbers:
                assert f"{key.numbers[trainer]:.4g}" == f"{_value(key, trainer):.4g}", name


def test_examples_use_the_toy_batch() -> None:
    def rows(values: np.ndarray) -> str:
        parts = np.split(values, np.cumsum(LENGTHS)[:-1])
        return ", ".join(f"[{', '.join(f'{item:g}' for item in part)}]" for part in parts)

    for package in PACKAGES:
        examples = [str(key.example) for key in read_keys(package).values()]
        toy = f"log-ratios {rows(LOG_RATIOS)}"
        assert any(each.startswith(f"{toy} and a row without a token") for each in examples)
        update = f"vanilla, old log-probs {rows(BEHAVIOR)}, {toy} of current to old, advantages 1"
        of_losses = any(key.family == "losses" for key in read_keys(package).values())
        assert f"{update} and -1" in examples or not of_losses


@pytest.mark.parametrize("package", PACKAGES)
def test_metrics_that_only_rcdiag_computes(package: str) -> None:
    known = {*LossResult.__struct_fields__, *(f"mismatch.{name}" for name in METRICS)}
    known |= {"not observable", "a constant"}
    assert {key.result for key in read_keys(package).values() if key.result} <= known


SLIME = read_keys("rcdiag.trainers.slime")


def _tis(log_ratios: list[float]) -> dict[str, float]:
    """Compute slime's logged metrics for tokens with these log-ratios of old to rollout."""
    config = TRAINERS["slime"].presets["tis_by_flag"]
    return result_of("slime", dict(config), padded([[value] for value in log_ratios])).metrics


def test_worked_ratio_of_slime() -> None:
    value = _tis([0.1, 1.5])["tis"]
    assert value == pytest.approx((math.exp(0.1) + math.exp(1.5)) / 2)
    assert SLIME["tis"].example == (
        f"log-ratios 0.1 and 1.5: (1.105 + 4.482) / 2 = {value:.4g}, though the bound is 2"
    )


def test_worked_share_beyond_the_bounds_of_slime() -> None:
    value = _tis([math.log(1.1), math.log(4.5)])["tis_clipfrac"]
    assert SLIME["tis_clipfrac"].example == f"ratios 1.1 and 4.5, bounds 0 and 2: {value:.4g}"


def test_worked_distance_from_one_of_slime() -> None:
    value = _tis([math.log(1.1), math.log(0.9)])["tis_abs"]
    assert SLIME["tis_abs"].example == f"ratios 1.1 and 0.9: {value:.4g}"


def test_worked_ppo_ratio_of_slime() -> None:
    old = np.zeros(2)
    current = np.array([0.1, -0.1])
    batch = loss_batch(current, old, old, [1, 1], rollout=old, weights=np.ones(2))
    value = evaluate(batch, "vanilla", default_settings("slime"), "slime").metrics["ois"]
    assert SLIME["ois"].example == f"log-ratios 0.1 and -0.1: (1.105 + 0.905) / 2 = {value:.4g}"


def test_worked_difference_of_slime_shrinks_with_rejection() -> None:
    old, rollout = BEHAVIOR + LOG_RATIOS, BEHAVIOR
    ratios = np.exp(LOG_RATIOS)
    rejected = [bool(item) for item in (ratios >= 0.5) & (ratios <= 2.0)]
    values = []
    for kept in (None, rejected):
        batch = loss_batch(old, old, np.ones(5), LENGTHS, rollout=rollout, kept=kept)
        metrics = evaluate(batch, "vanilla", default_settings("slime"), "slime").metrics
        values.append(f"{metrics['train_rollout_logprob_abs_diff']:.4g}")
    before, after = values
    assert (SLIME["train_rollout_logprob_abs_diff"].example or "").endswith(
        f": {before}, logged as {after} after rejection of ratios outside 0.5 to 2"
    )


def test_worked_dual_clip_of_verl() -> None:
    batch = loss_batch([-0.1], [-0.1 - math.log(4.0)], [-1.0], [1])
    result = evaluate(batch, "vanilla", default_settings("verl-0.9"), "verl-0.9")
    assert result.loss == pytest.approx(3.0)
    assert result.metrics["actor/pg_clipfrac_lower"] == pytest.approx(1.0)
    example = read_keys("rcdiag.trainers.verl")["pg_clipfrac_lower"].example
    assert example == "A = -1, r = 4, clip_c = 3: the loss is 3 and not 4, and the token counts"


# Policy losses.


@pytest.mark.parametrize("package", PACKAGES)
def test_a_key_lists_the_losses_that_log_it(package: str) -> None:
    newest = list(read_generations(package))[-1]
    logging = by_losses(newest)
    for name, key in read_keys(package).items():
        if key.losses:
            output = {loss for loss, keys in logging.items() if key.names[newest] in keys}
            assert set(key.losses) == output, name
        for loss, formula in key.losses.items():
            if formula == "0":
                assert replayed(newest, loss).metrics[key.names[newest]] == 0.0, name


def test_a_loss_without_a_number_logs_0_or_nothing() -> None:
    for trainer in TRAINERS:
        for key in read_keys(PACKAGE_OF[trainer]).values():
            if (
                trainer in key.names
                and "a loss that has no such number" in key.generations[trainer]
            ):
                in_all = all(key.names[trainer] in keys for keys in by_losses(trainer).values())
                assert key.generations[trainer].endswith("logs 0" if in_all else "logs nothing")


# Reading the TOML files.


def test_groups_of_generations() -> None:
    order = ["a-1", "a-2", "a-3", "a-4"]
    assert expand("a-1", order) == ["a-1"]
    assert expand("a-4, a-1", order) == ["a-1", "a-4"]
    assert expand("a-1 to a-3", order) == ["a-1", "a-2", "a-3"]
    assert expand("a-1, a-3 on", order) == ["a-1", "a-3", "a-4"]
    assert label(["a-1", "a-2", "a-3"], order) == "a-1 to a-3"
    assert label(["a-4", "a-1", "a-3"], order) == "a-1, a-3, a-4"
    with pytest.raises(RcdiagError, match="'b' names no generation"):
        expand("b", order)


GENERATION = '[trl]\nsays = "s"\nreleased = "r"\nplace = "p"\nsource = "s"\n'
HEADER = '[header.families.own]\nprefix = ""\n'


def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: str, settings: str = "") -> str:
    """Make a package of texts with a unique name, since texts are cached."""
    name = f"words_{tmp_path.name}".replace("-", "_")
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("")
    for file, text in (("generations", GENERATION), ("keys", keys), ("settings", settings)):
        (tmp_path / name / f"{file}.toml").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    return name


def test_the_smallest_trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = package(
        tmp_path,
        monkeypatch,
        f'{HEADER}[kl]\nsays = "Mean KL."\n',
        '[cap]\nsays = "Upper bound of the weights."\n',
    )
    assert read_keys(name)["kl"].names == {"trl": "kl"}
    assert read_settings(name)["cap"].says == "Upper bound of the weights."
    assert read_renamed_presets(name) == {}


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ('says = "a"\ncolour = "b"', r"keys.toml: \[kl\]: unknown field `colour`"),
        ('unit = "nats"', r"keys.toml: \[kl\]: missing required field `says`"),
        ("says = 3", r"keys.toml: \[kl\]: `says`: Expected `str`, got `int`"),
        ('says = "a"\nsee = "b"', r"\[kl\]: `see`: Expected `array`, got `str`"),
        ('says = "a"\n[own]\nsays = "b"', r"keys.toml: says: 'b' is not a table"),
        ('says = "a"\nlogged_by = "grpo"', r"\[kl\]: 'grpo' names no generation"),
        ('says = "a {toy}"', r"\[kl\]: a text holds braces with 'toy'"),
        ('says = "a"\n[kl.generations]\ngrpo = "b"', r"\[kl\]: 'grpo' names no generation"),
        (
            'says = "a"\n[kl.generations]\n"trl, trl" = 1',
            r"\[kl\]: `generations\[...\]`: Expected `str`",
        ),
        ('says = "a"\nnumbers = "b"', r"keys.toml: \[kl\]: `numbers`: Expected `float . object`"),
        ('says = "a', r"keys.toml: not valid TOML"),
    ],
)
def test_errors_in_a_file_are_named(
    table: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = package(tmp_path, monkeypatch, f"{HEADER}[kl]\n{table}\n")
    with pytest.raises(RcdiagError, match=message):
        read_keys(name)


def test_a_key_inherits_missing_fields_from_its_family(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    header = '[header.families.one]\nprefix = "one/"\nexample = "{of} two"\n'
    header += '[header.families.two]\nprefix = "two/"\n[header.texts]\nof = "of"\n'
    keys = '[one.kl]\nsays = "a"\n[two.ess]\nsays = "b"\n[one.k3]\nsays = "c"\nexample = "of 3"\n'
    words = read_keys(package(tmp_path, monkeypatch, header + keys))
    assert [(one.names["trl"], one.example) for one in words.values()] == [
        ("one/kl", "of two"),
        ("one/k3", "of 3"),
        ("two/ess", None),
    ]


def test_keys_without_a_family_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = package(tmp_path, monkeypatch, '[kl]\nsays = "a"\n')
    with pytest.raises(RcdiagError, match=r"\[kl\]: the keys have no family"):
        read_keys(name)


def test_placeholders_are_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    header = f'{HEADER}[header.placeholders.side]\nlow = {{ word = "below" }}\n'
    table = '["{side}_share"]\nsays = "Share {word}."\n["{side}_share".numbers]\n'
    good = package(tmp_path, monkeypatch, f"{header}{table}low = 0.5\n")
    words = read_keys(good)["low_share"]
    assert (words.says, words.numbers, words.pattern) == (
        "Share below.",
        {"trl": 0.5},
        "{side}_share",
    )
    (tmp_path / good / "keys.toml").write_text(f"{header}{table}high = 0.5\n")
    read_keys.cache_clear()
    with pytest.raises(RcdiagError, match="`numbers` has 'high', which is not a value of side"):
        read_keys(good)


def test_a_generation_has_all_its_fields(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = package(tmp_path, monkeypatch, "")
    (tmp_path / name / "generations.toml").write_text('[trl]\nsays = "s"\n')
    with pytest.raises(
        RcdiagError, match=r"generations.toml: \[trl\]: missing required field `released`"
    ):
        read_generations(name)


def test_a_missing_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = package(tmp_path, monkeypatch, "")
    (tmp_path / name / "keys.toml").unlink()
    with pytest.raises(RcdiagError, match=r"keys.toml: missing"):
        read_keys(name)


WORDS_OF_ONE_MODULE = '''
WORDS = """
generations.one = { says = "s", released = "2026-01-01", place = "p", source = "t" }
keys.header.families.weights.prefix = "one/"
keys.mean.says = "The mean weight."
settings.cap.says = "The upper bound."
"""
'''


def test_the_words_of_a_trainer_that_is_one_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"module_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(WORDS_OF_ONE_MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    assert read_generations(name)["one"].released == "2026-01-01"
    assert read_keys(name)["mean"].names == {"one": "one/mean"}
    assert read_settings(name)["cap"].says == "The upper bound."
    assert read_terms(name) == {}


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("", r"\.WORDS: missing"),
        ("WORDS = 'generations = 1'", r"\.WORDS: generations: 1 is not a table"),
        ("WORDS = '['", r"\.WORDS: not valid TOML"),
        ("WORDS = 'generations.one.says = \"s\"'", r"\[one\]: missing required field `released`"),
    ],
)
def test_a_module_with_bad_words_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, message: str
) -> None:
    name = f"module_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RcdiagError, match=message):
        read_generations(name)

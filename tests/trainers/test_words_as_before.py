"""The words in TOML say what `rcdiag explain` says. Goes with the old code of `explain`."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from rcdiag.corrections.trainers import TRAINERS
from rcdiag.corrections.trainers.verl_k import OPTIONS
from rcdiag.explain import logged, loss_keys, presets
from rcdiag.explain import settings as old_settings
from rcdiag.explain.describe import plain
from rcdiag.explain.generations import grouped
from rcdiag.explain.keys import KEYS
from rcdiag.explain.keys.debug import DEBUG
from rcdiag.explain.keys.rejection import OF_OPTIONS, OPTION
from rcdiag.explain.setting_words import SETTINGS
from rcdiag.explain.trainers import WHEN, place

from rcdiag.trainers.words import (
    KeyWords,
    read_generations,
    read_keys,
    read_renamed_presets,
    read_settings,
)
from tests.trainers.reworded import REWORDED

PACKAGES = ("rcdiag.trainers.verl", "rcdiag.trainers.slime")


def now(text: str | None) -> str | None:
    return REWORDED.get(text, text) if text else text


def now_each(generations: Mapping[str, str]) -> dict[str, str]:
    """`rollout_corr/kl: over tokens` in other words behind the name."""
    texts = {group: text.partition(": ") for group, text in generations.items()}
    return {
        group: f"{name}{colon}{now(text)}" if now(text) else name
        for group, (name, colon, text) in texts.items()
    }


def in_both(name: str) -> list[KeyWords]:
    return [keys[name] for keys in map(read_keys, PACKAGES) if name in keys]


def by_generation(texts: Mapping[str, str]) -> dict[str, str]:
    """Texts by generation, in groups, as an entry has them."""
    return grouped({name: texts[name] for name in TRAINERS if name in texts})


def generations(keys: list[KeyWords]) -> dict[str, str]:
    return by_generation(
        {
            name: key.names[name] + (f": {text}" if text else "")
            for key in keys
            for name, text in key.generations.items()
        }
    )


def example(keys: list[KeyWords]) -> str | None:
    numbers = {name: f"{number:.4g}" for key in keys for name, number in key.numbers.items()}
    values = [f"{value} in {names}" for names, value in by_generation(numbers).items()]
    return f"{keys[0].example}: {'; '.join(values)}" if values else keys[0].example


def all_names() -> list[str]:
    options = [key.replace(OPTION, option) for key in OF_OPTIONS for option in OPTIONS]
    return [key for key in KEYS if key not in OF_OPTIONS] + options


@pytest.mark.parametrize("name", all_names())
def test_keys(name: str) -> None:
    before, keys = logged.entry(name), in_both(name)
    if not before.example.partition(": ")[2] and name not in DEBUG:
        assert not keys  # low shares of k2 and k3 are not logged
        return
    key = keys[0]
    what, x, statistic = before.what.partition(" x is ")
    assert key.says == f"{now(what)}{x}{statistic}"
    formula = now(before.formula) or ""
    if key.family == "ratios":
        formula = formula.replace("weight", "ratio").replace("w^2", "ratio^2")
        formula = formula.replace("E[w]", "E[ratio]").replace("(w /", "(ratio /")
    assert key.formula == formula
    assert key.direction == now(before.direction)
    assert (key.unit or "none") == before.units
    assert key.healthy == now(before.healthy)
    assert generations(keys) == now_each(before.generations)
    assert example(keys) == now(before.example)
    assert key.see == before.see


@pytest.mark.parametrize("name", loss_keys.KEYS)
def test_keys_of_losses(name: str) -> None:
    before, keys = loss_keys.entry(name), in_both(name)
    key = keys[0]
    assert key.says == now(before.what)
    formula = {", ".join(losses): now(text) for losses, text in loss_keys.KEYS[name].of.items()}
    said: dict[str, list[str]] = {}
    for loss, text in key.losses.items():
        said.setdefault(text, []).append(loss)
    assert {", ".join(losses): text for text, losses in said.items()} == formula
    assert key.losses or key.formula == now(before.formula)
    assert key.direction == now(before.direction)
    assert key.unit == before.units
    assert key.healthy == now(before.healthy)
    assert key.see == before.see
    if "slime" in before.generations:
        assert generations(keys[-1:])["slime"] == now_each(before.generations)["slime"]
    assert {name for key in keys for name in key.names.values()} == {
        text.partition(": ")[0] for text in before.generations.values()
    }


@pytest.mark.parametrize("name", SETTINGS)
def test_settings(name: str) -> None:
    before = old_settings.entry(name)
    (setting,) = [each[name] for each in map(read_settings, PACKAGES) if name in each]
    assert setting.says == now(before.what)
    assert setting.unit == before.units
    assert setting.healthy == now(before.healthy)
    assert setting.example == now(before.example)
    assert setting.see == before.see
    places = {each.name: each.place for each in _all_generations()}
    having = {
        each: trainer.settings for each, trainer in TRAINERS.items() if name in trainer.settings
    }
    said = {
        each: "; ".join(
            filter(
                None,
                [
                    f"in {places[each]}, default {plain(settings[name])}",
                    setting.generations.get(each),
                ],
            )
        )
        for each, settings in having.items()
    }
    before_now = {}
    for group, text in before.generations.items():
        where, semicolon, own = text.partition("; ")
        before_now[group] = f"{where}{semicolon}{now(own) or ''}"
    assert by_generation(said) == before_now


def _all_generations() -> list:
    return [each for package in PACKAGES for each in read_generations(package).values()]


def test_generations() -> None:
    assert [each.name for each in _all_generations()] == list(TRAINERS)
    for each in _all_generations():
        assert each.says == now(TRAINERS[each.name].about)
        assert each.released == now(WHEN[each.name].removeprefix("released "))
        assert each.place == now(place(each.name))


def test_renamed_presets() -> None:
    renamed = read_renamed_presets("rcdiag.trainers.verl")
    for name, others in presets.RENAMED.items():
        assert set(others) <= set(renamed[name])


def test_nothing_was_added() -> None:
    names = {key.pattern or key.name for package in PACKAGES for key in read_keys(package).values()}
    before = {key.replace(OPTION, _placeholder(key)) for key in KEYS} | set(loss_keys.KEYS)
    assert names - {"rollout_is_p{percent}"} == {
        name for name in before if name[:12] != "rollout_is_p" or not name[12:].isdigit()
    }


def _placeholder(key: str) -> str:
    return "{k1_option}" if key.endswith("seq_fraction_low") else "{option}"

"""Settings tables of trainers: their columns, and that all names in them exist."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rcdiag.errors import RcdiagError
from rcdiag.trainers import TRAINERS
from rcdiag.trainers.conditions import TESTS, ClaimRule, claim_by_rules, holds
from rcdiag.trainers.plan import plan_corrections
from rcdiag.trainers.settings_document import Document
from rcdiag.trainers.settings_table import Refused, Setting, Settings, read_tables
from rcdiag.trainers.toml_words import read_findings
from rcdiag.trainers.writing import facts_of

OPSM = "off_policy_mask_threshold"  # used by no preset
GENERATIONS = "".join(
    f'[{name}]\nsays = "s"\nreleased = "r"\nplace = "p"\nsource = "s"\n'
    for name in ("a-1", "a-2", "a-3")
)


def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: str) -> str:
    """Make a package of three generations with a unique name, since tables are cached."""
    name = f"tables_{tmp_path.name}".replace("-", "_")
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("")
    (tmp_path / name / "generations.toml").write_text(GENERATIONS)
    (tmp_path / name / "settings.toml").write_text(settings)
    monkeypatch.syspath_prepend(tmp_path)
    return name


def test_generations_differ_in_settings_and_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = read_tables(
        package(
            tmp_path,
            monkeypatch,
            '[header]\nat = ["algo.{name}", "{name}"]\n'
            '[cap]\nsays = "s"\ndefault = { "a-1, a-3" = 2.0, "a-2" = 3.0 }\n'
            '[mode]\nsays = "s"\nsince = "a-2"\ndefault = "token"\n'
            '[old]\nsays = "s"\nuntil = "a-2"\n'
            '[place]\nsays = "s"\nsince = "a-3"\nat = ["actor.{name}"]\n',
        )
    )
    assert tables["a-1"].defaults() == {"cap": 2.0, "old": None}
    assert tables["a-2"].defaults() == {"cap": 3.0, "mode": "token", "old": None}
    assert tables["a-3"].defaults() == {"cap": 2.0, "mode": "token", "place": None}
    assert tables["a-3"].places() == {
        "cap": ("algo.cap", "cap"),
        "mode": ("algo.mode", "mode"),
        "place": ("actor.place",),
    }


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ('[cap]\nsays = "s"\ncolour = "b"', r"settings.toml: \[cap\]: unknown field `colour`"),
        ('[cap]\nsays = "s"\nat = "cap"', r"\[cap\]: `at`: Expected `array`, got `str`"),
        (
            '[cap]\nsays = "s"\nwrite = { fct = "upper" }',
            r"\[cap\]: `write`: .*unknown field `fct`",
        ),
        ('[cap]\nsays = "s"\nsince = "a-9"', r"\[cap\]: 'a-9 to a-3' names no generation"),
        (
            '[header]\nlacks = [{ says = "veto" }]',
            r"\[header\]: `lacks\[0\]`: missing required field `when`",
        ),
        ('[header]\nhydra = 1\n[cap]\nsays = "s"', r"\[header\]: `hydra`: Expected `bool`"),
    ],
)
def test_errors_in_a_table_are_named(
    table: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RcdiagError, match=message):
        read_tables(package(tmp_path, monkeypatch, f"{table}\n"))


@pytest.mark.parametrize(
    ("columns", "value", "taken"),
    [
        ({"type": "number"}, True, 1.0),
        ({"type": "number", "null": True}, None, None),
        ({"type": "positive"}, 2, 2.0),
        ({"type": "not negative"}, 0, 0.0),
        ({"type": "positive or text"}, "0.5_5", "0.5_5"),
        ({"type": "switch"}, False, False),
        ({"type": "choice", "choices": ("token", "sequence")}, "token", "token"),
        ({}, [1], [1]),
    ],
)
def test_values_are_accepted_as_by_the_trainer(
    columns: dict[str, Any], value: Any, taken: Any
) -> None:
    setting = Setting(name="cap", **columns)
    assert setting.checked(value) == taken
    assert isinstance(setting.checked(value), type(taken))


@pytest.mark.parametrize(
    ("columns", "value", "message"),
    [
        ({"type": "number"}, "2", "cap: wanted a number, got '2'"),
        ({"type": "number"}, None, "cap: wanted a number, got null"),
        ({"type": "number", "null": True}, "2", "cap: wanted a number or null, got '2'"),
        ({"type": "positive"}, 0.0, "cap: wanted a number above 0, got 0.0"),
        ({"type": "positive"}, True, "cap: wanted a number above 0, got True"),
        ({"type": "not negative"}, -1, "cap: wanted a number, 0 or above, got -1"),
        ({"type": "switch"}, 1, "cap: wanted true or false, got 1"),
        ({"type": "choice", "choices": ("token",)}, "tokn", "cap: 'tokn' is not one of its values"),
    ],
)
def test_values_that_the_trainer_refuses(columns: dict[str, Any], value: Any, message: str) -> None:
    with pytest.raises(Refused) as error:
        Setting(name="cap", **columns).checked(value)
    assert error.value.message.startswith(message)


def test_a_setting_that_is_not_read_is_not_checked() -> None:
    table = {name: Setting(name=name, type="positive") for name in ("on", "off")}
    settings = Settings(table, {"on": 2, "off": "x"})
    assert settings["on"] == 2.0
    assert settings.unchecked("off") == "x"
    with pytest.raises(Refused):
        settings["off"]


@pytest.mark.parametrize(
    ("wanted", "passing", "failing"),
    [
        ("token", "token", "sequence"),
        (["token", "off"], "off", None),
        ({"null": True}, None, 0),
        ({"on": True}, [0], []),
        ({"not": ["off", False]}, "token", False),
        ({"above": 1}, 1.5, True),
        ({"at_most": 0}, -1, "0"),
        ({"matches": "^a[.]"}, "a.b", 3),
        ({"count_above": 1}, ("a", "b"), None),
        ({"beyond": ["a"]}, ("a", "b"), ("a",)),
        ({"beyond": ["a"]}, "b", None),
        ({"above": 1, "at_most": 2}, 2, 3),
    ],
)
def test_conditions(wanted: Any, passing: Any, failing: Any) -> None:
    assert holds({"x": wanted}, {"x": passing}.get)
    assert not holds({"x": wanted}, {"x": failing}.get)


def test_every_test_of_conditions_is_tested_and_others_are_refused() -> None:
    with pytest.raises(RcdiagError, match="tests `x` by `abov`") as error:
        holds({"x": {"abov": 1}}, {"x": 2}.get)
    assert "did you mean above?" in error.value.hint
    assert set(TESTS) == {
        *("is", "null", "on", "not", "above", "at_most", "matches", "count_above", "beyond"),
    }


def test_the_first_rule_that_holds_claims_a_file() -> None:
    rules = [
        ClaimRule(certainty=0, sets=("other",)),
        ClaimRule(certainty=0.9, sets=("*",), where={"block": {"null": True}}, doubt="others do"),
        ClaimRule(certainty=0.5, has_all=("block", "block.cap")),
    ]

    def certainty(tree: dict[str, Any]) -> float | None:
        claim = claim_by_rules(rules, ("cap", "other"), tree, Document(tree))
        return None if claim is None else claim.certainty

    assert certainty({"cap": 1}) == 0.9
    assert certainty({"cap": 1, "other": 2}) is None
    assert certainty({"cap": 1, "block": {"cap": 2}}) == 0.5
    assert certainty({"block": {}}) is None


@pytest.mark.parametrize("name", TRAINERS)
def test_conditions_of_tables_are_on_settings_that_exist(name: str) -> None:
    table, trainer = read_tables(TRAINERS[name].package)[name], TRAINERS[name]
    for rule in table.header.ignored:
        assert set(rule.settings) <= trainer.settings.keys(), rule
    family = [each for each in TRAINERS.values() if each.family == trainer.family]
    known = {setting for each in family for setting in each.settings}
    conditions = [rule.when for rule in table.header.ignored]
    conditions += [rule.when for rule in read_findings(trainer.package).values()]
    for when in conditions:
        assert when.keys() <= known, when
    for claim in trainer.words.claims:
        assert {*claim.sets, *claim.when} - {"*"} <= known


def test_facts_that_tables_name_are_facts_of_some_correction() -> None:
    """A misspelt fact would silently drop a setting or a refusal."""
    corrections = []
    for trainer in TRAINERS.values():
        opsm = {"opsm": {OPSM: 0.5}} if OPSM in trainer.settings else {}
        plan = plan_corrections(trainer, {**trainer.presets, **opsm})
        corrections += plan.corrections.values()
    known: dict[str, set[str]] = {}  # over the generations of a trainer, which share a table
    for trainer in TRAINERS.values():
        own = None if trainer.config.write is None else trainer.config.write.keywords["own_facts"]
        for correction in corrections:
            facts = facts_of(correction)
            facts |= own(correction, facts) if own else {}
            known.setdefault(trainer.package, set()).update(facts)
    for name, trainer in TRAINERS.items():
        if trainer.config.write is None:
            continue
        table = read_tables(trainer.package)[name]
        ways = [way for setting in table.settings.values() for way in setting.ways]
        named = {way.fact for way in ways if way.fact}
        named |= {fact for way in ways for fact in way.when}
        named |= {fact for lack in table.header.lacks for fact in lack.when}
        assert named <= known[trainer.package], (name, named - known[trainer.package])

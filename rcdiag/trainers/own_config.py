"""Read a trainer's own configuration file: find the trainer, and the settings of its correction.

Files are YAML, JSON, TOML or shell scripts with flags; `rcdiag.trainers.settings_document` parses
them. The trainers' tables say where settings are, and how a generation recognises its files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from rcdiag.errors import RcdiagError, nearest, setting
from rcdiag.results import Finding
from rcdiag.trainers import TRAINERS, families, find_trainer, trainers_not_computed
from rcdiag.trainers.conditions import ClaimRule
from rcdiag.trainers.config_text import VARIABLE
from rcdiag.trainers.newer import meant, newer_setting, with_known_values
from rcdiag.trainers.settings_document import MISSING, Document
from rcdiag.trainers.toml_words import read_settings
from rcdiag.trainers.trainer import Config, Trainer

_EXPONENT = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+")


class TrainerConfig(Struct, frozen=True):
    """The settings in a file, their trainer, and findings on how they were read."""

    trainer: Trainer
    settings: Config
    findings: tuple[Finding, ...]
    document: Document = field(default_factory=lambda: Document({}))  # the whole file


def read_trainer_config(path: Path, trainer: str | None = None) -> TrainerConfig:
    """Read a whole configuration, one of its blocks, or only the settings of the correction.

    Without `trainer`, the generation with the most certain claim is chosen. A trainer's name alone
    means its newest generation, or an older one if only that claims the file.
    """
    document = Document.read(path)
    chosen, claim = _chosen(document, path, trainer)
    written = settings_in(document, chosen)
    block, whole_file = document.under(chosen.config.path), chosen.config.whole(document)
    of_any_generation = any(one.settings.keys() & block.keys() for one in TRAINERS.values())
    if not (chosen.config.places or whole_file or of_any_generation):
        raise _nothing_in(path, document, chosen if trainer else None)
    _check_variables(document, written, path)
    findings = _number_trap(written, document.texts_under(chosen.config.path))
    findings += _newer_settings(document, chosen, written, path)
    known = {name: value for name, value in written.items() if name in chosen.settings}
    keys = chosen.config.path
    if known and keys and (whole_file or document.has(".".join(keys))):
        known = {**chosen.unset, **known}  # the file holds the block, rather than being it
    settings, notes = chosen.config.complete(known, document)
    settings, newer = with_known_values(chosen, settings, str(path))
    findings += [*notes, *newer]
    if silent := not settings:
        settings = chosen.unset
    whole = {**chosen.settings, **settings}
    findings += chosen.config.findings(document.tree, whole)
    findings += _assumed(chosen, claim, whole if silent else None, document, path)
    return TrainerConfig(chosen, settings, tuple(findings), document)


def _assumed(
    trainer: Trainer,
    claim: ClaimRule | None,
    defaults: Config | None,
    document: Document,
    path: Path,
) -> list[Finding]:
    """Report the assumptions made in reading a file: its trainer, its settings, its base files.

    `defaults` are the settings that are used if the file sets none; None if it sets some.
    """
    findings = []
    if claim is not None and claim.doubt:
        findings.append(
            Finding(
                slug="trainer-guessed",
                severity="note",
                message=f"the settings are read as those of {trainer.name}: {claim.doubt}",
                fix=f"say which it is: {setting('trainer', trainer.name)}",
                evidence={"trainer": trainer.name},
            )
        )
    if defaults is not None:
        findings.append(
            Finding(
                slug="trainer-defaults",
                severity="note",
                message=f"{path} sets nothing of the correction: {trainer.name} then uses its "
                "defaults, and these are computed",
                fix="if another file has the settings, give that one; the settings are in "
                f"{trainer.words.place}",
                evidence={"trainer": trainer.name, "config": dict(defaults)},
            )
        )
    if document.missing:
        findings.append(
            Finding(
                slug="base-config-missing",
                severity="warning",
                message=f"{', '.join(document.missing)} was not found beside {path}, which is "
                f"based on it (`defaults`): what it sets is unknown, and {trainer.name}'s defaults "
                "are used instead",
                fix="put that file where `defaults` names it, or give one file with all settings",
                evidence={"missing": list(document.missing)},
            )
        )
    return findings


def settings_in(document: Document, trainer: Trainer) -> dict[str, Any]:
    """Return the settings of the correction in a file.

    A block that only contains such settings is returned as a whole, including names that the
    trainer does not know: these become findings with the name that was probably meant.
    """
    block = document.under(trainer.config.path)
    found: dict[str, Any] = {}
    for name in trainer.settings:
        if name in trainer.config.places:
            value = document.find(*trainer.config.places[name])
        else:
            value = block.get(name, MISSING)
        if value is not MISSING:
            # YAML 1.1 wants a dot in 2e-2 and takes it for text; OmegaConf reads the number, as in
            # omegaconf 2.3, omegaconf/_utils.py (`get_yaml_loader`).
            of_hydra = trainer.config.header.hydra and isinstance(value, str)
            found[name] = float(value) if of_hydra and _EXPONENT.fullmatch(value) else value
    if document.format == "flags" or trainer.config.places or len(found) == len(block):
        return found
    family = [other for other in TRAINERS.values() if other.family == trainer.family]
    words = {name.partition("_")[0] for other in family for name in other.settings}
    # In a bare block every key starts like a setting of the trainer, e.g. `rollout_`.
    bare = all(str(name).partition("_")[0] in words for name in block)
    return dict(block) if bare else found


def _chosen(document: Document, path: Path, name: str | None) -> tuple[Trainer, ClaimRule | None]:
    """Return the generation that the name means for a file; without one, that of the best claim.

    The best claim is the most certain one; of equals, the first in the registry.
    """
    if name is None:
        for other_name, other in trainers_not_computed().items():
            if any(rule.holds({}, document, ()) for rule in other.claims):
                raise other.refusal(f"{path}: a file of {other_name}")
        claims = _claims(document, TRAINERS.values())
        if not claims:
            raise _nothing_in(path, document)
        return max(claims, key=lambda candidate: candidate[1].certainty)
    newest = find_trainer(name)
    if name != newest.family:
        return newest, None
    family = [one for one in TRAINERS.values() if one.family == newest.family]
    claims = _claims(document, family)
    if not claims or newest in (claimant for claimant, _ in claims):
        return newest, None
    return max(claims, key=lambda candidate: candidate[1].certainty)[0], None


def _claims(document: Document, trainers: Iterable[Trainer]) -> list[tuple[Trainer, ClaimRule]]:
    """Return the generations that claim a file, with their claims."""
    claims = []
    for trainer in trainers:
        # A claim depends on the trainer's settings, or on the block where they would be.
        block = document.under(trainer.config.path)
        settings = settings_in(document, trainer) if trainer.config.places else block
        claim = trainer.config.claim(settings, document)
        if claim is not None:
            claims.append((trainer, claim))
    return claims


def _nothing_in(path: Path, document: Document, trainer: Trainer | None = None) -> RcdiagError:
    if document.missing:
        looked = f"it is based on {', '.join(document.missing)} (`defaults`), not found beside it: "
        looked += "put them there, or give one file with all settings"
    elif document.names_files:
        looked = f"{document.names_files}: give the one that has the settings, or say whose script "
        looked += "it is: --trainer NAME"
    elif trainer is None:
        looked = (
            f"looked for settings of {', '.join(families())}; `--trainer NAME` says whose "
            "file it is, and `rcdiag explain NAME` which settings that trainer has"
        )
    else:
        looked = f"looked for {next(iter(trainer.settings), '')}... in {trainer.words.place}"
    return RcdiagError(f"{path}: it has no settings of a rollout correction", hint=looked)


def _newer_settings(
    document: Document, trainer: Trainer, settings: Config, path: Path
) -> list[Finding]:
    """Report keys of a file that the generation does not know although they look like settings.

    In a block that only contains settings of the correction, that is every unknown key. A name that
    occurs only in documents is refused, because no version reads it.
    """
    for name, words in read_settings(trainer.package).items():
        if name not in trainer.settings:
            continue
        for other, where in words.also_called.items():
            if document.has(other):
                raise RcdiagError(
                    f"{path}: {trainer.name} has no setting `{other}` and does not read it",
                    hint=f"write `{name}`: only {where} calls it `{other}`",
                )
    places = trainer.config.places
    by_key = {place.rpartition(".")[2]: name for name in places for place in places[name]}
    others = {  # settings of other generations, which may stand beside those of this one
        name: one.config.places[name]
        for one in TRAINERS.values()
        for name in one.config.places
        if places and one.family == trainer.family and name not in trainer.settings
    }
    beside = by_key.keys() | set(trainer.config.header.beside) | others.keys()
    findings = [
        newer_setting(trainer, name, value, None, settings, str(path))
        for name in others
        if (value := document.find(*others[name])) is not MISSING
    ]
    for name, value in settings.items():  # of a block that was returned as a whole
        if name not in trainer.settings:
            near = meant(trainer, settings, name, value)
            findings.append(newer_setting(trainer, name, value, near, settings, str(path)))
    keys: list[str] = []
    for name in settings if places else ():
        last = places[name][0].rpartition(".")[2] if name in places else name
        keys += document.neighbours(last)
    dotted = (place.rpartition(".")[0] for name in places for place in places[name])
    for block in filter(None, dict.fromkeys(dotted)):
        keys += document.keys_of(block)
    closed = [key for block in trainer.config.header.closed for key in document.keys_of(block)]
    for key in dict.fromkeys([*keys, *closed]):
        near = nearest(key, by_key, likeness=0.85)
        if key not in beside and (near or key in closed):
            value, own = document.find(key), by_key.get(near or "", near)
            findings.append(newer_setting(trainer, key, value, own, settings, str(path)))
    return findings


def _check_variables(document: Document, settings: Config, path: Path) -> None:
    """Refuse a setting whose value is a shell variable that the script does not assign."""
    for name, value in settings.items() if document.format == "flags" else ():
        if isinstance(value, str) and VARIABLE.fullmatch(value):
            raise RcdiagError(
                f"{path}: {name} is {value}, whose value is only known when the script runs: "
                "a command, a condition or the environment sets it",
                hint="write the value in its place",
            )


def _number_trap(settings: Config, written: Mapping[str, Any]) -> list[Finding]:
    """Report an unquoted `0.5_5`: YAML 1.1 allows underscores between digits and reads 0.55."""
    traps = []
    for name, value in settings.items():
        text = written.get(name)
        if isinstance(value, (int, float)) and isinstance(text, str) and "_" in text:
            traps.append(
                Finding(
                    slug="threshold-read-as-number",
                    severity="error",
                    message=f"{name}: {text} without quotes is the number {value:g} in YAML, and "
                    "that is what the trainer uses",
                    fix=f'write {name}: "{text}"',
                    evidence={"written": text, "read": value},
                )
            )
    return traps

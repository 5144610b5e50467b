"""Find the files that a YAML configuration is based on, named under `defaults`.

NeMo-RL names files there (commit 7ea279ab, nemo_rl/utils/config.py,
`load_config_with_inheritance`). Hydra names files beside the configuration without their extension,
and chooses options of groups, which are folders: `finetune: ppo` is finetune/ppo.yaml, whose
settings are put under `finetune`; `override finetune: ppo` changes the choice of a base file.
https://hydra.cc/docs/advanced/defaults_list/
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

_PACKAGE = re.compile(r"\A(?:\s*#[^\n]*\n)*?\s*#\s*@package[ \t]+(?P<name>\S+)")
SELF = "_self_"  # stands for the file itself in the order of precedence; by default it is last


class Base(Struct, frozen=True):
    """A file that `defaults` names, relative to the folder of the file that names it."""

    file: str
    place: tuple[str, ...] = ()  # the keys under which its settings are put
    optional: bool = False  # whether it may be missing


def bases_of(defaults: Any, choices: Mapping[str, str]) -> list[Base | None]:
    """Return the base files, the weakest first; None is the file itself.

    `choices` are options by group, which a file above has overridden. Names with a variable are
    left out: what they stand for is only known when the program runs.
    """
    entries = [defaults] if isinstance(defaults, str) else defaults
    if not isinstance(entries, list):
        return []
    bases: list[Base | None] = []
    for entry in entries:
        if entry == SELF:
            bases.append(None)
        elif isinstance(entry, str):
            is_file = entry.endswith((".yaml", ".yml"))
            bases.append(Base(entry if is_file else f"{entry.lstrip('/')}.yaml"))
        elif isinstance(entry, Mapping):
            for key, option in _options(entry):
                if not key.startswith("override "):
                    group = key.removeprefix("optional ").lstrip("/")
                    folder, _, package = group.partition("@")
                    place = tuple((package or folder.replace("/", ".")).split("."))
                    option = choices.get(group, option)
                    bases.append(Base(f"{folder}/{option}.yaml", place, group != key))
    known = [base for base in bases if base is None or "${" not in base.file]
    return known if None in known else [*known, None]


def overridden(defaults: Any) -> dict[str, str]:
    """Return the options that a file chooses in place of those of its base files, by group."""
    entries = defaults if isinstance(defaults, list) else []
    return {
        key.removeprefix("override "): option
        for entry in entries
        if isinstance(entry, Mapping)
        for key, option in _options(entry)
        if key.startswith("override ")
    }


def _options(entry: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """Yield group and option; a group with a dotted package was split at its dots."""
    for key, option in entry.items():
        if isinstance(option, Mapping):
            yield from _options(option, f"{above}{key}.")
        elif isinstance(option, str):  # null chooses nothing
            yield f"{above}{key}", option


def package_of(text: str, place: tuple[str, ...]) -> tuple[str, ...]:
    """Return where a file's settings are put: `# @package NAME` at its top, else `place`."""
    named = _PACKAGE.match(text)
    if named is None or named["name"] == "_group_":
        return place
    return () if named["name"] == "_global_" else tuple(named["name"].split("."))

"""Compare rcdiag's definition of a trainer with a newer checkout or wheel of it.

    python -m tools.trainers_seen CHECKOUT_OR_WHEEL --trainer NAME

It lists settings, their choices and logged keys that are new, gone, or have another default. The
trainer is not imported: class fields, argparse options and strings are read from its syntax trees;
for a setting that no class has, its YAML files are searched. Names are matched and code is not
interpreted, so the list only says where to look.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import re
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rcdiag.trainers import find_trainer
from rcdiag.trainers.config_text import read_yaml
from rcdiag.trainers.settings_table import Setting, read_tables
from rcdiag.trainers.toml_words import read_keys
from rcdiag.trainers.trainer import Trainer

# Of a class with many fields, such as all arguments of a run, only these names are listed.
WORDS = re.compile(
    r"(^|[_/])(importance|ratio|clip|mask|threshold|off_?policy|rollout_(is|rs|corr|log)|mismatch|"
    r"correction|logp|icepop|kpop|cispo|tis(_|$)|veto|staleness|behave|rejection|centering)"
)
SKIPPED = ("test", "tests", "docs", "benchmark", "benchmarks")
UNKNOWN = object()  # a default that is not a literal
STATISTICS = ("mean", "median", "std", "min", "max", "avg", "sum")


@dataclass(frozen=True)
class Field:
    """A field of a class, or an option of argparse, with its default and its choices."""

    name: str
    owner: str  # file and class
    line: int
    default: Any = UNKNOWN
    choices: tuple[Any, ...] = ()


@dataclass
class Source:
    """The fields, YAML keys and strings of a checkout's files."""

    fields: list[Field] = field(default_factory=list)
    yaml: list[Field] = field(default_factory=list)  # from configuration files
    strings: dict[str, set[str]] = field(default_factory=dict)  # file -> strings that may be keys

    @property
    def words(self) -> set[str]:
        return set().union(*self.strings.values()) if self.strings else set()


def files_of(path: Path) -> Iterator[tuple[str, str]]:
    """Yield name and text of each Python and YAML file of a checkout or wheel, except tests."""
    if path.is_dir():
        files = {str(each.relative_to(path)): each for each in sorted(path.rglob("*"))}
        named = ((name, lambda each=each: each.read_bytes()) for name, each in files.items())
    else:
        wheel = zipfile.ZipFile(path)
        named = ((name, lambda name=name: wheel.read(name)) for name in sorted(wheel.namelist()))
    for name, read in named:
        if name.endswith((".py", ".yaml", ".yml")) and not set(SKIPPED) & set(Path(name).parts):
            yield name, read().decode("utf-8", "replace")


def read_source(path: Path) -> Source:
    """Read fields, options and strings from the syntax trees of all files, and YAML keys."""
    source = Source()
    for name, text in files_of(path):
        if not name.endswith(".py"):
            source.yaml += _leaves_of(text, name)
            continue
        try:
            tree = ast.parse(text)
        except SyntaxError:  # a template, or code for another Python version
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                source.fields += _fields_of(node, name)
            elif isinstance(node, ast.Call) and _called(node) == "add_argument":
                source.fields += _options_of(node, name)
        source.strings[name] = set(_strings_of(tree))
    return source


def _leaves_of(text: str, file: str) -> Iterator[Field]:
    try:
        levels = [read_yaml(text)]
    except ValueError:  # a template, or several documents
        return
    while levels:
        inner = levels.pop()
        for name, value in inner.items() if isinstance(inner, dict) else ():
            if isinstance(value, dict):
                levels.append(value)
            else:
                yield Field(str(name), file, 0, value)


def _fields_of(node: ast.ClassDef, file: str) -> Iterator[Field]:
    for each in node.body:
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            yield Field(
                each.target.id,
                f"{file}, {node.name}",
                each.lineno,
                _default(each.value),
                _choices(each),
            )


def _options_of(call: ast.Call, file: str) -> Iterator[Field]:
    given = {word.arg: word.value for word in call.keywords}
    switch = isinstance(action := given.get("action"), ast.Constant) and action.value
    default = _literal(given["default"]) if "default" in given else None
    if switch == "store_true" and "default" not in given:
        default = False
    for option in call.args:
        if isinstance(option, ast.Constant) and str(option.value).startswith("--"):
            name = str(option.value).removeprefix("--").rpartition(".")[2].replace("-", "_")
            choices = _literal(given["choices"]) if "choices" in given else ()
            known = tuple(choices) if isinstance(choices, (list, tuple)) else ()
            yield Field(name, f"{file}, options", call.lineno, default, known)


def _default(value: ast.expr | None) -> Any:
    """Return the default of a field: a literal, or the one passed to `field` or `Field`."""
    if isinstance(value, ast.Call) and _called(value) in ("field", "Field"):
        given = {word.arg: word.value for word in value.keywords}
        if "default" in given:
            return _literal(given["default"])
        return _literal(value.args[0]) if value.args else UNKNOWN
    return UNKNOWN if value is None else _literal(value)


def _choices(node: ast.AnnAssign) -> tuple[Any, ...]:
    """Return the values of a `Literal`, or those that a field lists under `choices`."""
    found: list[Any] = []
    for each in ast.walk(node):
        if isinstance(each, ast.Subscript) and ast.unparse(each.value).endswith("Literal"):
            inner = _literal(each.slice)
            found += inner if isinstance(inner, tuple) else [inner]
        elif isinstance(each, ast.Dict):
            for key, value in zip(each.keys, each.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == "choices":
                    inner = _literal(value)
                    found += inner if isinstance(inner, (list, tuple)) else []
    return tuple(one for one in found if one is not UNKNOWN)


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError):
        return UNKNOWN


def _called(call: ast.Call) -> str:
    return ast.unparse(call.func).rpartition(".")[2]


def _strings_of(tree: ast.Module) -> Iterator[str]:
    """Yield strings that may be logged keys: short strings, f-strings, and argument names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        elif isinstance(node, ast.JoinedStr):
            text = "".join(
                str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values
            )
        elif isinstance(node, ast.keyword) and node.arg:
            text = node.arg
        else:
            continue
        if 1 < len(text) < 80 and not any(mark in text for mark in " \n%"):
            yield text


def compared(trainer: Trainer, source: Source) -> list[str]:
    """Return a line for each difference between the source and rcdiag's definition."""
    table = read_tables(trainer.package)[trainer.name]
    known = {name.rpartition(".")[2]: setting for name, setting in table.settings.items()}
    homes = _homes(known, source.fields)
    lines = []
    for last, setting in known.items():
        there = [each for each in source.fields if each.name == last]
        there = there or [each for each in source.yaml if each.name == last]
        at_home = [each for each in there if each.owner in homes or each in source.yaml]
        lines += _of_setting(setting, at_home, [each for each in there if each not in at_home])
        alike = [each for each in there if set(each.choices) & set(setting.choices)]
        lines += _of_choices(setting, [*at_home, *alike])
    names = known.keys() | _mentioned(trainer)
    lines += _new_fields(names, homes, source.fields)
    return [*lines, *_of_keys(trainer, source)]


def _homes(known: Mapping[str, Setting], fields: Sequence[Field]) -> dict[str, int]:
    """Return the classes that define the settings, with how many settings each has.

    Classes with at least two are returned, or those with one if none has two. A name weighs less
    the more classes have it: `type` and `eps` do not make an optimizer a class of settings.
    """
    having: dict[str, set[str]] = {}
    for each in fields:
        if each.name in known:
            having.setdefault(each.name, set()).add(each.owner)
    weights: dict[str, float] = {}
    for owners in having.values():
        for owner in owners:
            weights[owner] = weights.get(owner, 0.0) + 1.0 / len(owners)
    counts = {owner: sum(owner in owners for owners in having.values()) for owner in weights}
    least, fewest = (
        min(1.0, max(weights.values(), default=0.0)),
        min(2, max(counts.values(), default=0)),
    )
    return {
        owner: count
        for owner, count in counts.items()
        if count >= fewest and weights[owner] >= least
    }


def _mentioned(trainer: Trainer) -> set[str]:
    """Return all words in the trainer's folder in rcdiag, which include the names that it reads."""
    module = importlib.import_module(trainer.package)
    folder = Path(str(module.__file__)).parent
    texts = (each.read_text() for each in folder.iterdir() if each.suffix in (".py", ".toml"))
    return {word for text in texts for word in re.findall(r"\w+", text)}


def _of_setting(setting: Setting, there: Sequence[Field], elsewhere: Sequence[Field]) -> list[str]:
    """Compare a setting with the fields of the same name in the classes that define settings."""
    if any(_equal(each.default, setting.default) for each in elsewhere):
        return []
    if not there and elsewhere:
        owners = ", ".join(dict.fromkeys(f"{each.owner}, line {each.line}" for each in elsewhere))
        return [f"moved?   setting {setting.name}: only in {owners}"]
    if not there:
        return [f"gone     setting {setting.name}"]
    defaults = [each for each in there if each.default is not UNKNOWN]
    if not defaults or any(_equal(each.default, setting.default) for each in defaults):
        return []
    found = ", ".join(f"{each.default!r} ({each.owner}, line {each.line})" for each in defaults)
    return [f"default  {setting.name}: {setting.default!r} in rcdiag, {found}"]


def _of_choices(setting: Setting, there: Sequence[Field]) -> list[str]:
    """Compare the choices of a setting with those of the fields of the same name."""
    choices = {one for each in there for one in each.choices}
    if not setting.choices or not choices:
        return []
    new, gone = choices - set(setting.choices) - {None}, set(setting.choices) - choices
    return [
        *(f"new      value {setting.name} = {one}" for one in sorted(map(str, new))),
        *(f"gone     value {setting.name} = {one}" for one in sorted(map(str, gone))),
    ]


def _equal(one: Any, other: Any) -> bool:
    """Tell whether defaults are equal; a list equals a tuple, and 1 equals 1.0."""
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return list(one) == list(other)
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def _new_fields(names: set[str], homes: Mapping[str, int], fields: Sequence[Field]) -> list[str]:
    sizes: dict[str, int] = {}
    for each in fields:
        sizes[each.owner] = sizes.get(each.owner, 0) + 1
    lines = []
    for each in fields:
        if each.owner not in homes or each.name in names:
            continue
        closed = 2 * homes[each.owner] >= sizes[each.owner]
        if closed or WORDS.search(each.name):
            shown = "" if each.default is UNKNOWN else f" = {each.default!r}"
            lines.append(f"new      setting {each.name}{shown} ({each.owner}, line {each.line})")
    return lines


def _of_keys(trainer: Trainer, source: Source) -> list[str]:
    """Return lines on logged keys; a new key is listed if its file has three known ones."""
    keys = {name for name, key in read_keys(trainer.package).items() if trainer.name in key.names}
    known = {part for name in keys for part in (name, *_parts(name))}
    words = source.words
    lines = [f"gone     key {name}" for name in sorted(keys) if not _is_in(name, words)]
    for file, strings in source.strings.items():
        if sum(word in known for word in strings) < 3:
            continue
        unknown = (
            word
            for word in sorted(strings)
            if WORDS.search(word) and _is_logged(word) and not known & {word, *_parts(word)}
        )
        lines += [f"new?     key {word} ({file})" for word in unknown]
    return lines


def _parts(key: str) -> list[str]:
    """Return the parts of a key that are neither statistics nor placeholders."""
    return [part for part in key.split("/") if part not in (*STATISTICS, "{}", "")]


def _is_in(key: str, words: set[str]) -> bool:
    """Tell whether the source has a key: whole, without its prefix, or without its statistic.

    A placeholder of an f-string matches any text.
    """
    last = (_parts(key) or [key])[-1]
    names = {key, last}
    for statistic in STATISTICS:
        names |= {last.removesuffix(f"_{statistic}"), last.removeprefix(f"{statistic}_")}
    if names & words or any(word.endswith((f"/{key}", f"/{last}")) for word in words):
        return True
    filled = (word for word in words if "{}" in word and len(word.replace("{}", "")) > 3)
    patterns = (re.escape(word).replace(r"\{\}", ".*") for word in filled)
    return any(re.fullmatch(pattern, name) for pattern in patterns for name in (key, last))


def _is_logged(word: str) -> bool:
    """Tell whether a string looks like a logged key, not like a setting or a column."""
    if not re.fullmatch(r"\w[\w/{}@]*[\w}]", word):
        return False
    return "/" in word or word.endswith(
        (*STATISTICS, "ratio", "kl", "frac", "fraction", "error", "diff", "weight")
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the differences; nothing if rcdiag's definition still holds."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("source", type=Path, help="a checkout of the trainer, or its wheel")
    parser.add_argument("--trainer", required=True, help="the generation to compare with")
    given = parser.parse_args(arguments)
    if not given.source.exists():
        parser.error(f"{given.source}: not there")
    trainer = find_trainer(given.trainer)
    lines = compared(trainer, read_source(given.source))
    sys.stdout.write(f"{trainer.known} against {given.source}\n")
    sys.stdout.write("".join(f"{line}\n" for line in dict.fromkeys(lines)))
    return 0


if __name__ == "__main__":
    sys.exit(main())

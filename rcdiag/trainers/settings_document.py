"""Parse a trainer's configuration (YAML, JSON, TOML or shell flags) into nested mappings.

Keys may be nested or dotted, and dashes in them become underscores, as in trainers' own parsers.
The format is detected from the text, not from the file's name. A YAML file may name base files
under `defaults`, whose settings it overrides (see `rcdiag.trainers.base_files`).
"""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from rcdiag.errors import RcdiagError
from rcdiag.trainers.base_files import Base, bases_of, overridden, package_of
from rcdiag.trainers.config_text import DEEPEST, LONGEST, is_python, read_yaml, with_values

Format = Literal["yaml", "toml", "flags"]
MOST_BASES = 20  # limit on nested base files


class _Missing:
    """Stands for a key that is not in the file, because null is a value."""

    def __repr__(self) -> str:
        return "MISSING"

    def __bool__(self) -> bool:
        return False


MISSING = _Missing()


class Document(Struct, frozen=True, dict=True):
    """A configuration file as nested mappings."""

    tree: Mapping[str, Any]
    format: Format = "yaml"
    # The same tree with the text of each value; only from YAML.
    texts: Mapping[str, Any] = field(default_factory=dict)
    script: str = ""  # the text of a shell script, without comments
    missing: tuple[str, ...] = ()  # files that `defaults` names and that do not exist

    @classmethod
    def read(cls, path: Path) -> Document:
        """Read a file and its base files."""
        return cls._on_bases(path, Base(path.name), {}, ())

    @classmethod
    def _on_bases(
        cls, path: Path, base: Base, choices: Mapping[str, str], above: tuple[Path, ...]
    ) -> Document:
        """Read a file; `above` are the files of which it is a base."""
        try:
            text = path.read_text(encoding="utf-8")
        except (
            OSError
        ) as error:  # its own text repeats the path, which may be a URL with a password
            raise _unreadable(path, error.strerror or str(error)) from error
        except UnicodeDecodeError as error:
            raise _unreadable(path, str(error)) from error
        own = cls.parse(text, path)
        defaults = own.tree.get("defaults") if own.format == "yaml" else None
        choices = {**overridden(defaults), **choices}
        bases = bases_of(defaults, choices)
        if path.resolve() in above or (len(bases) > 1 and len(above) > MOST_BASES):
            raise _unreadable(path, "its `defaults` are nested too deeply, or are circular")
        tree, texts, missing = dict[str, Any](), dict[str, Any](), list[str]()
        for one in bases or [None]:
            layer = own
            if one is not None:
                places = (folder / one.file for folder in (path.parent, *_searched(own.tree, path)))
                file = next((place for place in places if place.is_file()), None)
                if file is None:
                    missing += [] if one.optional else [one.file]
                    continue
                inherited = {} if one.place else choices  # a group's files have groups of their own
                layer = cls._on_bases(file, one, inherited, (*above, path.resolve()))
                missing += layer.missing
            tree, texts = _over(tree, layer.tree), _over(texts, layer.texts)
        if bases:  # the list has done its work; a group's would be read as a setting
            tree, texts = (
                {name: value for name, value in each.items() if name != "defaults"}
                for each in (tree, texts)
            )
        for key in reversed(package_of(text, base.place)):
            tree, texts = {key: tree}, {key: texts}
        return replace(own, tree=tree, texts=texts, missing=tuple(missing))

    @classmethod
    def parse(cls, text: str, path: Path) -> Document:
        """Detect the format of a text: TOML, else YAML or JSON, else flags of a command line."""
        try:
            return cls._parsed(text)
        except RecursionError as error:
            raise _unreadable(path, "it is nested too deeply") from error
        except ValueError as error:
            raise _unreadable(path, str(error)) from error

    @classmethod
    def _parsed(cls, text: str) -> Document:
        """Parse a text; ValueError if it is not a configuration."""
        try:
            toml = tomllib.loads(text) if len(text) <= LONGEST else {}
        except (ValueError, RecursionError):  # not TOML, or a number with thousands of digits
            toml = {}
        if toml:
            return cls(_nested(toml), "toml")
        tree, problem = None, None
        try:
            tree = read_yaml(text)
        except ValueError as error:
            problem = error
        if isinstance(tree, dict):
            texts = read_yaml(text, as_text=True)
            return cls(_nested(tree), "yaml", _nested(texts))
        if is_python(text):
            raise ValueError("it is a Python program, which is not run: give its settings as YAML")
        flags = _flags(text)
        if flags:
            return cls(_nested(flags), "flags", script=_without_comments(text))
        if text.startswith("#!"):
            script = cls({}, "flags", script=_without_comments(text))
            without = "it is a script without any flag or `name=value` of a trainer"
            raise ValueError("; ".join(filter(None, [without, script.names_files])))
        if problem is not None:
            raise problem
        return cls({}, "yaml")

    def under(self, path: Sequence[str]) -> Mapping[str, Any]:
        """Return the mapping at a path, or the deepest one on the path that exists."""
        return _under(self.tree, path)

    def texts_under(self, path: Sequence[str]) -> Mapping[str, Any]:
        """Return the texts of the values at a path."""
        return _under(self.texts, path)

    def find(self, *names: str) -> Any:
        """Return the value of the first of several dotted names that exists, at any depth.

        `loss_fn.kind` is found below any mapping that has it; the shallowest is used. MISSING if
        there is none.
        """
        for name in names:
            parts = name.split(".")
            for mapping in self.by_depth:
                if (value := at_path(mapping, parts)) is not MISSING:
                    return value
        return MISSING

    @cached_property
    def by_depth(self) -> list[Mapping[str, Any]]:
        """Return all mappings of the document, the shallowest first."""
        found = [self.tree]
        for mapping in found:  # which grows by what is below it
            found += [value for value in mapping.values() if isinstance(value, Mapping)]
        return found

    def has(self, *names: str) -> bool:
        """Tell whether any of several dotted names is in the document, at any depth."""
        return any(self.find(name) is not MISSING for name in names)

    def mentions(self, word: str) -> int:
        """Count how often a word occurs in a shell script, also within other words."""
        return self.script.lower().count(word.lower())

    @property
    def names_files(self) -> str:
        """Say which other configuration files and scripts a shell script names; "" if none."""
        files = dict.fromkeys(_CONFIG_FILE.findall(with_values(self.script)))
        return f"it names {', '.join(files)}" if files else ""

    def keys_of(self, block: str) -> list[str]:
        """Return the keys of the mapping with a dotted name, at any depth; empty if not found."""
        value = self.find(block)
        return list(map(str, value)) if isinstance(value, Mapping) else []

    def neighbours(self, name: str) -> list[str]:
        """Return the keys of all mappings that contain a key of this name."""
        return [
            key for mapping in _mappings(self.tree) if name in mapping for key in map(str, mapping)
        ]


def at_path(mapping: Mapping[str, Any], parts: Sequence[str]) -> Any:
    """Return the value under nested keys; MISSING if there is none."""
    value: Any = mapping
    for part in parts:
        if not isinstance(value, Mapping) or part not in value:
            return MISSING
        value = value[part]
    return value


def _under(tree: Mapping[str, Any], path: Sequence[str]) -> Mapping[str, Any]:
    place = tree
    for name in path:
        if isinstance(inner := place.get(name), Mapping):
            place = inner
    return place


def _mappings(tree: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield tree
    for value in tree.values():
        if isinstance(value, Mapping):
            yield from _mappings(value)


def _searched(tree: Mapping[str, Any], path: Path) -> list[Path]:
    """Return the folders of `hydra.searchpath`, where base files may be beside a file's own folder.

    `file://verl/trainer/config` starts where the program runs, and `pkg://verl.trainer.config`
    where the package is: both in the root of a checkout, which is a folder above the file.
    """
    hydra = tree.get("hydra")
    found = hydra.get("searchpath") if isinstance(hydra, Mapping) else None
    folders = []
    for entry in found if isinstance(found, list) else []:
        scheme, _, name = str(entry).rpartition("://")
        name = name.replace(".", "/") if scheme == "pkg" else name
        folders += [root / name for root in path.resolve().parents]
    return folders


def _over(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a base file, overridden by those of a file.

    A mapping with `_override_` replaces the base's mapping; `???` keeps the base's value.
    """
    merged = dict(base)
    for key, value in own.items():
        below = merged.get(key)
        if value == "???" and key in merged:
            continue
        replaces = isinstance(value, Mapping) and value.get("_override_") in (True, "true")
        if isinstance(value, Mapping) and isinstance(below, Mapping) and not replaces:
            merged[key] = _over(below, value)
        else:
            merged[key] = value
    return merged


def _nested(flat: Mapping[Any, Any]) -> dict[str, Any]:
    """Split dotted keys at every depth; keys of the same mapping are merged."""
    tree: dict[str, Any] = {}
    for key, value in flat.items():
        value = _plain(value)
        *above, last = str(key).replace("-", "_").split(".")
        if len(above) > DEEPEST:
            raise ValueError("it is nested too deeply")
        place = tree
        for name in above:
            inner = place.setdefault(name, {})
            if not isinstance(inner, dict):
                inner = place[name] = {}
            place = inner
        if isinstance(value, dict) and isinstance(place.get(last), dict):
            place[last].update(value)
        else:
            place[last] = value
    return tree


def _plain(value: Any) -> Any:
    """Return a value as in JSON: dates, sets and bytes, which no setting has, become text."""
    if isinstance(value, dict):
        return _nested(value)
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value if value is None or isinstance(value, (str, int, float)) else str(value)


_FLAG = re.compile(r"--[A-Za-z][\w.-]*")
_OVERRIDE = re.compile(r"\+{0,2}([A-Za-z_][\w.]*)=(.*)", re.DOTALL)


_CONFIG_FILE = re.compile(r"[\w./${}-]*\w\.(?:ya?ml|toml|sh)\b")

# Shell words that end a command, and with it the values of its last flag.
_SEPARATORS = ("&", "&&", "|", "||", ">", ">>", "2>&1")
# Matches text that looks like a command line: a flag, an override, or a continued line.
_COMMAND_LINE = re.compile(r"(?m)(^|\s|\()--[A-Za-z]|[\s(][\"']?\+{0,2}[A-Za-z_]\w*\.[\w.]+=\S|\\$")
# A quoted text, which may contain #, or a comment: a whole line, the end of one, or
# a command between backticks, which may stand inside of a continued line.
_QUOTED_OR_COMMENT = re.compile(
    r"`[ \t]*#[^`\n]*`|\\.|'[^']*'|\"(?:\\.|[^\"\\])*\"|^[ \t]*#[^\n]*\n?|(?<=\s)#[^\n]*",
    re.DOTALL | re.MULTILINE,
)


def _flags(text: str) -> dict[str, Any]:
    """Parse `--name value`, `--name=value`, `--name` and `a.b=value` of a command line.

    Text without any flag is not a command line, and gives an empty result.
    """
    code = with_values(_without_comments(text))
    if not _COMMAND_LINE.search(code):
        return {}
    # The end of a line becomes a separate word, unless the line is continued.
    lexer = shlex.shlex(code.replace("\\\n", " ").replace("\n", " \n "), posix=True)
    lexer.whitespace, lexer.whitespace_split = " \t\r", True
    try:
        words = list(lexer)
    except ValueError:
        return {}
    flags: dict[str, Any] = {}
    values: dict[str, list[str]] = {}
    hydra: set[str] = set()  # names set by an override, where null is a value and not a word
    current: str | None = None
    open_arrays = 0
    for part in words:
        word = part.strip("()").rstrip(";")  # without the parentheses of an array
        balance = part.count("(") - part.count(")")
        open_arrays = max(open_arrays + balance, 0)
        ends_line = part == "\n" and not open_arrays
        ends_values = balance < 0 or ends_line or part.endswith(";") or part in _SEPARATORS
        is_array = "[@]" in word or "[*]" in word  # ${ARGS[@]} expands to several words
        if not word.strip() or part in _SEPARATORS or is_array:
            current = None if ends_values or is_array else current
            continue
        if _FLAG.match(word):
            name, has_value, value = word.removeprefix("--").partition("=")
            values[name] = [value] if has_value else []
            current = None if has_value else name
        elif (override := _OVERRIDE.fullmatch(word)) and "." in override[1]:
            values[override[1]] = [override[2]]
            hydra.add(override[1])
            current = None
        elif current is not None:
            values[current].append(word)
        current = None if ends_values else current
    for name, written in values.items():
        flags[name] = _value(written, nulls=name in hydra)
    return flags


def _without_comments(text: str) -> str:
    """Remove the comments from a shell script."""
    return _QUOTED_OR_COMMENT.sub(
        lambda found: "" if found[0].lstrip("` \t").startswith("#") else found[0], text
    )


def _value(words: Sequence[str], *, nulls: bool) -> Any:
    """Parse the values of a flag: none means true, one a value, several a list.

    `nulls`: null and ~ are the null of YAML, as in Hydra's `a.b=null`; for flags they are text.
    """

    def one(word: str) -> Any:
        try:
            value = read_yaml(word)
        except ValueError:
            return word
        if isinstance(value, str):
            try:
                return float(value)  # 1e-4, which YAML 1.1 parses as text
            except ValueError:
                return None if value in ("None", "none") else value
        return word if value is None and word and not nulls else value

    if not words:
        return True
    return one(words[0]) if len(words) == 1 else [one(word) for word in words]


def _unreadable(path: Path, problem: str) -> RcdiagError:
    return RcdiagError(
        f"{path}: cannot be read as a configuration ({problem})",
        hint="give the trainer's config file (YAML, JSON, TOML, or a shell script with its flags), "
        "or its correction block alone",
    )

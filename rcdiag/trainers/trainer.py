"""One generation of a trainer: its settings, correction, metrics, losses and configuration.

`generation` makes it of two things: the tables in the trainer's folder (`settings.toml`,
`generations.toml`, `findings.toml`), and functions for what tables cannot say: the correction that
settings ask for, the metrics, the loss of an update.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from msgspec import Struct, field

from rcdiag.corrections.correction import Correction
from rcdiag.corrections.trainer_means import Batch, Metrics
from rcdiag.entry import Entry
from rcdiag.formats import yaml_value
from rcdiag.losses.rules import UpdateRules
from rcdiag.results import Finding
from rcdiag.trainers.conditions import Claim, claim_by_rules, holds
from rcdiag.trainers.loss_choice import LossChoice, loss_by_columns
from rcdiag.trainers.settings_document import Document, at_path
from rcdiag.trainers.settings_table import (
    Config,
    Header,
    NotComputed,
    Refused,
    Settings,
    SettingsTable,
    UnknownValue,
    read_tables,
)
from rcdiag.trainers.settings_text import Written
from rcdiag.trainers.toml_words import (
    FindingWords,
    GenerationWords,
    read_findings,
    read_generations,
    read_keys,
)
from rcdiag.trainers.writing import OwnFacts, write_by_table

__all__ = [
    "Config",
    "ConfigFile",
    "Metrics",
    "NotComputed",
    "Refused",
    "Trainer",
    "UnknownValue",
    "generation",
]

# What a trainer's own parser makes of the settings of a file, and findings on it.
Complete = Callable[[Config, Document], tuple[Config, list[Finding]]]
# What the rest of a configuration file means for the correction; its settings have defaults.
FileFindings = Callable[[Mapping[str, Any], Config], list[Finding]]


class ConfigFile(Struct, frozen=True, kw_only=True):
    """How rcdiag finds a trainer's settings in its configuration file, and writes them there."""

    header: Header  # what holds for all settings together
    # Settings that stand elsewhere: setting -> dotted names under which it is looked for, at any
    # depth of the file. The first is the one under which rcdiag writes it.
    places: Mapping[str, tuple[str, ...]]
    # It takes the settings of a file and the file; None where another generation is likelier.
    claim: Callable[[Config, Document], Claim | None]
    # It tells whether a whole file is the trainer's, also where it sets nothing of the correction.
    whole: Callable[[Document], bool]
    complete: Complete
    findings: FileFindings
    loss: Callable[[Document], LossChoice]  # the policy loss of an update, for `replay`
    # Settings for a correction; raises Inexpressible. None where rcdiag writes none.
    write: Callable[[Correction], Written] | None

    @property
    def path(self) -> tuple[str, ...]:
        """Return the keys above the block of settings in a whole file."""
        return tuple(filter(None, self.header.path.split(".")))

    def dotted(self, name: str) -> str:
        """Return the dotted name under which a setting is written."""
        if name in self.places:
            return self.places[name][0]
        return ".".join([*self.path, name])


class Trainer(Struct, frozen=True, kw_only=True):
    """One generation of a trainer. Settings and keys have the trainer's own names."""

    name: str
    family: str  # the trainer's name without the generation
    # Where its tables are: a package, or a module with `WORDS`; see `rcdiag.trainers.toml_file`.
    package: str
    newest: bool = False  # the family's name alone means this generation
    # Its rollout correction.
    settings: Config  # every setting with its default
    # Settings that differ from the defaults in a run whose configuration says nothing of the
    # correction: where the block of settings is missing it may be off.
    unset: Config = field(default_factory=dict)
    presets: Mapping[str, Config]  # name -> settings that differ from the default
    read: Callable[[Config], Correction]  # raises Refused where the trainer would
    # The statistics of k1, k2 and k3 that it can reject by, such as `seq_mean_k1`.
    rejects_by: tuple[str, ...] = ()
    # Settings that the trainer takes and silently does nothing with: one sentence each.
    ignored: Callable[[Config], list[str]]
    # Traps of its settings that no error shows, as findings.
    traps: Callable[[Config], list[Finding]]
    # What it logs of the correction. What it asks of the tokens is found out by calling it once on
    # made-up rows, so that no branch on their numbers may come before a question.
    metrics: Callable[[Batch, Correction], Metrics]
    # What the weights of the loss are divided by; 1 without batch normalisation.
    normaliser: Callable[[Batch, Correction], float]
    update: UpdateRules
    config: ConfigFile

    @property
    def default_preset(self) -> str | None:
        """Return the preset that a run without any setting has; None where none is like it."""
        default = {**self.settings, **self.unset}
        named = self.presets.items()
        return next((name for name, one in named if {**self.settings, **one} == default), None)

    def entry(self) -> Entry:
        """Say what the generation logs and takes: its keys, settings and presets."""
        first_keys: dict[str, str] = {}  # of each family of keys
        for key in read_keys(self.package).values():
            if self.name in key.names:
                first_keys.setdefault(key.family, key.names[self.name])
        settings = ", ".join(f"{name}: {yaml_value(one)}" for name, one in self.settings.items())
        return Entry(
            what=self.says,
            also_called=self.words.also_called,
            generations={
                "known": "; ".join(
                    f"{name}: {words.until}"
                    for name, words in read_generations(self.package).items()
                ),
                "keys": ", ".join(first_keys.values()),
                "settings": f"in {self.words.place}: {settings}",
                "presets": ", ".join(self.presets),
            },
            example=f"rcdiag score rollouts.parquet --trainer {self.name}",
        )

    @property
    def says(self) -> str:
        """What the generation does, and when it came out."""
        return f"{self.words.says} ({self.words.until})"

    @property
    def known(self) -> str:
        """Name the generation, with the version and the date up to which it is known."""
        return f"{self.name} ({self.words.until})"

    @property
    def words(self) -> GenerationWords:
        """Return what the generation does, when it came out, and where its settings stand."""
        return read_generations(self.package)[self.name]


def generation(
    name: str,
    *,
    package: str,
    presets: Mapping[str, Config],
    read: Callable[[Settings], Correction],
    metrics: Callable[[Batch, Correction], Metrics],
    update: UpdateRules,
    normaliser: Callable[[Batch, Correction], float] = lambda batch, correction: 1.0,
    ignored: Callable[[Config], list[str]] = lambda settings: [],
    traps: Callable[[Config], list[Finding]] = lambda settings: [],
    complete: Complete = lambda settings, document: (settings, []),
    file_findings: FileFindings = lambda tree, settings: [],
    whole: Callable[[Document], bool] = lambda document: False,
    loss: Callable[[Document, LossChoice], LossChoice] = lambda document, choice: choice,
    facts: OwnFacts | None = None,
    family: str = "",
    **switches: Any,
) -> Trainer:
    """Make a generation of its tables and its functions.

    Its family has the name of the package's folder, unless another is given; the last generation of
    `generations.toml` is the newest.

    The last ones add what the tables cannot say: `ignored` and `traps` on settings, `complete` and
    `file_findings` on a configuration file, `loss` on what it says of the policy loss, and `facts`
    of a correction that is to be written. `switches` are the other fields of Trainer.
    """
    table, generations = read_tables(package)[name], read_generations(package)
    words, columns = generations[name], table.header.loss
    rules = tuple(read_findings(package).values())
    writes = words.written and any(each.ways for each in table.settings.values())
    config = ConfigFile(
        header=table.header,
        places=table.places(),
        claim=partial(claim_by_rules, words.claims, tuple(table.settings)),
        whole=whole,
        complete=complete,
        findings=lambda tree, settings: [
            *_findings(rules, settings, tree),
            *file_findings(tree, settings),
        ],
        loss=lambda document: loss(document, loss_by_columns(document, columns)),
        write=partial(write_by_table, table=table, own_facts=facts) if writes else None,
    )
    return Trainer(
        name=name,
        family=family or package.rpartition(".")[2].replace("_", "-"),
        package=package,
        settings=table.defaults(),
        presets=presets,
        read=lambda values: read(Settings(table.settings, values)),
        ignored=lambda settings: [*_ignored(table, settings), *ignored(settings)],
        traps=lambda settings: [*_findings(rules, settings), *traps(settings)],
        metrics=metrics,
        normaliser=normaliser,
        update=update,
        config=config,
        **{"newest": name == list(generations)[-1], **switches},
    )


def _ignored(table: SettingsTable, values: Config) -> list[str]:
    """Return the sentences on settings that have no effect beside the others."""
    sentences = []
    for rule in table.header.ignored:
        if not holds(rule.when, values.get):
            continue
        if not rule.settings:
            sentences.append(rule.says)
        for name in rule.settings:
            if values[name] != table.settings[name].default:
                sentences.append(rule.says.format(name=name))
    return sentences


def _findings(
    rules: Iterable[FindingWords], values: Config, tree: Mapping[str, Any] | None = None
) -> list[Finding]:
    """Return the findings on settings alone, or those on a configuration file with its settings."""

    def in_file(name: str) -> Any:
        return at_path(tree or {}, name.split("."))

    return [
        Finding(
            slug=rule.slug,
            severity=rule.severity,
            message=rule.message.format_map(values),
            fix=rule.remedy or rule.fix,
            evidence={name: values[name] for name in rule.evidence},
        )
        for rule in rules
        if rule.message
        and (rule.where is None) == (tree is None)
        and holds(rule.when, values.get)
        and (tree is None or holds(rule.where or {}, in_file))
    ]

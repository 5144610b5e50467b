"""One generation of a trainer: its settings, correction, metrics, losses and configuration.

`generation` combines two things: the tables in the trainer's folder (`settings.toml`,
`generations.toml`, `findings.toml`), and functions for what tables cannot express: the correction
for given settings, the metrics, the loss of an update.
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
from rcdiag.trainers.conditions import ClaimRule, claim_by_rules, holds
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

# (settings of a file, file) -> settings as completed by the trainer's parser, and findings.
Complete = Callable[[Config, Document], tuple[Config, list[Finding]]]
# (file, settings with defaults) -> findings on what the rest of the file does to the correction.
FileFindings = Callable[[Mapping[str, Any], Config], list[Finding]]


class ConfigFile(Struct, frozen=True, kw_only=True):
    """How rcdiag finds a trainer's settings in its configuration file, and writes them."""

    header: Header
    # Settings outside of the header's `path` -> dotted names under which they are searched, at any
    # depth of the file. rcdiag writes a setting under the first.
    places: Mapping[str, tuple[str, ...]]
    # (settings in the file, file) -> claim; None if another generation is more likely.
    claim: Callable[[Config, Document], ClaimRule | None]
    # Whether a whole file belongs to the trainer, even if it has no setting of the correction.
    whole: Callable[[Document], bool]
    complete: Complete
    findings: FileFindings
    loss: Callable[[Document], LossChoice]  # the policy loss of an update, for `replay`
    # Settings for a correction; raises Inexpressible. None if rcdiag does not write settings.
    write: Callable[[Correction], Written] | None

    @property
    def path(self) -> tuple[str, ...]:
        """Return the keys that lead to the block of settings in a whole file."""
        return tuple(filter(None, self.header.path.split(".")))

    def dotted(self, name: str) -> str:
        """Return the dotted name under which a setting is written."""
        if name in self.places:
            return self.places[name][0]
        return ".".join([*self.path, name])


class Trainer(Struct, frozen=True, kw_only=True):
    """One generation of a trainer, with the trainer's own names of settings and keys."""

    name: str
    family: str  # the trainer's name without the generation
    # Where its tables are: a package, or a module with `WORDS`; see `rcdiag.trainers.toml_file`.
    package: str
    newest: bool = False  # whether the family's name alone means this generation
    # Its rollout correction.
    settings: Config  # every setting with its default
    # Differences from the defaults, for settings that a whole configuration does not mention:
    # `settings` has the defaults of the class, the trainer's base configuration may have others.
    unset: Config = field(default_factory=dict)
    presets: Mapping[str, Config]  # name -> differences from the defaults
    read: Callable[[Config], Correction]  # raises Refused if the trainer stops with an error
    # The statistics of k1, k2 and k3 by which it can reject, such as `seq_mean_k1`.
    rejects_by: tuple[str, ...] = ()
    # Settings that the trainer accepts but silently ignores: one sentence each.
    ignored: Callable[[Config], list[str]]
    # Findings on settings that the trainer accepts, but that do not do what they seem to.
    traps: Callable[[Config], list[Finding]]
    # The metrics of the correction that it logs. The required reductions of tokens are found by
    # calling it once on made-up rows, so it must request them before any branch on their numbers.
    metrics: Callable[[Batch, Correction], Metrics]
    # The divisor of the weights in the loss; 1 without batch normalisation.
    normaliser: Callable[[Batch, Correction], float]
    update: UpdateRules
    config: ConfigFile

    @property
    def default_preset(self) -> str | None:
        """Return the preset that equals a run without any setting; None if none does."""
        default = {**self.settings, **self.unset}
        named = self.presets.items()
        return next((name for name, one in named if {**self.settings, **one} == default), None)

    def entry(self) -> Entry:
        """Describe the generation: its keys, settings and presets."""
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
        """What the generation does, and when it was released."""
        return f"{self.words.says} ({self.words.until})"

    @property
    def known(self) -> str:
        """The generation's name, with the version and date up to which it is known."""
        return f"{self.name} ({self.words.until})"

    @property
    def words(self) -> GenerationWords:
        """Return the texts on the generation: what it does, its release, the place of settings."""
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
    """Make a generation from its tables and functions.

    By default, its family is the name of the package's folder. The last generation in
    `generations.toml` is the newest.

    Optional functions add what the tables cannot express: `ignored` and `traps` on settings,
    `complete` and `file_findings` on a configuration file, `loss` on its policy loss, and `facts`
    on a correction that is to be written. `switches` are the other fields of Trainer.
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
    """Return the sentences on settings that have no effect, given the other settings."""
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
    """Return the findings on settings (`tree` is None), or on a file together with its settings."""

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

"""A trainer is one generation, with all that rcdiag knows of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct, field

from rcdiag.corrections.correction import Correction
from rcdiag.corrections.quantities import Quantity
from rcdiag.corrections.trainer_means import Batch
from rcdiag.errors import RcdiagError, did_you_mean
from rcdiag.losses.rules import UpdateRules
from rcdiag.results import Finding
from rcdiag.trainers.loss_choice import ReadLoss, nothing
from rcdiag.trainers.settings_document import Document
from rcdiag.trainers.settings_text import Form, Written
from rcdiag.trainers.toml_words import GenerationWords, read_generations

Config = Mapping[str, Any]
Metrics = dict[str, float]


class Claim(Struct, frozen=True):
    """A trainer's claim that settings are its own."""

    certainty: float  # from 0 to 1, which is for names that no other trainer has
    doubt: str = ""  # which other generation could have written the settings


class ConfigFile(Struct, frozen=True, kw_only=True):
    """The trainer's own configuration: how rcdiag finds its settings there, and writes them."""

    # Names that lead to the settings in a whole file; () where the settings are the file.
    path: tuple[str, ...] = ()
    # Settings that stand elsewhere: setting -> dotted names under which it is looked for, at any
    # depth of the file. The first is the one under which rcdiag writes it.
    places: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # Keys of the trainer that stand beside its settings, are like them, and mean something else.
    beside: tuple[str, ...] = ()
    # Settings that say whether a block of others is there: writing the block says true.
    blocks: tuple[str, ...] = ()
    form: Form = "yaml"  # in which rcdiag writes settings
    # It takes the settings of a file and the whole file; None where another trainer or generation
    # is likelier.
    claim: Callable[[Config, Document], Claim | None] = lambda settings, document: None
    # It tells whether a whole file is the trainer's, also where it sets nothing of the correction.
    whole: Callable[[Document], bool] = lambda document: False
    # It takes what `claim` takes and returns the settings as the trainer's own parser completes
    # them (one that implies another, an old name), with findings on what it read into them.
    complete: Callable[[Config, Document], tuple[Config, list[Finding]]] = lambda s, document: (
        s,
        [],
    )
    # It takes a whole file and its settings, defaults filled in, and judges the rest of the file.
    findings: Callable[[Mapping[str, Any], Config], list[Finding]] = lambda document, settings: []
    # It reads which policy loss an update takes, for `replay`.
    loss: ReadLoss = nothing
    # Settings for a correction; raises Inexpressible. None where rcdiag writes none.
    write: Callable[[Correction], Written] | None = None
    needs: tuple[str, ...] = ()  # what else has to be set there, in words
    hydra: bool = False  # its command line takes settings as `path.name=value`
    on_sweep_page: bool = False  # beside the newest generation of each trainer

    def dotted(self, name: str) -> str:
        """Return the dotted name under which a setting is written."""
        if name in self.places:
            return self.places[name][0]
        return ".".join([*self.path, name])


class Trainer(Struct, frozen=True, kw_only=True):
    """One generation of a trainer. Settings and keys have the trainer's own names."""

    name: str
    family: str  # the trainer's name without the generation
    # Where its words are: a package with generations.toml, keys.toml, settings.toml and possibly
    # terms.toml and findings.toml, or a module with `WORDS`, one TOML text: see
    # `rcdiag.trainers.toml_words`.
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
    ignored: Callable[[Config], list[str]] = lambda config: []
    # Traps of its settings that no error tells of, as findings; words in `findings.toml`.
    traps: Callable[[Config], list[Finding]] = lambda config: []
    # What it logs of the correction.
    # What `metrics` reads of the tokens besides the ratios and weights of the batch's rows.
    quantities: Callable[[Correction], list[Quantity]] = lambda correction: []
    metrics: Callable[[Batch, Correction], Metrics]
    percentiles: bool = False  # it logs percentiles of token weights
    reads_prompts: bool = False  # its numbers depend on the width of the padded prompts
    reads_masked: bool = False  # its numbers count tokens of responses that the mask leaves out
    # What the weights of the loss are divided by; 1 without batch normalisation.
    normaliser: Callable[[Batch, Correction], float] = lambda batch, correction: 1.0
    update: UpdateRules
    config: ConfigFile = field(default_factory=ConfigFile)

    @property
    def default_preset(self) -> str | None:
        """Return the preset that a run without any setting has; None where none is like it."""
        default = {**self.settings, **self.unset}
        named = self.presets.items()
        return next((name for name, one in named if {**self.settings, **one} == default), None)

    @property
    def words(self) -> GenerationWords:
        """Return what the generation does, when it came out, and where its settings stand."""
        return read_generations(self.package)[self.name]


class Refused(RcdiagError):
    """Settings on which the trainer itself would stop."""


class NotComputed(Refused):
    """Settings that the trainer takes, and that need what no table has."""


def choice(config: Config, name: str, allowed: tuple[Any, ...]) -> Any:
    """Return a setting that must be one of a few words."""
    value = config[name]
    if value not in allowed:
        words = ", ".join("null" if option is None else str(option) for option in allowed)
        guess = did_you_mean(str(value), [str(option) for option in allowed if option is not None])
        raise Refused(
            f"{name}: {value!r} is not a choice of this trainer", f"{guess}one of {words}"
        )
    return value


def switch(config: Config, name: str) -> bool:
    """Return a setting that must be true or false."""
    value = config[name]
    if not isinstance(value, bool):
        raise Refused(f"{name}: wanted true or false, got {value!r}", "give true or false")
    return value


def not_negative(config: Config, name: str) -> float:
    """Return a setting that must be a number, 0 or above."""
    value = config[name]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
        raise Refused(f"{name}: wanted a number, 0 or above, got {value!r}", "give a number")
    return float(value)


def positive(config: Config, name: str) -> float:
    """Return a setting that must be a number above 0."""
    value = config[name]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise Refused(f"{name}: wanted a number above 0, got {value!r}", "give a number")
    return float(value)


def optional_number(config: Config, name: str) -> float | None:
    """Return a setting that may be null, and else is a number."""
    value = config[name]
    if value is None:
        return None
    if not isinstance(value, (int, float)):  # True is 1, as it is to the trainer
        raise Refused(f"{name}: wanted a number or null, got {value!r}", "give a number")
    return float(value)

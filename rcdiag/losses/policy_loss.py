"""The definition of a policy loss: its function, description and settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from rcdiag.entry import Entry
from rcdiag.errors import RcdiagError, did_you_mean
from rcdiag.losses.batch import LossBatch, TokenLosses
from rcdiag.losses.settings import LossSetting, LossSettings, Value

# The symbols of formulas, all of one token.
SYMBOLS = "d = log_ratio = current - old, r = e^d, A the advantage"
WITHIN_20 = "d within +-20 nats"
CLIPPED_TO = "clip to [1 - clip_low, 1 + clip_high], 0.2 and 0.2"
# The update of the worked examples, with two sequences.
WORKED = (
    "old log-probs [-1, -0.5, -2], [-0.7, -1.5], log-ratios [0.1, -0.1, 1.5], [-1.2, -0.5] of "
    "current to old, advantages 1 and -1"
)
VERL_FILE = "verl 0.9.1, verl/trainer/ppo/core_algos.py"


class PolicyLoss(Struct, frozen=True, kw_only=True):
    """A loss of each token of an update, to be minimised; IS weights multiply its values."""

    name: str
    says: str
    formula: str
    source: str  # the paper, and the public code that the function follows
    function: Callable[[LossBatch, LossSettings], TokenLosses]
    settings: tuple[LossSetting, ...] = ()
    direction: str = "minimised"
    see: tuple[str, ...] = ()
    alias: str = ""  # its name in corrections (`loss_type`) and results, if different
    given: str = ""  # settings of the worked example, if the defaults would not show the loss
    weights_of_tokens: bool = False  # it accepts IS weights of tokens, but not of sequences

    @property
    def loss_type(self) -> str:
        """Return the loss's name in bypass-mode corrections and in results."""
        return self.alias or self.name

    def entry(self) -> Entry:
        """Answer `rcdiag explain`: what the loss is and which settings it reads."""
        return Entry(
            what=f"{self.says} Source: {self.source}.",
            formula=self.formula,
            direction=self.direction,
            units="loss",
            example=f"rcdiag replay rollouts.parquet --loss {self.name}",
            see=tuple(dict.fromkeys([*self.see, *(setting.name for setting in self.settings)])),
        )

    def __call__(self, batch: LossBatch, settings: LossSettings) -> TokenLosses:
        """Return the loss of each token of a batch, or of each row."""
        return self.function(batch, settings)

    def reads(self, name: str) -> bool:
        """Tell whether the loss reads the setting of a name."""
        return any(setting.name == name for setting in self.settings)

    def setting(self, name: str) -> LossSetting:
        """Return a setting of the loss by name; refuse an unknown name."""
        settings = {setting.name: setting for setting in self.settings}
        if name not in settings:
            hint = did_you_mean(name, settings)
            listed = f"it reads {', '.join(settings)}" if settings else "it reads none"
            raise RcdiagError(f"{self.name} does not read the setting `{name}`", f"{hint}{listed}")
        return settings[name]

    def parsed(self, given: Mapping[str, Any] | Sequence[str]) -> dict[str, Value]:
        """Parse a user's settings, given as a mapping or as NAME=VALUE texts."""
        texts: Sequence[str]
        if isinstance(given, Mapping):
            texts = [f"{name}={value}" for name, value in given.items()]
        else:
            texts = given
        values = {}
        for text in texts:
            name, equals, value = text.partition("=")
            if not (name and equals and value):
                raise RcdiagError(
                    f"{text}: wanted NAME=VALUE",
                    f"{self.name} reads {', '.join(setting.name for setting in self.settings)}",
                )
            values[name] = self.setting(name).parsed(value)
        return values

"""Settings of a loss: those of its aggregation, and those that are specific to it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from rcdiag.entry import Entry
from rcdiag.errors import RcdiagError
from rcdiag.formats import yaml_value

# What the loss is divided by. kept: the tokens or rows that are left after rejection; all: rejected
# ones too; constant: a number that the user gives.
Denominator = Literal["kept", "all", "constant"]
Value = float | str | bool | None


class LossSetting(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A setting that a policy loss reads, with its description."""

    name: str
    says: str
    default: Value = None
    above: float | None = None  # a number must be larger than this
    negative: bool = True  # whether a number may be below 0
    choices: tuple[str, ...] = ()  # allowed words, if it is not a number
    can_be_off: bool = False  # None is allowed, as it also is if the default is None
    example: str | None = None
    see: tuple[str, ...] = ()

    def entry(self) -> Entry:
        """Answer `rcdiag explain`: what the setting does, and how it is set."""
        value = f"{self.name}={yaml_value(self.default)}"
        example = f"rcdiag replay rollouts.parquet --loss-setting {value}"
        return Entry(what=self.says, example=self.example or example, see=self.see)

    def parsed(self, text: str) -> Value:
        """Parse a user's value: a number, `off`, true or false, or one of the choices."""
        word = text.strip().lower()
        if self.choices:
            if word in self.choices:
                return word
            raise self._refused(text, f"one of {', '.join(self.choices)}")
        if isinstance(self.default, bool):
            if word in ("true", "false"):
                return word == "true"
            raise self._refused(text, "true or false")
        if word in ("off", "null", "none") and (self.can_be_off or self.default is None):
            return None
        expected = "a number" if self.above is None else f"a number above {self.above:g}"
        expected = expected if self.negative else "a number of 0 or more"
        try:
            value = float(text)
        except ValueError:
            raise self._refused(text, expected) from None
        too_small = (self.above is not None and value <= self.above) or (
            value < 0.0 and not self.negative
        )
        if too_small or not math.isfinite(value):
            raise self._refused(text, expected)
        return value

    def _refused(self, text: str, expected: str) -> RcdiagError:
        default = "off" if self.default is None else self.default
        return RcdiagError(
            f"{self.name}={text}: wanted {expected}", hint=f"its default is {default}"
        )


class LossSettings(Struct, frozen=True):
    """The settings of one loss; settings without a value have their defaults."""

    aggregation: str = "token-mean"
    scale_factor: float | None = None  # of seq-mean-token-sum-norm; None: the padded width
    denominator: Denominator | None = None  # None: that of the trainer's own loss
    constant: float | None = None  # tokens or sequences, for the denominator `constant`
    own: Mapping[str, Value] = field(default_factory=dict)  # settings specific to the loss

    def value(self, setting: LossSetting) -> Any:
        """Return the value of one of the loss's settings, or its default."""
        return self.own.get(setting.name, setting.default)

    def changed(self, **values: Any) -> LossSettings:
        """Return a copy with changed settings, of the aggregation or specific to the loss."""
        ours = {*self.__struct_fields__} - {"own"}
        own = {name: value for name, value in values.items() if name not in ours}
        rest = {name: value for name, value in values.items() if name in ours}
        return replace(self, own={**self.own, **own}, **rest)


CLIP_LOW = LossSetting(
    name="clip_low",
    says="1 - clip_low is the lower bound of the PPO clip, which acts where the advantage is below "
    "0. DPPO and GMPO use it as their own bounds.",
    default=0.2,
    negative=False,
    example="0.2: ratios below 0.8",
    see=("clip_high", "actor/pg_clipfrac"),
)
CLIP_HIGH = LossSetting(
    name="clip_high",
    says="1 + clip_high is the upper bound of the PPO clip, which acts where the advantage is "
    "above 0. Raising only this one, e.g. to 0.28, is called clip-higher.",
    default=0.2,
    negative=False,
    example="0.28: ratios above 1.28",
    see=("clip_low", "actor/pg_clipfrac"),
)
CLIP_RANGE = (CLIP_LOW, CLIP_HIGH)
CLIP_C = LossSetting(
    name="clip_c",
    says="Dual clip: where the advantage is below 0, the loss is at most -A clip_c; above 1.",
    default=3.0,
    above=1.0,
    example="A = -1, ratio 4: loss 3",
    see=("vanilla", "actor/pg_clipfrac_lower"),
)
PPO_SETTINGS = (*CLIP_RANGE, CLIP_C)


def dual_clip_bound(settings: LossSettings) -> float:
    """Return `clip_c`; refuse it if it is off, for losses that need it."""
    bound: float | None = settings.value(CLIP_C)
    if bound is None:
        raise RcdiagError("clip_c: this loss needs a number", "above 1; verl's default is 3.0")
    return bound


def above_one(bound: float) -> float:
    """Return the bound of a dual clip; refuse 1 or less, as verl and slime do."""
    if not bound > 1.0:
        raise RcdiagError(
            f"clip_c: {bound:g} is not above 1",
            "it bounds the ratio of tokens with A < 0 from above; verl's default is 3.0",
        )
    return bound

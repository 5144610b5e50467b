"""The description of an engine that computes log-probs, readable without loading it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Literal, Protocol

from rcdiag.engines.spec import PolicySpec

if TYPE_CHECKING:
    from pathlib import Path

    from rcdiag.engines.checkpoint import ModelFacts
    from rcdiag.entry import Entry
    from rcdiag.table.trajectories import Scores, Trajectories

Progress = Callable[[int], None]  # called with the number of tokens that have just been scored
Say = Callable[[str], None]  # called with a sentence for the user

FULL_PRECISION = ("float32", "float64")


class Engine(Protocol):
    """A loaded model that scores the response tokens of rows."""

    def score(self, trajectories: Trajectories, progress: Progress) -> Scores:
        """Return the log-prob of each response token given all tokens before it, in nats, at the
        row's temperature.
        """
        ...

    def provenance(self) -> dict[str, Any]:
        """Return what is needed to repeat the scores: versions, device, attention, fingerprint."""
        ...


@dataclass(frozen=True, kw_only=True)
class Option:
    """A `key=value` of a policy that rcdiag reads itself rather than passing it to the engine."""

    says: str
    takes: type | tuple[str, ...] = str  # bool, int, str, or the values that are allowed
    shown: str | None = None  # its text in a policy's description, "{}" for the value; "" hides it
    runs_code: bool = False  # its value is executed, so it is refused in an untrusted file
    decides: bool = True  # whether scores depend on it by more than batch-dependent rounding

    @property
    def words(self) -> str:
        """Return what the option does and, if they are listed, its allowed values."""
        values = f": {', '.join(self.takes)}" if isinstance(self.takes, tuple) else ""
        return f"{self.says}{values}"


@dataclass(frozen=True, kw_only=True)
class OtherBatches:
    """The option that changes how rows are batched, for a second run that measures its effect."""

    option: str
    size: int  # small enough that every batch changes
    smaller: int  # for a policy whose batches already have `size`


class LadderRung(IntEnum):
    """Place of a scored policy between sampler and trainer, in the order of a ladder's steps."""

    ENGINE_DECODE = 1  # low precision, one token at a time, as in sampling
    ENGINE_QUANTIZED = 2  # weights of 8 bits or less
    ENGINE_LOW = 3  # low precision, all tokens at once
    ENGINE_LOW_EAGER = 4  # the same without torch.compile and CUDA graphs
    TRAINER_LOW = 5
    TRAINER_AUTOCAST = 6
    TRAINER_LOW_WIDE_HEAD = 7  # low precision with logits in float32
    TRAINER_HALF = 8  # float16, which rounds eight times as finely as bfloat16
    ENGINE_FULL = 9
    TRAINER_FULL = 10


COMMON_OPTIONS: dict[str, Option] = {
    "model": Option(says="the checkpoint of this policy, instead of the one of --model"),
    "adapter": Option(says="a PEFT LoRA folder whose adapter is added to the model"),
    "entropy": Option(says="also score the entropy of each next-token distribution", takes=bool),
    "top_k": Option(says="also score this many of the likeliest tokens of a position", takes=int),
    "lm_head": Option(
        says="the dtype of the output projection, which computes the logits",
        takes=("float32", "bfloat16", "float16"),
        shown="{} head",
    ),
    "matmul": Option(
        says="how a CPU multiplies bfloat16 matrices: native, or rounded, in float32 and then "
        "rounded to bfloat16; rounded by default where the CPU has no bfloat16 instructions",
        takes=("native", "rounded"),
        shown="{} matmul",
    ),
    "repeat_of": Option(says="the policy that this one is a second run of", shown=""),
}

PYTHON = Option(
    says="the Python of another environment to run the engine in, such as /venv/bin/python; rcdiag "
    "need not be installed there",
    runs_code=True,
)


def _checkpoint_facts(spec: PolicySpec, say: Say) -> ModelFacts:
    from rcdiag.engines.checkpoint import checkpoint_facts  # imports numpy, which --help avoids

    return checkpoint_facts(spec)


@dataclass(frozen=True, kw_only=True)
class Backend:
    """The description of an engine, which can be read without loading the engine."""

    name: str  # in --policy NAME=BACKEND
    says: str
    role: Literal["engine", "trainer"]  # scores stand for the sampler's engine, or for the trainer
    dtypes: tuple[str, ...]
    default_dtype: str
    # Takes the policy, its longest sequence in tokens, and the log file for the engine's output.
    load: Callable[[PolicySpec, int, Path], Engine]
    options: Mapping[str, Option] = field(default_factory=dict)  # besides COMMON_OPTIONS
    # Options of other engines, common ones included, that it refuses: name -> reason.
    refuses: Mapping[str, str] = field(default_factory=dict)
    passes_options_on: bool = False  # pass options that rcdiag does not know to the engine
    example: str | None = None  # the value of --policy in examples, if it needs options
    default_policy: str | None = None  # the policy that --model alone adds to a table without it
    other_batches: OtherBatches | None = None
    # Raises for options of a policy that the engine cannot satisfy, before it is started.
    check: Callable[[PolicySpec], None] = lambda spec: None
    # Whether a policy needs a checkpoint from --model or model=; if not, spec.model may be "".
    needs_model: bool = True
    # Returns limits and fingerprint of a policy's model before an engine starts; tells the user
    # through `Say` what it waits for.
    facts: Callable[[PolicySpec, Say], ModelFacts] = _checkpoint_facts
    # Columns with a list for each token that the engine reads besides ids and temperature.
    reads: Callable[[PolicySpec], Sequence[str]] = lambda spec: ()
    # Packages that an environment of `python=PATH` must have, name -> least version. If empty, the
    # option does not exist: the engine runs in rcdiag's own environment.
    packages: Mapping[str, str] = field(default_factory=dict)
    # Whether the model runs in a server or program that rcdiag does not start as an engine process.
    runs_outside: bool = False
    # The least number of rows of a part, which fills one batch, given the policy's options.
    rows_per_part: Callable[[Mapping[str, Any]], int] = lambda options: 1
    # How many GPUs one engine of a policy takes, given the policy's options.
    gpus: Callable[[Mapping[str, Any]], int] = lambda options: 1
    # How the model would be divided over this machine's GPUs, for a dry run; "" for one GPU.
    layout: Callable[[PolicySpec], str] = lambda spec: ""
    # The ladder rung of a policy where role and precision do not determine it, else None.
    own_place: Callable[[Mapping[str, Any]], LadderRung | None] = lambda about: None

    @property
    def known_options(self) -> dict[str, Option]:
        """Return all options that rcdiag reads itself."""
        python = {"python": PYTHON} if self.packages else {}
        known = {**COMMON_OPTIONS, **python, **self.options}
        return {name: option for name, option in known.items() if name not in self.refuses}

    def entry(self) -> Entry:
        """Answer `rcdiag explain`: what the engine is and which options its policies take."""
        from rcdiag.entry import Entry  # with msgspec, which an engine's process may not have

        stands_for = {"engine": "inference engine that sampled", "trainer": "trainer"}[self.role]
        policy = f"{self.default_policy or self.name}={self.name}:{self.default_dtype}"
        return Entry(
            what=f"{self.says} Its policies stand for the {stands_for}.",
            formula=f"--policy NAME={self.name}[:DTYPE][,key=value...]",
            units=f"dtypes: {', '.join(self.dtypes)}; {self.default_dtype} by default",
            generations={key: option.words for key, option in self.known_options.items()},
            example=f"--policy {self.example or policy}",
            see=("engine", "trainer"),
        )

    def passed_on(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of a policy that rcdiag does not read, but passes to the engine."""
        known = self.known_options
        return {key: value for key, value in options.items() if key not in known}

    def deciding(self, spec: PolicySpec) -> dict[str, Any]:
        """Return a policy as a dict with only the options that its scores depend on."""
        known = self.known_options
        options = {
            key: value
            for key, value in spec.options.items()
            if key not in known or known[key].decides
        }
        return {**spec.to_dict(), "options": options}

    def place(self, about: Mapping[str, Any]) -> LadderRung:
        """Return the ladder rung of a policy, given its entry in the file metadata."""
        if (own := self.own_place(about)) is not None:
            return own
        if self.role == "engine":
            return LadderRung.ENGINE_LOW if is_low_precision(about) else LadderRung.ENGINE_FULL
        return LadderRung.TRAINER_LOW if is_low_precision(about) else LadderRung.TRAINER_FULL


def is_low_precision(about: Mapping[str, Any]) -> bool:
    """Tell whether a policy's weights are stored in a dtype below float32."""
    return about.get("dtype") not in (None, *FULL_PRECISION)


def describe(about: Mapping[str, Any], options: Mapping[str, Option]) -> str:
    """Describe backend, precision and options in short: `hf float32 autocast bfloat16`."""
    given = about.get("options") or {}
    words = [str(about["backend"]), str(about.get("dtype") or "")]
    for name, option in options.items():
        if option.shown and (value := given.get(name) or about.get(name)):
            words.append(option.shown.format(value))
    hidden = {name for name, option in options.items() if option.shown is not None}
    words += [f"{name}={value}" for name, value in given.items() if name not in hidden]
    return " ".join(word for word in words if word)

"""The words of every cause are TOML files in `words/`, one for each family of causes.

A file has one table for each slug:

- `title`: what the cause is, at most 60 characters; `says`: what happens in the run.
- `shows`: the signature in the log-probs of two policies, with a formula where one exists;
  `told_apart`: what separates the cause from its look-alikes, and what needs a checkpoint.
- `side`: who is at fault most often; `verdict`: `broken`, `correctable`, or `guides` where the size
  of the numbers decides between healthy and correctable.
- `mend`: up to three repairs in the imperative, the most useful first.

These may be left out:

- `mend_in`: a sub-table with the options that repair it in an engine or a trainer, by the names of
  `PLACES`.
- `umbrella`: umbrella causes that are named where no narrower one can be known; `look_alikes`:
  causes that leave nearly the same trace.
- `links`: pages and threads that describe the cause, each with `text` and `url`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import msgspec
from msgspec import Struct, field

from rcdiag.entry import Entry

# Families in the order of pages and lists, with their headings.
FAMILIES: Mapping[str, str] = {
    "healthy": "Nothing wrong",
    "precision": "Precision",
    "sampling": "Sampling distribution",
    "recording": "Recording",
    "alignment": "Alignment of tokens",
    "context": "Context",
    "weights": "Weights",
    "function": "Function of the model",
    "storage": "Storage",
    "umbrellas": "Umbrellas",
}

# Who is at fault.
SIDES: Mapping[str, str] = {
    "sampler": "the sampler, most often",
    "recorder": "what records the log-probs, most often",
    "trainer": "the trainer, most often",
    "storage": "the storage",
    "engine": "the engine, most often",
    "none": "nobody",
}
# What each verdict of a cause means for the run.
VERDICTS: Mapping[str, str] = {
    "broken": "broken: importance weights do not repair it",
    "correctable": "correctable: importance weights are valid; the cause is still worth removing",
    "guides": "healthy or correctable, by the size of the numbers",
}

# Engines and trainers with options that repair a cause: key of `mend_in` -> its official spelling.
PLACES: Mapping[str, str] = {
    "vllm": "vLLM",
    "sglang": "SGLang",
    "hf": "transformers",
    "megatron": "Megatron-LM",
    "verl": "verl",
    "slime": "slime",
    "trl": "TRL",
    "nemo-rl": "NeMo RL",
    "skyrl": "SkyRL",
    "prime-rl": "prime-rl",
    "open-instruct": "open-instruct",
    "areal": "AReaL",
}

WORDS = Path(__file__).with_name("words")


class Link(Struct, frozen=True, kw_only=True):
    """A link leads to a page or thread that describes a cause."""

    text: str
    url: str


class CauseWords(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The words on one cause: what happens, how it shows, its look-alikes, its repair."""

    slug: str
    family: str  # of FAMILIES
    title: str
    says: str
    shows: str
    told_apart: str
    side: str  # of SIDES
    verdict: str  # of VERDICTS
    mend: tuple[str, ...]
    # Key of PLACES -> options that repair it there.
    mend_in: Mapping[str, str] = field(default_factory=dict)
    umbrella: tuple[str, ...] = ()  # slugs
    look_alikes: tuple[str, ...] = ()  # slugs
    links: tuple[Link, ...] = ()

    def entry(self) -> Entry:
        """Return what happens, how it shows, what it is mistaken for, and what repairs it."""
        repair = self.mend
        if len(repair) > 1:
            repair = tuple(f"{number} {line}" for number, line in enumerate(repair, start=1))
        return Entry(
            what=f"{self.title[0].upper()}{self.title[1:]}. {self.says}",
            generations={PLACES[place]: text for place, text in self.mend_in.items()},
            parts={
                "family": FAMILIES.get(self.family, self.family),
                "at fault": SIDES[self.side],
                "verdict": VERDICTS[self.verdict],
                "shows": self.shows,
                "similar": self.told_apart,
                "fix": "\n".join(repair),
            },
            links={link.text: link.url for link in self.links},
            see=(*self.umbrella, *self.look_alikes),
        )


@cache
def cause_words() -> dict[str, CauseWords]:
    """Return the words of every cause by slug, in the order of families and files."""
    return {
        slug: msgspec.convert({**table, "slug": slug, "family": family}, CauseWords)
        for family in FAMILIES
        for slug, table in tomllib.loads((WORDS / f"{family}.toml").read_text("utf-8")).items()
    }

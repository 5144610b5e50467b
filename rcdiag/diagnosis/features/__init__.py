"""Features are numbers computed from a case that several causes share."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from rcdiag.diagnosis.case import Case, rms
from rcdiag.diagnosis.features.alignment import Alignment
from rcdiag.diagnosis.features.declared import Declared
from rcdiag.diagnosis.features.few_places import FewPlaces, few_places
from rcdiag.diagnosis.features.kept_sets import RecordedKeptSets, recorded_kept_sets
from rcdiag.diagnosis.features.location import MismatchLocation, Onset
from rcdiag.diagnosis.features.log_ratios import (
    BITWISE,
    ENGINE_NOISE,
    LARGE_MISMATCH,
    LogRatios,
)
from rcdiag.diagnosis.features.shared_prefixes import (
    RepeatedTokens,
    SharedPrefixes,
    repeated_tokens_of,
    shared_prefixes_of,
)
from rcdiag.diagnosis.features.storage import StoredColumn, stored_column
from rcdiag.diagnosis.features.turns import TurnMismatch, mismatch_by_turn
from rcdiag.diagnosis.thresholds import ENOUGH, MANY_TIMES
from rcdiag.diagnosis.validity import Validity, validity_of
from rcdiag.engines.kept_sets import SUPPORT
from rcdiag.statistics.rounding import ASSUMED, RoundingNoise, rounding_of

__all__ = [
    "BITWISE",
    "ENGINE_NOISE",
    "LARGE_MISMATCH",
    "Alignment",
    "Declared",
    "Features",
    "LogRatios",
    "MismatchLocation",
    "Onset",
    "RecordedKeptSets",
    "RepeatedTokens",
    "SharedPrefixes",
    "StoredColumn",
    "TurnMismatch",
]


class Features(Struct, frozen=True, dict=True):
    """All features of one case, each computed when a cause first needs it."""

    case: Case
    # Of a case that is the part of a table from some step on: how the mismatch rose at that step.
    onset: Onset | None = None
    # Of a case that is a part of a table: which rows it has, such as "from step 8 on".
    within: str = ""

    @cached_property
    def columns(self) -> dict[str, StoredColumn]:
        """Return the stored column of each policy of the pair, the sampler's first."""
        names = [name for name in (self.case.sampler, self.case.trainer) if name is not None]
        others = reversed(names) if len(names) > 1 else [None]
        return {
            name: stored_column(self.case, name, other)
            for name, other in zip(names, others, strict=True)
        }

    @cached_property
    def alignment(self) -> Alignment:
        """Return how well the two columns correlate, by turn and by row."""
        return Alignment(self.case)

    @cached_property
    def log_ratios(self) -> LogRatios:
        """Return statistics of log_ratio = trainer - sampler."""
        return LogRatios(self.case.tokens)

    @cached_property
    def validity(self) -> Validity:
        """Return whether the recorded distribution sampled the tokens."""
        return validity_of(self.case, self.within)

    @cached_property
    def precisions(self) -> RoundingNoise:
        """Return how far rounding moves logits at the declared precisions."""
        policies = self.case.metadata.get("policies", {})
        policies = policies if isinstance(policies, Mapping) else {}
        return rounding_of(policies, self.case.sampler, str(self.case.trainer))

    @property
    def of_bfloat16(self) -> float:
        """Return the noise of the declared precisions as a share of bfloat16's, at most 1."""
        noise, most = self.precisions.noise, ASSUMED.noise
        return 1.0 if noise is None or most is None else min(noise / most, 1.0)

    @cached_property
    def few_places(self) -> FewPlaces | None:
        """Return the few tokens or rows without which the two sides agree to rounding."""
        return few_places(self.log_ratios, self.engine_noise, self.case.cluster)

    @property
    def at_few_tokens(self) -> bool:
        """Tell whether the two sides agree to rounding except at a few tokens."""
        return self.few_places is not None and not self.few_places.of_rows

    @property
    def engine_noise(self) -> float:
        """Return the rms log-ratio, nats, that the rounding of two engines stays below."""
        return max(ENGINE_NOISE * self.of_bfloat16, BITWISE)

    @property
    def same_experts_agree(self) -> bool:
        """Tell whether the tokens of the same experts agree to rounding, and all tokens do not."""
        rerouting = self.case.rerouting
        same = None if rerouting is None else rerouting.k2_same_experts.value
        if same is None or self.log_ratios.rms < self.engine_noise:
            return False
        return same < self.engine_noise**2 / 2.0

    @cached_property
    def expected_rounding(self) -> float:
        """Return the rms log-ratio, nats, that the rounding of two engines is expected to cause.

        noise * sqrt(E[(1 - p)^2]) over the sampler's probabilities p, with the logit noise of the
        declared precisions, bfloat16 against float32 where nothing is declared. At least BITWISE,
        also where every sampled token is certain.
        """
        noise = ASSUMED.noise if self.precisions.noise is None else self.precisions.noise
        assert noise is not None
        return max(noise * rms(np.expm1(self.case.tokens.sampler)), BITWISE)

    @cached_property
    def first_turns_agree(self) -> tuple[float, float] | None:
        """Return the rms log-ratio of first turns and of later turns, nats.

        None unless first turns agree to rounding and later ones do not.
        """
        values = self.log_ratios.values
        first = self.alignment.first_turn[self.alignment.turn]
        if min(int(first.sum()), int((~first).sum())) < ENOUGH:
            return None
        before, after = (rms(values[part]) for part in (first, ~first))
        return (before, after) if before <= ENGINE_NOISE and after >= MANY_TIMES * before else None

    @cached_property
    def kept_sets(self) -> RecordedKeptSets | None:
        """Return statistics of the recorded kept sets; None without any."""
        return recorded_kept_sets(self.case, over_kept_sets(self.case.metadata))

    @cached_property
    def by_turn(self) -> TurnMismatch:
        """Return the mismatch of each turn of the responses."""
        return mismatch_by_turn(self.alignment, self.log_ratios.values)

    @cached_property
    def shared_prefixes(self) -> SharedPrefixes | None:
        """Return pairs of tokens that were sampled in the same context; None if there are few."""
        return shared_prefixes_of(self.case)

    @cached_property
    def repeated_tokens(self) -> RepeatedTokens | None:
        """Return pairs of equal tokens in the same context; None if there are few."""
        return repeated_tokens_of(self.case)

    @cached_property
    def location(self) -> MismatchLocation:
        """Return where in the table the log-ratios are large."""
        return MismatchLocation(self.case, self.log_ratios)

    @cached_property
    def declared(self) -> Declared:
        """Return what the file's metadata and columns declare about both sides."""
        return Declared.of(self.case)

    @cached_property
    def rescored(self) -> tuple[str | None, str | None]:
        """Return the policies re-scored with the sampler's engine and with the trainer's model."""
        return rescored_policies(self.case)

    def between(self, sampler: str, trainer: str) -> LogRatios:
        """Return statistics of the log-ratio of two other policies of the table."""
        return LogRatios(replace(self.case, sampler=sampler, trainer=trainer).tokens)


def over_kept_sets(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return policy -> policy whose kept sets it was scored over, as metadata state it."""
    options = {
        name: about.get("options") or {} for name, about in metadata.get("policies", {}).items()
    }
    return {name: str(given[SUPPORT]) for name, given in options.items() if SUPPORT in given}


def rescored_policies(case: Case) -> tuple[str | None, str | None]:
    """Return the policies re-scored with the sampler's engine and with the trainer's model.

    Each is None if there is none. Metadata say which backend scored a policy; without them its
    name does: `vllm_bf16`, `hf_fp32`.
    """
    about = case.metadata.get("policies", {})
    others = [
        name
        for name in case.log_probs
        if name not in (case.sampler, case.trainer, *over_kept_sets(case.metadata))
    ]
    backend = {name: str(about.get(name, {}).get("backend", "")) for name in others}

    def first(*words: str) -> str | None:
        return next(
            (
                name
                for name in others
                if any(backend[name] == word or name.lower().startswith(word) for word in words)
            ),
            None,
        )

    sampler = first("vllm", "sglang", "server")
    return sampler, first("hf", "fsdp", "megatron", "command")

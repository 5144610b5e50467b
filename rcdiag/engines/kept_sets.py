"""The option `support` of a policy: the kept sets over which it is renormalised.

A sampler with top-p, top-k or min-p draws from a subset of the vocabulary, its kept set S, and its
log-probs are log p(token) - log p(S). A trainer's log-probs are comparable with them over the same
S: "keep sampling mask" of DeepSeek-V3.2 (https://arxiv.org/abs/2512.02556), "sampling mask" of
vLLM, "sample support replay" of SkyRL.
"""

from __future__ import annotations

from collections.abc import Sequence

from rcdiag.engines.spec import PolicySpec
from rcdiag.errors import RcdiagError

SUPPORT = "support"
# The scored model's own kept set, computed from the sampling parameters of the row.
OWN = "own"
SAMPLING_PARAMETERS = ("top_p", "top_k", "min_p")


def kept_sets_from(spec: PolicySpec) -> Sequence[str]:
    """Return the columns that a policy's kept sets are read from; empty without `support`."""
    support = spec.options.get(SUPPORT)
    if support is None:
        return ()
    return SAMPLING_PARAMETERS if support == OWN else (f"{support}_kept_ids",)


def check_support(spec: PolicySpec) -> None:
    """Refuse options that cannot be combined with `support`."""
    if SUPPORT in spec.options and spec.options.get("top_k"):
        raise RcdiagError(
            f"policy `{spec.name}`: top_k={spec.options['top_k']} beside support="
            f"{spec.options[SUPPORT]}: a kept set may have fewer tokens",
            hint="score the likeliest tokens as a policy of their own, without support",
        )

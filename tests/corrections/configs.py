"""Drawn settings of every trainer, such as it takes."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from rcdiag.trainers.verl.k_rejection import OPTIONS
from tests.corrections.configs_of_checkouts import OF_CHECKOUTS

Config = dict[str, Any]
OfVeto = st.sampled_from((None, 1e-4, 0.5, 1.5))
# Met exactly by some drawn log-ratios: 0.5, 1, 2. Some are on one side of 1.
UPPER = st.sampled_from((2.0, 1.0, 1.2, 1.001, 0.7, 5.0, 1e9))
LOWER = st.sampled_from((None, 0.5, 0.0, 0.9, 1.1))
OF_K1 = st.sampled_from(("0.5_2.0", "0.6_1.6", "0.999_1.001", "1.0_1.0", "1.1_3.0", "2.0"))
OF_K = st.sampled_from(("0.125", "0.01", "2.0", "1e-6", "300"))
ICEPOP = st.sampled_from(("0.5_2.0", "0.5_5.0", "0.7_1.4", "1.0_1.0", "1.1_3.0", "2.0"))


def weights_alone() -> SearchStrategy[Config]:
    """verl 0.6.0 and verl-20251027."""
    return st.fixed_dictionaries(
        {
            "rollout_is": st.booleans(),
            "rollout_is_threshold": UPPER,
            "rollout_is_threshold_lower": LOWER,
            "rollout_is_level": st.sampled_from(("token", "sequence", "geometric")),
            "rollout_is_mode": st.sampled_from(("truncate", "mask")),
            "rollout_is_veto_threshold": OfVeto,
        }
    )


def by_ratios() -> SearchStrategy[Config]:
    """verl 0.6.1, verl-20251203 and verl 0.7.0."""
    return st.fixed_dictionaries(
        {
            "rollout_is": st.sampled_from((None, "token", "sequence")),
            "rollout_is_threshold": UPPER | st.none(),
            "rollout_rs": st.sampled_from((None, "token", "sequence", "geometric")),
            "rollout_rs_threshold": UPPER,
            "rollout_rs_threshold_lower": LOWER,
            "rollout_token_veto_threshold": OfVeto,
            "rollout_is_batch_normalize": st.booleans(),
        }
    )


@st.composite
def by_k(draw: st.DrawFn, icepop: bool = True, max_options: int = 3) -> Config:
    """verl 0.7.1 and later."""
    names = draw(st.lists(st.sampled_from(OPTIONS), unique=True, max_size=max_options))
    threshold: str | None = None
    if names and draw(st.booleans()):
        threshold = draw(st.sampled_from(("1.6", "2.0", "1.0")))  # one for all
    elif names:
        threshold = ",".join(draw(OF_K1 if name.endswith("k1") else OF_K) for name in names)
    return {
        "rollout_is": draw(st.sampled_from((None, "token", "sequence"))),
        "rollout_is_threshold": draw(UPPER | st.none() | (ICEPOP if icepop else st.nothing())),
        "rollout_rs": ",".join(names) or None,
        "rollout_rs_threshold": threshold,
        "rollout_is_batch_normalize": draw(st.booleans()),
    }


@st.composite
def slime(draw: st.DrawFn) -> Config:
    levels = st.sampled_from(("token", "sequence", "geometric"))
    level = draw(levels)
    return {
        "use_tis": draw(st.sampled_from((True, True, False))),
        "use_rs": draw(st.booleans()),
        "tis_level": level,
        "rs_level": draw(levels),
        "tis_mode": draw(st.sampled_from(("truncate", "clip", "mask"))),
        "tis_lower_bound": draw(st.sampled_from((None, 0.5, 0.9))),
        "tis_upper_bound": draw(st.sampled_from((2.0, 1.2, 5.0))),
        "rs_lower_bound": draw(st.sampled_from((None, 0.5, 0.99))),
        "rs_upper_bound": draw(st.sampled_from((None, 1.01, 3.0))),
        "rs_veto_threshold": draw(OfVeto),
        "tis_batch_normalize": level != "geometric" and draw(st.booleans()),
    }


def configs_of(trainer: str) -> SearchStrategy[Config]:
    """Settings that the trainer takes."""
    if trainer in OF_CHECKOUTS:
        return OF_CHECKOUTS[trainer]
    if trainer == "slime":
        return slime()
    if trainer in ("verl-0.6.0", "verl-20251027"):
        return weights_alone()
    if trainer in ("verl-0.6.1", "verl-20251203", "verl-0.7.0"):
        return by_ratios()
    return by_k(icepop=trainer != "verl-0.7.1")

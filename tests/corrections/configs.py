"""Random valid settings of every trainer."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from rcdiag.trainers.verl.correction import OPTIONS
from tests.corrections.configs_of_checkouts import OF_CHECKOUTS
from tests.corrections.configs_of_new import OF_NEW

Config = dict[str, Any]
OfVeto = st.sampled_from((None, 1e-4, 0.5, 1.5))
# Some drawn log-ratios lie exactly on these bounds: 0.5, 1, 2. Some are on one side of 1.
UPPER = st.sampled_from((2.0, 1.0, 1.2, 1.001, 0.7, 5.0, 1e9))
LOWER = st.sampled_from((None, 0.5, 0.0, 0.9, 1.1))
OF_K1 = st.sampled_from(("0.5_2.0", "0.6_1.6", "0.999_1.001", "1.0_1.0", "1.1_3.0", "2.0"))
OF_K = st.sampled_from(("0.125", "0.01", "2.0", "1e-6", "300"))
ICEPOP = st.sampled_from(("0.5_2.0", "0.5_5.0", "0.7_1.4", "1.0_1.0", "1.1_3.0", "2.0"))


def weights_alone() -> SearchStrategy[Config]:
    """Settings of verl 0.6.0 and verl-20251027."""
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
    """Settings of verl 0.6.1, verl-20251203 and verl 0.7.0."""
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
    """Settings of verl 0.7.1 and later."""
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


MODES = st.sampled_from(("token_truncate", "token_mask", "sequence_truncate", "sequence_mask"))


def trl() -> SearchStrategy[Config]:
    """TRL's weights of vLLM's log-probs."""
    return st.fixed_dictionaries(
        {
            "vllm_importance_sampling_correction": st.sampled_from((True, True, False)),
            "vllm_importance_sampling_mode": MODES,
            "vllm_importance_sampling_clip_max": st.sampled_from((3.0, 1.2, 2.0)),
            "vllm_importance_sampling_clip_min": st.sampled_from((None, 0.5, 0.9)),
        }
    )


def axolotl() -> SearchStrategy[Config]:
    """Axolotl's own trainer."""
    cap = st.sampled_from((3.0, 1.2, 2.0))
    return st.fixed_dictionaries(
        {"vllm_importance_sampling_mode": MODES, "vllm_importance_sampling_cap": cap}
    )


def ms_swift() -> SearchStrategy[Config]:
    """ms-swift's modes and its bound."""
    return st.fixed_dictionaries(
        {
            "rollout_importance_sampling_mode": MODES | st.none(),
            "rollout_importance_sampling_threshold": st.sampled_from((2.0, 1.2, 1.001)),
        }
    )


OPENRLHF_BOUNDS = st.sampled_from(([0.5, 5.0], [0.9, 1.1], [0.5, 2.0]))


def openrlhf_gated() -> SearchStrategy[Config]:
    """Level, mode and gate of OpenRLHF 0.11.2."""
    of_ratios = st.fixed_dictionaries(
        {
            "is_correction_level": st.sampled_from(("off", "token", "seq")),
            "is_correction_threshold": OPENRLHF_BOUNDS,
        }
    )
    of_divergences = st.fixed_dictionaries(
        {
            "is_correction_level": st.sampled_from(("token", "seq")),
            "is_correction_gating": st.sampled_from(("binary_kl", "tv")),
            "is_correction_threshold": st.sampled_from(([0.002], [0.05], [0.5])),
        }
    )
    clips = st.fixed_dictionaries(
        {
            "is_correction_level": st.just("token"),
            "is_correction_mode": st.just("clip"),
            "is_correction_threshold": OPENRLHF_BOUNDS,
        }
    )
    return of_ratios | of_divergences | clips


def openrlhf_typed() -> SearchStrategy[Config]:
    """A type of OpenRLHF 0.11.0."""
    return st.fixed_dictionaries(
        {
            "is_correction_enable": st.booleans(),
            "is_correction_type": st.sampled_from(("tis", "icepop", "seq-mask-tis")),
            "is_correction_threshold": OPENRLHF_BOUNDS,
        }
    )


def skyrl() -> SearchStrategy[Config]:
    """Every step of SkyRL's correction, or a loss on the rollout."""
    names = ("tis_ratio_type", "sequence_mask_metric")
    steps = st.fixed_dictionaries(
        {
            names[0]: st.sampled_from((None, "token", "sequence")),
            "token_tis_ratio_clip_high": st.sampled_from((2.0, 1.2, 5.0)),
            "sequence_tis_ratio_clip_high": st.sampled_from((5.0, 1.001)),
            names[1]: st.sampled_from((None, "geometric", "product")),
            "geo_mask_high": st.sampled_from((1.01, 2.0)),
            "product_mask_low": st.sampled_from((0.5, 0.9)),
            "outlier_token_is_threshold_low": OfVeto,
            "outlier_token_is_threshold_high": st.sampled_from((None, 2.0, 100.0)),
            "token_mask_is_threshold_low": st.sampled_from((None, 0.5, 0.9)),
            "token_mask_is_threshold_high": st.sampled_from((None, 2.0, 1.2)),
        }
    )
    losses = st.fixed_dictionaries(
        {
            "policy_loss_type": st.sampled_from(("rollout_is", "cispo")),
            "cispo_anchor": st.just("rollout"),
            "eps_clip_low": st.sampled_from((0.2, 0.5)),
            "cispo_eps_clip_high": st.sampled_from((4.0, 0.2)),
        }
    )
    return steps | losses


def nemo_rl() -> SearchStrategy[Config]:
    """A type of NeMo-RL's weights at a level, and its filter."""
    name = "truncated_importance_sampling"
    threshold = {"seq_logprob_error_threshold": st.sampled_from((None, 1.5, 1.05))}
    plain = st.fixed_dictionaries(
        {"use_importance_sampling_correction": st.booleans(), **threshold}
    )
    bounds = {
        "use_importance_sampling_correction": st.just(True),
        f"{name}_ratio": st.sampled_from((2.0, 5.0, 1.002)),
        f"{name}_ratio_min": st.sampled_from((0.5, 0.999)),
        **threshold,
    }
    by_token = st.sampled_from(("tis", "icepop", "seq-mask-tis"))
    by_sequence = {
        "sequence_level_importance_ratios": st.just(True),
        "token_level_loss": st.just(False),
        f"{name}_type": st.sampled_from(("tis", "icepop")),
    }
    return (
        plain
        | st.fixed_dictionaries({**bounds, f"{name}_type": by_token})
        | st.fixed_dictionaries({**bounds, **by_sequence})
    )


def areal() -> SearchStrategy[Config]:
    """AReaL's test at a level, and M2PO."""
    block = "rejection_sampling"
    on = {"use_decoupled_loss": st.just(True), block: st.just(True)}
    on["m2_threshold"] = st.sampled_from((None, None, 0.04, 1e-6))
    of_sequences = {
        f"{block}.level": st.sampled_from(("token", "sequence")),
        f"{block}.agg": st.sampled_from(("sum", "mean", "max")),
    }
    ratios = {
        f"{block}.action": st.sampled_from(("mask", "clamp")),
        f"{block}.upper": st.sampled_from((5.0, 1.2, 2.0)),
        f"{block}.lower": st.sampled_from((None, 0.5, 0.9)),
    }
    kls = {
        f"{block}.metric": st.sampled_from(("kl_k1", "kl_k2", "kl_k3")),
        f"{block}.upper": st.sampled_from((0.01, 0.5)),
    }
    return st.fixed_dictionaries({**on, **of_sequences, **ratios}) | st.fixed_dictionaries(
        {**on, **of_sequences, **kls}
    )


OTHERS = {
    "skyrl-0.4": skyrl(),
    "nemo-rl": nemo_rl(),
    "areal-1.0": areal(),
    "areal-20260822": areal(),
    "slime": slime(),
    "trl-1.16": trl(),
    "trl-async-1.16": st.fixed_dictionaries({"max_staleness": st.just(4)}),  # it corrects nothing
    "torchtitan": st.fixed_dictionaries({"target_offpolicy_steps": st.just(3)}),  # nor does it
    "unsloth": trl(),
    "axolotl-0.21": axolotl(),
    "ms-swift-4.6": ms_swift(),
    "openrlhf-0.11.0": openrlhf_typed(),
    "openrlhf-0.11.2": openrlhf_gated(),
}


def configs_of(trainer: str) -> SearchStrategy[Config]:
    """Settings that the trainer takes."""
    if trainer in OF_CHECKOUTS:
        return OF_CHECKOUTS[trainer]
    if trainer in OTHERS:
        return OTHERS[trainer]
    if trainer in OF_NEW:
        return OF_NEW[trainer]
    if trainer == "verl-20250826":
        return st.fixed_dictionaries({"tis_imp_ratio_cap": UPPER | st.just(-1.0)})
    if trainer in ("verl-0.6.0", "verl-20251027"):
        return weights_alone()
    if trainer in ("verl-0.6.1", "verl-20251203", "verl-0.7.0"):
        return by_ratios()
    return by_k(icepop=trainer != "verl-0.7.1")

"""Random settings of rLLM, RLinf, XTuner, PipelineRL, Tunix and tinker-cookbook."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

Config = dict[str, Any]
CAP = st.sampled_from((2.0, 1.0, 1.2, 5.0, 0.7))
LEVEL = st.sampled_from((None, "token", "sequence"))


def rllm() -> SearchStrategy[Config]:
    """Settings of either backend; verl refuses bypass mode with tis_mode."""
    bypass = st.just({"bypass_mode": True})
    return bypass | st.fixed_dictionaries({"tis_mode": LEVEL, "tis_cap": CAP})


def rlinf() -> SearchStrategy[Config]:
    clamp = {"importance_sampling_fix": st.booleans(), "importance_sampling_clip": CAP}
    decoupled = {
        "loss_type": st.just("decoupled_actor_critic"),
        "behave_weight_threshold": CAP | st.none(),
    }
    return st.fixed_dictionaries(clamp) | st.fixed_dictionaries(decoupled)


def xtuner() -> SearchStrategy[Config]:
    """Settings with bounds in XTuner's order, (upper, lower)."""
    bounds = st.sampled_from(([2.0, 0.5], [5.0, 0.0], [1.2, 0.9]))
    veto = st.sampled_from((None, [20.0, 0.0], [2.0, 0.25]))
    return st.fixed_dictionaries(
        {
            "rollout_is_level": st.sampled_from(("token", "sequence", "geometric")),
            "rollout_is_mode": st.sampled_from(("truncate", "mask", "both")),
            "rollout_is_threshold": bounds,
            "rollout_is_mask_threshold": bounds | st.none(),
            "rollout_is_veto_threshold": veto,
        }
    )


def pipelinerl() -> SearchStrategy[Config]:
    return st.fixed_dictionaries(
        {
            "policy_loss": st.sampled_from(("reinforce", "ppo")),
            "epsilon_high": st.sampled_from((0.02, 0.2, 4.0, 0.0)),
        }
    )


def tunix() -> SearchStrategy[Config]:
    return st.fixed_dictionaries(
        {
            "sampler_is": st.sampled_from((None, "token")),
            "sampler_is_threshold": CAP,
            "use_rollout_logps": st.sampled_from((True, True, False)),
        }
    )


def tinker_cookbook() -> SearchStrategy[Config]:
    side = "loss_fn_config.clip_{}_threshold"
    return st.fixed_dictionaries(
        {
            "loss_fn": st.sampled_from(("importance_sampling", "ppo", "cispo")),
            side.format("low"): st.sampled_from((None, 0.5)),
            side.format("high"): st.sampled_from((None, 1.2)),
        }
    )


OF_NEW = {
    "rllm-verl": rllm(),
    "rllm-fireworks": rllm(),
    "rlinf": rlinf(),
    "xtuner": xtuner(),
    "pipelinerl": pipelinerl(),
    "tunix": tunix(),
    "tinker-cookbook": tinker_cookbook(),
}

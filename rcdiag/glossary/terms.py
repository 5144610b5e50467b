"""Terms of the field that belong to no definition.

To add one: an entry here. What a trainer calls it stands in that trainer's `terms.toml`.
"""

from __future__ import annotations

from rcdiag.entry import LOG_RATIO, Entry
from rcdiag.glossary.kinds import Kind, by_hand

_TOY = "log_ratio 0.1"


WORDS: dict[str, Entry] = {
    "log_ratio": Entry(
        what="Log-prob of a token under the target less that under the behavior policy.",
        formula="log p_target - log p_behavior",
        direction=LOG_RATIO,
        units="nats",
        healthy="ideal 0",
        example="probabilities 0.5 under behavior, 0.55 under target: log_ratio 0.0953, ratio 1.1",
        see=("ratio", "k1"),
    ),
    "ratio": Entry(
        what="Probability under the target over that under the behavior policy; of a sequence the "
        "product over its tokens. Never called weight.",
        formula="exp(log_ratio)",
        direction="target / behavior",
        units="ratio",
        healthy="ideal 1",
        example=f"{_TOY}: ratio 1.105",
        see=("log_ratio", "weights"),
    ),
    "weights": Entry(
        what="What the loss of each token is multiplied by: the ratio after truncation or zeroing.",
        formula="min(ratio, upper), or another treatment",
        direction="target / behavior",
        units="ratio",
        example="ratio 3 with the bound 2: weight 2",
        see=("TIS", "IcePop", "MIS", "weight_sum"),
    ),
    "|c| / none": Entry(
        what="How strongly an update pulls beside the one without correction: the norm of its "
        "coefficients over the norm without correction.",
        formula="|c| / |c without correction|",
        units="ratio",
        healthy="1: the correction leaves the pull as it is",
        example="weights of sequences that are mostly below 1: 0.5",
        see=("norm", "naive"),
    ),
    "limits": Entry(
        what="The bounds from which on a number is a warning and an error, the warning's first; "
        "with ± they are distances from a value.",
        example="0.001, 0.01: a warning at or above 0.001, an error at or above 0.01",
        see=("level", "mismatch-above-guide"),
    ),
    "error / none": Entry(
        what="Error of a candidate's batch gradient, squared bias plus variance, over that without "
        "correction.",
        units="ratio",
        healthy="below 1: better than no correction",
        example="bias² 0 and variance 0.8 beside 1 without correction: 0.8",
        see=("efficiency", "gradient_bias", "gradient_noise"),
    ),
    "vs best": Entry(
        what="Whether a candidate of a sweep is chosen, cannot be distinguished from the best "
        "(same), is worse, or breaks a constraint (refused).",
        example="same: within one standard error of the best, and 5%",
        see=("within_error_of_best", "refused"),
    ),
    "behavior": Entry(
        what="The policy that sampled the tokens; `rollout` unless --behavior says otherwise.",
        example="rcdiag score rollouts.parquet --behavior vllm_bf16 --target hf_fp32",
        see=("target", "log_ratio"),
    ),
    "target": Entry(
        what="The policy that trains; `old` unless --target says otherwise.",
        example="rcdiag score rollouts.parquet --behavior vllm_bf16 --target hf_fp32",
        see=("behavior", "log_ratio"),
    ),
    "rollout": Entry(
        what="The policy that sampled the data, as the inference engine recorded it.",
        example="column rollout_log_probs",
        see=("behavior", "old"),
    ),
    "old": Entry(
        what="The trainer's policy before the update, also called proximal; metrics of trainers "
        "call it training.",
        example="column old_log_probs",
        see=("rollout", "current", "decoupled"),
    ),
    "current": Entry(
        what="The policy that is being updated.", example="PPO ratio: current / old", see=("old",)
    ),
    "decoupled": Entry(
        what="Three policies: weights from old / rollout, PPO ratio from current / old.",
        formula="weight(old / rollout) * clipped loss(current / old)",
        example="rcdiag explain decoupled_token_is",
        see=("bypass",),
    ),
    "bypass": Entry(
        what="Two policies: the rollout log-probs stand in for the old ones. Numbers logged in "
        "bypass mode compare current with rollout and are means over micro-batches, maxima too.",
        formula="PPO ratio = current / rollout",
        example="rcdiag explain bypass_ppo_clip",
        see=("decoupled", "bypass_mode", "loss_type"),
    ),
    "ppo_clip": Entry(
        what="Loss in bypass mode: PPO with current / rollout as its ratio. Weights are logged and "
        "not applied, since that ratio is one already. In results of `rcdiag "
        "replay` the loss vanilla has this name, in any mode.",
        example="rcdiag explain bypass_ppo_clip",
        see=("bypass", "reinforce"),
    ),
    "reinforce": Entry(
        what="Loss in bypass mode: policy gradient times the weights, without PPO's clipping.",
        formula="-advantage * log p_current * weight",
        example="rcdiag explain bypass_pg_is",
        see=("bypass", "ppo_clip"),
    ),
    "k1": Entry(
        what="Estimator of KL(behavior || target): unbiased where tokens come from the behavior "
        "policy, noisy, may be negative.",
        formula="-log_ratio",
        direction="KL(behavior || target)",
        units="nats",
        healthy="ideal 0",
        example=f"{_TOY}: k1 -0.1",
        see=("k1_kl", "token_k1", "mirrored-bounds"),
    ),
    "k2": Entry(
        what="Size of the mismatch whoever sampled; never negative, a little biased as a KL.",
        formula="log_ratio^2 / 2",
        direction="the same for log_ratio and -log_ratio",
        units="nats",
        healthy="ideal 0",
        example=f"{_TOY}: k2 0.005",
        see=("k2_kl", "token_k2"),
    ),
    "k3": Entry(
        what="Estimator of KL(behavior || target): never negative, steady where the mismatch is "
        "small, ruled by single tokens of large ratio where it is not.",
        formula="ratio - 1 - log_ratio",
        direction="KL(behavior || target)",
        units="nats",
        healthy="ideal 0",
        example=f"{_TOY}: k3 0.00517",
        see=("k3_kl", "token_k3", "seq_mean_k3"),
    ),
    "ESS": Entry(
        what="Effective sample size as a fraction: how many equally weighted samples are as good. "
        "Always of tokens or of sequences, of raw ratios or of applied weights.",
        formula="(sum w)^2 / (n sum w^2) = 1 / (1 + CV^2)",
        units="fraction",
        healthy="ideal 1; by sequence warning at 0.5, error at 0.1 (rcdiag's proposal); blind to "
        "giants that were never drawn: see khat_seq",
        example="weights 1, 1, 2: 16 / (3 * 6) = 0.889",
        see=("ess_seq", "ess_token", "ess_seq_applied", "rollout_corr/rollout_is_eff_sample_size"),
    ),
    "veto": Entry(
        what="One token with a ratio below a tiny bound takes its whole sequence out. The "
        "log-ratio is not clamped for it.",
        formula="min over tokens of log_ratio < ln(threshold)",
        units="ratio",
        example="1e-4: a token of log_ratio below -9.21",
        see=("rollout_token_veto_threshold", "rs_veto_threshold"),
    ),
    "TRM": Entry(
        what="Trust Region Masking (arXiv 2512.23075): sequences that leave a trust region around "
        "the sampler are rejected whole. Its surrogate error is the metric ratio_deviation_mean, "
        "and above 70% of the sequences are kept.",
        formula="E|ratio - 1| over tokens",
        direction="target / behavior",
        healthy="its thresholds: from 0.03 to 0.10",
        example="rcdiag score rollouts.parquet --json | jq .mismatch.ratio_deviation_mean",
        see=("ratio_deviation_mean", "kept_sequence_share", "rejected"),
    ),
    "ideal": Entry(
        what="The value of a metric where both policies are the same; after ≈, where the length of "
        "responses matters, what rounding at the declared precisions makes of it (bfloat16 against "
        "float32 is assumed where none are declared). The observed mismatch has no part in it.",
        example="k3_kl has the ideal 0, ess_token 1; ess_seq ≈0.94",
        see=("level", "expected", "expected_of"),
    ),
    "batch normalisation": Entry(
        what="Weights divided by their mean over the batch, so that they average 1. Keys of "
        "trainers do not see it; rejected tokens take part in the mean.",
        formula="weight / mean weight; 1 where the mean is 1e-8 or less",
        example="weights 0.5, 1.5, 2: divided by 1.333",
        see=("rollout_is_batch_normalize", "rollout_corr/rollout_is_batch_norm_factor"),
    ),
    "rejected": Entry(
        what="Taken out of the loss mask, by rejection or veto; weights are not touched. What "
        "stays is kept.",
        example="kept_tokens counts what stays",
        see=("kept_tokens", "MIS", "rollout_rs", "denominator_kept"),
    ),
}
KIND: Kind = by_hand(
    "word",
    "Words",
    WORDS,
    aliases={
        "effective sequences": "ESS",
        "batch normalization": "batch normalisation",
        "proximal": "old",
        "training": "old",
        "kept": "rejected",
        "rejection": "rejected",
        "weight": "weights",
        "trust region masking": "TRM",
    },
)

"""slime's built-in clamp and IcePop, selected by flags, against numbers computed here."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import rcdiag

# One row with a tool token with log-prob 0, and one without.
OLD = [[-0.5, -1.0, -2.0], [-0.1, -0.2, -0.3, -0.1, -5.0, -0.2]]
ROLLOUT = [[-0.4, -1.1, -1.0], [-0.1, -0.25, -0.2, 0.0, -2.0, -0.2]]
MASK = [[1, 1, 1], [1, 1, 1, 0, 1, 1]]
ICEPOP = "slime.backends.megatron_utils.loss.icepop_function"
SCRIPT = """
GRPO_ARGS=(
   --advantage-estimator grpo
   --use-tis {flags}
)
python3 train.py --num-gpus 8 ${{GRPO_ARGS[@]}}
"""


def corrected(tmp_path, text: str) -> rcdiag.ScoreResult:
    table = pa.table(
        {
            "response_ids": [[5] * len(row) for row in MASK],
            "response_mask": MASK,
            "old_log_probs": OLD,
            "rollout_log_probs": ROLLOUT,
        }
    )
    config = tmp_path / "run.sh"
    config.write_text(text)
    return rcdiag.score(table, trainer="slime", trainer_config=config)


@pytest.mark.parametrize("per_token", [False, True])
@pytest.mark.parametrize("icepop", [False, True])
@pytest.mark.parametrize(("low", "high"), [(0.0, 2.0), (0.95, 1.05)])
def test_weights_and_metrics_of_the_built_in_functions(tmp_path, icepop, per_token, low, high):
    flags = f"--tis-clip {high} --tis-clip-low {low}"
    flags += f" --custom-tis-function-path {ICEPOP}" if icepop else ""
    flags += " --calculate-per-token-loss" if per_token else ""
    result = corrected(tmp_path, SCRIPT.format(flags=flags))
    (outcome,) = result.corrections.values()

    log_ratio = [
        (np.array(old) - np.array(rollout))[np.array(mask) == 1]
        for old, rollout, mask in zip(OLD, ROLLOUT, MASK, strict=True)
    ]
    ratio = [np.exp(row) for row in log_ratio]
    weights = [np.clip(row, low, high) for row in ratio]
    if icepop:
        weights = [np.where((row >= low) & (row <= high), row, 0.0) for row in ratio]

    def mean(rows: list[np.ndarray]) -> float:
        return float(
            np.concatenate(rows).mean() if per_token else np.mean([r.mean() for r in rows])
        )

    assert outcome.weight_sum == pytest.approx(sum(row.sum() for row in weights))
    assert outcome.kept_tokens == 8
    assert outcome.metrics == pytest.approx(
        {
            "train_rollout_logprob_abs_diff": mean([np.abs(row) for row in log_ratio]),
            "tis": mean(ratio),
            "tis_abs": mean([np.abs(row - 1.0) for row in ratio]),
            "tis_clipfrac": mean(
                [(a != b).astype(float) for a, b in zip(ratio, weights, strict=True)]
            ),
        }
    )


def test_flags_without_use_tis_have_no_effect(tmp_path):
    result = corrected(tmp_path, "python3 train.py --use-rollout-logprobs --tis-clip 2.0\n")
    (outcome,) = result.corrections.values()
    assert outcome.weight_sum is None
    assert list(outcome.metrics) == ["train_rollout_logprob_abs_diff"]


def test_a_command_with_the_helper_refers_to_its_settings(tmp_path):
    path = "examples.train_infer_mismatch_helper.mis.compute_mis_weights_with_cp"
    flags = f"--custom-tis-function-path {path} --custom-config-path mis.yaml"
    result = corrected(tmp_path, SCRIPT.format(flags=flags))
    (outcome,) = result.corrections.values()
    assert outcome.metrics["mis_tis_weight_before_bound"] == pytest.approx(0.796904, abs=1e-6)
    assert "helper-settings-elsewhere" in [finding.slug for finding in result.findings]


@pytest.mark.parametrize(
    ("flags", "name", "own"),
    [
        ("--mis-level sequence", "mis_level", "tis_level"),
        ("--use-rollout-correction", "use_rollout_correction", "use_tis"),
    ],
)
def test_a_flag_that_exists_only_in_the_readme_is_refused(tmp_path, flags, name, own):
    with pytest.raises(rcdiag.RcdiagError, match=f"slime has no setting `{name}`") as error:
        corrected(tmp_path, SCRIPT.format(flags=flags))
    assert (
        error.value.hint
        == f"write `{own}`: only the README of slime's MIS helper calls it `{name}`"
    )

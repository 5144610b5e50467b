"""The pair that is compared if `--policy` scores a policy and no pair is named."""

from __future__ import annotations

import pytest

import rcdiag
from rcdiag.engines import BACKENDS
from rcdiag.errors import RcdiagError
from rcdiag.progress import Progress
from rcdiag.table.opening import open_table
from rcdiag.usecases.chosen_pair import choose_pair, refuse_one
from rcdiag.usecases.score import score
from tests.builders import write_table
from tests.engines.test_added_engine import toy
from tests.engines.toy_engine import make_checkpoint


@pytest.mark.parametrize(
    ("recorded", "scored", "pair"),
    [
        (["rollout"], ["hf_fp32"], ("rollout", "hf_fp32")),
        (["old"], ["vllm_bf16"], ("vllm_bf16", "old")),
        (["inference"], ["hf_fp32"], ("inference", "hf_fp32")),
    ],
)
def test_a_scored_policy_is_compared_with_the_only_recorded_one(recorded, scored, pair):
    chosen = choose_pair(recorded, scored, None, None)
    assert (chosen.behavior, chosen.target) == pair
    assert chosen.reason == f"{scored[0]} is compared with {recorded[0]}, the only recorded policy"


def test_rollout_and_old_are_compared_if_both_exist():
    chosen = choose_pair(["rollout", "old"], ["hf_fp32"], None, None)
    assert (chosen.behavior, chosen.target) == ("rollout", "old")
    assert chosen.reason is not None
    assert "hf_fp32 is scored, but rollout and old are compared" in chosen.reason
    assert "--target" in chosen.reason


@pytest.mark.parametrize(
    ("recorded", "scored", "behavior", "target"),
    [
        (["rollout", "old"], ["hf_fp32"], None, "hf_fp32"),
        (["rollout", "old"], ["hf_fp32"], "rollout", None),
        (["rollout", "old"], [], None, None),
        (["rollout"], ["old"], None, None),
        (["a", "b"], ["c"], None, None),
        (["rollout"], ["a", "b"], None, None),
    ],
)
def test_otherwise_the_pair_is_the_named_one_or_the_default(recorded, scored, behavior, target):
    chosen = choose_pair(recorded, scored, behavior, target)
    assert (chosen.behavior, chosen.target) == (behavior or "rollout", target or "old")
    assert chosen.reason is None


class Heard(Progress):
    """A listener that stores the messages."""

    def __init__(self) -> None:
        self.sentences: list[str] = []

    def say(self, text: str) -> None:
        self.sentences.append(text)


def test_the_choice_is_reported_before_scoring_and_stored_in_the_result(tmp_path):
    rows = {"prompt_ids": [[1], [2]], "response_ids": [[3, 4], [5]]}
    logs = [[-1.0, -2.0], [-1.5]]
    path = write_table(tmp_path / "a.parquet", **rows, rollout_log_probs=logs, new_log_probs=logs)
    alone = write_table(tmp_path / "b.parquet", **rows, rollout_log_probs=logs)
    heard = Heard()
    with BACKENDS.with_added(toy()):
        rcdiag.score.dry_run(
            alone, policies=["new=toy"], model=make_checkpoint(tmp_path / "model"), progress=heard
        )
    (output,) = heard.sentences
    result = score(open_table(path), behavior="rollout", target="new", pair_reason=output)
    assert result.pair_reason == "new is compared with rollout, the only recorded policy"
    assert score(open_table(path), target="new").pair_reason is None


def test_the_hint_for_files_of_one_policy_is_a_command_that_takes_them_all(tmp_path):
    files = [
        write_table(tmp_path / name, response_ids=[[1]], rollout_log_probs=[[-1.0]])
        for name in ("a.parquet", "b b.parquet")
    ]
    with pytest.raises(RcdiagError) as caught:
        refuse_one(open_table(files), "sweep")
    assert caught.value.message.startswith(f"{files[0]} and 1 more: the table has one policy")
    assert f"rcdiag score {files[0]} '{files[1]}' --model CKPT" in caught.value.hint

"""Errors and hints of `rcdiag replay`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders import write_table
from tests.cli.conftest import BEHAVIOR, dump_with_shift


@pytest.fixture
def table(tmp_path) -> Path:
    columns = {"advantage": [1.0, -2.0, 4.0], "step": [4, 6, 6]}
    return dump_with_shift(tmp_path / "t.parquet", 0.1, **columns)


REWARD = "def one(prompt, response, row):\n    return 1.0\n"


@pytest.fixture
def reward(tmp_path) -> Path:
    path = tmp_path / "reward.py"
    path.write_text(REWARD)
    return path


ASKED = [
    (("--loss", "vanila"), "loss vanila: verl-0.9 does not have it", "one of vanilla"),
    (("--loss", "dro"), "dro_beta: this loss needs a number above 0", "no default"),
    (("--loss", "dppo_tv", "--trainer", "verl-0.6.1"), "loss dppo_tv: verl-0.6.1", "one of"),
    (("--loss", "sapo", "--trainer", "slime"), "loss sapo: slime does not have it", "gspo"),
    (("--aggregation", "token-sum", "--trainer", "verl-0.7.1"), "aggregation token-sum", "one of"),
    (("--preset", "decoupled_token_tis"), "verl-0.9 has no preset", "decoupled_token_is"),
    (("--step", "5"), "no step 5", "there are 4, 6"),
    (("--current", "new"), "new_log_probs", ""),
    (("--old", "older"), "older_log_probs", ""),
    (("--clip-c", "1"), "clip_c=1.0: wanted a number above 1", "3.0"),
    (("--clip-low", "-1"), "clip_low=-1.0: wanted a number of 0 or more", "0.2"),
    (("--dro-beta", "5"), "vanilla does not read the setting `dro_beta`", "clip_low"),
    (("--save", "out"), "--save needs a model", "--model CHECKPOINT"),
    (("--evaluate", "8"), "--evaluate needs a model", "--model CHECKPOINT"),
    (("--split", "2"), "--split needs a model", "--model CHECKPOINT"),
    (("--epochs", "2"), "--epochs needs a model", "--model CHECKPOINT"),
    (("--steps", "2"), "--steps needs a model", "--model CHECKPOINT"),
    (("--lora", "8"), "--lora needs a model", "--model CHECKPOINT"),
    (("--batch-tokens", "8"), "--batch-tokens needs a model", "--model CHECKPOINT"),
    # Also with the value that it has anyway.
    (("--lr", "1e-6"), "--lr needs a model", "--model CHECKPOINT"),
    (("--precision", "bfloat16"), "--precision needs a model", "--model CHECKPOINT"),
    (("--reference", "fresh"), "--reference needs a model", "--model CHECKPOINT"),
    (("--optimizer", "sgd"), "--optimizer needs a model", "--model CHECKPOINT"),
    (("--denominator", "constant"), "go together", "--constant 1024"),
    (("--constant", "8"), "go together", "--constant 1024"),
    (("--loss-scale-factor", "8"), "token-mean has none", "seq-mean-token-sum-norm"),
    (
        ("--aggregation", "token-sum", "--denominator", "constant", "--constant", "8"),
        "a sum without a denominator",
        "another aggregation",
    ),
    (("--model", "x", "--save", "out"), "--save with 19 presets", "--preset NAME"),
    (("--model", "x", "--evaluate", "8"), "--evaluate needs --reward", "FILE.py:FUNCTION"),
    (
        ("--model", "x", "--reward", "no.py:one"),
        "--reward no.py:one is not FILE.py:FUNCTION",
        "",
    ),
]


@pytest.mark.parametrize(("options", "message", "hint"), ASKED)
def test_impossible_options_are_refused(rcdiag, table, options, message, hint):
    ran = rcdiag("replay", table, *options)
    ran.refuses()
    output, *hints = ran.err.splitlines()
    assert output.startswith("error: ")
    assert message in output
    assert hint in "".join(hints)
    assert "Traceback" not in ran.err


def test_an_invalid_choice_is_a_usage_error(rcdiag, table):
    for option, word in (
        ("--denominator", "some"),
        ("--advantage", "gae"),
        ("--aggregation", "mean"),
        ("--optimizer", "adam"),
        ("--reference", "seq"),
    ):
        model = ("--model", "x") if option in ("--optimizer", "--reference") else ()
        ran = rcdiag("replay", table, option, word, *model)
        ran.refuses(word)


def test_neither_advantages_nor_rewards(rcdiag, tmp_path):
    ran = rcdiag("replay", dump_with_shift(tmp_path / "t.parquet", 0.1))
    ran.refuses(
        "neither advantages nor rewards: there is no loss to replay",
        "hint: record `reward` (and `group_id`), or `advantage`",
    )


def test_a_column_that_may_be_the_reward_is_named_with_its_option(rcdiag, tmp_path):
    path = dump_with_shift(tmp_path / "t.parquet", 0.1, score=[1.0, 0.0, 1.0])
    rcdiag("replay", path).refuses("hint: if `score` is the reward: --column reward=score")
    computed = ("--column", "reward=score", "--advantage", "reinforce++")
    assert rcdiag("replay", path, *computed).code == 0


@pytest.mark.parametrize("source", ["grpo", "rloo", "reinforce++"])
def test_no_reward_to_compute_from(rcdiag, table, source):
    ran = rcdiag("replay", table, "--advantage", source)
    ran.refuses(f"no finite reward to compute {source} advantages from")


def test_a_missing_column(rcdiag, tmp_path):
    path = dump_with_shift(tmp_path / "t.parquet", 0.1, reward=[1.0, 0.0, 1.0])
    ran = rcdiag("replay", path, "--advantage", "column")
    ran.refuses("has neither `advantage` nor `advantages`", "--advantage grpo")


def test_groups_of_one(rcdiag, tmp_path):
    path = dump_with_shift(tmp_path / "t.parquet", 0.1, reward=[1.0, 0.0, 1.0])
    ran = rcdiag("replay", path)
    ran.refuses("every prompt group has one sequence", "--advantage reinforce++")


def test_no_old_log_probs_without_a_model(rcdiag, tmp_path):
    ids = [[1, 2, 3], [4], [5, 6]]
    path = write_table(
        tmp_path / "t.parquet", response_ids=ids, rollout_log_probs=BEHAVIOR, advantage=[1, 2, 3]
    )
    ran = rcdiag("replay", path)
    ran.refuses("old_log_probs")


def test_existing_outputs_are_kept(rcdiag, table, tmp_path):
    existing = tmp_path / "r.json"
    existing.write_text("mine")
    ran = rcdiag("replay", table, "--result", existing)
    assert (ran.code, existing.read_text()) == (2, "mine")
    assert rcdiag("replay", table, "--result", existing, "--force", "-q").code == 0
    assert existing.read_text() != "mine"


@pytest.mark.parametrize(
    ("text", "output"),
    [("def one(", "SyntaxError"), ("import no_such_module", "ModuleNotFoundError"), ("", "one")],
)
def test_a_reward_file_that_cannot_be_loaded(rcdiag, table, reward, text, output):
    reward.write_text(text)
    ran = rcdiag("replay", table, "--model", "x", "--reward", f"{reward}:one")
    ran.refuses(f"--reward {reward}:one: cannot be loaded", output)


def test_a_reward_that_is_not_a_function_is_refused(rcdiag, table, reward):
    reward.write_text("one = 1.0\n")
    ran = rcdiag("replay", table, "--model", "x", "--reward", f"{reward}:one")
    ran.refuses(f"--reward {reward}:one")


def test_a_folder_without_a_checkpoint_is_refused(rcdiag, tmp_path):
    columns = {"advantage": [1.0, 2.0, 3.0], "prompt_ids": [[1], [1], [1]]}
    path = dump_with_shift(tmp_path / "t.parquet", 0.1, **columns)
    (tmp_path / "empty").mkdir()
    ran = rcdiag("replay", path, "--model", tmp_path / "empty")
    ran.refuses(str(tmp_path / "empty"))

"""Configurations in four formats become one tree, whatever the file is called."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rcdiag.errors import RcdiagError
from rcdiag.trainers.config_text import is_python
from rcdiag.trainers.own_config import read_trainer_config
from rcdiag.trainers.settings_document import MISSING, Document

HERE = Path("config")


def parsed(text: str) -> Document:
    return Document.parse(text, HERE)


SAME = {"algorithm": {"rollout_correction": {"rollout_is": "token", "rollout_is_threshold": 2.0}}}


@pytest.mark.parametrize(
    ("text", "format"),
    [
        (
            "algorithm:\n  rollout_correction:\n    rollout_is: token\n"
            "    rollout_is_threshold: 2.0\n",
            "yaml",
        ),
        ("algorithm.rollout_correction: {rollout_is: token, rollout_is_threshold: 2.0}", "yaml"),
        (
            '{"algorithm": {"rollout_correction.rollout_is": "token", '
            '"rollout_correction.rollout_is_threshold": 2.0}}',
            "yaml",
        ),
        (
            '[algorithm.rollout_correction]\nrollout_is = "token"\nrollout_is_threshold = 2.0\n',
            "toml",
        ),
        (
            "#!/bin/bash\nset -x\npython3 -m verl.trainer.main_ppo \\\n"
            "  algorithm.rollout_correction.rollout_is=token \\\n"
            "  +algorithm.rollout_correction.rollout_is_threshold=2.0\n",
            "flags",
        ),
        (
            "python train.py --algorithm.rollout-correction.rollout-is token \\\n"
            "  --algorithm.rollout-correction.rollout-is-threshold=2.0",
            "flags",
        ),
    ],
)
def test_one_tree_from_every_format(text, format):
    document = parsed(text)
    assert document.tree == SAME
    assert document.format == format


SCRIPT = """#!/bin/bash
set -ex
ARGS=(
   --use-tis   # it's a comment
   --tis-clip
   1.8
   --names a b
   --tis-clip-low 0.3
)
MORE=( --n 4 )
ray job submit --address="http://127.0.0.1" \\
   --runtime-env-json='{"env": 1,
      "other": 2}' -- python3 train.py --nodes 1 ${ARGS[@]} --last 0.5 > log.txt 2>&1
python3 after.py
--first 1; echo done
"""


def test_values_of_a_flag_end_with_its_line_array_or_command():
    assert Document.parse(SCRIPT, Path("run.sh")).tree == {
        "use_tis": True,
        "tis_clip": 1.8,
        "names": ["a", "b"],
        "tis_clip_low": 0.3,
        "n": 4,
        "address": "http://127.0.0.1",
        "runtime_env_json": {"env": 1, "other": 2},
        "nodes": 1,
        "last": 0.5,
        "first": 1,
    }


def test_flags_without_value_are_true_and_several_values_a_list():
    document = parsed(
        "ARGS=(\n  --use-tis\n  --tis-clip 1e-4  # a comment\n"
        "  --threshold 0.5 5.0\n  --path None\n)"
    )
    assert document.tree == {
        "use_tis": True,
        "tis_clip": 1e-4,
        "threshold": [0.5, 5.0],
        "path": None,
    }


def test_comments_between_backticks_are_comments():
    """As in google/tunix, examples/rl/grpo/gsm8k/run_qwen3_8b_disagg.sh."""
    document = parsed(
        "#!/bin/bash\npython -m tunix.cli.grpo_main \\\n  `# -- Rollout: 'vllm' (a choice) --` \\\n"
        "  agentic_grpo_config.beta=0.08 \\\n  `# -- End` \\\n  --seed 1\n"
    )
    assert document.tree == {"agentic_grpo_config": {"beta": 0.08}, "seed": 1}


def test_null_of_an_override_is_null_and_of_a_flag_a_word():
    document = parsed(
        "#!/bin/bash\nlevel=null\npython3 -m verl.trainer.main_ppo a.b=null a.c=~ a.d=NULL \\\n"
        "  a.e=${level} --word null\n"
    )
    assert document.tree == {"a": dict.fromkeys("bcde"), "word": "null"}


def test_the_shallowest_match_is_used_and_null_is_a_value():
    document = parsed("a: {b: {kind: deep}}\nc: {kind: null}\n")
    assert document.find("kind") is None
    assert document.find("b.kind") == "deep"
    assert document.find("no.such", "b.kind") == "deep"
    assert document.find("no") is MISSING
    assert document.has("a.b")


def written(folder: Path, **texts: str) -> None:
    for name, text in texts.items():
        file = folder / f"{name.replace('__', '/')}.yaml"
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)


def test_defaults_of_hydra_are_the_files_beside_it(tmp_path):
    written(
        tmp_path,
        group__base="a: 1\nb: 1\nc: 1\n",
        group__other="defaults:\n  - base\n  - _self_\nb: 2\n",
        anywhere="# @package _global_\ntop: {x: 1}\n",
        base="defaults:\n  - group: base\n  - group@at.place: base\n  - optional no: where\n"
        "  - anywhere\n  - _self_\ngroup: {c: 3}\n",
        run="defaults:\n  - base\n  - override group: other\ngroup: {d: 4}\n",
        weak="defaults:\n  - _self_\n  - run\ngroup: {d: 5, e: 5}\n",
    )
    run = Document.read(tmp_path / "run.yaml")
    assert run.tree["group"] == {"a": 1, "b": 2, "c": 3, "d": 4}
    assert run.texts["group"]["b"] == "2"
    assert run.tree["at"] == {"place": {"a": 1, "b": 1, "c": 1}}
    assert run.tree["top"] == {"x": 1}
    assert run.missing == ()
    assert Document.read(tmp_path / "base.yaml").tree["group"]["b"] == 1
    assert Document.read(tmp_path / "weak.yaml").tree["group"] == {**run.tree["group"], "e": 5}


def test_a_file_of_hydra_without_its_bases_names_them(tmp_path):
    written(tmp_path, run="defaults:\n  - base\n  - override finetune: ppo\nseed: 1\n")
    with pytest.raises(RcdiagError) as error:
        read_trainer_config(tmp_path / "run.yaml")
    assert "it is based on base.yaml (`defaults`), not found beside it" in str(error.value.hint)
    written(
        tmp_path,
        base="defaults:\n  - finetune: base\n",
        finetune__ppo="rl: {policy_loss: ppo, epsilon_high: 2e-2}\n",
    )
    read = read_trainer_config(tmp_path / "run.yaml")
    assert read.trainer.name == "pipelinerl"
    assert read.settings == {"policy_loss": "ppo", "epsilon_high": 0.02}


@pytest.mark.parametrize("place", ["file://verl/trainer/config", "pkg://verl.trainer.config"])
def test_base_files_may_be_in_the_search_path_of_hydra(place, tmp_path):
    """As in verl's fully asynchronous configurations."""
    for folder in ("verl/trainer/config", "verl/experimental/asynchronous/config"):
        (tmp_path / folder).mkdir(parents=True)
    written(tmp_path / "verl/trainer/config", base="algorithm: {gamma: 0.9, lam: 1.0}\n")
    written(
        tmp_path / "verl/experimental/asynchronous/config",
        run=f"hydra: {{searchpath: ['{place}']}}\ndefaults: [base, _self_]\n"
        "algorithm: {lam: 0.5}\n",
    )
    document = Document.read(tmp_path / "verl/experimental/asynchronous/config/run.yaml")
    assert document.tree["algorithm"] == {"gamma": 0.9, "lam": 0.5}
    assert document.missing == ()


def test_a_python_program_is_said_to_be_one():
    program = (
        "from xtuner.v1.rl.loss import RolloutImportanceSampling\n"
        "parser.add_argument('--lr', default=1.0)\nprint(f'{job}: target_offpolicy_steps=0,')\n"
    )
    with pytest.raises(RcdiagError, match="it is a Python program, which is not run"):
        parsed(program)
    assert not is_python("algorithm.adv_estimator=grpo\n")


def test_other_files_are_refused_with_the_expected_format(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("a: [1, 2")
    with pytest.raises(RcdiagError, match=r"config\.yaml: cannot be read") as error:
        Document.read(file)
    assert "TOML" in error.value.hint
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RcdiagError, match="cannot be read"):
        Document.read(file)


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text):
    try:
        document = parsed(text)
    except RcdiagError:
        return
    assert isinstance(document.tree, dict)

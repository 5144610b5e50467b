"""The commands of `same_results.py`: a permanent name and the arguments of the command line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from net.tables import SAMPLES, shapes

TRAINERS = (
    "verl-0.6.0",
    "verl-20251027",
    "verl-0.6.1",
    "verl-20251203",
    "verl-0.7.0",
    "verl-0.7.1",
    "verl-0.8.0",
    "verl-0.9",
    "slime",
)
LOSSES = (
    "vanilla",
    "gspo",
    "cispo",
    "sapo",
    "gpg",
    "geo_mean",
    "dppo_tv",
    "dppo_kl",
    "kl_cov",
    "clip_cov",
    "reinforce",
    "dro --dro-beta 0.05",
)
AGGREGATIONS = (
    "token-mean",
    "token-sum",
    "seq-mean-token-sum",
    "seq-mean-token-mean",
    "seq-mean-token-sum-norm",
)
ADVANTAGES = ("grpo", "rloo", "reinforce++", "column")
DENOMINATORS = ("kept", "all", "constant --constant 64")
FEW_PRESETS = "--preset decoupled_token_is --preset bypass_ppo_clip --preset bypass_pg_is"
CANDIDATES = ("none", "token_tis_2", "token_icepop_0.5_5", "geo_rs_0.99_1.01", "seq_mis_0.5_2")
# Trainers' configuration files, by file name.
CONFIGS = {
    "old_style": "algorithm:\n  rollout_is: true\n  rollout_is_level: sequence\n"
    "  rollout_is_threshold: 2.0\n  gamma: 1.0\n",
    "veto": "algorithm:\n  rollout_is: true\n  rollout_is_level: geometric\n"
    "  rollout_is_mode: mask\n  rollout_is_threshold: 1.01\n  rollout_is_threshold_lower: 0.99\n"
    "  rollout_is_veto_threshold: 1.0e-4\n",
    "ratio_style": "algorithm:\n  rollout_correction:\n    rollout_rs: geometric\n"
    "    rollout_rs_threshold: 1.002\n    use_policy_gradient: true\n",
    "loss_type": "rollout_correction:\n  rollout_rs: sequence\n  rollout_rs_threshold: 2.0\n"
    "  loss_type: reinforce\n",
    "icepop": 'rollout_is: token\nrollout_is_threshold: "0.5_5.0"\n',
    "k_levels": 'rollout_rs: "token_k1,seq_max_k3"\nrollout_rs_threshold: "0.5_2.0,0.1"\n',
    "number_trap": "rollout_is: token\nrollout_is_threshold: 0.5_5\n",
    "refused": "rollout_is: null\nrollout_rs: token_k1\nrollout_rs_threshold: 0.5_2\n",
    "slime_tis": "use_tis: true\ntis_level: sequence\nuse_rs: false\n",
    "slime_rs": "use_tis: true\ntis_level: token\ntis_mode: clip\ntis_lower_bound: 0.5\n"
    "tis_upper_bound: 2.0\nuse_rs: true\nrs_lower_bound: 0.9\nrs_upper_bound: 1.1\n"
    "rs_level: geometric\nrs_veto_threshold: 1.0e-4\n",
    "whole": "actor_rollout_ref:\n  actor:\n    clip_ratio: 0.2\n    loss_agg_mode: token-mean\n"
    "  rollout:\n    calculate_log_probs: true\n    temperature: 1.0\nalgorithm:\n"
    "  rollout_correction:\n    rollout_is: sequence\n    rollout_is_threshold: 2.0\n"
    "    rollout_is_batch_normalize: true\n",
    "not_one": "model: x\n",
}


@dataclass(frozen=True, slots=True)
class Command:
    """One run of the command line."""

    name: str  # its key in the store, which stays when options are renamed
    arguments: tuple[str, ...]
    quick: bool = False  # also part of --quick
    model: bool = False  # trains a model, in float32
    text: bool = False  # prints text instead of a document


def write_configs(folder: Path) -> None:
    """Write the trainers' configurations into the folder of the tables."""
    for name, text in CONFIGS.items():
        (folder / f"{name}.yaml").write_text(text)


def all_commands(tables: Path, sample_data: Path) -> list[Command]:
    """Return every command, the long ones first, so that no worker finishes late."""
    places = {name: str(sample_data / f"{name}.parquet") for name in SAMPLES}

    def command(name: str, line: str, **about: bool) -> Command:
        kind, table, *options = line.split()
        words = [kind, places.get(table, str(tables / f"{table}.parquet")), *options]
        filled = (word.format(tables=tables, sample=sample_data) for word in words)
        tail = () if about.get("text") else ("--json",)
        return Command(name, (*filled, *tail), **about)

    lines = [*_with_model(), *_samples(), *_generated(), *_updates(), *_configs(), *_emitted()]
    return [command(name, line, **about) for name, line, about in lines]


Line = tuple[str, str, dict[str, bool]]


def _with_model() -> list[Line]:
    trained = "--model {sample}/policy/step_8"
    sgd = "--optimizer sgd --lr 0.05 --max-grad-norm 0"
    fresh = "--reference fresh --reward {sample}/reward.py:exact --evaluate 8"
    runs = {
        "adamw": f"short_stale {trained} --lr 1e-4 --preset decoupled_seq_is {FEW_PRESETS}",
        "all_presets": f"short_turns {trained} {sgd}",
        "minibatches": f"short_stale {trained} {sgd} --momentum 0.9 --epochs 2 --minibatches 2 "
        "--split 2 --preset decoupled_geo_rs --weight-decay 0.01",
        "steps": f"short_steps {trained} --lr 1e-4 --step 0 --steps 3 --preset bypass_pg_is",
        "gspo": f"short_stale {trained} {sgd} --loss gspo --preset decoupled_token_is "
        "--aggregation seq-mean-token-mean --checkpointing --batch-tokens 200",
        "lora": f"short_turns {trained} --lr 1e-3 --lora 4 --preset decoupled_token_is",
        "slime": f"short_stale {trained} {sgd} --trainer slime --reference none",
        "autocast": f"short_turns {trained} {sgd} --precision float32,autocast=bfloat16 "
        "--preset disabled",
        "fresh": f"short_turns {trained} {sgd} {fresh} --preset bypass_pg_is",
    }
    quick = ("minibatches",)
    return [
        (f"replay model {name}", f"replay {rest}", {"model": True, "quick": name in quick})
        for name, rest in runs.items()
    ]


def _samples() -> list[Line]:
    """Return the commands on the shipped tables."""
    lines: list[Line] = []
    for table in SAMPLES:
        for trainer in TRAINERS:
            quick = (table, trainer) in (("rollouts", "verl-0.9"), ("multi_turn", "slime"))
            line = f"score {table} --trainer {trainer}"
            lines.append((f"score {table} {trainer}", line, {"quick": quick}))
        lines.append((f"compare {table}", f"compare {table}", {"quick": table == "stale"}))
        lines.append((f"sweep {table}", f"sweep {table} --thresholds 2", {}))
        lines.append((f"replay {table}", f"replay {table}", {}))
    odd = {
        "score stale float32": "score stale --arithmetic float32",
        "score multi_turn slime float32": "score multi_turn --trainer slime --arithmetic float32",
        "score stale reversed": "score stale --behavior old --target rollout --seed 3",
        "score stale fail": "score stale --fail-on error",
        "compare joined": "compare stale {tables}/other.parquet",
        "compare joined turns": "compare stale {tables}/other.parquet --policy rollout "
        "--policy other --policy old",
        "sweep stale fine": "sweep stale --thresholds 12",
        "sweep temperature fail": "sweep temperature --thresholds 2 --fail-on warning",
        "replay two steps": f"replay two_steps --step 3 {FEW_PRESETS} --rebaseline",
    }
    quick = ("score stale float32", "compare joined")
    return lines + [(name, line, {"quick": name in quick}) for name, line in odd.items()]


def _generated() -> list[Line]:
    """Return every trainer on every generated table, with compare, replay, float32 and sweep."""
    lines: list[Line] = []
    for number, shape in enumerate(shapes()):
        table, quick = f"t{number:02}", number % 8 == 5
        for place, trainer in enumerate(TRAINERS):
            about = {"quick": quick and (place + number) % 9 < 3}
            lines.append((f"score {table} {trainer}", f"score {table} --trainer {trainer}", about))
        if number % 3 == 0:
            trainer = TRAINERS[number // 3 % 9]
            line = f"score {table} --trainer {trainer} --arithmetic float32"
            lines.append((f"score {table} {trainer} float32", line, {"quick": quick}))
        line = f"compare {table} --seed {number}"
        lines.append((f"compare {table}", line, {"quick": quick}))
        if number % 4 == 1:
            line = f"sweep {table} --thresholds 2"
            lines.append((f"sweep {table}", line, {"quick": number % 32 == 5}))
        # Prompt groups of one response have no baseline except that of the batch.
        alone = shape.group in ("none", "ones") and shape.advantage == "none"
        advantage = " --advantage reinforce++" if alone else ""
        presets = "" if number % 5 == 0 else FEW_PRESETS
        line = f"replay {table} {presets} {advantage}"
        lines.append((f"replay {table}", line, {"quick": quick}))
    return lines


def _updates() -> list[Line]:
    """Return every option of an update, on small tables in turn and on a sample."""
    options = [f"--loss {loss}" for loss in LOSSES]
    options += [f"--aggregation {name}" for name in AGGREGATIONS]
    options += [f"--aggregation {name} --denominator all" for name in AGGREGATIONS]
    options += [f"--denominator {name}" for name in DENOMINATORS]
    options += [f"--advantage {name}" for name in ADVANTAGES]
    options += [f"--advantage {name} --rebaseline" for name in ADVANTAGES]
    options += [
        "--aggregation seq-mean-token-sum-norm --loss-scale-factor 100",
        "--clip-low 0.1 --clip-high 0.3",
        "--clip-low 0.02 --clip-high 0.02 --clip-c 1.5",
        "--current old --old rollout",
    ]
    lines: list[Line] = []
    for chosen in options:
        for table in ("short_stale", "t79", "t82", "t94"):
            line = f"replay {table} {FEW_PRESETS} {chosen}"
            quick = table == "t82" and chosen.startswith("--loss")
            lines.append((f"replay {table} {chosen}", line, {"quick": quick}))
    for number, trainer in enumerate(TRAINERS):
        for loss in LOSSES:
            table = ("t79", "t82", "t98", "t86")[number % 4]
            line = f"replay {table} --trainer {trainer} --loss {loss}"
            quick = loss == "gspo"
            lines.append((f"replay {table} {trainer} {loss}", line, {"quick": quick}))
    return lines


def _configs() -> list[Line]:
    """Return the commands with trainers' own files, presets and settings by name."""
    lines: list[Line] = []
    for config in CONFIGS:
        for table in ("stale", "t83", "t96"):
            line = f"score {table} --trainer-config {{tables}}/{config}.yaml"
            lines.append((f"score {table} config {config}", line, {"quick": table == "t83"}))
        line = f"replay t82 --trainer-config {{tables}}/{config}.yaml"
        lines.append((f"replay config {config}", line, {}))
    changed = {
        "threshold": "--preset decoupled_token_is --set decoupled_token_is.rollout_is_threshold=3",
        "bounds": "--set decoupled_token_is.rollout_is_threshold=0.5_5",
        "geometric": "--set decoupled_token_is.rollout_is=geometric",
        "normalized": "--preset decoupled_seq_is "
        "--set decoupled_seq_is.rollout_is_batch_normalize=true",
        "veto": "--trainer verl-0.7.0 --preset decoupled_token_is "
        "--set decoupled_token_is.rollout_token_veto_threshold=0.01",
    }
    for name, options in changed.items():
        for table in ("stale", "t82"):
            line = f"score {table} {options}"
            lines.append((f"score {table} set {name}", line, {"quick": table == "t82"}))
    return lines


def _emitted() -> list[Line]:
    """Return the commands that write configurations with `sweep`."""
    lines: list[Line] = []
    for trainer in ("verl", "verl-0.7.0", "slime"):
        for table in ("stale", "rollouts", "temperature", "t78"):
            line = f"sweep {table} --thresholds 2 --emit {trainer}"
            lines.append((f"emit {trainer} {table}", line, {"text": True, "quick": table == "t78"}))
        for candidate in CANDIDATES:
            line = f"sweep t82 --thresholds 2 --emit {trainer} --candidate {candidate}"
            lines.append((f"emit {trainer} {candidate}", line, {"text": True}))
    return lines

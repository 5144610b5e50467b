"""Make all sample data: train a small policy, run GRPO with vLLM, write tables and checkpoints.

One seeded command on two CPU cores: `python sample_data/make_sample_data.py`.
"""

import json
import shutil
import sys
import tempfile
import time
from pathlib import Path

import torch
from grpo import GrpoTrainer
from policy import save_policy
from progress import START, log
from run import Run, check_shipped, finish, load_policy
from settings import (
    GROUPS,
    HERE,
    MAX_ROUNDS,
    MORE_SFT,
    PASS_ALLOWED,
    PASS_ENOUGH,
    POLICY,
    RATE,
    RL_MODES,
    SAMPLES,
    SEED,
    SFT,
    SFT_MODES,
    SHIPPED,
    STEPS,
    TOOL_MODES,
)
from sft import SftTrainer
from tables import metadata, rollout_columns, write_table


def train_supervised(run: Run) -> None:
    """Train until pass@1 is in range; more rounds while it is below."""
    trainer = SftTrainer(run.model, run.tokenizer, SFT_MODES, SEED)
    settings = SFT
    for _ in range(MAX_ROUNDS):
        loss = trainer.train(**settings)
        rate = run.pass_rate()
        log(f"sft: loss {loss:.4f}, pass@1 {rate:.3f}")
        entry = {"step": trainer.step, "tokens": trainer.tokens, "loss": loss, "pass_at_1": rate}
        run.log["sft"].append({**entry, "seconds": time.time() - START})
        settings = MORE_SFT
        if rate >= PASS_ENOUGH:
            break
    if not PASS_ALLOWED[0] <= rate <= PASS_ALLOWED[1]:
        sys.exit(f"pass@1 after supervised training is {rate:.3f}, outside {PASS_ALLOWED}")


def train_grpo(run: Run) -> dict:
    """Sample, score and update for all steps; returns the columns of all of them."""
    trainer = GrpoTrainer(run.model, RATE, SEED)
    columns: dict[str, list] = {}
    for step in range(STEPS):
        began = time.time()
        if step in SHIPPED:
            save_policy(run.model, run.tokenizer, POLICY / f"step_{step}")
        run.sampler.load(run.model)
        rollouts = run.sampler.rollouts(run.problems(step, GROUPS, RL_MODES), SAMPLES)
        entry = {"step": step, **finish(run.model, rollouts)}
        for name, values in rollout_columns(rollouts, step, step, 1.0).items():
            columns.setdefault(name, []).extend(values)
        if step + 1 < STEPS:
            entry["grad_norm"] = trainer.update(rollouts)
        entry["seconds"] = time.time() - began
        run.log["grpo"].append(entry)
        log("grpo " + ", ".join(f"{k} {v:.4g}" for k, v in entry.items()))
    return columns


def write_rollouts(run: Run, columns: dict) -> None:
    """Write the table of all sampling steps; each row's policy is its own step's."""
    path = "step_{policy_version}"
    columns.pop("num_turns")
    write_table(HERE / "rollouts.parquet", columns, metadata(run.sampler.version, path, path, 1.0))


def write_side_table(
    run: Run, name: str, sampler: int, stream: int, temperature: float = 1.0, tools: bool = False
) -> None:
    """Sample 256 rollouts with one shipped policy, score them with step 8's, write the table."""
    model = load_policy(sampler)
    run.sampler.load(model)
    problems = run.problems(stream, GROUPS, TOOL_MODES if tools else RL_MODES)
    rollouts = run.sampler.rollouts(problems, SAMPLES, temperature, tools)
    run.log[name] = finish(run.model, rollouts, temperature)
    columns = rollout_columns(rollouts, STEPS - 1, sampler, temperature)
    if not tools:
        columns.pop("num_turns")
    paths = [f"step_{step}" for step in (sampler, STEPS - 1)]
    write_table(
        HERE / f"{name}.parquet", columns, metadata(run.sampler.version, *paths, temperature)
    )
    log(f"{name}: " + ", ".join(f"{k} {v:.4g}" for k, v in run.log[name].items()))


def main() -> None:
    """Make everything, in order."""
    torch.set_num_threads(2)
    shutil.rmtree(POLICY, ignore_errors=True)
    with tempfile.TemporaryDirectory() as scratch:
        run = Run(Path(scratch))
        train_supervised(run)
        run.check_engine()
        columns = train_grpo(run)
        run.sampler.load(run.model)
        run.check_engine()
        run.log["pass_at_1_after"] = run.pass_rate()
        write_rollouts(run, columns)
        write_side_table(run, "multi_turn", 8, 101, tools=True)
        write_side_table(run, "stale", 0, 102)
        write_side_table(run, "temperature", 8, 103, temperature=0.7)
        check_shipped(run, columns)
    run.log["seconds"] = time.time() - START
    (HERE / "stages.json").write_text(json.dumps(run.log, indent=1) + "\n")
    log(f"done: pass@1 {run.log['pass_at_1_after']:.3f}, checks {run.log['checks']}")


if __name__ == "__main__":
    main()

"""A real update: rcdiag's replay of one preset and of all, against a plain transformers loop.

`python benchmarks/replay.py` (or `make bench`) prints a table and stores it in
`benchmarks/results/replay.json`. Every variant runs in its own process on the same rows of the
shipped `stale.parquet` with the shipped policy, in float32; extra memory is the peak resident set
minus the resident set after loading the model.

- plain: for each preset a forward on padded batches of 16 rows with a full float32 log-softmax, a
  backward, an AdamW step, and a forward for the log-probs after it
- rcdiag: the same by `rcdiag.usecases.replay.with_model`, gradient sketches of every sequence, the
  reference gradient and entropies included
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

# Import from the repository root: `statistics.py` in this folder would hide the standard module.
sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np  # noqa: E402

from benchmarks import RESULTS, store  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
TABLE, MODEL = ROOT / "sample_data/stale.parquet", ROOT / "sample_data/policy/step_8"
PLAIN_PRESETS = 3  # timed; the others cost the same


def status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def reset_peak() -> int:
    Path("/proc/self/clear_refs").write_text("5")
    return status("VmRSS")


def prepared(names: list[str]):
    """Return update and batch, made by the same code as in `rcdiag replay`."""
    from rcdiag.losses.settings import LossSettings
    from rcdiag.table.opening import open_table
    from rcdiag.trainers import find_trainer
    from rcdiag.trainers.plan import plan_corrections, preset_configs
    from rcdiag.usecases.replay.update import TrainerUpdate
    from rcdiag.usecases.replay.update_batch import Roles, read_batch

    trainer = find_trainer("verl")
    plan = plan_corrections(trainer, preset_configs(trainer, names, {}))
    update = TrainerUpdate(plan=plan, loss="vanilla", settings=LossSettings(), advantage="column")
    return update, read_batch(open_table(TABLE), Roles(old="rollout"), None, "column", prompts=True)


def rcdiag_run(names: list[str]) -> dict:
    from rcdiag.learning.trainee import Trainee
    from rcdiag.usecases.replay.factors import factors
    from rcdiag.usecases.replay.model_run import replay_presets
    from rcdiag.usecases.replay.real_updates import ModelReplay
    from rcdiag.usecases.replay.training import Training

    update, batch = prepared(names)
    training = Training(model=str(MODEL))
    trainee = Trainee.load(training.spec)
    before, start = reset_peak(), time.perf_counter()
    replay = ModelReplay(learner=trainee, update=update, training=training, batch=batch).scored()
    presets, _, backwards = replay_presets(replay, factors(replay.batch), None)
    return {
        "seconds": time.perf_counter() - start,
        "extra_mb": (status("VmHWM") - before) / 2**20,
        "updates": len(presets),
        "backwards": backwards,
        "tokens": batch.num_tokens,
    }


def plain_run(updates: int) -> dict:
    """Measure repeated updates with token TIS, the cost of one script per preset."""
    import torch
    from transformers import AutoModelForCausalLM

    _, batch = prepared(["decoupled_token_is"])
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    rows = padded_rows(batch.parts)
    before, start = reset_peak(), time.perf_counter()
    for _ in range(updates):
        model.load_state_dict(weights)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, weight_decay=0.0)
        first = 0
        for ids, mask, wanted in rows:
            found = log_probs(model, ids, mask)[wanted]
            size = len(found)
            ratio = torch.from_numpy(batch.rollout[first : first + size])
            advantages = torch.from_numpy(batch.advantages[first : first + size])
            weight = (found.detach() - ratio).exp().clamp(max=2.0)
            (-(advantages * weight * found).sum() / batch.num_tokens).backward()
            first += size
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        with torch.no_grad():
            for ids, mask, _ in rows:
                log_probs(model, ids, mask)
    return {
        "seconds": time.perf_counter() - start,
        "extra_mb": (status("VmHWM") - before) / 2**20,
        "updates": updates,
        "backwards": updates,
        "tokens": batch.num_tokens,
    }


def log_probs(model, ids, mask):
    import torch

    logits = model(input_ids=ids, attention_mask=mask).logits.float()
    return torch.log_softmax(logits[:, :-1], dim=-1).gather(2, ids[:, 1:, None])[..., 0]


def padded_rows(parts) -> list:
    import torch

    rows = [
        (part.prompt_ids.row(i), part.response_ids.row(i))
        for part in parts
        for i in range(len(part))
    ]
    found = []
    for first in range(0, len(rows), 16):
        some = rows[first : first + 16]
        width = max(len(p) + len(r) for p, r in some)
        ids, mask = np.zeros((2, len(some), width), np.int64)
        wanted = np.zeros((len(some), width - 1), np.bool_)
        for index, (prompt, response) in enumerate(some):
            length = len(prompt) + len(response)
            ids[index, :length] = np.concatenate([prompt, response])
            mask[index, :length] = 1
            wanted[index, len(prompt) - 1 : length - 1] = True
        found.append(tuple(map(torch.from_numpy, (ids, mask, wanted))))
    return found


VARIANTS = {
    "plain, one update": lambda: plain_run(1),
    f"plain, {PLAIN_PRESETS} updates": lambda: plain_run(PLAIN_PRESETS),
    "rcdiag, 1 preset (and naive)": lambda: rcdiag_run(["decoupled_token_is"]),
    "rcdiag, all 19 presets (and naive)": lambda: rcdiag_run([]),
}


def main() -> None:
    results = []
    for name in VARIANTS:
        command = [sys.executable, __file__, "--one", name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"{name} failed:\n{done.stderr[-3000:]}")
        found = {"variant": name, **json.loads(done.stdout.splitlines()[-1])}
        results.append(found)
        print(
            f"{name:36} {found['seconds']:7.1f} s {found['extra_mb']:7.0f} MB  "
            f"{found['updates']:3} updates, {found['backwards']:3} backwards",
            flush=True,
        )
    per_update = results[1]["seconds"] / results[1]["updates"]
    everything = results[3]
    ratio = everything["seconds"] / per_update
    print(f"all {everything['updates']} cost as much as {ratio:.1f} plain updates")
    store(
        RESULTS / "replay.json",
        {"results": results, "all_presets_in_plain_updates": round(ratio, 2)},
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", metavar="VARIANT")
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(VARIANTS[arguments.one]()))
    else:
        main()

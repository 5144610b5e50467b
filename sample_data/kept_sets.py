"""Sample from kept sets and record them: `top_p.parquet`, and the effect of replaying the sets.

`python sample_data/kept_sets.py` writes the table (128 responses of step_8, top-p 0.9);
`python sample_data/kept_sets.py --measure` prints, for several sampling settings, the ratios with
the trainer's log-probs over the vocabulary and over the kept ids, as exact expectations.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rcdiag.engines.checkpoint import fingerprint
from rcdiag.engines.matmul import cpu_name
from rcdiag.table.writer import TableWriter

HERE = Path(__file__).resolve().parent
POLICY = HERE / "policy" / "step_8"
SEED, MOST_TOKENS = 9, 256
SETTINGS = {"top_p": 0.9}
# At temperature 1 the policy is certain of most tokens; at 1.5 kept sets have realistic sizes.
MEASURED_AT = 1.5
MEASURED = ({"top_p": 0.8}, {"top_p": 0.9}, {"top_p": 0.95}, {"top_p": 0.99}, {"top_k": 20}, {})


@dataclass
class Response:
    """A sampled response: for each token its kept ids, and their log-probs over the kept set."""

    ids: list[int]
    log_probs: list[float]
    kept: list[list[int]]
    kept_log_probs: list[np.ndarray]


def kept_sets(logits: torch.Tensor, top_p: float = 1.0, top_k: int = 0) -> torch.Tensor:
    """Return the mask of the ids that top-k and then top-p keep, [rows, vocabulary]."""
    ordered, order = logits.sort(dim=-1, descending=True)
    if top_k:
        ordered[:, top_k:] = -torch.inf
    p = ordered.softmax(-1)
    left = (p.cumsum(-1) - p < top_p) & (p > 0)
    return torch.zeros_like(left).scatter_(-1, order, left)


@torch.inference_mode()
def sample(
    prompts: list[list[int]], end: int, temperature: float = 1.0, **settings
) -> list[Response]:
    """Sample a response to each prompt from kept sets of logits that are rounded to bfloat16.

    That is what a bfloat16 engine does to them, and what its log-probs differ by from a trainer's.
    """
    generator = torch.Generator().manual_seed(SEED)
    model = AutoModelForCausalLM.from_pretrained(POLICY, dtype=torch.float32).eval()
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(row)) + row for row in prompts])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in prompts])
    responses = [Response([], [], [], []) for _ in prompts]
    active, cache = set(range(len(prompts))), None
    for _ in range(MOST_TOKENS):
        places = (mask.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        given = {"attention_mask": mask, "position_ids": places, "past_key_values": cache}
        output = model(input_ids=ids, use_cache=True, **given)
        cache, logits = (
            output.past_key_values,
            output.logits[:, -1].bfloat16().float() / temperature,
        )
        kept = kept_sets(logits, **settings)
        log_probs = logits.masked_fill(~kept, -torch.inf).log_softmax(-1)
        ids = torch.multinomial(log_probs.exp(), 1, generator=generator)
        mask = torch.cat([mask, torch.ones(len(mask), 1, dtype=mask.dtype)], dim=1)
        for row in sorted(active):
            token, own = int(ids[row]), kept[row].nonzero().squeeze(1)
            responses[row].ids.append(token)
            responses[row].log_probs.append(float(log_probs[row, token]))
            responses[row].kept.append(own.tolist())
            responses[row].kept_log_probs.append(log_probs[row, own].double().numpy())
            if token == end:
                active.remove(row)
        if not active:
            break
    return responses


@torch.inference_mode()
def trainer_log_probs(
    prompts: list[list[int]], responses: list[Response], temperature: float = 1.0
) -> list[torch.Tensor]:
    """Return the trainer's log-probs over the vocabulary, [tokens, vocabulary] per response."""
    model = AutoModelForCausalLM.from_pretrained(POLICY, dtype=torch.float32).eval()
    made = []
    for prompt, response in zip(prompts, responses, strict=True):
        logits = model(input_ids=torch.tensor([prompt + response.ids])).logits[0]
        own = logits[len(prompt) - 1 : -1].double() / temperature
        made.append(own.log_softmax(-1))
    return made


def prompts_of_step_8(copies: int) -> dict[str, list]:
    """Return the prompts of the last step of `rollouts.parquet`, each `copies` times, 8 at most."""
    names = ["group_id", "prompt_ids", "prompt", "expected_answer"]
    table = pq.read_table(HERE / "rollouts.parquet", columns=[*names, "step"])
    rows = table.filter(pc.equal(table["step"], 8)).select(names).to_pylist()
    rows = [row for place, row in enumerate(rows) if place % 8 < copies]
    return {name: [row[name] for row in rows] for name in names}


def write_table(path: Path) -> None:
    """Write the table of sampled responses with their kept ids."""
    tokenizer = AutoTokenizer.from_pretrained(POLICY)
    rows = prompts_of_step_8(4)
    responses = sample(rows["prompt_ids"], tokenizer.eos_token_id, **SETTINGS)
    trained = trainer_log_probs(rows["prompt_ids"], responses)
    count, ids = len(responses), pa.list_(pa.int32())
    columns = {
        "sample_id": [f"top_p_{row:03d}" for row in range(count)],
        "group_id": rows["group_id"],
        "prompt_ids": pa.array(rows["prompt_ids"], ids),
        "response_ids": pa.array([one.ids for one in responses], ids),
        "rollout_log_probs": pa.array([one.log_probs for one in responses], pa.list_(pa.float32())),
        "old_log_probs": pa.array(
            [
                whole[np.arange(len(one.ids)), one.ids].float().tolist()
                for one, whole in zip(responses, trained, strict=True)
            ],
            pa.list_(pa.float32()),
        ),
        "rollout_kept_ids": pa.array([one.kept for one in responses], pa.list_(ids)),
        "temperature": [1.0] * count,
        "top_p": [SETTINGS["top_p"]] * count,
        "top_k": [-1] * count,
        "min_p": [0.0] * count,
        "finish_reason": [
            "stop" if one.ids[-1] == tokenizer.eos_token_id else "length" for one in responses
        ],
        "prompt": rows["prompt"],
        "response": [tokenizer.decode(one.ids) for one in responses],
    }
    same = {
        "backend": "hf",
        "model": "sample_data/policy/step_8",
        "weights_fingerprint": fingerprint(POLICY),
        "device": cpu_name(),
    }
    sampler = {"name": "rollout", "dtype": "float32", "path": "decode", **same}
    sampler["options"] = {"logits": "bfloat16"}
    trainer = {"name": "old", "dtype": "float32", **same}
    table = pa.table(columns)
    with TableWriter(path, table.schema, {"policies": {"rollout": sampler, "old": trainer}}) as out:
        out.write(table)


def measure(prompts: list[list[int]], end: int, **settings) -> dict[str, float]:
    """Return kept mass, E[ratio] and P(ratio outside 0.9 to 1.1), over vocabulary and kept ids.

    Contexts are sampled. In each context a value is the expectation over all tokens of its kept
    set, so it does not depend on the token that was drawn.
    """
    responses = sample(prompts, end, MEASURED_AT, **settings)
    trained = trainer_log_probs(prompts, responses, MEASURED_AT)
    sums = dict.fromkeys(
        ("kept_ids", "kept_mass", "ratio", "outside", "ratio_kept", "outside_kept"), 0.0
    )
    tokens = 0
    for one, whole in zip(responses, trained, strict=True):
        for place, (ids, own) in enumerate(zip(one.kept, one.kept_log_probs, strict=True)):
            q, p = np.exp(own), whole[place, ids].exp().numpy()
            mass = p.sum()
            for name, ratio in (("", p / q), ("_kept", p / mass / q)):
                sums[f"ratio{name}"] += (q * ratio).sum()
                sums[f"outside{name}"] += (q * ((ratio < 0.9) | (ratio > 1.1))).sum()
            sums["kept_mass"] += mass
            sums["kept_ids"] += len(ids)
            tokens += 1
    return {name: float(value / tokens) for name, value in sums.items()}


def print_measured() -> None:
    """Print the table of docs/kept-sets.md, one line per sampling setting."""
    rows = prompts_of_step_8(1)
    end = AutoTokenizer.from_pretrained(POLICY).eos_token_id
    print(
        "| sampling | kept ids | kept mass | E[ratio], whole vocabulary | outside "
        "| E[ratio], kept ids | outside |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|", flush=True)
    for settings in MEASURED:
        name = ", ".join(f"{key} {value}" for key, value in settings.items()) or "whole vocabulary"
        made = measure(rows["prompt_ids"], end, **settings)
        print(
            f"| {name} | {made['kept_ids']:.1f} | {made['kept_mass']:.4f} | {made['ratio']:.4f} "
            f"| {made['outside']:.1%} | {made['ratio_kept']:.4f} | {made['outside_kept']:.1%} |",
            flush=True,
        )


if __name__ == "__main__":
    torch.set_num_threads(1)
    if "--measure" in sys.argv:
        print_measured()
    else:
        write_table(HERE / "top_p.parquet")
        print(json.dumps({"bytes": (HERE / "top_p.parquet").stat().st_size}))

"""Small tables for the public questions in docs/questions.md, one per question.

`python -m tests.questions.tables OUT` writes them. Tokens are drawn from the chain of
`tests.diagnosis.tables`, whose distributions are known, so that what is wrong in each table is
known too. A table's name is that of the thread.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from msgspec.structs import replace
from numpy.typing import NDArray

from rcdiag.diagnosis.case import Case
from tests.diagnosis.tables import (
    Law,
    changed,
    drifted,
    made,
    noisy,
    plain,
    shifted,
    single,
    tempered,
    top_p,
    with_tool_turns,
    write,
)
from tests.questions import forward

Array = NDArray[np.float64]
ROOT = Path(__file__).parents[2]
ROUNDING = 0.02  # noise on the logits of an engine, nats

MAKERS: dict[str, Callable[[Path], None]] = {}


def table(thread: str) -> Callable[[Callable[[], Case]], Callable[[], Case]]:
    """Register the table of a thread, which is written to `<thread>.parquet`."""

    def register(make: Callable[[], Case]) -> Callable[[], Case]:
        MAKERS[thread] = lambda folder: _written(make(), folder / f"{thread}.parquet")
        return make

    return register


def files(thread: str) -> Callable[[Callable[[Path], None]], Callable[[Path], None]]:
    """Register the writer of a thread that needs several files."""

    def register(make: Callable[[Path], None]) -> Callable[[Path], None]:
        MAKERS[thread] = make
        return make

    return register


def _written(case: Case, path: Path) -> None:
    more: dict[str, Any] = {}
    if case.facts.reward is not None:
        more["reward"] = case.facts.reward
    if case.facts.prompt is not None:
        # A prompt's tokens are the digits of its number in base 100.
        number = case.facts.prompt.astype(int)
        more["prompt_ids"] = [[1, 2 + n // 100, 2 + n % 100] for n in number]
    if case.facts.prompt_length is not None:
        more["prompt_ids"] = [list(range(count)) for count in case.facts.prompt_length]
    write(case, path, **more)


def by_row(size: Array) -> Law:
    """Add noise to the logits, with a size per row, [rows] nats."""
    return changed(
        lambda logits, state: logits + size[:, None] * state.rng.standard_normal(logits.shape)
    )


def drifting(size: Array, seed: int = 5) -> Law:
    """Shift the logits as other weights do, with a size per row, [rows] nats."""
    far = drifted(1.0, seed)
    own = noisy(ROUNDING)

    def law(logits: Array, state: Any) -> Array:
        move = far(logits, state) - plain(logits, state)
        return own(logits + size[:, None] * move, state)

    return law


def run(steps: int, of_step: int, length: int, sizes: Sequence[float], **facts: Any) -> Case:
    """Make a run whose trainer has other weights, with a mismatch of `sizes` [steps] nats."""
    step = np.repeat(np.arange(steps), of_step)
    off = np.asarray(sizes, float)[step]
    return made(
        noisy(ROUNDING), drifting(off), rows=steps * of_step, length=length, step=step, **facts
    )


def with_reward(case: Case, by_step: Sequence[float]) -> Case:
    """Add rewards of 0 or 1 with a given mean per step."""
    assert case.facts.step is not None
    mean = np.asarray(by_step, float)[case.facts.step]
    reward = (np.random.default_rng(3).random(len(mean)) < mean).astype(float)
    return replace(case, facts=replace(case.facts, reward=reward))


@table("verl-6780")
def fully_async() -> Case:
    """A fully asynchronous run that reports staleness 0, but whose weights lag from step 5 on."""
    sizes = [0.0] * 5 + [0.1, 0.3, 0.5, 0.7, 0.9]
    case = run(10, 32, 60, sizes, policy_version=np.repeat(np.arange(10), 32))
    return with_reward(case, [0.6] * 7 + [0.4, 0.2, 0.1])


@table("verl-6280")
def micro_batches() -> Case:
    """Log-probs before the update and at its first mini-batch, with different micro-batches."""
    case = made(noisy(ROUNDING), noisy(0.03), rows=256)
    noise = 0.01 * np.random.default_rng(8).standard_normal(len(case.mask))
    unsure = 1.0 - np.exp(case.log_probs["old"])
    current = np.minimum(case.log_probs["old"] + noise * unsure, 0.0)
    return replace(case, log_probs={**case.log_probs, "current": single(current)})


@table("verl-6240")
def raw_or_processed() -> Case:
    """Tokens sampled at temperature 0.7, with log-probs recorded before it was applied."""
    return made(tempered(0.7), noisy(ROUNDING, tempered(0.7)), plain, temperature=np.full(128, 0.7))


@table("verl-5392")
def experts() -> Case:
    """A mixture of experts whose engines choose different experts for one token in 300."""

    def flips(logits: Array, state: Any) -> Array:
        loud = state.rng.random((len(logits), 1)) < 1 / 300
        return logits + 3.0 * loud * state.rng.standard_normal(logits.shape)

    return made(noisy(ROUNDING), changed(flips, noisy(ROUNDING)), rows=256)


def _turns(case: Case, tool: Sequence[int], size: int = 5) -> Case:
    """Mask tool text: `size` tokens from each position in `tool` on."""
    for first in tool:
        case = with_tool_turns(case, 0.0, first=first, size=size)
    return case


@table("verl-5229")
def eight_turns() -> Case:
    """An agent of eight turns whose fifth turn has a much larger mismatch."""
    tool = list(range(12, 130, 17))[:7]

    def loud(logits: Array, state: Any) -> Array:
        size = 0.4 if tool[3] <= state.position < tool[4] else 0.0
        return logits + size * state.rng.standard_normal(logits.shape)

    return _turns(made(noisy(ROUNDING), changed(loud, noisy(ROUNDING)), length=132), tool)


@table("verl-6501")
def separators() -> Case:
    """The trainer's context lacks a separator after every tool, so the mismatch grows by turn."""
    tool = [20, 45, 70]

    def off(logits: Array, state: Any) -> Array:
        before = sum(first <= state.position for first in tool)
        return logits + 0.15 * before * state.rng.standard_normal(logits.shape)

    return _turns(made(noisy(0.01), changed(off, noisy(0.01)), length=95), tool)


@files("verl-7196")
def bypass(folder: Path) -> None:
    """A dump of bypass mode: only the sampler's log-probs, from the sample run's last step."""
    rows = pl.read_parquet(ROOT / "sample_data/stale.parquet")
    rows.drop("old_log_probs").write_parquet(folder / "verl-7196.parquet")


@table("verl-3984")
def geometric() -> Case:
    """A genuine mismatch for which bounds of 0.1% on the geometric mean reject every sequence."""
    return made(noisy(ROUNDING), noisy(1.0), rows=48)


@table("verl-omni-254")
def pipeline() -> Case:
    """The trainer's log-probs are shifted by one token: correlation of probabilities near 0."""
    case = made(noisy(ROUNDING), noisy(ROUNDING))
    return shifted(case, "old", np.ones(len(case.lengths), np.bool_))


@table("slime-1695")
def resumed() -> Case:
    """After a resume at step 4 the sampler has older weights for three steps."""
    return run(10, 32, 60, [0.0] * 4 + [0.5] * 3 + [0.0] * 3)


@table("openclaw-69")
def abs_diff() -> Case:
    """The trainer does not divide by T: mean absolute log-prob differences of 0.2 to 0.4."""
    at = tempered(0.6)
    return made(noisy(ROUNDING, at), noisy(ROUNDING), temperature=np.full(128, 0.6))


@table("vime-64")
def two_engines() -> Case:
    """The mismatch of an SGLang replica grows from 0.011 to 0.036, that of vLLM is constant."""
    steps, of_step = 12, 32
    step = np.repeat(np.arange(steps), of_step)
    engine = np.where(np.arange(steps * of_step) % 2 == 0, "sglang-0", "vllm-0")
    off = np.where(engine == "sglang-0", 0.03 * step, 0.0)
    return made(
        noisy(ROUNDING),
        drifting(off),
        rows=steps * of_step,
        step=step,
        engine=list(engine),
        group_of=8,
    )


@files("nemo-rl-1801")
def fused(folder: Path) -> None:
    """A trainer whose fused rotary kernel uses a wrong angle, and its forward program."""
    rng = np.random.default_rng(4)
    prompts, responses = [], []
    for group in range(128):
        ids = [group // 8, group % 8]
        for place in range(2, 62):
            scores = forward.logits(np.array(ids[-1:]), np.array([place]), 0.1)[0]
            ids.append(int(np.argmax(scores + rng.gumbel(size=forward.VOCABULARY))))
        prompts.append(ids[:2])
        responses.append(ids[2:])
    columns = {
        f"{name}_log_probs": [
            forward.log_probs(prompt, response, fused_rope=name == "old")
            + rng.normal(0.0, spread, len(response))
            for prompt, response in zip(prompts, responses, strict=True)
        ]
        for name, spread in (("rollout", 1e-3), ("old", 0.0))
    }
    rows = {"prompt_ids": prompts, "response_ids": responses, **columns}
    pl.DataFrame(rows).write_parquet(folder / "nemo-rl-1801.parquet")
    shutil.copy(forward.__file__, folder / "forward.py")


def prompts_over_steps(
    steps: int, prompts: int, of_prompt: int, outliers: float, seed: int = 0, again: bool = True
) -> Case:
    """Sample the same prompts at every step; a share of them has a mismatch of 0.5 nats.

    Without `again` as many rows have it, drawn independently at each step.
    """
    rng = np.random.default_rng([seed, 9])
    rows = steps * prompts * of_prompt
    prompt = np.tile(np.repeat(np.arange(prompts), of_prompt), steps)
    step = np.repeat(np.arange(steps), prompts * of_prompt)
    far = rng.random(prompts) < outliers
    large = far[prompt] if again else rng.random(rows) < outliers
    case = made(
        noisy(ROUNDING),
        by_row(np.where(large, 0.5, ROUNDING)),
        rows=rows,
        length=40,
        seed=seed,
        step=step,
    )
    facts = replace(case.facts, group=prompt.astype(np.uint64), prompt=prompt.astype(np.uint64))
    return replace(case, facts=facts)


@table("nemo-rl-4243")
def same_prompts() -> Case:
    """The same third of the prompts has a large mismatch at every step, the others rounding."""
    return prompts_over_steps(4, 24, 4, 0.35)


def sawtooth(sizes: Sequence[float], of_step: int = 32, **facts: Any) -> Case:
    """A run whose mismatch is `sizes` [steps] nats of noise."""
    step = np.repeat(np.arange(len(sizes)), of_step)
    return made(
        noisy(ROUNDING),
        by_row(np.asarray(sizes, float)[step]),
        rows=len(step),
        length=40,
        step=step,
        **facts,
    )


@table("nemo-rl-4018")
def until_a_restart() -> Case:
    """Stale keys of a prefix cache accumulate until restarts at steps 7 and 14."""
    sizes = [0.02 + 0.03 * (step % 7) for step in range(20)]
    return sawtooth(sizes, policy_version=np.repeat(np.arange(20), 32))


@table("skyrl-2201")
def bit_for_bit() -> Case:
    """Two engines that agree bit for bit, except at every tenth token of every second row."""
    case = made(noisy(ROUNDING), noisy(ROUNDING))
    same = case.log_probs["rollout"].copy()
    off = (case.position % 10 == 9) & (case.owner % 2 == 0)
    same[off] = case.log_probs["old"][off]
    return case.with_log_probs("old", same)


@table("nemo-rl-2180")
def not_numbers() -> Case:
    """The sampler recorded NaN in 2% of the rows, from step 3 on."""
    case = run(6, 64, 40, [0.0] * 6)
    assert case.facts.step is not None
    rows = (case.facts.step >= 3) & (np.arange(len(case.lengths)) % 25 == 0)
    values = case.log_probs["rollout"].copy()
    values[rows[case.owner] & (case.position == 7)] = np.nan
    return case.with_log_probs("rollout", values)


@table("trl-4772")
def long_completions() -> Case:
    """A genuine mismatch of 0.3 nats per token, on completions of 5 to 300 tokens."""
    case = made(noisy(ROUNDING), noisy(0.4), length=300, rows=128)
    rng = np.random.default_rng(4)
    lengths = np.exp(rng.uniform(np.log(5), np.log(300), len(case.lengths))).astype(int)
    return _cut(case, lengths)


def _cut(case: Case, lengths: Array) -> Case:
    """Return the case with each row cut to its own length, [rows] tokens."""
    inside = case.position < lengths[case.owner]
    return replace(
        case,
        lengths=np.minimum(case.lengths, lengths),
        token_id=case.token_id[inside],
        mask=case.mask[inside],
        log_probs={name: values[inside] for name, values in case.log_probs.items()},
        entropy={name: values[inside] for name, values in case.entropy.items()},
    )


@table("trl-6789")
def nucleus() -> Case:
    """Tokens sampled and recorded with top-p 0.9; the trainer uses the whole distribution."""
    return made(top_p(0.9), noisy(ROUNDING), top_p(0.9), top_p=np.full(128, 0.9))


@files("trl-5231")
def only_after_the_mask(folder: Path) -> None:
    """A table, and a trainer's log with metrics after truncation only."""
    import rcdiag

    path = folder / "trl-5231.parquet"
    _written(made(noisy(ROUNDING), noisy(0.5), rows=64, step=np.zeros(64, int)), path)
    result = rcdiag.score(str(path), trainer="trl")
    logged = next(iter(result.corrections.values())).metrics
    document = {"log_history": [{"step": 0, **{k: round(v, 6) for k, v in logged.items()}}]}
    (folder / "trainer_state.json").write_text(json.dumps(document))


@table("open-instruct-1473")
def at_rate_zero() -> Case:
    """The mismatch grows although the learning rate is 0."""
    return run(10, 32, 60, [0.05 * step for step in range(10)])


@table("precision-rl-10")
def why_the_kl_grows() -> Case:
    """The KL grows: distributions are less peaked from step 4 on, and nothing else changes."""
    return two_phases(length=(60, 60), sharpness=(2.0, 0.7), noise=(0.1, 0.1))


def two_phases(
    length: tuple[int, int],
    sharpness: tuple[float, float],
    noise: tuple[float, float],
    steps: int = 8,
    of_step: int = 32,
    seed: int = 0,
    late: float = 0.0,
) -> Case:
    """A run whose second half has other lengths, logits and noise than its first half.

    `late` is the factor by which noise grows over 100 positions.
    """
    rows = steps * of_step
    phase = np.arange(rows) * 2 // rows
    sharp, size = np.array(sharpness)[phase], np.array(noise)[phase]

    def sharpened(logits: Array, state: Any) -> Array:
        return logits * sharp[:, None]

    def off(logits: Array, state: Any) -> Array:
        scale = size * (1.0 + late * state.position / 100)
        return sharpened(logits, state) + scale[:, None] * state.rng.standard_normal(logits.shape)

    case = made(
        changed(sharpened, noisy(ROUNDING)),
        changed(off),
        rows=rows,
        length=max(length),
        seed=seed,
        step=np.repeat(np.arange(steps), of_step),
        entropies=("rollout",),
    )
    return _cut(case, np.array(length)[phase])


@table("vllm-42259")
def chunks() -> Case:
    """A hybrid model that computes prefill in chunks of 64 positions, but not decode."""
    return blocks(64)


def blocks(size: int, *, rows: int = 96, length: int = 260, seed: int = 0) -> Case:
    """Noise that grows within every block of `size` positions of prompt and response."""
    prompt = np.random.default_rng([seed, 6]).integers(3, 90, rows)

    def within(logits: Array, state: Any) -> Array:
        place = (prompt + state.position) % size / size if size else np.full(rows, 0.5)
        scale = 0.02 + 0.06 * place
        return logits + scale[:, None] * state.rng.standard_normal(logits.shape)

    case = made(noisy(ROUNDING), changed(within), rows=rows, length=length, seed=seed)
    return replace(case, facts=replace(case.facts, prompt_length=prompt))


def write_tables(folder: Path, threads: Sequence[str] = ()) -> None:
    """Write the tables of some threads, or of all, into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for thread in threads or MAKERS:
        MAKERS[thread](folder)


if __name__ == "__main__":
    write_tables(Path(sys.argv[1]), sys.argv[2:])

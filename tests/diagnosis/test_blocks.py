"""Log-ratios whose size depends on the position in blocks are detected; noise is not."""

from __future__ import annotations

import numpy as np
import pytest

from rcdiag.diagnosis.case import PairTokens
from rcdiag.diagnosis.causes.blocks import BlockEffect, block_effect
from rcdiag.diagnosis.judge import diagnose
from tests.questions.tables import blocks

ROWS = 48
HONEST = ("plain", "heavy tails", "grows", "first tokens", "by row", "by neighbourhood")


def effect(
    seed: int, kind: str = "plain", *, block: int = 0, length: int = 400, one_prompt: bool = False
) -> BlockEffect | None:
    """Test noise of 0.03 nats whose size depends on the position in a block, up to fourfold."""
    rng = np.random.default_rng(seed)
    per_row = rng.integers(length // 2, length, ROWS)
    owner = np.repeat(np.arange(ROWS), per_row)
    position = np.concatenate([np.arange(count) for count in per_row])
    prompt = np.full(ROWS, 37) if one_prompt else rng.integers(5, 200, ROWS)
    place, count = prompt[owner] + position, len(position)
    uncertain = rng.random(count) < 0.5
    sampler = -rng.exponential(0.6, count) * uncertain - 1e-4 * rng.random(count)
    heavy = kind == "heavy tails"
    noise = rng.standard_t(2, count) if heavy else rng.standard_normal(count)
    size = {
        "grows": lambda: 1 + position / 50,
        "first tokens": lambda: 1 + 20 * np.exp(-position / 5),
        "by row": lambda: np.exp(0.8 * rng.standard_normal(ROWS))[owner],
        "by neighbourhood": lambda: np.exp(
            0.2 * np.convolve(rng.standard_normal(count), np.ones(30), "same")
        ),
    }.get(kind, lambda: np.ones(count))()
    if block:
        size = size * (1 + 3 * (place % block) / block)
    tokens = PairTokens(
        sampler=sampler,
        trainer=sampler + 0.03 * noise * size * (1 - np.exp(sampler)),
        owner=owner,
        position=position,
        token_id=np.zeros(count, np.int32),
        place=np.arange(count),
        rows=ROWS,
    )
    return block_effect(tokens, place, np.arange(ROWS))


@pytest.mark.parametrize("one_prompt", [False, True])
@pytest.mark.parametrize("kind", HONEST)
def test_plain_noise_has_no_blocks(kind, one_prompt):
    assert [effect(seed, kind, one_prompt=one_prompt) for seed in range(5)] == [None] * 5


@pytest.mark.weekly
@pytest.mark.parametrize("kind", HONEST)
def test_plain_noise_has_no_blocks_in_200_tables(kind):
    assert not any(effect(seed, kind) for seed in range(200))


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("block", [16, 64, 128])
@pytest.mark.parametrize("kind", HONEST)
def test_blocks_are_found_with_their_size(kind, block, seed):
    found = effect(seed, kind, block=block, length=800)
    assert found is not None
    assert found.size == block
    assert 1.5 < found.factor < 2.5
    # The first harmonic of a saw-tooth over a block peaks at three quarters.
    assert found.largest_at == pytest.approx(0.75 * block, abs=0.1 * block)


@pytest.mark.parametrize("seed", range(2))
def test_a_table_with_blocks_names_them(seed):
    cause = diagnose(blocks(64, seed=seed)).causes[0]
    assert cause.slug == "block-boundaries"
    assert "blocks of 64 positions" in cause.message


@pytest.mark.parametrize("seed", range(2))
def test_the_same_table_without_blocks_does_not(seed):
    assert "block-boundaries" not in {one.slug for one in diagnose(blocks(0, seed=seed)).causes}

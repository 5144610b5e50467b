import numpy as np
import pytest
import torch

from rcdiag.learning.fresh_responses import SamplingSettings, as_trajectories
from tests.learning.helpers import trainee

pytestmark = pytest.mark.engine

PROMPTS = [np.array(ids, np.int32) for ids in ([5], [9, 8, 7, 6, 5, 4], [30, 31])]


def settings(**changes) -> SamplingSettings:
    base = {"temperature": 0.7, "max_new_tokens": 12, "seed": 3, "samples": 2}
    return SamplingSettings(**{**base, **changes})


def ids_of(generated) -> list[list[int]]:
    return [one.ids.tolist() for one in generated]


@pytest.fixture(params=["qwen3", "gpt2"])
def ending(made, request):
    """A model whose responses end at some tokens; with relative and absolute positions."""
    one = trainee(made(request.param), checkpointing=True)
    one.policy.model.generation_config.eos_token_id = list(range(2, 40))
    return one


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_recorded_log_probs_equal_those_of_scoring(temperature, ending):
    """Prompts of different lengths share a batch with correct left padding and positions."""
    result = ending.generate(PROMPTS, settings(temperature=temperature, samples=4))
    rows = as_trajectories(PROMPTS, result, temperature)
    np.testing.assert_allclose(
        ending.log_probs([rows]).log_probs, rows.log_probs["rollout"], atol=1e-4
    )


def test_samples_come_in_the_order_of_their_prompts(shared):
    assert [one.prompt for one in shared.generate(PROMPTS, settings())] == [0, 0, 1, 1, 2, 2]


def test_samples_depend_on_the_seed_only(shared):
    first, again, other = (shared.generate(PROMPTS, settings(seed=s)) for s in (3, 3, 4))
    assert ids_of(first) == ids_of(again)
    assert ids_of(first) != ids_of(other)


def test_a_response_stops_with_its_end_token(ending):
    result = ending.generate(PROMPTS, settings(samples=8, max_new_tokens=40))
    ended = [one for one in result if len(one.ids) < 40]
    assert ended
    for one in ended:
        assert 2 <= one.ids[-1] < 40
        assert not ((one.ids[:-1] >= 2) & (one.ids[:-1] < 40)).any()
        assert len(one.log_probs) == len(one.ids)


def test_without_an_end_token_all_have_full_length(shared):
    assert {len(one.ids) for one in shared.generate(PROMPTS, settings())} == {12}


def test_tokens_follow_the_whole_distribution_at_the_temperature(shared, monkeypatch):
    """4,000 first tokens against the model's distribution; the checkpoint's top-k 1 is ignored."""
    one, count = PROMPTS[1], 4_000
    monkeypatch.setattr(shared.policy.model.generation_config, "top_k", 1)
    result = shared.generate([one], settings(samples=count, max_new_tokens=1, temperature=2.0))
    with torch.no_grad():
        logits = shared.policy.model(torch.tensor(one[None].astype(np.int64))).logits[0, -1]
    law = torch.softmax(logits.double() / 2.0, dim=-1).numpy()
    seen = np.bincount([int(g.ids[0]) for g in result], minlength=len(law))
    likely = law * count > 5
    chi2 = ((seen - law * count) ** 2 / (law * count))[likely].sum()
    assert likely.sum() > 30
    assert abs(chi2 - likely.sum()) < 5 * (2 * likely.sum()) ** 0.5


def test_temperature_zero_is_refused():
    with pytest.raises(ValueError, match="above 0"):
        settings(temperature=0.0)

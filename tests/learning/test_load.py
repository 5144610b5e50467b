from dataclasses import replace

import numpy as np
import pytest
from transformers import Qwen3Config

from rcdiag.engines.hf.engine import HfEngine
from rcdiag.errors import RcdiagError
from rcdiag.table.trajectories import Ragged
from tests import engine_models as engines
from tests.learning.helpers import parts_of, trainee

pytestmark = pytest.mark.engine


def test_log_probs_and_entropy_equal_the_backend_that_scores(shared, parts):
    spec = replace(shared.policy.spec, options={"entropy": True})
    backend = HfEngine(spec)
    scores = [backend.score(part, lambda tokens: None) for part in parts]
    masks = [part.mask for part in parts]
    result = shared.log_probs(parts, entropy=True)
    for name in ("log_probs", "entropy"):
        expected = [getattr(s, name)[m] for s, m in zip(scores, masks, strict=True)]
        np.testing.assert_allclose(getattr(result, name), np.concatenate(expected), atol=5e-6)


def test_rows_of_another_vocabulary_are_refused(shared, parts):
    ids = parts[0].response_ids
    wrong = replace(parts[0], response_ids=replace(ids, values=ids.values + 300))
    with pytest.raises(RcdiagError, match="vocabulary of 320"):
        shared.log_probs([wrong])


def test_rows_without_a_prompt_are_refused(shared, parts):
    with pytest.raises(RcdiagError, match="no prompts"):
        shared.log_probs([replace(parts[0], prompt_ids=None)])
    none = Ragged(np.zeros(0, np.int32), np.zeros(len(parts[0]) + 1, np.int64))
    with pytest.raises(RcdiagError, match="row 0: its prompt is empty"):
        shared.log_probs([replace(parts[0], prompt_ids=none)])


def test_an_unsupported_head_is_refused(made):
    """The configuration has a logit cap that the model's own forward does not apply."""
    model = made("capped", Qwen3Config(**engines.SIZES, final_logit_softcapping=0.5))
    with pytest.raises(RcdiagError, match="changes the logits of architecture `qwen3`"):
        trainee(model)


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ("vllm:bfloat16", "cannot be trained"),
        ("hf:float16", "cannot be trained"),
        ("hf:float32,autocast=float16", "loss scaling"),
        ("hf:bfloat16,lm_head=float32", "for scoring only"),
    ],
)
def test_models_that_cannot_be_trained_are_refused(policy, words, qwen3):
    with pytest.raises(RcdiagError, match=words) as caught:
        trainee(qwen3, policy)
    assert caught.value.hint


def test_a_table_in_one_part_or_two_is_the_same(shared, parts, table):
    whole = parts_of(table, 12)
    np.testing.assert_array_equal(
        shared.log_probs(whole).log_probs, shared.log_probs(parts).log_probs
    )

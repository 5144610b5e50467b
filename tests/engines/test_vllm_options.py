"""Options with which vLLM is started; no engine is started here."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from rcdiag.engines import BACKENDS
from rcdiag.engines.matmul import KERNEL_VARIABLES
from rcdiag.engines.notation import parse_policy
from rcdiag.engines.vllm import _NOT_ONE_ENGINE, _SET_BY_RCDIAG, _WRONG_SCORES
from rcdiag.engines.vllm.engine_arguments import _check_dtype, engine_options, set_environment
from rcdiag.errors import RcdiagError

pytestmark = pytest.mark.engine


def options_of(text: str, model: Path) -> dict:
    spec = parse_policy(f"a=vllm:{text}", str(model))
    return engine_options(spec, "prefill", 100, BACKENDS["vllm"].passed_on(spec.options))


@pytest.mark.parametrize(
    ("text", "overrides"),
    [
        ("bfloat16", {"head_dtype": "model"}),
        ("bfloat16,lm_head=float32", {"head_dtype": "float32"}),
        ('bfloat16,hf_overrides={"a":1,"b":2}', {"head_dtype": "model", "a": 1, "b": 2}),
        ('bfloat16,lm_head=float32,hf_overrides={"a":1}', {"head_dtype": "float32", "a": 1}),
    ],
)
def test_overrides_are_merged_with_the_dtype_of_the_head(text, overrides, qwen3):
    assert options_of(text, qwen3)["hf_overrides"] == overrides


def changed_copy(folder: Path, target: Path, **changes: Any) -> Path:
    """Write a checkpoint's config.json with changes, beside an empty file of weights."""
    config = json.loads((folder / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, **changes}))
    (target / "model.safetensors").touch()
    return target


def test_a_head_whose_dtype_the_checkpoint_states_stays_that_of_the_sampler(qwen3, tmp_path):
    """vLLM reads `head_dtype` for sampling as well: rcdiag must not switch it off for scoring."""
    stated = changed_copy(qwen3, tmp_path, head_dtype="float32")
    assert options_of("bfloat16", stated)["hf_overrides"] == {}
    assert options_of("bfloat16,lm_head=bfloat16", stated)["hf_overrides"] == {
        "head_dtype": "bfloat16"
    }


def test_a_head_whose_dtype_vllms_class_of_the_configuration_states_counts_too(qwen3, monkeypatch):
    """As HYV4Config does, whose config.json says `enable_lm_head_fp32`."""
    stated = SimpleNamespace(head_dtype="float32")
    monkeypatch.setattr("vllm.transformers_utils.config.get_config", lambda *_, **__: stated)
    assert options_of("bfloat16", qwen3)["hf_overrides"] == {}


def refusal(text: str) -> RcdiagError:
    with pytest.raises(RcdiagError) as caught:
        BACKENDS["vllm"].check(parse_policy(f"a=vllm:{text}", "m"))
    return caught.value


@pytest.mark.parametrize(
    "text",
    [
        'lm_head=float32,hf_overrides={"head_dtype":"model"}',
        'hf_overrides={"head_dtype":"float32"}',
    ],
)
def test_the_dtype_of_the_head_is_said_in_one_way(text):
    error = refusal(f"bfloat16,{text}")
    assert "head_dtype" in error.message
    assert "lm_head=float32" in error.hint


@pytest.mark.parametrize(
    ("option", "way"),
    [
        ("dtype=float32", "vllm:float32"),
        ("dtype=auto", "vllm:float32"),
        ("runner=generate", "path=decode"),
        ("convert=embed", "path=decode"),
        ('pooler_config={"task":"embed"}', "path=decode"),
        ('logits_processors=["a:B"]', "path=decode"),
        ("async_scheduling=null", "path=decode"),
        ("enable_lora=false", "adapter=FOLDER"),
        ("speculative_config={}", None),
        ('speculative_config={"method":"ngram"}', "leave"),
        ("spec_method=ngram", "leave"),
        ("enable_prefix_caching=true", "leave"),
        ("enable_prefix_caching=false", None),
        ("kv_sharing_fast_prefill=true", "leave"),
        ("pipeline_parallel_size=2", "tensor_parallel_size="),
        ("pipeline_parallel_size=1", None),
        ("pipeline_parallel_size=true", "tensor_parallel_size="),
        ("data_parallel_size=1", None),
        ("nnodes=1", None),
        ('data_parallel_size="2"', "tensor_parallel_size="),
        ("data_parallel_rank=0", "tensor_parallel_size="),
        ("prefill_context_parallel_size=2", "tensor_parallel_size="),
        ("decode_context_parallel_size=2", "tensor_parallel_size="),
        ("nnodes=2", "tensor_parallel_size="),
        ("tensor_parallel_size=2", None),
        ("tensor_parallel_size=two", "tensor_parallel_size=2"),
        ("tensor_parallel_size=null", "tensor_parallel_size=2"),
        ("tensor_parallel_size=0", "tensor_parallel_size=2"),
        ("enable_expert_parallel=true", None),
    ],
)
def test_options_that_rcdiag_sets_or_that_spoil_scores_are_refused_at_once(option, way):
    if way is None:
        BACKENDS["vllm"].check(parse_policy(f"a=vllm:bfloat16,{option}", "m"))
    else:
        error = refusal(f"bfloat16,{option}")
        assert option.partition("=")[0] in error.message
        assert way in error.hint


def test_a_token_of_the_hub_is_refused_without_being_shown():
    """The table's metadata hold the options of a policy."""
    error = refusal("bfloat16,hf_token=hf_sesame")
    assert "HF_TOKEN" in error.hint
    assert "sesame" not in error.message + error.hint
    BACKENDS["vllm"].check(parse_policy("a=vllm:bfloat16,hf_token=true", "m"))


def test_every_option_that_is_refused_is_one_of_vllms():
    from vllm import EngineArgs

    names = {field.name for field in dataclasses.fields(EngineArgs)}
    assert {*_SET_BY_RCDIAG, *_WRONG_SCORES} <= names
    assert {name for name in names if _NOT_ONE_ENGINE.fullmatch(name)} >= {"nnodes", "node_rank"}


def test_overrides_that_are_no_object_are_refused():
    assert "wanted an object" in refusal("bfloat16,hf_overrides=3").message


@pytest.mark.parametrize("stated", [{"dtype": "float32"}, {"torch_dtype": "float32"}, {}])
def test_auto_is_refused_where_prefill_would_get_another_dtype_than_a_sampler(stated, qwen3):
    with pytest.raises(RcdiagError, match="vllm:auto") as caught:
        _check_dtype(parse_policy("a=vllm:auto", str(qwen3)), stated)
    assert "vllm:bfloat16" in caught.value.hint


@pytest.mark.parametrize("stated", [{"dtype": "bfloat16"}, {"text_config": {"dtype": "bfloat16"}}])
def test_auto_is_accepted_for_16_bit_checkpoints(stated, qwen3):
    _check_dtype(parse_policy("a=vllm:auto", str(qwen3)), stated)
    _check_dtype(parse_policy("a=vllm:float32", str(qwen3)), {"dtype": "float32"})


def test_vllm_changes_the_dtype_only_of_float32_checkpoints():
    """vLLM's own function for both kinds of model, which justifies the refusal of auto."""
    import torch
    from vllm.config.model import _resolve_auto_dtype

    def taken(dtype: torch.dtype) -> set[torch.dtype]:
        both = (True, False)
        return {_resolve_auto_dtype("qwen3", dtype, is_pooling_model=pools) for pools in both}

    assert taken(torch.bfloat16) == {torch.bfloat16}
    assert taken(torch.float32) == {torch.float16, torch.bfloat16}


@pytest.mark.parametrize(
    ("config", "rank"),
    [({"r": 8}, 8), ({"r": 17}, 32), ({"r": 8, "rank_pattern": {"q_proj": 60}}, 64)],
)
def test_the_rank_is_that_of_the_adapter(config, rank, qwen3, tmp_path):
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    assert options_of(f"bfloat16,adapter={tmp_path}", qwen3)["max_lora_rank"] == rank
    assert (
        options_of(f"bfloat16,adapter={tmp_path},max_lora_rank=256", qwen3)["max_lora_rank"] == 256
    )


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("{}", "no rank"),
        ("[8]", "no rank"),
        ('{"r": "8"}', "no rank"),
        ('{"r": 8, "rank_pattern": [1]}', "no rank"),
        ('{"r": 8, "rank_pattern": {"q_proj": null}}', "no rank"),
        ('{"r": 4096}', "rank 4096"),
    ],
)
def test_an_adapter_without_a_rank_that_vllm_takes_is_refused(config, words, qwen3, tmp_path):
    (tmp_path / "adapter_config.json").write_text(config)
    with pytest.raises(RcdiagError, match=words) as caught:
        options_of(f"bfloat16,adapter={tmp_path}", qwen3)
    assert caught.value.hint


def test_a_checkpoint_with_images_keeps_its_tokenizer_and_reads_text_alone(
    qwen3, tmp_path, monkeypatch
):
    from transformers import Gemma3Config

    Gemma3Config(architectures=["Gemma3ForConditionalGeneration"]).save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").touch()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(RcdiagError, match="torchvision"):
        options_of("bfloat16", tmp_path)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: "there")
    options = options_of("bfloat16", tmp_path)
    assert (options["skip_tokenizer_init"], options["language_model_only"]) == (False, True)
    text = options_of("bfloat16", qwen3)
    assert text["skip_tokenizer_init"] is True
    assert "language_model_only" not in text


@pytest.mark.parametrize(
    ("path", "dtype", "name", "value"),
    [
        ("decode", "bfloat16", "VLLM_USE_V2_MODEL_RUNNER", "1"),
        ("prefill", "float32", "TRITON_F32_DEFAULT", "tf32"),
        ("prefill", "float32", "VLLM_FLOAT32_MATMUL_PRECISION", "high"),
    ],
)
def test_an_environment_that_contradicts_the_policy_is_refused(path, dtype, name, value, qwen3):
    with patch.dict(os.environ, {name: value}):
        with pytest.raises(RcdiagError, match=f"{name}={value} is set") as caught:
            set_environment(qwen3, 100, path, dtype)
        assert "unset it" in caught.value.hint
        set_environment(qwen3, 100, "prefill", "bfloat16")  # does not contradict the policy


PRIVATE = {
    "VLLM_API_KEY": "secret",
    "VLLM_HOST_IP": "10.0.0.1",
    "VLLM_ASSETS_CACHE": "/home/jane/assets",
    "VLLM_DP_MASTER_IP": "10.1.2.3",
    "VLLM_MY_TOKEN": "secret",
    "VLLM_USE_MY_TOKEN": "secret",
    "VLLM_ROCM_USE_AITER_TOKEN": "secret",
    "NVIDIA_TF32_OVERRIDE_TOKEN": "secret",
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
}


def test_variables_that_affect_numbers_are_recorded_and_secrets_are_not(qwen3):
    given = {"VLLM_KV_CACHE_LAYOUT": "HND", "NVIDIA_TF32_OVERRIDE": "0"}
    with patch.dict(os.environ, {**PRIVATE, **given}, clear=True):
        found = set_environment(qwen3, 100, "prefill", "float32")
    assert found == {
        **given,
        "TRITON_F32_DEFAULT": "ieee",
        "VLLM_FLOAT32_MATMUL_PRECISION": "highest",
    }


def test_the_variables_that_are_kept_are_those_of_vllm_and_hold_no_path():
    from vllm.envs import environment_variables

    of_vllm = [name for name in KERNEL_VARIABLES if name.startswith("VLLM_")]
    assert set(of_vllm) <= set(environment_variables)
    assert len(set(KERNEL_VARIABLES)) == len(KERNEL_VARIABLES)
    private = ("KEY", "TOKEN", "HOST", "_IP", "PORT", "PATH", "ROOT", "DIR", "FOLDER", "URL", "LOG")
    assert not [name for name in of_vllm for word in private if name.endswith(word)]


class LogitsProcessor:
    """As in vLLM 0.20 to 0.25, which has no dtype setting."""

    def __init__(self, vocab_size: int, scale: float = 1.0) -> None:
        self.vocab_size, self.scale = vocab_size, scale


def test_a_head_of_its_own_dtype_is_refused_where_vllm_would_ignore_it(qwen3, monkeypatch):
    module = "vllm.model_executor.layers.logits_processor.LogitsProcessor"
    monkeypatch.setattr(module, LogitsProcessor)
    with pytest.raises(RcdiagError, match=r"lm_head=float32: vllm .* cannot give the head a"):
        options_of("bfloat16,lm_head=float32", qwen3)
    assert options_of("float32,lm_head=float32", qwen3)["hf_overrides"] == {"head_dtype": "float32"}

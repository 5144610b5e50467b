import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForImageTextToText, Qwen3VLConfig

from rcdiag.engines import gpus
from rcdiag.engines.hf import head as head_module
from rcdiag.engines.hf.engine import HfEngine
from rcdiag.engines.hf.model import choose_device
from rcdiag.engines.hf.probe import Probe
from rcdiag.engines.notation import parse_policy
from rcdiag.engines.padded_batches import length_buckets, padded
from rcdiag.errors import RcdiagError
from rcdiag.table.opening import open_table
from rcdiag.table.stream import decode, read_chunks
from rcdiag.table.trajectories import Trajectories
from tests.engine_models import SIZES, make_model, reference

pytestmark = pytest.mark.engine


def rows_of(table: Path, start: int = 0, stop: int = 40) -> Trajectories:
    chunk = next(read_chunks(open_table(table), [(start, stop)]))
    return decode(chunk)


def score(policy: str, model: Path, rows: Trajectories):
    return HfEngine(parse_policy(policy, str(model))).score(rows, lambda tokens: None)


def test_float32_equals_the_plain_forward_on_every_row(qwen3, table, expected):
    result = score("p=hf:float32", qwen3, rows_of(table))
    np.testing.assert_allclose(result.log_probs, np.concatenate(expected["log_probs"]), atol=1e-5)


def test_entropy_and_top_k_equal_those_of_the_plain_forward(qwen3, table, expected):
    result = score("p=hf:float32,entropy=true,top_k=3", qwen3, rows_of(table))
    np.testing.assert_allclose(result.entropy, np.concatenate(expected["entropy"]), atol=2e-5)
    values = np.concatenate([top.values.numpy() for top in expected["top"]])
    ids = np.concatenate([top.indices.numpy() for top in expected["top"]])
    np.testing.assert_allclose(result.top_log_probs, values, atol=1e-5)
    assert np.array_equal(result.top_ids, ids)


def test_a_row_does_not_depend_on_its_neighbours(qwen3, table):
    backend = HfEngine(parse_policy("p=hf:float32", str(qwen3)))
    together = backend.score(rows_of(table), lambda tokens: None).log_probs
    alone = [
        backend.score(rows_of(table, row, row + 1), lambda tokens: None).log_probs
        for row in range(40)
    ]
    np.testing.assert_allclose(np.concatenate(alone), together, atol=1e-5)


def test_progress_counts_all_tokens_of_rows_with_a_response(qwen3, table):
    run: list[int] = []
    rows = rows_of(table)
    HfEngine(parse_policy("p=hf:float32,batch_tokens=300", str(qwen3))).score(rows, run.append)
    lengths = rows.prompt_ids.lengths + rows.response_ids.lengths
    assert sum(run) == lengths[rows.response_ids.lengths > 0].sum()
    assert len(run) > 3


@pytest.mark.parametrize(
    "options",
    ["bfloat16", "float16", "float32,autocast=bfloat16", "bfloat16,lm_head=float32"],
)
def test_lower_precisions_are_near_float32_but_not_it(options, qwen3, table, expected):
    result = score(f"p=hf:{options}", qwen3, rows_of(table)).log_probs
    gap = np.abs(result - np.concatenate(expected["log_probs"]))
    assert 1e-5 < gap.mean() < 0.1


def test_a_float32_head_removes_the_rounding_of_logits(qwen3, table):
    rows = rows_of(table)
    rounded = score("p=hf:bfloat16,top_k=1", qwen3, rows)
    exact = score("p=hf:bfloat16,lm_head=float32,top_k=1", qwen3, rows)
    assert not np.array_equal(rounded.log_probs, exact.log_probs)


def test_logits_can_be_divided_in_their_own_dtype_as_verl_does(qwen3):
    """verl: `logits.div_(temperature.to(logits.dtype))`, then a log-softmax in float32."""
    logits = torch.randn(50, 320, generator=torch.Generator().manual_seed(0)).mul(6).bfloat16()
    targets, temperature = torch.arange(50), torch.full((50,), 0.7, dtype=torch.float64)
    both = [
        head_module.token_scores(
            logits, targets, temperature, entropy=False, top_k=0, low_division=low
        )[:, 0]
        for low in (False, True)
    ]
    verl = logits.clone().div_(temperature.to(logits.dtype)[:, None]).float().log_softmax(-1)
    torch.testing.assert_close(both[1], verl[targets, targets], atol=1e-5, rtol=0)
    exact = (logits.double() / 0.7).log_softmax(-1)[targets, targets].float()
    torch.testing.assert_close(both[0], exact, atol=1e-5, rtol=0)
    assert 0.005 < (both[1] - both[0]).abs().mean() < 0.1


def test_the_division_of_a_policy_matters_at_other_temperatures_alone(qwen3, table):
    rows = rows_of(table)
    exact, low = (
        score(f"p=hf:bfloat16,division={name}", qwen3, rows).log_probs
        for name in ("float32", "logits")
    )
    at_one = np.repeat(rows.scoring_temperature == 1.0, rows.response_ids.lengths)
    assert np.array_equal(exact[at_one], low[at_one])
    assert 1e-4 < np.abs(exact - low)[~at_one].mean() < 0.1


def test_eager_attention_agrees_with_sdpa(qwen3, table, expected):
    result = score("p=hf:float32,attention=eager", qwen3, rows_of(table)).log_probs
    np.testing.assert_allclose(result, np.concatenate(expected["log_probs"]), atol=1e-5)


@pytest.mark.parametrize("kind", ["llama", "gemma2"])
def test_heads_of_other_architectures_are_supported(kind, table, tmp_path):
    """Gemma caps its logits; Llama does not share head and embedding."""
    model = make_model(tmp_path / kind, kind)
    result = score("p=hf:float32", model, rows_of(table)).log_probs
    expected = np.concatenate(reference(model, table)["log_probs"])
    np.testing.assert_allclose(result, expected, atol=2e-5)


@pytest.mark.parametrize(
    "load", [lambda path: HfEngine(parse_policy("p=hf:float32", str(path))), Probe]
)
def test_a_head_that_is_not_known_is_refused(load, qwen3, tmp_path):
    """The configuration has a logit cap that the model's own forward does not apply."""
    shutil.copytree(qwen3, model := tmp_path / "capped")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "final_logit_softcapping": 0.5}))
    with pytest.raises(RcdiagError, match="changes the logits of architecture `qwen3`"):
        load(model)


def test_a_vision_language_model_scores_rows_of_text(table, tmp_path):
    """Qwen3-VL has no causal class in transformers."""
    torch.manual_seed(0)
    sections = {"mrope_section": [4, 6, 6], "mrope_interleaved": True}
    rotary = {"rope_type": "default", "rope_theta": 1e4, **sections}
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "depth": 1}
    config = Qwen3VLConfig(
        text_config={**SIZES, "rope_parameters": rotary},
        vision_config={**sizes, "out_hidden_size": 64, "deepstack_visual_indexes": [0]},
        tie_word_embeddings=True,
        **{f"{name}_id": 1000 for name in ("image_token", "video_token", "vision_start_token")},
    )
    model = AutoModelForImageTextToText.from_config(config).eval()
    model.save_pretrained(tmp_path)
    rows = rows_of(table, 0, 3)
    found = np.split(score("p=hf:float32", tmp_path, rows).log_probs, [1, 31])
    for row in range(3):
        prompt, response = rows.prompt_ids.row(row), rows.response_ids.row(row)
        ids = torch.tensor(np.concatenate([prompt, response]), dtype=torch.long)
        with torch.no_grad():
            logits = model(input_ids=ids[None]).logits[0].double()
        laws = (logits / rows.scoring_temperature[row]).log_softmax(-1)[len(prompt) - 1 : -1]
        expected = laws[torch.arange(len(response)), ids[len(prompt) :]]
        np.testing.assert_allclose(found[row], expected, atol=1e-5)


def test_an_adapter_scores_like_the_merged_model(qwen3, table, adapter, expected):
    result = score(f"p=hf:float32,adapter={adapter}", qwen3, rows_of(table)).log_probs
    merged = np.concatenate(reference(qwen3, table, adapter)["log_probs"])
    np.testing.assert_allclose(result, merged, atol=3e-5)
    assert np.abs(result - np.concatenate(expected["log_probs"])).max() > 0.1


def test_logits_are_never_made_for_all_tokens_at_once(qwen3, table, monkeypatch):
    seen: list[int] = []
    backend = HfEngine(parse_policy("p=hf:float32", str(qwen3)))
    head = backend.to_logits
    backend.to_logits = lambda hidden: (seen.append(len(hidden)), head(hidden))[1]
    monkeypatch.setitem(head_module.LOGITS_AT_ONCE, "cpu", 64 * 320)
    backend.score(rows_of(table), lambda tokens: None)
    assert max(seen) == 64


def test_a_small_vocabulary_takes_little_memory_too():
    assert head_module.rows_at_once("cpu", 1_024) == 256
    assert head_module.rows_at_once("cpu", 32_768) == 128
    assert head_module.rows_at_once("cpu", 10_000_000) == 16
    assert head_module.rows_at_once("cuda", 131_072) == 512


def test_padding_stays_under_a_tenth_on_the_shipped_lengths():
    dump = open_table("sample_data/rollouts.parquet")
    rows = rows_of(Path("sample_data/rollouts.parquet"), 0, dump.num_rows)
    lengths = rows.prompt_ids.lengths + rows.response_ids.lengths
    shapes = [
        padded([np.zeros(lengths[row]) for row in bucket], 1024).shape
        for bucket in length_buckets(lengths, 2048)
    ]
    assert lengths.sum() <= sum(a * b for a, b in shapes) < 1.1 * lengths.sum()
    assert max(a * b for a, b in shapes) <= 2048
    assert len(set(shapes)) < 60


@pytest.mark.parametrize(
    ("script", "sign"),
    [
        ("echo 0", r"nvidia-smi lists GPUs \(0\)"),
        (
            "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18",
            r"nvidia-smi fails \(Failed to initialize NVML: Driver/library version mismatch\)",
        ),
        ("exit 9", r"nvidia-smi fails \(no message\)"),
        (None, "nvidia0 is there"),
    ],
)
def test_gpus_that_torch_cannot_use_are_not_passed_over(tmp_path, monkeypatch, script, sign):
    """A CPU build of torch, or a driver too old for it, or one that was updated while it ran."""
    if script is None:
        (tmp_path / "nvidia0").touch()
    else:
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(gpus, "_nvidia_smi", gpus._nvidia_smi.__wrapped__)
    monkeypatch.setattr(gpus, "DEVICE", tmp_path / "nvidia0")
    with pytest.raises(RcdiagError, match=f"{sign}, but torch cannot use a GPU") as caught:
        choose_device(None)
    assert "`CUDA_VISIBLE_DEVICES=`" in caught.value.hint
    assert choose_device("cpu").type == "cpu"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert choose_device(None).type == "cpu"


@pytest.mark.parametrize("code", [None, 0, 6])
def test_a_machine_without_a_sign_of_a_gpu_scores_on_the_cpu(tmp_path, monkeypatch, code):
    """Without nvidia-smi, or with one that finds no GPU."""
    if code is not None:
        script = f"#!/bin/sh\necho No devices were found\nexit {code}\n"
        (tmp_path / "nvidia-smi").write_text(script)
        (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(gpus, "_nvidia_smi", gpus._nvidia_smi.__wrapped__)
    monkeypatch.setattr(gpus, "DEVICE", tmp_path / "nvidia0")
    assert choose_device(None).type == "cpu"


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ("p=hf:float32,attention=flash_attention_2", "needs a GPU"),
        ("p=hf:float32,attention=nonsense", "cannot load"),
        ("p=hf:float32,autocast=int3", "autocast=int3: not known"),
        ("p=hf:float32,device=tpu", "tpu"),
    ],
)
def test_unsupported_options_of_the_device_are_refused(policy, words, qwen3):
    with pytest.raises(RcdiagError, match=words) as caught:
        HfEngine(parse_policy(policy, str(qwen3)))
    assert caught.value.hint

"""Ladders of policies, and the noise floor."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from cli.parameters import function_of
from rcdiag.engines import BACKENDS
from rcdiag.engines.ladders import LADDERS, policy_to_repeat, second_run, spec_of
from rcdiag.engines.notation import parse_policy
from rcdiag.engines.spec import PolicySpec
from rcdiag.errors import RcdiagError
from rcdiag.table.table import Table
from rcdiag.usecases.compare.ladder import ladder_order, repeat_of
from rcdiag.usecases.scored import wanted_policies
from tests.usecases.compare.tables import about

TEXTS = sorted({text for ladder in LADDERS.values() for text in ladder})


def passed_on(spec: PolicySpec) -> dict[str, Any]:
    """Return the options that are passed to the engine."""
    return BACKENDS[spec.backend].passed_on(spec.options)


def names_of(specs: list[PolicySpec]) -> list[str]:
    return [spec.name for spec in specs]


def wanted(
    texts=(), ladders=(), model: str | None = "m", there=(), scored=(), twice: bool = False
) -> list[PolicySpec]:
    """Return the policies to score for a table with policies `there`; `scored` have metadata."""
    noted = {"policies": {item["name"]: item for item in scored}} if scored else {}
    table = cast(Table, SimpleNamespace(policies=list(there), metadata=noted))
    return wanted_policies(table, policies=texts, model=model, ladder=ladders, noise_floor=twice)


@pytest.mark.parametrize("text", TEXTS)
def test_every_entry_of_a_ladder_is_a_valid_policy(text):
    spec = parse_policy(text, "m")
    options = {"vllm_fp8": {"quantization": "fp8"}, "vllm_bf16_eager": {"enforce_eager": True}}
    assert (spec.model, passed_on(spec)) == ("m", options.get(spec.name, {}))


@pytest.mark.parametrize("name", LADDERS)
def test_a_ladder_names_each_policy_once_and_ends_in_the_trainers_full_precision(name):
    specs = [parse_policy(text, "m") for text in LADDERS[name]]
    assert len(set(names_of(specs))) == len(specs) >= 3
    assert (specs[-1].backend, specs[-1].dtype) == ("hf", "float32")
    assert specs[0].backend == "vllm"


def test_a_name_means_the_same_policy_in_every_ladder():
    assert len({text.partition("=")[0] for text in TEXTS}) == len(TEXTS)


@pytest.mark.parametrize("name", LADDERS)
def test_compare_puts_a_ladder_in_the_order_it_was_made_in(name):
    specs = [parse_policy(text, "m") for text in LADDERS[name]]
    noted = {item.name: item.to_dict() for item in specs}
    shuffled = sorted(names_of(specs), reverse=True)
    result = ladder_order([*shuffled, "rollout"], noted, "rollout", "old")
    assert result == ["rollout", *names_of(specs)]


@pytest.mark.parametrize("names", [["current", "old", "rollout"], ["old", "rollout", "current"]])
@pytest.mark.parametrize("target", ["old", "current"])
def test_the_policy_being_updated_follows_the_one_it_started_from(names, target):
    assert ladder_order(names, {}, "rollout", target) == ["rollout", "old", "current"]


@pytest.mark.parametrize("command", ["score", "compare"])
def test_the_api_names_every_ladder(command):
    assert {*function_of(command).parameters["ladder"].choices} == {*LADDERS}


@pytest.mark.parametrize(
    "text", [*TEXTS, "x=hf:bfloat16,batch_tokens=1021", "x=vllm:bfloat16,max_num_seqs=5"]
)
def test_the_noise_floor_is_the_same_policy_in_other_batches(text):
    spec = parse_policy(text, "m")
    other = second_run(spec)
    same = ("backend", "dtype", "model")
    assert [getattr(other, item) for item in same] == [getattr(spec, item) for item in same]
    assert other.name == f"{spec.name}_again"
    assert repeat_of(other.to_dict()) == spec.name
    changed = {
        key for key, value in other.options.items() if spec.options.get(key, object()) != value
    }
    assert changed == {"repeat_of", {"hf": "batch_tokens", "vllm": "max_num_seqs"}[spec.backend]}


def test_the_engine_does_not_get_the_name_of_the_repeated_policy():
    assert "repeat_of" not in passed_on(second_run(parse_policy("x=vllm", "m")))


def test_the_first_low_precision_policy_is_repeated():
    specs = [parse_policy(f"{n}={what}", "m") for n, what in (("a", "hf"), ("b", "vllm"))]
    assert policy_to_repeat(specs).name == "b"
    assert policy_to_repeat(specs[:1]).name == "a"


def test_nothing_to_repeat_is_refused_with_a_hint():
    with pytest.raises(RcdiagError, match="--noise-floor") as caught:
        policy_to_repeat([])
    assert caught.value.hint


def test_a_policy_of_the_table_is_rescored_with_its_metadata(tmp_path):
    own = str(tmp_path)
    noted = about("x", "vllm", "bfloat16", model=own, path="decode", repeat_of="y")
    result = spec_of(noted, None)
    assert result == PolicySpec(
        name="x", backend="vllm", dtype="bfloat16", model=own, options={"path": "decode"}
    )


def test_a_table_does_not_choose_a_model_to_download():
    noted = about("x", "hf", "float32", model="somebody/else")
    assert spec_of(noted, None) is None
    assert spec_of(noted, "mine").model == "mine"


@pytest.mark.parametrize(
    "option",
    [
        {"trust_remote_code": True},
        {"python": "python3"},
        {"python": "."},
        {"worker_cls": "os.system"},
        {"logits_processors": ["os.system"]},
        {"attention": "somebody/kernels"},
    ],
)
def test_a_table_does_not_choose_code_to_run(tmp_path, option):
    noted = about("x", "vllm", "bfloat16", model=str(tmp_path), **option)
    with pytest.raises(RcdiagError, match="not taken from a file"):
        spec_of(noted, None)


@pytest.mark.parametrize("noted", [{}, {"backend": "sglang", "options": {}, "model": "m"}])
def test_a_policy_without_metadata_cannot_be_rescored(noted: dict[str, Any]):
    assert spec_of(noted, "m") is None


def test_policies_already_in_the_table_are_left_out_of_a_ladder(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    everything = [text.partition("=")[0] for text in LADDERS["engine"]]
    assert names_of(wanted(ladders=["engine"])) == everything
    assert names_of(wanted(ladders=["engine"], there=["rollout", "hf_bf16"])) == [
        name for name in everything if name != "hf_bf16"
    ]
    assert wanted(ladders=["engine"], there=everything) == []


@pytest.mark.parametrize(
    ("ladder", "text"),
    [
        ("precision", "vllm_fp8=vllm:bfloat16,quantization=fp8"),
        ("engine", "vllm_bf16_eager=vllm:bfloat16,enforce_eager=true"),
    ],
)
def test_gpu_policies_are_left_out_without_a_gpu(monkeypatch, ladder, text):
    everything = [one.partition("=")[0] for one in LADDERS[ladder]]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert names_of(wanted(ladders=[ladder])) == everything
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    name = text.partition("=")[0]
    assert [one for one in everything if one not in names_of(wanted(ladders=[ladder]))] == [name]
    # Requested explicitly it is scored, or refused by the engine.
    assert name in names_of(wanted(texts=[text], ladders=[ladder]))


def test_two_ladders_together_score_a_policy_once(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    names = names_of(wanted(ladders=["engine", "precision"]))
    assert len(names) == len(set(names)) == len(TEXTS)


def test_a_ladder_without_a_model_is_refused():
    with pytest.raises(RcdiagError, match="no model"):
        wanted(ladders=["engine"], model=None)


def test_a_noise_floor_adds_one_repetition_of_a_scored_policy(tmp_path):
    assert names_of(wanted(["a=hf", "b=vllm"], twice=True)) == ["a", "b", "b_again"]
    noted = [about("x", "hf", "bfloat16", model=str(tmp_path))]
    (spec,) = wanted(model=None, there=["x"], scored=noted, twice=True)
    assert (spec.name, spec.model) == ("x_again", str(tmp_path))


def test_model_alone_means_the_default_pair_where_it_is_missing():
    assert names_of(wanted(there=["rollout"])) == ["old"]
    assert wanted(there=["rollout", "old"]) == []

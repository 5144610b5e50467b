"""Several engines on one machine: values of `--devices`, and equal scores."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rcdiag
from rcdiag.engines.notation import parse_policy
from rcdiag.engines.process import EngineProcess
from rcdiag.engines.spec import PolicySpec
from rcdiag.errors import RcdiagError
from rcdiag.runners import runner_on
from rcdiag.runners.runner import Devices
from tests.engine_models import make_model, make_table, reference


def spec(text: str = "old=hf:float32") -> PolicySpec:
    return parse_policy(text, "model")


@pytest.fixture
def eight_gpus(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3,4,5,6,7")


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2, 3})


@pytest.mark.parametrize(
    ("text", "devices"),
    [
        ("4", Devices(4)),
        ("0,1,2,3", Devices(4, ("0", "1", "2", "3"))),
        ("3,", Devices(1, ("3",))),
        (" 5, 7 ", Devices(2, ("5", "7"))),
    ],
)
def test_devices_are_a_number_or_a_list(text, devices):
    assert Devices.parse(text) == devices


@pytest.mark.parametrize("text", ["", "0", "-1", "a", "0,0", ",", "0,x", "1.5", "cuda:0"])
def test_other_devices_are_refused_with_examples(text):
    with pytest.raises(RcdiagError, match="neither a number") as refused:
        Devices.parse(text)
    assert "0,1,2,3" in refused.value.hint


def test_without_devices_one_engine_has_the_machine(no_gpu):
    runner = runner_on("local", None)
    assert runner.engines(spec()) == 1
    assert runner.plan(spec(), 9) == "one engine on this machine"


def test_gpus_that_the_machine_lacks_are_mentioned(no_gpu, monkeypatch):
    runner = runner_on("local", None)
    alone = "one engine on this machine"
    on_gpu, on_cpu = spec("p=hf:float32,device=cuda"), spec("p=hf:float32,device=cpu")
    stops = "device=cuda would stop here, where 0 CUDA GPUs can be seen"
    assert runner.plan(on_gpu, 9) == f"{alone}; {stops}"
    assert runner.plan(on_cpu, 9) == alone
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert runner.plan(on_gpu, 9) == alone
    wide = PolicySpec(name="p", backend="hf", dtype="float32", model="m", options={"gpus": 2})
    assert runner.plan(wide, 9) == f"{alone}; gpus=2 would stop here, where 1 CUDA GPU can be seen"


def test_without_devices_idle_gpus_are_mentioned(eight_gpus):
    idle = "7 of 8 GPUs stay idle; `devices=8` (--devices 8) uses all"
    assert runner_on("local", None).plan(spec(), 9) == f"one engine on this machine; {idle}"
    assert runner_on("local", "0,1").idle(spec()) == ""
    whole = spec("rollout=vllm:bfloat16,tensor_parallel_size=8")
    assert runner_on("local", None).idle(whole) == ""


@pytest.mark.parametrize("devices", ["0,1", 2])
def test_numbers_are_positions_if_a_scheduler_gives_uuids(devices, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-8a1e,GPU-77c0,MIG-03b2")
    assert runner_on("local", devices).gpus == ("GPU-8a1e", "GPU-77c0")
    with pytest.raises(RcdiagError, match="no GPU 3"):
        runner_on("local", "2,3")


def test_numbers_are_gpu_numbers_if_the_list_holds_numbers(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,3,-1,2")  # CUDA stops at -1
    assert runner_on("local", "3,").gpus == ("3",)
    with pytest.raises(RcdiagError, match="no GPU 0"):
        runner_on("local", "0,")
    with pytest.raises(RcdiagError, match="there are 2 GPUs"):
        runner_on("local", 3)


def test_gpus_are_divided_into_sets_per_engine(eight_gpus, monkeypatch):
    started = []
    monkeypatch.setattr(
        "rcdiag.engines.process.EngineProcess", lambda job, environment: started.append(environment)
    )
    runner = runner_on("local", "0,2,4,6,7")
    wide = spec("rollout=vllm:bfloat16,tensor_parallel_size=2")
    assert runner.engines(wide) == 2  # the fifth stays idle
    job = rcdiag.engines.process.Job(spec=wide, max_length=1, folder=Path())
    for number in range(2):
        runner.start(job, number)
    assert [one["CUDA_VISIBLE_DEVICES"] for one in started] == ["0,2", "4,6"]
    assert runner.plan(wide, 9) == "2 engines side by side on this machine, each with 2 GPUs"
    assert runner.plan(wide, 1) == "one engine on this machine, with 2 GPUs"
    assert runner.plan(spec(), 9).endswith("each with 1 GPU")
    assert runner.engines(spec()) == 5


def test_more_gpus_than_there_are_is_an_error(eight_gpus):
    with pytest.raises(RcdiagError, match="there are 8 GPUs"):
        runner_on("local", 9)
    with pytest.raises(RcdiagError, match="no GPU 8"):
        runner_on("local", "7,8")


def test_a_model_that_needs_more_gpus_than_allowed_is_an_error(eight_gpus):
    wide = spec("rollout=vllm:bfloat16,tensor_parallel_size=4")
    with pytest.raises(RcdiagError, match="takes 4 GPUs"):
        runner_on("local", 2).engines(wide)


def test_without_a_gpu_the_cores_are_shared(no_gpu):
    assert runner_on("local", 2).engines(spec()) == 2
    with pytest.raises(RcdiagError, match="4 cores"):
        runner_on("local", 5)
    with pytest.raises(RcdiagError, match="no GPU 0"):
        runner_on("local", "0,")


def test_unknown_runners_and_addresses_are_refused():
    with pytest.raises(RcdiagError, match="no such runner") as refused:
        runner_on("rai", None)
    assert "did you mean ray" in refused.value.hint
    with pytest.raises(RcdiagError, match="takes no address"):
        runner_on("local:1", None)
    with pytest.raises(RcdiagError, match="takes an address"):
        runner_on("ray:", None)


two_cores = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="one core: no two shares of it"
)


@pytest.fixture
def side_by_side(tmp_path, monkeypatch):
    """Score a table with a number of engines, one thread each; returns rows and engine count."""
    monkeypatch.setattr("rcdiag.engines.scoring.TOKENS_PER_PART", 2048)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    model = make_model(tmp_path / "model", "qwen3")
    table = make_table(tmp_path / "table.parquet", rows=120)
    rows = pq.read_table(table)
    recorded = [[-1.0] * len(ids) for ids in rows["response_ids"].to_pylist()]
    pq.write_table(rows.append_column("rollout_log_probs", [recorded]), table, row_group_size=40)
    load = EngineProcess.load

    def score(devices: int | None) -> tuple[pa.Table, int]:
        loaded = []
        monkeypatch.setattr(EngineProcess, "load", lambda self: (loaded.append(self), load(self)))
        out = tmp_path / f"{devices}.parquet"
        policies = {"old": "hf:float32,batch_tokens=512"}
        rcdiag.score(table, model=model, policies=policies, output=out, devices=devices)
        return pq.read_table(out), len(loaded)

    return SimpleNamespace(score=score, model=model, table=table)


@two_cores
@pytest.mark.slow
@pytest.mark.engine
def test_two_engines_score_like_a_plain_forward(side_by_side):
    rows, engines = side_by_side.score(2)
    assert engines == 2
    expected = np.concatenate(reference(side_by_side.model, side_by_side.table)["log_probs"])
    scores = rows["old_log_probs"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
    np.testing.assert_allclose(scores, expected, atol=2e-5)


@two_cores
@pytest.mark.slow
@pytest.mark.engine
def test_two_engines_score_like_one_with_as_many_threads(side_by_side):
    (one, engine), (two, engines) = side_by_side.score(None), side_by_side.score(2)
    assert one.equals(two)
    assert (engine, engines) == (1, 2)


def test_external_engines_get_one_process_for_any_devices(no_gpu):
    served = spec("rollout=server,url=http://127.0.0.1:8000")
    for devices in (None, 2):
        runner = runner_on("local", devices)
        assert runner.engines(served) == 1
        assert runner.plan(served, 9).startswith("outside of rcdiag")

"""Engines side by side on one machine: what `--devices` may say, and that the scores are equal."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import rcdiag
from rcdiag.engines.notation import parse_policy
from rcdiag.engines.process import EngineProcess
from rcdiag.engines.spec import PolicySpec
from rcdiag.errors import RcdiagError
from rcdiag.runners import runner_on
from rcdiag.runners.devices import Devices
from tests.engine_models import make_model, make_table


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
    assert runner.plan(spec()) == "one engine on this machine"


def test_gpus_are_cut_into_sets_of_what_one_engine_takes(eight_gpus, monkeypatch):
    started = []
    monkeypatch.setattr(
        "rcdiag.runners.local.EngineProcess", lambda job, environment: started.append(environment)
    )
    runner = runner_on("local", "0,2,4,6,7")
    wide = spec("rollout=vllm:bfloat16,tensor_parallel_size=2")
    assert runner.engines(wide) == 2  # the fifth is left
    job = rcdiag.engines.process.Job(spec=wide, max_length=1, folder=Path())
    for number in range(2):
        runner.start(job, number)
    assert [one["CUDA_VISIBLE_DEVICES"] for one in started] == ["0,2", "4,6"]
    assert runner.plan(wide) == "2 engines side by side on this machine, each with 2 GPU"
    assert runner.engines(spec()) == 5


def test_more_gpus_than_there_are_is_an_error(eight_gpus):
    with pytest.raises(RcdiagError, match="there are 8 GPUs"):
        runner_on("local", 9)
    with pytest.raises(RcdiagError, match="no GPU 8"):
        runner_on("local", "7,8")


def test_a_model_that_takes_more_than_is_allowed_is_an_error(eight_gpus):
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


@pytest.mark.engine
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core: no two shares of it")
def test_two_engines_score_what_one_with_as_many_threads_scores(tmp_path, monkeypatch):
    monkeypatch.setattr("rcdiag.engines.scoring.TOKENS_PER_PART", 2048)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    model = make_model(tmp_path / "model", "qwen3")
    table = make_table(tmp_path / "table.parquet", rows=120)
    rows = pq.read_table(table)
    recorded = [[-1.0] * len(ids) for ids in rows["response_ids"].to_pylist()]
    pq.write_table(rows.append_column("rollout_log_probs", [recorded]), table, row_group_size=40)
    loaded = []
    load = EngineProcess.load
    monkeypatch.setattr(EngineProcess, "load", lambda self: (loaded.append(self), load(self)))
    outputs = []
    for devices in (None, 2):
        out = tmp_path / f"{devices}.parquet"
        rcdiag.score(
            table,
            model=model,
            policies={"old": "hf:float32,batch_tokens=512"},
            output=out,
            devices=devices,
        )
        outputs.append(pq.read_table(out))
    assert outputs[0].equals(outputs[1])
    assert len(loaded) == 1 + 2

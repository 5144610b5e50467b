"""Any value at any position of a record is converted or refused, without a traceback."""

import copy
import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import rcdiag
from rcdiag.errors import RcdiagError
from rcdiag.table.readers import READERS
from tests.table.readers import test_harbor as harbor
from tests.table.readers import test_nemo_gym as gym
from tests.table.readers import test_nemo_rl as nemo
from tests.table.readers import test_open_instruct as instruct
from tests.table.readers import test_prime_rl as prime
from tests.table.readers import test_rllm as rllm
from tests.table.readers import test_sglang as sglang
from tests.table.readers import test_slime as slime
from tests.table.readers import test_tinker as tinker
from tests.table.readers import test_vllm as vllm

GOOD = {
    "atif": harbor.trajectory(*harbor.TURNS),
    "harbor": harbor.trial(harbor.chat(*harbor.TURNS)),
    "nemo-gym": gym.rollout(
        gym.call([1], [2], [-0.5]),
        gym.message([1, 2, 3], [4], [-1.0], routed_experts=[[[0, 1]]] * 4),
    ),
    "nemo-rl": nemo.sample([1, 2], [3, 4], [1, 1], [-0.5, -0.25], [-0.5, -0.5], [0.5, 0.5]),
    "open-instruct": instruct.rollout(0, 0, [1], [2, 3], [-0.5, 0.0]),
    "prime-rl": prime.exported([1], [2, 3], [1, 1], [-0.5, -0.25], [-0.5, -0.5]),
    "prime-rl traces": prime.episode(prime.trace(prime.SINGLE)),
    "rllm": rllm.episode(*rllm.TURNS),
    "sglang": {"request": {"sampling_params": {"temperature": 1.0}}, "response": sglang.response()},
    "tinker": tinker.call([1, 2], ([3, 4], [-0.5, -0.25])),
    "vllm": {"request": vllm.REQUEST, "response": vllm.completion([vllm.choice(0, [4], [-0.5])])},
    "vllm chat": vllm.chat([vllm.chat_choice(0, [4, 5], [-0.5, -0.25])]),
}
ODD = [None, True, "", "1", "NaN", -1, 0, 2, 2**31, 2**63, 10**30, 0.5, -0.0, 1e39, math.nan]
ODD += [math.inf, [], [[]], [[[1]]], {}, {"a": None}, [None], ["x"], [1, [2]], "\ud800", "é" * 9]


def places(record, path=()):
    """Yield the path of every value in a record."""
    yield path
    if isinstance(record, dict | list):
        inner = record.items() if isinstance(record, dict) else enumerate(record)
        for key, value in inner:
            yield from places(value, (*path, key))


def with_value(record, path, value):
    if not path:
        return value
    out = copy.deepcopy(record)
    holder = out
    for key in path[:-1]:
        holder = holder[key]
    if value is ...:
        del holder[path[-1]]
    else:
        holder[path[-1]] = value
    return out


def message(file: Path, name: str) -> str | None:
    """Return the message with which a file is refused, or None if it is converted."""
    try:
        table = rcdiag.open_table(str(file), format=name)
        for _ in table.batches():
            pass
    except RcdiagError as error:
        return str(error)
    return None


@pytest.mark.parametrize("name", GOOD)
def test_the_good_record_is_a_table(tmp_path, name):
    file = tmp_path / "records.jsonl"
    file.write_text(json.dumps(GOOD[name]) + "\n")
    assert message(file, name.split()[0]) is None


@pytest.mark.parametrize("name", GOOD)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_any_value_in_any_place(tmp_path, name, data):
    path = data.draw(st.sampled_from(list(places(GOOD[name]))[1:]))
    value = data.draw(st.sampled_from([*ODD, ...]))
    bad = with_value(GOOD[name], path, value)
    file = tmp_path / "records.jsonl"
    file.write_text(json.dumps(GOOD[name]) + "\n" + json.dumps(bad) + "\n")
    text = message(file, name.split()[0])
    assert text is None or "records.jsonl" in text


PAYLOADS = {
    "slime": {"rollout_id": 0, "samples": [slime.sample(0, [1], [2, 3], [-0.5, -0.25])]},
    "slime train": {
        "format_version": 2,
        "rollout_id": 0,
        "samples": [slime.trained(0, 0, [1], [2, 3], [-0.5, -0.25], [-0.5, -0.5])],
        "raw_reward": [0.5],
    },
    "miles": {
        "rollout_id": 0,
        "rank": 0,
        "rollout_data": {
            "tokens": [torch.tensor([1, 2, 3])],
            "response_lengths": [2],
            "total_lengths": [3],
            "loss_masks": [[1, 1]],
            "log_probs": [torch.tensor([-0.5, -0.25])],
            "sample_indices": [4],
            "raw_reward": [0.5],
        },
        "cp_rank": 0,
        "cp_size": 1,
    },
}
TENSORS = [torch.tensor(1.5), torch.zeros(2, 2), torch.tensor([True, False]), torch.zeros(0)]
TENSORS += [torch.tensor([-0.5, -0.25], dtype=kind) for kind in (torch.bfloat16, torch.complex64)]


@pytest.mark.parametrize("name", PAYLOADS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_any_value_in_any_place_of_a_torch_file(tmp_path, name, data):
    path = data.draw(st.sampled_from(list(places(PAYLOADS[name]))))
    value = data.draw(st.sampled_from([*ODD, *TENSORS]))
    file = tmp_path / "0.pt"
    torch.save(with_value(PAYLOADS[name], path, value), file)
    text = message(file, name.split()[0])
    assert text is None or "0.pt" in text


@pytest.mark.parametrize("name", [name for name, reader in READERS.items() if reader.read])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(content=st.binary(min_size=1, max_size=80))
def test_any_bytes_under_any_format(tmp_path, name, content):
    file = tmp_path / "dump.bin"
    file.write_bytes(content)
    text = message(file, name)
    assert text is not None
    assert "dump.bin" in text

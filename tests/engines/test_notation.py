"""Syntax of a policy's options."""

from __future__ import annotations

import pytest

from rcdiag.engines.notation import parse_policy
from rcdiag.errors import RcdiagError

YARN = '{"rope_scaling":{"rope_type":"yarn","factor":4.0},"max_position_embeddings":131072}'


def options(text: str) -> dict:
    return parse_policy(f"a=vllm:bfloat16,{text}", "m").options


def test_a_value_that_is_json_keeps_its_commas():
    assert options('compilation_config={"mode":0,"cudagraph_mode":"NONE"},max_num_seqs=5') == {
        "compilation_config": {"mode": 0, "cudagraph_mode": "NONE"},
        "max_num_seqs": 5,
    }
    found = options(f'path=decode,hf_overrides={YARN},x=[1,[2,3]],y="a,b",z=a')
    assert found["hf_overrides"]["rope_scaling"] == {"rope_type": "yarn", "factor": 4.0}
    assert (found["x"], found["y"], found["z"]) == ([1, [2, 3]], "a,b", "a")


@pytest.mark.parametrize("value", ['{"mode":0', "{mode:0,level:1}", "[1,2", '"a,b'])
def test_an_incomplete_json_value_is_refused(value):
    with pytest.raises(RcdiagError, match="not JSON") as caught:
        options(f"x={value},max_num_seqs=5")
    assert "single quotes" in caught.value.hint

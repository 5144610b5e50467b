"""An engine of a plugin is one definition, used by every command that scores and compares."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rcdiag.engines import BACKENDS
from rcdiag.engines.backend import Backend, LadderRung, Option, OtherBatches
from rcdiag.engines.ladders import policy_to_repeat, second_run
from rcdiag.engines.notation import default_policies, parse_policy
from rcdiag.errors import RcdiagError
from rcdiag.glossary import explain
from rcdiag.usecases.compare.ladder import describe, ladder_order, role
from tests.builders import write_table
from tests.engines.toy_engine import PROBABILITIES, make_checkpoint
from tests.plugins import install, rcdiag_with
from tests.usecases.compare.tables import about

PLUGIN = "from tests.engines.toy_engine import register"


def toy(**other: Any) -> Backend:
    def never(*_: Any) -> Any:
        raise AssertionError("nothing is loaded here")

    words: dict[str, Any] = {
        "name": "toy",
        "says": "Toy: for tests.",
        "role": "trainer",
        "dtypes": ("float32", "bfloat16"),
        "default_dtype": "bfloat16",
        "load": never,
        "options": {"tilt": Option(says="Nats.", takes=int, shown="tilt {}")},
    }
    return Backend(**{**words, **other})


@pytest.fixture
def dump(tmp_path) -> Path:
    random = np.random.default_rng(0)
    sizes = random.integers(1, 9, 60)
    ids = [random.integers(0, len(PROBABILITIES), size).tolist() for size in sizes]
    recorded = [[-math.log(len(PROBABILITIES))] * len(row) for row in ids]
    return write_table(
        tmp_path / "dump.parquet",
        prompt_ids=[[1, 2]] * len(ids),
        response_ids=ids,
        rollout_log_probs=pa.array(recorded),
    )


@pytest.mark.slow  # tests/test_contributing.py installs and compares one too
def test_an_installed_engine_scores_in_its_own_process_and_is_compared(dump, tmp_path, rcdiag):
    checkpoint = make_checkpoint(tmp_path / "checkpoint")
    plugin, out = install(tmp_path / "site", "toy_plugin", PLUGIN), tmp_path / "scored.parquet"
    ran = rcdiag_with(
        *(plugin, "score", dump, "--model", checkpoint, "-o", out, "--target", "toy"),
        *("--policy", "toy=toy:float32", "--policy", "low=toy:bfloat16,tilt=1", "--noise-floor"),
    )
    assert ran.returncode == 0, ran.stderr
    loaded = [("toy", "float32"), ("low", "bfloat16"), ("low_again", "bfloat16")]
    lines = [f"loading {checkpoint} for {name} (toy, {dtype})" for name, dtype in loaded]
    assert [line for line in ran.stderr.splitlines() if line.startswith("loading")] == lines
    table = pq.read_table(out)
    ids = np.concatenate([np.array(row) for row in table["response_ids"].to_pylist()])
    scored = np.concatenate([np.array(row) for row in table["toy_log_probs"].to_pylist()])
    np.testing.assert_allclose(scored, np.log(PROBABILITIES)[ids], rtol=1e-6)

    ran = rcdiag_with(plugin, "compare", out, "--target", "toy", "--json")
    assert ran.returncode == 0, ran.stderr
    result = json.loads(ran.stdout)
    roles = {name: (item["role"], item["setup"]) for name, item in result["policies"].items()}
    assert roles == {
        "rollout": ("sampler", "recorded"),
        "low": ("engine", "toy bfloat16 tilt 1"),
        "toy": ("engine", "toy float32"),
        "low_again": ("repeat", "toy bfloat16 tilt 1 beads=7"),
    }
    assert result["ladder"]["policies"] == ["rollout", "low", "toy"]
    assert result["noise_floor"]["policy"] == "low"

    # Without the package its policies are still described by the name of the engine.
    policies = rcdiag("compare", out, "--target", "toy", "--json").document["policies"]
    assert (policies["toy"]["role"], policies["low"]["role"]) == ("toy", "toy")


def test_help_errors_and_explain_name_an_added_engine(dump, rcdiag, monkeypatch):
    """tests/test_contributing.py tests an installed engine."""
    monkeypatch.setenv("COLUMNS", "300")
    with BACKENDS.with_added(toy()):
        assert "toy" in rcdiag("score", "--help").out
        refused = rcdiag("score", dump, "--model", "m", "--policy", "x=tpy")
        assert refused.code == 2
        assert "no backend `tpy`; there are hf, vllm, server, command, toy" in refused.err
        explained = rcdiag("explain", "toy").out
        assert "Toy: for tests." in explained
        assert "Nats." in explained
        assert "toy" in rcdiag("explain").out


def test_a_plugin_that_fails_is_named_by_the_command_and_leaves_help_alone(dump, tmp_path):
    plugin = install(tmp_path / "site", "broken", "def register():\n    raise ValueError('no')\n")
    assert rcdiag_with(plugin, "--help").returncode == 0
    ran = rcdiag_with(plugin, "score", dump, "--policy", "x=hf", "--model", "m")
    assert ran.returncode == 2
    assert "plugin `broken` (broken:register) failed: ValueError: no" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_an_added_backend_is_parsed_described_ordered_and_explained():
    with BACKENDS.with_added(toy()):
        spec = parse_policy("x=toy,tilt=2", "m")
        assert (spec.dtype, spec.options) == ("bfloat16", {"tilt": 2})
        assert describe(spec.to_dict()) == "toy bfloat16 tilt 2"
        assert role("x", spec.to_dict(), "rollout") == "trainer"
        noted = {
            "x": spec.to_dict(),
            "full": about("full", "hf"),
            "v": about("v", "vllm", "bfloat16"),
        }
        names = ["full", "x", "v", "rollout"]
        assert ladder_order(names, noted, "rollout", "old") == ["rollout", "v", "x", "full"]
        entry = explain("toy")
        assert entry.kind == "backend"
        assert entry.generations["tilt"] == "Nats."
    assert "toy" not in BACKENDS


def test_a_backend_may_have_its_own_order_and_default_policy():
    def first(_: Mapping[str, Any]) -> LadderRung:
        return LadderRung.ENGINE_DECODE

    with BACKENDS.with_added(toy(own_place=first, default_policy="proximal")):
        noted = {"x": about("x", "toy"), "v": about("v", "vllm", "bfloat16")}
        assert ladder_order(["v", "x"], noted, "rollout", "old") == ["x", "v"]
        assert default_policies() == {
            "old": "old=hf:float32",
            "rollout": "rollout=vllm:bfloat16",
            "proximal": "proximal=toy:bfloat16",
        }
    with BACKENDS.with_added(toy(default_policy="old")):
        assert default_policies()["old"] == "old=hf:float32"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x=toy:float8", "no dtype `float8` in toy; there are float32, bfloat16"),
        ("x=toy,tild=1", "unknown option `tild`"),
        ("x=toy,tilt=much", "tilt=much: wanted a whole number"),
        ("x=toy,entropy=maybe", "entropy=maybe: wanted true or false"),
        ("x=toy,lm_head=int3", "lm_head=int3: not known"),
    ],
)
def test_options_are_checked_against_the_definition(text, words):
    with BACKENDS.with_added(toy()), pytest.raises(RcdiagError, match=words) as caught:
        parse_policy(text, "m")
    assert caught.value.hint


def test_the_noise_floor_asks_the_backend_how_to_change_its_batches():
    batches = OtherBatches(option="tilt", size=3, smaller=2)
    with BACKENDS.with_added(toy(other_batches=batches)):
        once = second_run(parse_policy("x=toy", "m"))
        assert once.options == {"tilt": 3, "repeat_of": "x"}
        assert second_run(parse_policy("x=toy,tilt=3", "m")).options["tilt"] == 2


def test_a_backend_that_cannot_change_its_batches_is_refused_or_skipped():
    with BACKENDS.with_added(toy()):
        low, full = parse_policy("x=toy", "m"), parse_policy("y=hf", "m")
        assert policy_to_repeat([low, full]) is full
        with pytest.raises(RcdiagError, match=r"\(--noise-floor\): `x`") as caught:
            second_run(policy_to_repeat([low]))
        assert caught.value.hint


@pytest.mark.parametrize(
    ("noted", "expected"), [({}, "recorded"), ({"backend": "sglang"}, "sglang"), (None, "sampler")]
)
def test_a_policy_is_recorded_only_where_no_backend_is_named(noted, expected):
    assert role("rollout" if noted is None else "x", noted or {}, "rollout") == expected
    if noted:
        assert describe(noted).strip() == "sglang"

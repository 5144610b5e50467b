"""A policy scored by a served engine: correct scores, or an error that names the row."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rcdiag
from rcdiag.engines.notation import parse_policy
from rcdiag.engines.scoring import plan_scoring
from rcdiag.engines.server import pace
from rcdiag.engines.server.address import check_address
from rcdiag.engines.server.client import Client, Unavailable
from rcdiag.engines.server.connection import APIS as KNOWN
from rcdiag.engines.server.connection import connect as connect_and_say
from rcdiag.engines.server.engine import ServerEngine
from rcdiag.engines.server.served import Served
from rcdiag.engines.spec import PolicySpec
from rcdiag.errors import RcdiagError
from rcdiag.glossary import explain
from rcdiag.progress import SILENT
from rcdiag.table.opening import open_table
from rcdiag.table.stream import decode, read_chunks
from tests.builders import write_table
from tests.engines.engine_here import EngineHere
from tests.engines.served_model import (
    CONTEXT,
    GREETING,
    LOG_PROBS,
    VOCABULARY,
    Answer,
    DropError,
    Fault,
    Model,
    as_json,
    expected,
    serve,
)

APIS = pytest.mark.parametrize("api", ["vllm", "sglang"])


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch):
    monkeypatch.setattr(pace, "SHORTEST_PAUSE", 0.01)
    monkeypatch.setattr(pace, "LONGEST_PAUSE", 0.05)


def connect(spec: PolicySpec) -> tuple[Client, Served]:
    return connect_and_say(spec, lambda words: None)


@dataclass(frozen=True)
class Case:
    prompts: list[list[int]]
    responses: list[list[int]]

    @property
    def log_probs(self) -> np.ndarray:
        rows = [expected(p, r) for p, r in zip(self.prompts, self.responses, strict=True) if r]
        return np.concatenate(rows)

    def write(self, folder: Path, **columns: Any) -> Path:
        return write_table(
            folder / "table.parquet",
            prompt_ids=self.prompts,
            response_ids=self.responses,
            rollout_log_probs=[[-1.0] * len(row) for row in self.responses],
            **columns,
        )


def case(rows: int, seed: int = 0) -> Case:
    """Make rows of all sizes: one-token prompts, empty responses, the full context."""
    random = np.random.default_rng(seed)

    def ids(least: int, most: int) -> list[int]:
        return random.integers(0, VOCABULARY - 1, random.integers(least, most + 1)).tolist()

    prompts = [ids(1, 6) for _ in range(rows - 1)] + [ids(3, 3)]
    responses = [ids(0, 9) for _ in range(rows - 1)] + [ids(CONTEXT - 5, CONTEXT - 5)]
    return Case(prompts, responses)


def rows_of(table: Path) -> Any:
    dump = open_table(table)
    return decode(next(read_chunks(dump, [(0, dump.num_rows)])))


def scores(address: str, table: Path, options: str = "") -> np.ndarray:
    spec = parse_policy(f"x=server,url={address}{options}")
    return ServerEngine(spec).score(rows_of(table), lambda tokens: None).log_probs


@contextmanager
def faulty(api: str, fault: Fault) -> Iterator[tuple[Model, str]]:
    model = Model(api, fault)
    with serve(model) as address:
        yield model, address


# Correct scores


@APIS
def test_scores_are_those_of_the_served_distribution(api, tmp_path):
    some = case(40)
    with serve(Model(api)) as address:
        found = scores(address, some.write(tmp_path))
    assert np.array_equal(found, some.log_probs)


@APIS
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_every_row_gets_its_own_scores(api, data, tmp_path_factory):
    ids = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=12)
    prompts = data.draw(st.lists(ids, min_size=1, max_size=8))
    some = Case(prompts, [data.draw(ids) for _ in prompts])
    with serve(Model(api)) as address:
        found = scores(address, some.write(tmp_path_factory.mktemp("rows")))
    assert np.array_equal(found, some.log_probs)


@APIS
def test_score_fills_the_column_and_says_what_was_served(api, rcdiag, tmp_path, monkeypatch):
    """Through `score`; the server's key is not stored in the table."""
    monkeypatch.setattr("rcdiag.engines.process.EngineProcess", EngineHere)
    monkeypatch.setenv("SERVER_KEY", "open-sesame")
    some, out = case(12), tmp_path / "scored.parquet"
    with serve(model := Model(api)) as address:
        ran = rcdiag(
            *("score", some.write(tmp_path), "-o", out, "--target", "served", "--model", "ckpt"),
            *("--policy", f"served=server,url={address}/v1/,key_env=SERVER_KEY", "--json"),
        )
    assert ran.code == 0, ran.err
    column = np.concatenate(
        [np.array(row) for row in pq.read_table(out)["served_log_probs"].to_pylist()]
    )
    np.testing.assert_array_equal(column.astype(np.float32), some.log_probs)
    assert "scoring served by server" in ran.err
    about = json.loads(pq.read_schema(out).metadata[b"rcdiag"])["policies"]["served"]
    assert about["versions"] == {api: model.version}
    assert about["served"]["root"] == "ckpt"
    assert about["served"]["longest"] == CONTEXT - (1 if api == "vllm" else 2)
    assert "weights_fingerprint" not in about
    assert {headers["Authorization"] for headers in model.headers} == {"Bearer open-sesame"}
    for text in (out.read_bytes(), ran.out.encode(), ran.err.encode()):
        assert b"sesame" not in text


def test_vllm_gets_ids_without_special_tokens_and_a_salt_per_row(tmp_path):
    some = case(6)
    with serve(model := Model("vllm")) as address:
        scores(address, some.write(tmp_path))
    bodies = model.rows
    assert len({body["cache_salt"] for body in bodies}) == len(bodies)
    assert all(body["temperature"] == 1.0 and not body["add_special_tokens"] for body in bodies)
    sent = {tuple(body["prompt"]) for body in bodies}
    rows = zip(some.prompts, some.responses, strict=True)
    assert sent == {(*prompt, *response) for prompt, response in rows if response}


@APIS
def test_one_of_several_models_and_an_adapter_are_chosen_by_model(api, tmp_path):
    model = Model(api)
    model.adapters = ["lora"]
    some = case(3).write(tmp_path)
    with serve(model) as address:
        scores(address, some)
        scores(address, some, ",model=lora")
        with pytest.raises(RcdiagError, match="serves no such model; there are: policy, lora"):
            scores(address, some, ",model=other")
    key = "model" if api == "vllm" else "lora_path"
    names = [body.get(key) for body in model.rows]
    assert names[0] == ("policy" if api == "vllm" else None)
    assert names[-1] == "lora"


def test_parallel_requests_double_up_to_the_limit(tmp_path):
    def slow(model: Model, body: dict[str, Any], answer: Answer) -> Answer:
        time.sleep(0.01)
        return answer

    some = case(150)
    with faulty("vllm", slow) as (model, address):
        found = scores(address, some.write(tmp_path), ",concurrency=16")
    assert np.array_equal(found, some.log_probs)
    assert 8 <= model.most_running <= 16


# Failing servers: the request is repeated, and never gives a wrong score


def every(number: int, made: Callable[[Answer], Answer]) -> Fault:
    """Make every nth request for log-probs fail."""
    count = 0

    def fault(model: Model, body: dict[str, Any], answer: Answer) -> Answer:
        nonlocal count
        with model.lock:
            count += 1
            hit = count % number == 0
        return made(answer) if hit else answer

    return fault


def broken_connection(answer: Answer) -> Answer:
    raise DropError


def half(answer: Answer) -> Answer:
    status, headers, body = answer
    return status, {**headers, "Content-Length": str(len(body))}, body[: len(body) // 2]


def half_unannounced(answer: Answer) -> Answer:
    status, headers, body = answer
    return status, {**headers, "Content-Length": ""}, body[: len(body) // 2]


def slower(answer: Answer) -> Answer:
    time.sleep(1.5)
    return answer


TROUBLE = {
    "429": lambda answer: (429, {"Retry-After": "0"}, b"{}"),
    "500 then well": lambda answer: (500, {}, b"Internal Server Error"),
    "503": lambda answer: (503, {}, b""),
    "connection lost": broken_connection,
    "answer cut off": half,
    "answer of unannounced length cut off": half_unannounced,
}


@APIS
@pytest.mark.parametrize("trouble", TROUBLE)
def test_requests_to_a_failing_server_are_repeated(api, trouble, tmp_path):
    some = case(30)
    with faulty(api, every(4, TROUBLE[trouble])) as (_, address):
        found = scores(address, some.write(tmp_path))
    assert np.array_equal(found, some.log_probs)


def test_a_slow_request_is_cancelled_and_repeated(tmp_path):
    some = case(6)
    with faulty("vllm", every(5, slower)) as (_, address):
        found = scores(address, some.write(tmp_path), ",timeout=1")
    assert np.array_equal(found, some.log_probs)


TRICKLES = {
    "a header": (b"HTTP/1.1 200 OK\r\nX: ", b"a"),
    "100 Continue": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "the extension of a chunk": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;", b"x"),
    "a body": (b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n", b" "),
}


@pytest.mark.parametrize("name", TRICKLES)
def test_a_request_ends_at_its_deadline_however_slowly_bytes_arrive(name):
    """The server sends for longer than the timeout, but never pauses for that long."""
    begin, piece = TRICKLES[name]
    listener = socket.create_server(("127.0.0.1", 0))

    def trickle() -> None:
        with listener, listener.accept()[0] as connection:
            connection.recv(1 << 16)
            connection.sendall(begin)
            with contextlib.suppress(OSError):  # the client has hung up
                for _ in range(40):
                    connection.sendall(piece)
                    time.sleep(0.05)

    with ThreadPoolExecutor(1) as pool:
        serving = pool.submit(trickle)
        client = Client(f"http://127.0.0.1:{listener.getsockname()[1]}", None, 0.3)
        with pytest.raises(Unavailable, match=r"no complete answer within timeout=0\.3 s"):
            client.ask("/version")
        serving.result(timeout=30)


def test_an_address_that_never_answers_leaves_time_for_the_next(monkeypatch):
    """A name may have several addresses. A full backlog drops connections, as a dead host does."""
    with socket.socket() as dead, socket.socket() as waiting, serve(Model("vllm")) as address:
        dead.bind(("127.0.0.1", 0))
        dead.listen(0)
        waiting.connect(dead.getsockname())
        host, port = address.removeprefix("http://").split(":")
        both = [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", place)
            for place in (dead.getsockname(), (host, int(port)))
        ]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: both)
        assert Client(address, None, timeout=2).ask("/version") == {
            "version": Model("vllm").version
        }


@APIS
def test_the_error_after_patience_names_row_and_address(api, tmp_path):
    with (
        faulty(api, every(1, TROUBLE["503"])) as (_, address),
        pytest.raises(
            RcdiagError, match=r"row 0: no answer from http://127.0.0.1:\d+ in 0 s: HTTP"
        ),
    ):
        scores(address, Case([[1]], [[2, 3]]).write(tmp_path), ",patience=0")


@APIS
def test_another_model_after_a_restart_is_refused(api, tmp_path):
    def restart(model: Model, body: dict[str, Any], answer: Answer) -> Answer:
        if len(model.rows) >= 5 and model.version != "9.9":
            model.version = "9.9"
            return 502, {}, b""
        return answer

    with (
        faulty(api, restart) as (_, address),
        pytest.raises(
            RcdiagError, match=r"something else than when the run began: version .* -> 9.9"
        ),
    ):
        scores(address, case(30).write(tmp_path))


def test_a_weight_update_in_the_middle_is_refused(tmp_path):
    def update(model: Model, body: dict[str, Any], answer: Answer) -> Answer:
        model.weight_version = "7"
        return answer

    with (
        faulty("sglang", update) as (_, address),
        pytest.raises(RcdiagError, match="weight_version default -> 7"),
    ):
        scores(address, case(30).write(tmp_path))


def test_other_settings_in_the_middle_are_refused_by_vllms_own_fingerprint(tmp_path):
    def restart(answer: Any) -> None:
        answer["system_fingerprint"] = "vllm-0.32.0-other"

    with (
        faulty("vllm", changed(restart)) as (_, address),
        pytest.raises(RcdiagError, match=r"system_fingerprint vllm-.*-6490b793 -> vllm-.*-other"),
    ):
        scores(address, case(3).write(tmp_path))


# Answers that are refused


def changed(change: Callable[[Any], Any]) -> Fault:
    """Make a fault in the JSON of every answer with log-probs."""

    def fault(model: Model, body: dict[str, Any], answer: Answer) -> Answer:
        document = json.loads(answer[2])
        made = change(document)
        return 200, answer[1], json.dumps(document if made is None else made).encode()

    return fault


def vllm_entries(document: Any) -> list[Any]:
    return document["choices"][0]["prompt_logprobs"]


def sglang_entries(document: Any) -> list[Any]:
    return document["meta_info"]["input_token_logprobs"]


def value_of_last(value: Any) -> dict[str, Fault]:
    """Make a fault that sets the last log-prob of each answer."""

    def vllm(document: Any) -> None:
        next(iter(vllm_entries(document)[-1].values()))["logprob"] = value

    def sglang(document: Any) -> None:
        sglang_entries(document)[-1][0] = value

    return {"vllm": changed(vllm), "sglang": changed(sglang)}


def sends(change: Callable[[list[int]], list[int]]) -> dict[str, Fault]:
    """Make a fault in which the server scores other tokens than it was sent."""

    def fault(model: Model, body: dict[str, Any], answer: Answer) -> Answer:
        key = "prompt" if model.api == "vllm" else "input_ids"
        other = {**body, key: change(body[key])}
        made = model._completion(other) if model.api == "vllm" else model._generate(other)
        return 200, answer[1], json.dumps(made).encode()

    return {"vllm": fault, "sglang": fault}


def claims_the_sent_tokens(fault: Fault) -> Fault:
    """Make a server that scores other tokens say that it scored the ones that were sent."""

    def claims(model: Model, body: dict[str, Any], answer: Answer) -> Answer:
        status, headers, content = fault(model, body, answer)
        document = json.loads(content)
        document["choices"][0]["prompt_token_ids"] = body["prompt"]
        return status, headers, json.dumps(document).encode()

    return claims


OTHER = "scored other tokens than were sent"
REFUSED: dict[str, tuple[dict[str, Fault], str]] = {
    "NaN": (value_of_last(float("nan")), "is nan|no log-probs"),
    "minus infinity": (value_of_last(float("-inf")), "is -inf"),
    "beyond float32": (value_of_last(-1e300), "is -1e"),
    "positive": (value_of_last(0.25), "is 0.25|no log-probs"),
    "null": (value_of_last(None), "is None|no log-probs"),
    "text": (value_of_last("-1.0"), "is '-1.0'"),
    "true": (value_of_last(True), "is True|no log-probs"),
    "a BOS before": (sends(lambda ids: [1, *ids]), OTHER),
    "cut off": (sends(lambda ids: ids[:-1]), OTHER),
    "cut off in front": (sends(lambda ids: ids[1:]), OTHER),
    "another token": (sends(lambda ids: [*ids[:-1], (ids[-1] + 1) % VOCABULARY]), OTHER),
    "one too many": (
        {
            "vllm": changed(lambda d: vllm_entries(d).append(vllm_entries(d)[-1])),
            "sglang": changed(lambda d: sglang_entries(d).append(sglang_entries(d)[-1])),
        },
        OTHER,
    ),
    "one too few": (
        {
            "vllm": changed(lambda d: vllm_entries(d).__delitem__(-1)),
            "sglang": changed(lambda d: sglang_entries(d).__delitem__(-1)),
        },
        OTHER,
    ),
    "no log-probs": (
        {
            "vllm": changed(lambda d: d["choices"][0].__delitem__("prompt_logprobs")),
            "sglang": changed(lambda d: d["meta_info"].__delitem__("input_token_logprobs")),
        },
        "answer has no",
    ),
    "nothing": (dict.fromkeys(("vllm", "sglang"), changed(lambda d: {})), "answer has no"),
    "a list": (dict.fromkeys(("vllm", "sglang"), changed(lambda d: [d])), "not a JSON object"),
}


def answers(answer: Answer) -> dict[str, Fault]:
    return dict.fromkeys(("vllm", "sglang"), every(1, lambda _: answer))


REFUSED |= {
    "HTML": (
        answers((200, {"Content-Type": "text/html"}, b"<html>")),
        r"\(text/html\) is not valid JSON",
    ),
    "a redirect": (answers((307, {"Location": "http://localhost:1/x"}, b"")), "not followed"),
    "no right": (answers((401, {}, b'{"error": "Unauthorized"}')), "HTTP 401 .*Unauthorized"),
    "a refusal": (answers((400, {}, b'{"message": "too long"}')), "HTTP 400 .*too long"),
    "a huge body": (answers((200, {}, b" " * (3 << 20))), "more than .* bytes"),
}


def test_a_key_that_the_server_refuses_is_not_asked_for_again(tmp_path, monkeypatch):
    faults, _ = REFUSED["no right"]
    table = Case([[3, 1, 4]], [[1, 5, 9, 2]]).write(tmp_path)
    monkeypatch.setenv("OLD_KEY", "abc")
    with faulty("vllm", faults["vllm"]) as (_, address):
        for option, hint in (("", "key_env=VAR"), (",key_env=OLD_KEY", "does not take the key")):
            with pytest.raises(RcdiagError, match="HTTP 401") as caught:
                scores(address, table, option)
            assert hint in caught.value.hint


@APIS
@pytest.mark.parametrize("name", REFUSED)
def test_a_wrong_answer_is_refused_with_its_row(api, name, tmp_path):
    faults, words = REFUSED[name]
    table = Case([[3, 1, 4]], [[1, 5, 9, 2]]).write(tmp_path)
    with (
        faulty(api, faults[api]) as (_, address),
        pytest.raises(RcdiagError, match=words) as caught,
    ):
        scores(address, table)
    assert "policy `x`: row 0: " in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize("name", ["a BOS before", "cut off", "cut off in front", "another token"])
def test_other_tokens_are_detected_by_their_entries_too(name, tmp_path):
    table = Case([[3, 1, 4]], [[1, 5, 9, 2]]).write(tmp_path)
    with (
        faulty("vllm", claims_the_sent_tokens(REFUSED[name][0]["vllm"])) as (_, address),
        pytest.raises(RcdiagError, match=OTHER),
    ):
        scores(address, table)


def test_an_answer_of_vllm_without_the_scored_ids_is_refused(tmp_path):
    """Only they show the first token, which has no entry."""
    without = changed(lambda answer: answer["choices"][0].__delitem__("prompt_token_ids"))
    with (
        faulty("vllm", without) as (_, address),
        pytest.raises(RcdiagError, match="row 0: the server's answer has no prompt_token_ids"),
    ):
        scores(address, Case([[3]], [[1, 5]]).write(tmp_path))


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("root", float("nan"), "root nan, which is no text or number"),
        ("root", float("inf"), "root inf, which is no text or number"),
        ("root", ["ckpt"], "another form than vllm's"),
        ("max_model_len", 512.5, "max_model_len 512.5, which is not a number of tokens"),
        ("max_model_len", -3, "max_model_len -3, which is not a number of tokens"),
        ("max_model_len", True, "max_model_len True, which is not a number of tokens"),
        ("id", 5, "a model name that is not text"),
        ("parent", "policy", "serves no model of its own"),
    ],
)
def test_an_impossible_description_of_the_model_is_refused(monkeypatch, field, value, words):
    card = {"id": "policy", "root": "ckpt", "max_model_len": CONTEXT, field: value}
    pages = {**Model("vllm")._vllm_pages(), "/v1/models": as_json({"data": [card]})}
    monkeypatch.setattr(Model, "_vllm_pages", lambda self: pages)
    with serve(Model("vllm")) as address, pytest.raises(RcdiagError, match=words):
        connect(parse_policy(f"x=server,url={address}"))


def test_minus_infinity_in_vllms_own_spelling_is_refused(tmp_path):
    with (
        faulty("vllm", value_of_last(-9999.0)["vllm"]) as (_, address),
        pytest.raises(RcdiagError, match="is -inf"),
    ):
        scores(address, Case([[3]], [[1, 5]]).write(tmp_path))


@pytest.mark.parametrize("shift", [-40.0, 0.5])
def test_logits_in_place_of_log_probs_are_refused(shift, tmp_path):
    """With `--logprobs-mode raw_logits` some logits are negative and look like log-probs."""
    logits = (LOG_PROBS + shift).astype(np.float32)
    with (
        serve(Model("vllm", table=logits)) as address,
        pytest.raises(RcdiagError, match="these are not log-probs"),
    ):
        scores(address, Case([[3]], [[1, 5]]).write(tmp_path))


def test_a_number_beyond_float64_is_no_log_prob(monkeypatch):
    model = Model("vllm")
    answer = model._completion({"prompt": GREETING, "prompt_logprobs": 5})
    vllm_entries(answer)[1]["0"] = {"logprob": -(10**400)}
    monkeypatch.setattr(Model, "_completion", lambda self, body: answer)
    with serve(model) as address, pytest.raises(RcdiagError, match="another form than vllm's"):
        connect(parse_policy(f"x=server,url={address}"))


def test_speculative_decoding_is_refused():
    model = Model("vllm")
    model.metrics += "vllm:spec_decode_num_drafts_total 0.0\n"
    with serve(model) as address, pytest.raises(RcdiagError, match="#53488"):
        connect(parse_policy(f"x=server,url={address}"))


# The whole way, in the engine's own process: an error, and no table

NO_ANSWER = "no answer from"
TO_THE_END: dict[str, tuple[Fault, str]] = {
    "a value too many": (REFUSED["one too many"][0]["vllm"], OTHER),
    "a value too few": (REFUSED["one too few"][0]["vllm"], OTHER),
    "NaN": (REFUSED["NaN"][0]["vllm"], "is nan"),
    "other tokens": (REFUSED["another token"][0]["vllm"], OTHER),
    "a huge body": (REFUSED["a huge body"][0]["vllm"], "more than"),
    "slow": (every(1, slower), NO_ANSWER),
    "429": (every(1, TROUBLE["429"]), NO_ANSWER),
    "500": (every(1, TROUBLE["500 then well"]), NO_ANSWER),
}


@pytest.mark.parametrize("name", TO_THE_END)
def test_a_server_that_never_answers_well_leaves_no_number(name, rcdiag, tmp_path):
    fault, words = TO_THE_END[name]
    table = Case([[3, 1, 4]], [[1, 5, 9, 2]]).write(tmp_path)
    with faulty("vllm", fault) as (model, address):
        said = refused(rcdiag, table, f"server,url={address},patience=0,timeout=1")
    assert model.rows
    assert "row 0: " in said
    assert words in " ".join(said.split())
    assert "Traceback" not in said
    assert not list(tmp_path.rglob("0*.parquet"))


# Refused before the first request


def refused(rcdiag: Any, table: Path, policy: str) -> str:
    out = table.with_name("out.parquet")
    ran = rcdiag("score", table, "-o", out, "--policy", f"x={policy}", "--target", "x")
    assert ran.code == 2, ran.err
    assert not out.exists()
    assert "hint:" in ran.err
    return ran.err


@APIS
def test_temperatures_other_than_1_are_refused_before_the_first_request(api, rcdiag, tmp_path):
    table = case(5).write(tmp_path, temperature=[1.0, None, 1.0, 0.7, 1.0])
    with serve(model := Model(api)) as address:
        said = refused(rcdiag, table, f"server,url={address}")
    assert "row 3" in said
    assert "column `temperature` is 0.7" in said
    assert "vllm:bfloat16" in said
    assert not model.rows


@APIS
def test_a_row_longer_than_the_served_context_is_refused(api, rcdiag, tmp_path):
    table = Case([[1], [1] * 9], [[2], [3] * (CONTEXT - 9)]).write(tmp_path)
    with serve(model := Model(api)) as address:
        said = refused(rcdiag, table, f"server,url={address}")
    assert "row 1" in said
    assert f"{CONTEXT} tokens" in said
    assert not model.rows


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ("server", "no url"),
        ("server,url=ftp://host", "not the address of a server"),
        ("server,url=localhost:8000", "not the address of a server"),
        ("server,url=http://", "not the address of a server"),
        ("server,url=http://host:99999", "url"),
        ("server,url=http://user:hidden@host", "user or a password"),
        ("server,url=http://host/?api_key=hidden", "query or a fragment"),
        ("server,url=http://host,key_env=NOT_SET_ANYWHERE", "is not set"),
        ("server,url=http://host,entropy=true", "servers return no entropy"),
        ("server,url=http://host,top_k=5", "top_k: "),
        ("server,url=http://host,adapter=lora", "model=NAME"),
        ("server,url=http://host,concurrency=0", "1 or more"),
        ("server,url=http://host,timeout=0", "1 or more"),
        ("server,url=http://host,api=tgi", "api=tgi"),
        ("server:float8,url=http://host", "no dtype `float8`"),
    ],
)
def test_unsupported_options_are_refused_before_the_first_request(rcdiag, policy, words, tmp_path):
    said = refused(rcdiag, case(2).write(tmp_path), policy)
    assert words in " ".join(said.split())
    assert "hidden" not in said


def test_a_key_that_http_cannot_carry_is_refused_without_being_shown(monkeypatch):
    monkeypatch.setenv("SERVER_KEY", "open\r\nsesame")
    with pytest.raises(RcdiagError, match="key that HTTP cannot carry") as caught:
        connect(parse_policy("x=server,url=http://127.0.0.1:1,key_env=SERVER_KEY"))
    assert "sesame" not in caught.value.message + caught.value.hint


KEY = "open-sesame-0123456789"
# Bodies of HTTP 403, and what the error quotes.
ECHOES = {
    f"wrong key: Bearer {KEY}": "HTTP 403 wrong key: Bearer ***",
    f"{'x' * 285}{KEY}": f"HTTP 403 {'x' * 200}",
    json.dumps({"key": KEY}).replace("o", "\\u006f"): 'HTTP 403 {"key": "***"}',
}


@pytest.mark.parametrize("body", ECHOES)
def test_a_key_echoed_by_the_server_is_not_shown(monkeypatch, tmp_path, body):
    """Also not the part of it that fits before the end of a long quotation."""
    monkeypatch.setenv("SERVER_KEY", KEY)
    said = answers((403, {}, body.encode()))["vllm"]
    with faulty("vllm", said) as (_, address), pytest.raises(RcdiagError) as caught:
        scores(address, case(2).write(tmp_path), ",key_env=SERVER_KEY")
    assert ECHOES[body] in caught.value.message
    assert "sesame" not in "".join(traceback.format_exception(caught.value))


def test_a_key_in_a_malformed_status_line_is_not_shown(monkeypatch):
    monkeypatch.setenv("SERVER_KEY", KEY)
    listener = socket.create_server(("127.0.0.1", 0))

    def echo() -> None:
        with listener, listener.accept()[0] as connection:
            connection.recv(1 << 16)
            connection.sendall(f"HTTP/9.9 {KEY}\r\n\r\n".encode())

    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with ThreadPoolExecutor(1) as pool:
        serving = pool.submit(echo)
        with pytest.raises(RcdiagError, match=r"not an answer in HTTP \(HTTP/9.9 \*\*\*") as caught:
            connect(parse_policy(f"x=server,url={url},key_env=SERVER_KEY,patience=0"))
        serving.result(timeout=30)
    assert "sesame" not in "".join(traceback.format_exception(caught.value))


@APIS
def test_a_description_that_holds_the_key_is_refused(api, monkeypatch):
    """It would be stored in the table's metadata."""
    monkeypatch.setenv("SERVER_KEY", KEY)
    (model := Model(api)).names = [f"Bearer {KEY}"]
    with serve(model) as address:
        spec = parse_policy(f"x=server,url={address},key_env=SERVER_KEY")
        with pytest.raises(RcdiagError, match="states its key as its model") as caught:
            connect(spec)
    assert "sesame" not in caught.value.message


@APIS
def test_a_long_text_of_the_server_is_shortened(api, tmp_path):
    fault = value_of_last("Z" * 200_000)[api]
    with faulty(api, fault) as (model, address):
        with pytest.raises(RcdiagError, match=r"Z{100,300}\.\.\.") as caught:
            scores(address, Case([[3]], [[1, 5]]).write(tmp_path))
        assert len(caught.value.message) < 400
        model.names = [f"{number}" * 50 for number in range(1000)]
        with pytest.raises(RcdiagError) as caught:
            connect(parse_policy(f"x=server,url={address},model=other"))
        assert len(caught.value.message) < 400


def test_a_missing_server_and_another_kind_of_server_are_errors():
    with pytest.raises(RcdiagError, match="in 0 s: connection refused") as caught:
        connect(parse_policy("x=server,url=http://127.0.0.1:9,patience=0"))
    assert "patience=SECONDS" in caught.value.hint
    with serve(Model("sglang")) as address:
        with pytest.raises(RcdiagError, match="is not a server of vllm"):
            connect(parse_policy(f"x=server,url={address},api=vllm"))
        assert connect(parse_policy(f"x=server,url={address}"))[1].api == "sglang"


def test_the_environments_proxies_are_not_used(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with serve(Model("vllm")) as address:
        assert connect(parse_policy(f"x=server,url={address}"))[1].model == "policy"


@APIS
def test_waiting_for_a_loading_server_is_reported(api):
    """First its port is closed, then a proxy answers 503, then it is up."""
    said: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    spec = parse_policy(f"x=server,url=http://127.0.0.1:{port},patience=60")
    with ThreadPoolExecutor(1) as pool:
        connecting = pool.submit(connect_and_say, spec, said.append)
        while not said:
            time.sleep(0.01)
        assert "no answer from" in said[0]
        assert "connection refused" in said[0]
        assert "for 60 s" in said[0]
        (model := Model(api)).loading = 5
        with serve(model, port=port) as address:
            client, served = connecting.result(timeout=60)
    assert (client.address, served.api, model.loading) == (address, api, 0)
    assert f"{address} is up after" in said[1]


def test_request_settings_do_not_change_the_key_of_parts(rcdiag, tmp_path, monkeypatch):
    """Parts are reused if patience, timeout, concurrency or key_env change, not otherwise."""
    monkeypatch.setattr("rcdiag.engines.process.EngineProcess", EngineHere)
    monkeypatch.setattr("rcdiag.engines.scoring.TOKENS_PER_PART", 64)
    monkeypatch.setenv("SERVER_KEY", "open-sesame")
    some, out = case(60), tmp_path / "scored.parquet"
    table = some.write(tmp_path)

    def full(model: Model, body: dict[str, Any], answer: Answer) -> Answer:
        return (400, {}, b"no more") if len(model.rows) > 30 else answer

    def asked(options: str) -> int:
        model.rows = []
        policy = f"x=server{options},url={address}"
        rcdiag("score", table, "-o", out, "--policy", policy, "--target", "x")
        return len(model.rows)

    with faulty("vllm", full) as (model, address):
        assert asked(",concurrency=2") > 30
        model.fault = None
        left = asked(",patience=7,timeout=9,concurrency=3,key_env=SERVER_KEY")
        assert left < sum(bool(row) for row in some.responses) - 20
        about = json.loads(pq.read_schema(out).metadata[b"rcdiag"])["policies"]["x"]
        assert about["options"]["patience"] == 7
        assert "differs" not in about
        assert asked(",patience=8") == 0, "the output is that of this command"
        plans = [
            plan_scoring(
                open_table(table), [parse_policy(f"x=server{one},url={address}")], out, SILENT.say
            )
            for one in ("", ",concurrency=2", ":bfloat16", ",api=vllm")
        ]
    assert [plan.run_key == plans[0].run_key for plan in plans] == [True, True, False, False]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
def test_a_certificate_is_checked_against_those_that_are_trusted(monkeypatch, tmp_path):
    certificate = tmp_path / "certificate.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *(
                "-nodes",
                "-days",
                "2",
                "-subj",
                "/CN=test",
                "-addext",
                "subjectAltName=IP:127.0.0.1",
            ),
            *("-keyout", tmp_path / "key.pem", "-out", certificate),
        ],
        check=True,
        capture_output=True,
    )
    both = tmp_path / "both.pem"
    both.write_bytes((tmp_path / "key.pem").read_bytes() + certificate.read_bytes())
    with serve(Model("sglang"), both) as address:
        with pytest.raises(RcdiagError, match="self-signed") as caught:
            connect(parse_policy(f"x=server,url={address}"))
        assert "SSL_CERT_FILE" in caught.value.hint
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert connect(parse_policy(f"x=server,url={address}"))[1].model == "policy"


def test_several_models_need_a_name_and_two_names_of_one_do_not():
    model = Model("vllm")
    model.names = ["policy", "alias"]  # one root
    with serve(model) as address:
        assert connect(parse_policy(f"x=server,url={address}"))[1].model == "policy"
        assert connect(parse_policy(f"x=server,url={address},model=alias"))[1].model == "alias"


@APIS
def test_the_fingerprint_distinguishes_versions_and_models(api):
    model = Model(api)
    with serve(model) as address:
        spec = parse_policy(f"x=server,url={address}")
        first = connect(spec)[1].fingerprint
        assert connect(spec)[1].fingerprint == first
        model.version = "9.9"
        assert connect(spec)[1].fingerprint != first


def test_accepted_and_refused_addresses():
    def address(url: str) -> str:
        return check_address(parse_policy(f"x=server,url={url}"))

    assert address("http://host:8000/v1/") == "http://host:8000"
    assert address("https://host/llm/v1") == "https://host/llm"
    assert address("http://[::1]:8000") == "http://[::1]:8000"


def test_the_default_checkpoint_is_not_the_name_of_a_served_model():
    assert parse_policy("x=server,url=http://host", "ckpt/step_8").model == ""
    assert parse_policy("x=server,url=http://host,model=name", "ckpt/step_8").model == "name"


def test_a_table_does_not_choose_a_server(tmp_path):
    """`--noise-floor` rescores a recorded policy, but never takes a URL from a file."""
    from rcdiag.engines.ladders import spec_of

    about = {
        "name": "x",
        "backend": "server",
        "dtype": "served",
        "model": "",
        "options": {"url": "http://127.0.0.1:9", "key_env": "HOME"},
    }
    assert spec_of(about, str(tmp_path)) is None


def test_explain_and_the_api_know_the_backend(tmp_path):
    entry = explain("server")
    assert entry.kind == "backend"
    assert "url" in entry.generations
    assert "key_env" in entry.generations
    assert set(KNOWN) == {"vllm", "sglang"}
    with pytest.raises(RcdiagError, match="no answer"):
        rcdiag.score(
            case(2).write(tmp_path),
            policies={"x": "server,url=http://127.0.0.1:9,patience=0"},
            output=tmp_path / "o.parquet",
        )


def test_a_failed_run_resumes_from_its_finished_parts(rcdiag, tmp_path, monkeypatch):
    """It starts again if the server reports another model."""
    monkeypatch.setattr("rcdiag.engines.process.EngineProcess", EngineHere)
    monkeypatch.setattr("rcdiag.engines.scoring.TOKENS_PER_PART", 64)
    some, out = case(60), tmp_path / "scored.parquet"
    table, rows = some.write(tmp_path), sum(bool(row) for row in some.responses)

    def full(model: Model, body: dict[str, Any], answer: Answer) -> Answer:
        return (400, {}, b"no more") if len(model.rows) > 30 else answer

    def run() -> Any:
        policy = f"x=server,url={address}"
        return rcdiag("score", table, "-o", out, "--policy", policy, "--target", "x", "--force")

    with faulty("vllm", full) as (model, address):
        assert "HTTP 400 no more" in run().err
        model.fault, model.rows = None, []
        assert run().code == 0
        assert 20 < len(model.rows) < rows
        column = pq.read_table(out)["x_log_probs"].combine_chunks().flatten().to_numpy()
        assert np.array_equal(column.astype(np.float32), some.log_probs)
        model.rows, model.fault = [], full
        run()
        model.fault, model.rows, model.version = None, [], "0.33.0"
        assert run().code == 0
        asked = {tuple(body["prompt"]) for body in model.rows}
        assert asked == {
            (*prompt, *response)
            for prompt, response in zip(some.prompts, some.responses, strict=True)
            if response
        }


@given(st.integers(1, 100), st.lists(st.booleans(), max_size=200))
def test_the_number_of_parallel_requests_stays_within_bounds(most, outcomes):
    steps = pace.Pace(most)
    for well in outcomes:
        before = steps.requests
        if well:
            steps.succeeded()
        else:
            steps.failed()
        assert 1 <= steps.requests <= most
        assert steps.requests in (before, min(2 * before, most), max(before // 2, 1))
        assert 0 < steps.pause <= pace.LONGEST_PAUSE

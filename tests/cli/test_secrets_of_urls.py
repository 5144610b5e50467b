"""User, password, query and fragment of a URL reach neither screen nor file, whatever happens."""

from __future__ import annotations

import errno
import json
import sys
from pathlib import Path
from urllib.parse import quote

import pytest

import rcdiag as library
from rcdiag.errors import RcdiagError
from rcdiag.url_secrets import without_own_secrets
from tests.web import serving

PASSWORDS = {
    "plain": "SECRETA",
    "at": "SECRETA@SECRETB",
    "slash": "SECRETA/SECRETB",
    "space": "SECRETA SECRETB",
    "all": "SECRETA@/ SECRETB/@ SECRETC",
}
ROW = {"response_ids": [1, 2], "rollout_log_probs": [-1.0, -0.5], "old_log_probs": [-1.0, -0.5]}
LINE = json.dumps(ROW).encode() + b"\n"


def without(text: str) -> None:
    assert "SECRET" not in text
    assert "USER" not in text


def url(password: str, scheme: str = "http", host: str = "127.0.0.1:9") -> str:
    return f"{scheme}://USER:{password}@{host}/d/x.parquet?sig=SECRETQ#SECRETF"


@pytest.mark.parametrize("colon", [": no such file", ", and more", ""])
def test_the_text_around_an_address_is_unchanged(colon):
    assert RcdiagError(url("SECRETA") + colon).message == f"http://127.0.0.1:9/d/x.parquet{colon}"


def test_missing_columns_behind_a_url_are_reported(rcdiag, doubtful):
    ran = rcdiag("score", doubtful, "--trainer-config", url("SECRETA"))
    assert "x.parquet: cannot be read as a configuration (No such file or directory)" in ran.err


# An address in which only its own grammar, not the sentence around it, tells what is secret, and
# what of it is shown.
ODD_ADDRESSES = [
    ("http://127.0.0.1:9/x.parquet?a=1&filename=dump(1).parquet&sig=SECRET", "x.parquet"),
    ("http://127.0.0.1:9/it's.parquet?sig=SECRET", "it's.parquet"),
    ("http://127.0.0.1:9/x.parquet?sig=a'SECRET)SECRET", "x.parquet"),
    ("http://127.0.0.1:9/x.parquet?next=http://127.0.0.1:8/y&sig=SECRET", "x.parquet"),
    ("http://127.0.0.1/x.parquet?to=a@b&sig=SECRET", "x.parquet"),
    ("http://USER:1 SECRET@127.0.0.1:9/x.jsonl", "127.0.0.1:9/x.jsonl"),
    ("http://USER:2024/SECRET@127.0.0.1:9/x.jsonl", "127.0.0.1:9/x.jsonl"),
    ("http://USER:a://SECRET@127.0.0.1:9/x.jsonl", "127.0.0.1:9/x.jsonl"),
    ("http://127.0.0.1:9/x.parquet?to=a@b&sig=SECRET", "http"),  # 9 may begin a password
    ("http://USER:p@127.0.0.1:9/x?to=a@b&sig=SECRET", "http"),
    ("HTTP://127.0.0.1:9/x?SECRET", "127.0.0.1:9/x"),
    ("s3://b/x#tok=SECRET", "/b/x"),
    ("s3://b/x?y?sig=SECRET", "/b/x"),
    ("s3://USER/SECRET@b/x", "/b/x"),
    ("zip://*.jsonl::http://USER:7 SECRET@127.0.0.1:9/a.zip?sig=SECRET", "127.0.0.1:9/a.zip"),
]


@pytest.mark.parametrize(("address", "shown"), ODD_ADDRESSES)
def test_no_odd_address_shows_a_secret(rcdiag, doubtful, address, shown):
    for words in (["score", address], ["score", doubtful, "--logged", address]):
        ran = rcdiag(*words)
        ran.refuses()
        without(ran.err + ran.out)
        assert shown in ran.err
    for argument in (address, f"p=hf:float32,model={address}", f"--{address}"):
        without(without_own_secrets(argument))
    with pytest.raises(RcdiagError) as caught:
        library.score(address)
    without(f"{caught.value.message} {caught.value.hint}")


@pytest.mark.parametrize(
    "address",
    [
        "hf://datasets/user/run@main/a.parquet",
        "hf://Qwen/run@main/a.parquet",
        "s3://bucket/jane@host.com/step_?/step=3/run#3.parquet",
        "http://127.0.0.1:9/a.parquet",
        "p=server,url=http://[::1]:8000",
    ],
)
def test_what_is_no_secret_in_an_address_is_shown(address):
    assert without_own_secrets(address) == address


@pytest.mark.parametrize("address", [address for address, _ in ODD_ADDRESSES])
@pytest.mark.parametrize("words", [["ADDRESS"], ["--ADDRESS"], ["score", "x", "--rows", "ADDRESS"]])
def test_no_usage_error_shows_a_secret(rcdiag, words, address):
    """The command forgotten, a dash too many: Typer quotes the word."""
    ran = rcdiag(*[word.replace("ADDRESS", address) for word in words])
    assert ran.code == 2
    without("".join(ran.err.split("│")))


COMMANDS = {
    "score": ["score", "URL"],
    "dry run": ["score", "URL", "--dry-run"],
    "convert": ["convert", "URL", "-o", "OUT"],
    "convert to": ["convert", "TABLE", "-o", "URL"],
    "score to": ["score", "TABLE", "-o", "URL", "--model", "M", "--policy", "p=hf:float32"],
    "result": ["score", "TABLE", "--result", "URL"],
    "page": ["score", "TABLE", "--html", "URL"],
    "logged": ["score", "TABLE", "--logged", "URL"],
    "config of a trainer": ["score", "TABLE", "--trainer-config", "URL"],
    "report": ["report", "URL"],
    "config": ["score", "TABLE", "--config", "URL"],
    "model": ["score", "TABLE", "--model", "URL", "--policy", "p=hf:float32"],
    "joined": ["score", "TABLE", "URL"],
    "compare": ["compare", "TABLE", "URL"],
}


@pytest.mark.parametrize("scheme", ["http", "s3"])
@pytest.mark.parametrize("password", PASSWORDS)
@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_shows_a_secret(rcdiag, doubtful, tmp_path, name, password, scheme):
    values = {
        "URL": url(PASSWORDS[password], scheme),
        "TABLE": str(doubtful),
        "OUT": str(tmp_path / "out.parquet"),
    }
    ran = rcdiag(*[values.get(word, word) for word in COMMANDS[name]], "-v")
    ran.refuses()
    without(ran.err + ran.out)


@pytest.mark.parametrize("password", PASSWORDS)
def test_a_source_leaves_no_secret_in_any_output(rcdiag, tmp_path, password):
    """Not in the result, the page, the recorded command line, a table or the screen."""
    pytest.importorskip("aiohttp")
    secret = quote(PASSWORDS[password], safe="")
    result, page, table = (tmp_path / name for name in ("r.json", "p.html", "t.parquet"))
    with serving({}, LINE) as host:
        source = f"{host.replace('//', f'//USER:{secret}@')}/d/a.jsonl?sig=SECRETQ"
        from_lines = ["--from", "json-lines"]
        for command in (
            ["score", source, *from_lines, "--dry-run"],
            ["score", source, *from_lines, "--result", result, "--html", page, "-v"],
            ["convert", source, *from_lines, "-o", table, "-v"],
            ["score", source, *from_lines, "--json"],
        ):
            ran = rcdiag(*command)
            assert ran.code in (0, 1), ran.err
            without(ran.out + ran.err)
    for path in (result, page, table):
        without(path.read_bytes().decode(errors="replace"))
    assert json.loads(result.read_text())["provenance"]["dump"][0].endswith("/d/a.jsonl")


# More than a file name can hold, with a slash and an @ as AWS does not encode them everywhere.
SIGNATURE = f"X-Amz-Security-Token={'t' * 300}&X-Amz-Credential=a/b&X-Amz-Signature=SECRET"


def test_a_signed_address_is_read_and_its_copy_has_a_name_without_the_query(rcdiag, monkeypatch):
    pytest.importorskip("aiohttp")
    with serving({}, LINE) as host:
        ran = rcdiag("score", f"{host}/d/a.jsonl?{SIGNATURE}", "--json")
        assert ran.code == 0, ran.err
        without(ran.out + ran.err)
        assert ran.document["provenance"]["dump"] == [f"{host}/d/a.jsonl"]

        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device", f"/d/a.jsonl?{SIGNATURE}")

        monkeypatch.setattr("shutil.copyfileobj", full)
        ran = rcdiag("score", f"{host}/d/a.jsonl?{SIGNATURE}")
        ran.refuses(f"{host}/d/a.jsonl: cannot be read (OSError: No space left on device)")


def test_the_command_in_a_result_has_no_secret_of_any_argument(doubtful, monkeypatch):
    words = ["score", url("SECRETA SECRETB"), "--logged", url("S/ECRET@SECRET"), "--given", "x=a@b"]
    monkeypatch.setattr(sys, "argv", ["rcdiag", *words])
    command = library.score(doubtful).provenance["command"]
    without(command)
    assert command.endswith("--given x=a@b")


def test_a_traceback_shows_no_secret(rcdiag, doubtful, monkeypatch):
    place = url(PASSWORDS["slash"])

    def broken(*_: object, **__: object) -> None:
        raise KeyError(place)

    monkeypatch.setattr("rcdiag.score", broken)
    ran = rcdiag("score", doubtful)
    assert ran.code == 2
    assert "Traceback" in ran.err
    without(ran.err)


@pytest.mark.parametrize("password", PASSWORDS.values())
def test_no_error_of_the_library_holds_a_secret(password):
    for call in (library.score, library.load_result, library.open_table):
        with pytest.raises(RcdiagError) as caught:
            call(url(password))
        without(f"{caught.value.message} {caught.value.hint} {caught.value.args}")
    with pytest.raises(RcdiagError) as caught:
        library.load_result(Path(url(password)))
    without(str(caught.value))

"""A dump on S3 (a real server on this machine) is read in place, also by a cluster."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.engine_models import make_model, make_table

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[2]
# The command line with small batches, so that a short table has many parts.
RCDIAG = [
    *(sys.executable, "-c"),
    "import cli.main, rcdiag.table.readers.parquet as parquet; parquet.TOKENS_PER_BATCH = 2000; "
    "cli.main.main()",
]
LIMIT = 240.0
SECRET = "a-secret-that-nothing-shows"


@pytest.fixture(scope="module")
def s3() -> Iterator[Any]:
    """An S3 server on a free port, and a file system connected to it."""
    import fsspec
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        environment.setenv("AWS_ACCESS_KEY_ID", "testing")
        environment.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        environment.setenv("AWS_DEFAULT_REGION", "us-east-1")
        yield fsspec.filesystem("s3", skip_instance_cache=True)
    server.stop()


@pytest.fixture(scope="module")
def dump(s3, tmp_path_factory) -> Path:
    """Two files of a dump on this machine, with copies in s3://dumps/run/."""
    folder = tmp_path_factory.mktemp("dump")
    rows = pq.read_table(ROOT / "sample_data" / "stale.parquet")
    s3.mkdir("dumps")
    for number in range(2):
        path = folder / f"step_{number}.parquet"
        pq.write_table(pa.concat_tables([rows] * 2), path, row_group_size=200)
        s3.put_file(str(path), f"dumps/run/{path.name}")
    return folder


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*RCDIAG, *map(str, arguments)], capture_output=True, text=True, timeout=LIMIT
    )


def document(ran: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert ran.returncode == 0, ran.stderr
    content = json.loads(ran.stdout)
    assert SECRET not in ran.stdout + ran.stderr
    return content


def numbers(content: dict[str, Any]) -> dict[str, Any]:
    """Remove the location of the table, also from commands in the diagnosis."""
    return {key: content[key] for key in content if key not in ("provenance", "diagnosis")}


def test_a_dump_on_s3_gives_the_numbers_of_its_copy(s3, dump):
    remote = document(run("score", "s3://dumps/run", "--json"))
    assert numbers(remote) == numbers(document(run("score", dump, "--json")))
    assert remote["provenance"]["dump"] == [f"s3://dumps/run/step_{n}.parquet" for n in range(2)]


def test_nodes_of_a_cluster_read_s3_themselves(s3, dump, cluster):
    """The cluster starts after the server, whose address and keys its nodes then have."""
    on = f"ray:{cluster.address}"
    remote = document(run("score", "s3://dumps/run", "--json", "--on", on))
    assert numbers(remote) == numbers(document(run("score", dump, "--json")))


def test_scores_go_to_s3(s3, tmp_path):
    model = make_model(tmp_path / "model", "qwen3")
    table = make_table(tmp_path / "table.parquet", rows=60)
    s3.mkdir("out")
    arguments = ["score", table, "--model", model, "--policy", "a=hf:float32"]
    arguments += ["--policy", "b=hf:bfloat16", "--behavior", "a", "--target", "b", "--json"]
    content = document(run(*arguments, "-o", "s3://out/scored.parquet"))
    again = document(
        run("score", "s3://out/scored.parquet", "--behavior=a", "--target=b", "--json")
    )
    assert again["mismatch"] == content["mismatch"]
    ran = run(*arguments, "-o", "s3://out/scored.parquet")
    assert ran.returncode == 2
    assert "already there" in ran.stderr


@pytest.mark.parametrize("url", ["s3://no-such-bucket/a.parquet", "s3://dumps/nothing"])
def test_a_missing_object_is_an_error_without_secrets(s3, dump, url):
    ran = run("score", url)
    assert ran.returncode == 2
    assert ran.stderr.startswith(f"error: {url}: ")
    assert "Traceback" not in ran.stderr
    assert SECRET not in ran.stdout + ran.stderr

"""A page with --no-host names no machine, neither in its text nor in its documents."""

from __future__ import annotations

import re

from msgspec.structs import replace

import rcdiag
from rcdiag.results import from_json
from tests.pages.unpacked import unpacked
from tests.results.stored import stored

HOST = "gpu-node-17.secret.example"


def test_without_host_the_name_is_nowhere_on_the_page(tmp_path):
    result = from_json(stored("score"), "score")
    engines = [{"kind": "hf", "host": HOST, "parts": 2}]
    named = replace(result, provenance={**result.provenance, "host": HOST, "engines": engines})
    for host in (True, False):
        file = tmp_path / f"{host}.html"
        rcdiag.report(named, file, host=host)
        text = file.read_text()
        assert (HOST in text) is host
        letters = re.findall(r'class="document" data-name="[^"]*">([^<]+)</script>', text)
        assert len(letters) == 1
        held = unpacked(letters[0])
        assert (HOST in held) is host

"""The promise of SECURITY.md for a command that is killed after one output is complete."""

from __future__ import annotations

import json


def document(path):
    read = json.loads(path.read_text())
    del read["provenance"]
    return read


def test_a_rerun_needs_force_and_then_equals_an_undisturbed_run(rcdiag, doubtful, tmp_path):
    calm, out = tmp_path / "calm", tmp_path / "out"

    def command(folder, *more):
        outputs = ("--result", folder / "r.json", "--csv", folder / "n.csv")
        return rcdiag("score", doubtful, *outputs, "-q", *more)

    assert command(calm).code == 0
    assert command(out).code == 0
    (out / "n.csv").unlink()  # a kill between the two outputs
    ran = command(out)
    ran.refuses("r.json: already there", "--force")
    assert not (out / "n.csv").exists()
    assert command(out, "--force").code == 0
    assert document(out / "r.json") == document(calm / "r.json")
    assert (out / "n.csv").read_bytes() == (calm / "n.csv").read_bytes()

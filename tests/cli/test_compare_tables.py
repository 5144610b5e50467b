"""`rcdiag compare` of several tables."""

from __future__ import annotations

from tests.cli.conftest import dump_with_shift


def test_tables_are_joined_and_rows_left_out_are_a_finding(rcdiag, tmp_path):
    one = dump_with_shift(tmp_path / "run a.parquet", 0.0, sample_id=["x", "y", "z"])
    two = dump_with_shift(tmp_path / "b.parquet", 0.05, sample_id=["x", "y", "other"])
    document = rcdiag("compare", one, two, "--json").document
    assert set(document["policies"]) == {"rollout", "old", "rollout_b", "old_b"}
    assert document["num_sequences"] == document["joined"]["common_samples"] == 2
    assert document["joined"]["missing_rows"] == {"run_a": 1, "b": 1}
    (finding,) = [f for f in document["findings"] if f["slug"] == "rows-left-out-of-the-join"]
    assert finding["severity"] == "warning"
    assert "z (not in b)" in finding["message"]
    assert "other (not in run_a)" in finding["message"]


def test_several_tables_are_named_by_their_own_paths(rcdiag, tmp_path):
    paths = [dump_with_shift(tmp_path / f"{name}.parquet", 0.01) for name in ("a", "b")]
    provenance = rcdiag("compare", *paths, "--json").document["provenance"]
    assert provenance["dump"] == list(map(str, paths))
    assert provenance["rows"] == 6
    other = dump_with_shift(tmp_path / "c.parquet", 0.02)
    assert (
        provenance["fingerprint"]
        != (rcdiag("compare", paths[0], other, "--json").document["provenance"]["fingerprint"])
    )
    output = rcdiag("compare", *paths, "--policy", "nope", "--policy", "old").err
    assert str(paths[0]) in output


def test_tables_with_the_same_file_name_get_distinct_policy_names(rcdiag, tmp_path):
    paths = []
    for folder in ("x", "y", "z"):
        (tmp_path / folder).mkdir()
        paths.append(dump_with_shift(tmp_path / folder / "a.parquet", 0.01))
    document = rcdiag(
        "compare", *paths, "--policy", "old", "--policy", "old_a_3", "--json"
    ).document
    assert list(document["policies"]) == ["old", "old_a_3"]


def test_any_file_name_gives_a_valid_policy_name(rcdiag, tmp_path):
    paths = [dump_with_shift(tmp_path / name, 0.01) for name in ("a.parquet", "über 2.parquet")]
    document = rcdiag("compare", *paths, "--json").document
    assert set(document["policies"]) == {"rollout", "old", "rollout__ber_2", "old__ber_2"}


def test_joining_leaves_no_file_behind(rcdiag, tmp_path, monkeypatch):
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    paths = [dump_with_shift(tmp_path / f"{name}.parquet", 0.01) for name in ("a", "b")]
    assert rcdiag("compare", *paths, "-q").code == 0
    assert list((tmp_path / "scratch").iterdir()) == []

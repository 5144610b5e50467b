"""Outputs are written into pipes, and never through links that others have created."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import BinaryIO

import pytest

from rcdiag.errors import RcdiagError
from rcdiag.files import new_beside, write_text
from rcdiag.table.writer import TableWriter
from tests.cli.test_hostile_input import rows_of


class Reader(threading.Thread):
    """Reads a pipe to its end."""

    def __init__(self, path: Path | int) -> None:
        super().__init__(daemon=True)
        self._path, self.text = path, ""
        self.start()

    def run(self) -> None:
        with open(self._path, encoding="utf-8") as stream:
            self.text = stream.read()


@pytest.mark.parametrize("option", ["--result", "--html", "--csv"])
@pytest.mark.parametrize("force", [[], ["--force"]])
def test_an_output_goes_into_a_pipe(rcdiag, doubtful, tmp_path, option, force):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (tmp_path / "link").symlink_to(pipe)  # as /dev/stdout is one
    reader = Reader(pipe)
    ran = rcdiag("score", doubtful, option, tmp_path / "link", "-q", *force)
    assert ran.code == 0, ran.err
    reader.join(60)
    assert len(reader.text) > 100
    assert pipe.is_fifo()
    assert (tmp_path / "link").is_symlink()
    if option == "--result":
        assert json.loads(reader.text)["kind"] == "score"


def test_an_output_goes_into_a_descriptor_of_the_shell(rcdiag, doubtful):
    """`--result >(jq .verdict)` is one: /dev/fd/63."""
    out, into = os.pipe()
    reader = Reader(out)
    ran = rcdiag("score", doubtful, "--result", f"/dev/fd/{into}", "-q")
    os.close(into)
    reader.join(60)
    assert ran.code == 0, ran.err
    assert json.loads(reader.text)["kind"] == "score"


@pytest.mark.parametrize("command", [["score", "--result"], ["score", "--html"], ["convert", "-o"]])
@pytest.mark.parametrize("target", ["there", "not there"])
def test_a_link_is_neither_followed_nor_replaced(rcdiag, doubtful, tmp_path, command, target):
    name, option = command
    (tmp_path / "there").write_text("mine")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / target)
    ran = rcdiag(name, doubtful, option, link, "--force")
    ran.refuses(f"{link}: a link to {tmp_path / target}", "hint: give the path of the file itself")
    assert link.is_symlink()
    assert (tmp_path / "there").read_text() == "mine"
    assert not (tmp_path / "not there").exists()


@pytest.mark.parametrize("name", ["score", "convert"])
def test_a_table_does_not_replace_a_pipe(rcdiag, doubtful, tmp_path, name):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    ran = rcdiag(name, doubtful, "-o", pipe, "--force")
    ran.refuses("pipe: a table cannot be written to a pipe")
    assert pipe.is_fifo()


def test_a_socket_is_refused(tmp_path):
    import socket

    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(tmp_path / "socket"))
        with pytest.raises(RcdiagError, match="neither a file nor a pipe"):
            write_text(tmp_path / "socket", "{}")
    assert (tmp_path / "socket").is_socket()


def lay_links(folder: Path, name: str) -> Path:
    """Create links with all temporary names that can be guessed from output and process id."""
    target = folder / "target"
    target.write_text("mine")
    (folder / f".{name}.{os.getpid()}.tmp").symlink_to(target)
    return target


def test_no_text_is_written_through_an_existing_link(tmp_path):
    target = lay_links(tmp_path, "r.json")
    write_text(tmp_path / "r.json", "{}")
    assert target.read_text() == "mine"
    assert (tmp_path / "r.json").read_text() == "{}"


def test_no_table_is_written_through_an_existing_link(tmp_path):
    target = lay_links(tmp_path, "t.parquet")
    rows = rows_of()
    with TableWriter(tmp_path / "t.parquet", rows.schema, {}) as writer:
        writer.write(rows)
    assert target.read_text() == "mine"
    assert (tmp_path / "t.parquet").read_bytes()[:4] == b"PAR1"


def test_a_link_at_the_temporary_name_stops_the_run(tmp_path, monkeypatch):
    """A link is not followed even if its name was guessed."""
    monkeypatch.setattr("secrets.token_hex", lambda _: "guessed")
    target = tmp_path / "target"
    (tmp_path / ".r.json.guessed.tmp").symlink_to(target)
    with pytest.raises(RcdiagError, match=r"r\.json: cannot be written"):
        write_text(tmp_path / "r.json", "{}")
    with pytest.raises(FileExistsError):
        new_beside(tmp_path / "r.json")
    assert not target.exists()


@pytest.mark.parametrize("force", [[], ["--force"]])
@pytest.mark.parametrize(
    "command", [["convert", "-o"], ["score", "--result"], ["score", "--html"], ["score", "--csv"]]
)
def test_a_file_is_not_written_where_a_folder_is(rcdiag, doubtful, tmp_path, command, force):
    name, option = command
    (tmp_path / "folder").mkdir()
    ran = rcdiag(name, doubtful, option, tmp_path / "folder", *force)
    ran.refuses("folder: a folder, not a file", "hint: give the path of a file")
    rcdiag(name, doubtful, option, "", *force).refuses(": a folder, not a file")


def test_figures_are_written_into_a_folder(rcdiag, doubtful, tmp_path):
    folder, file = tmp_path / "folder", tmp_path / "file"
    folder.mkdir()
    file.touch()
    figure = ("--figure", "concentration")
    assert rcdiag("score", doubtful, "--plots", folder, *figure).code == 0
    rcdiag("score", doubtful, "--plots", folder, *figure).refuses("folder: already there")
    rcdiag("score", doubtful, "--plots", file, "--force").refuses("file: a file, not a folder")
    (folder / "concentration.csv").unlink()
    (folder / "concentration.csv").symlink_to(file)
    ran = rcdiag("score", doubtful, "--plots", folder, *figure, "--force")
    ran.refuses("concentration.csv: a link, or behind one", "hint: remove the link")
    assert file.read_text() == ""


@pytest.fixture
def relinked(tmp_path, monkeypatch) -> Path:
    """A file to which every temporary file becomes a link as soon as it was made."""
    target = tmp_path / "target"
    target.write_text("mine")

    def swapped(path: Path) -> BinaryIO:
        stream = new_beside(path)
        Path(stream.name).unlink()
        Path(stream.name).symlink_to(target)
        return stream

    monkeypatch.setattr("rcdiag.files.new_beside", swapped)
    monkeypatch.setattr("rcdiag.table.writer.new_beside", swapped)
    return target


def test_a_link_laid_after_the_temporary_file_was_made_is_not_followed(tmp_path, relinked):
    write_text(tmp_path / "r.json", "{}")
    rows = rows_of()
    with TableWriter(tmp_path / "t.parquet", rows.schema, {}) as writer:
        writer.write(rows)
    assert relinked.read_text() == "mine"


def test_an_output_has_the_permissions_of_the_users_umask(tmp_path):
    before = os.umask(0o027)
    try:
        write_text(tmp_path / "r.json", "{}")
    finally:
        os.umask(before)
    assert (tmp_path / "r.json").stat().st_mode & 0o777 == 0o640

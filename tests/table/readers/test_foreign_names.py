"""No name from a server or an archive writes a copy outside its folder."""

from __future__ import annotations

import contextlib
import gc
import tempfile
import zipfile
from pathlib import Path

import pytest

from rcdiag.errors import RcdiagError
from rcdiag.files import inside
from rcdiag.table.opening import open_table
from rcdiag.table.sources import find_files
from tests.web import listing, serving

LINE = b'{"response_ids": [1, 2], "rollout_log_probs": [-1.0, -0.5]}\n'
UP = range(1, 9)  # more folders than there are above a copy
CLIMBING = {
    "plain": [f"{'../' * up}stolen{up}.jsonl" for up in UP],
    "encoded": [f"{'%2e%2e/' * up}stolen{up}.jsonl" for up in UP],
    "slashes encoded": [f"{'..%2f' * up}stolen{up}.jsonl" for up in UP],
    "through a folder": [f"b/{'../' * up}stolen{up}.jsonl" for up in UP],
    "absolute": [f"/d/{'../' * up}stolen{up}.jsonl" for up in UP],
    "with the host": [f"HOST/d/{'../' * up}stolen{up}.jsonl" for up in UP],
}


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    """A folder with the temporary one deep inside, to catch files written outside it."""
    temporary = tmp_path / "1" / "2" / "3" / "4" / "5" / "temporary"
    temporary.mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    return tmp_path


def written(home: Path) -> list[Path]:
    """Return the files outside the folders of single copies."""
    temporary = Path(tempfile.gettempdir())
    files = [path for path in home.rglob("*") if path.is_file()]
    return [
        path
        for path in files
        if not (path.is_relative_to(temporary) and path.relative_to(temporary).parts[1:])
    ]


@pytest.mark.parametrize("pattern", ["**", "**/*.jsonl", "*/*.jsonl", ""])
@pytest.mark.parametrize("kind", CLIMBING)
def test_a_listing_of_a_web_server_writes_no_copy_outside(kind, pattern, home):
    pytest.importorskip("aiohttp")
    pages: dict[str, bytes] = {}
    with serving(pages, LINE) as host:
        links = [link.replace("HOST", host) for link in CLIMBING[kind]]
        pages["/d/"] = pages["/d/b/"] = listing("a.jsonl", *links)
        pages["/d/b/"] = listing("c.jsonl")
        source = f"{host}/d/{pattern}"
        if pattern.startswith("**"):
            with pytest.raises(RcdiagError, match="outside of its folder"):
                open_table(source, format="json-lines")
        else:  # such links are followed by some versions of fsspec
            with contextlib.suppress(RcdiagError):
                open_table(source, format="json-lines")
    gc.collect()
    assert written(home) == []


def test_a_harmless_listing_is_copied(home):
    pytest.importorskip("aiohttp")
    links = listing("a.jsonl", "b/", "../", "/", "/elsewhere/")
    pages = {"/d/": links, "/d/b/": listing("c.jsonl")}
    with serving(pages, LINE) as host:
        found = find_files(f"{host}/d/**/*.jsonl", "json-lines")
        names = [file.name.removeprefix(host) for file in found.files]
        assert names == ["/d/a.jsonl", "/d/b/c.jsonl"]
        assert open_table(f"{host}/d/**/*.jsonl", format="json-lines").num_rows == 2


@pytest.mark.parametrize("pattern", ["**", "**/*.jsonl", ""])
@pytest.mark.parametrize("lead", ["../", "b/../../", "/", "//", "b/../"])
def test_members_of_an_archive_stay_in_their_folder(lead, pattern, home):
    archive = home / "dump.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        for up in UP:
            packed.writestr(f"{lead * up}stolen{up}.jsonl", LINE)
    with contextlib.suppress(RcdiagError):
        open_table(f"zip://{pattern}::{archive}", format="json-lines")
    gc.collect()
    assert written(home) == [archive]


@pytest.mark.parametrize(
    "name",
    [
        "../x",
        "..",
        "a/../../x",
        "a/../x",
        "%2e%2e/x",
        "%2E./x",
        "..%2fx",
        "..\\x",
        "/etc/x",
        "//x",
        "",
        ".",
        "a\0b",
    ],
)
def test_a_name_that_leaves_its_folder_is_refused(name, tmp_path):
    with pytest.raises(RcdiagError, match="s3://b/d: names a file that would be written outside"):
        inside(tmp_path, name, "s3://b/d")


@pytest.mark.parametrize("name", ["link/x", "link", "file"])
def test_a_link_in_the_folder_is_not_blamed_on_the_source(name, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path)
    (folder / "file").symlink_to(tmp_path / "nowhere")
    with pytest.raises(RcdiagError, match=f"^{folder / name}: a link, or behind one") as caught:
        inside(folder, name, "s3://b/d")
    assert caught.value.hint == "remove the link, or choose another folder"


@pytest.mark.parametrize("name", ["x", "a/b/x", "a//x", "./x", "..x", "a..b/x", "step 1 %41/x"])
def test_other_names_are_paths_of_the_folder(name, tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "folder").symlink_to(tmp_path / "real")  # the user's own link to the folder
    for folder in (tmp_path / "real", tmp_path / "folder"):
        assert inside(folder, name, "s3://b/d") == folder / name


def test_two_names_of_one_path_are_refused(memory, monkeypatch):
    """The second copy would replace the first, whose rows would be missing."""
    memory.pipe("/run/a.jsonl", LINE)
    names = ["/run/a.jsonl", "/run/./a.jsonl"]
    monkeypatch.setattr(type(memory), "glob", lambda *_: names)
    monkeypatch.setattr(type(memory), "isfile", lambda *_: True)
    with pytest.raises(RcdiagError, match="FileExistsError"):
        find_files("memory://run/*.jsonl", "json-lines")

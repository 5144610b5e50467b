"""The Python that an engine runs in: rcdiag's own, or by `python=PATH` that of another environment.

Another environment gets to see the package `rcdiag` alone, never the packages beside it: it has its
own numpy, torch and vLLM, and a mixture of two environments is neither.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rcdiag.engines.backend import Backend
from rcdiag.engines.spec import PolicySpec
from rcdiag.errors import RcdiagError

PACKAGE = Path(__file__).resolve().parents[1]
LEAST_PYTHON, LEAST_NUMPY = "3.10", "1.26"
# vLLM asks for plugins in processes that it starts itself, and finds them by a package's metadata.
METADATA = {
    "METADATA": "Metadata-Version: 2.1\nName: rcdiag\nVersion: 0\n",
    "entry_points.txt": "[vllm.general_plugins]\nrcdiag = rcdiag.engines.vllm.plugin:register\n",
}
# Writes as JSON the versions of Python and of the packages named in the arguments.
ASK = """
import json, sys
found = {"python": "%d.%d.%d" % sys.version_info[:3]}
if sys.version_info >= (3, 10):
    from importlib.metadata import PackageNotFoundError, packages_distributions, version
    distributions = packages_distributions()
    for name in sys.argv[1:]:
        try:
            found[name] = version(distributions.get(name, [name])[0])
        except PackageNotFoundError:
            pass
sys.stdout.write(json.dumps(found))
"""
ANSWER_S = 300  # so long an interpreter may take to answer that, from a slow network drive


class OwnPython:
    """The Python that runs rcdiag."""

    path = sys.executable
    folder = None  # processes run in the current directory, which relative paths count from

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables of a process, which imports nothing from the current directory.

        `python -m` would look for modules there first: a file `torch.py` beside a downloaded
        checkpoint would run. What the process starts itself inherits this. An empty or relative
        entry of PYTHONPATH means the current directory, too. Where rcdiag is not installed, its own
        folder is added.
        """
        own = str(PACKAGE.parent)
        entries = [
            entry
            for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep)
            if os.path.isabs(entry)
        ]
        if own not in (*entries, sysconfig.get_path("purelib")):
            entries.append(own)
        return {**os.environ, "PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join(entries)}

    def close(self) -> None:
        """Do nothing: no folder was made."""


class OtherPython:
    """The Python of another environment, and a folder for its path in which rcdiag lies alone.

    Processes run in that folder, because Python 3.10, which does not know PYTHONSAFEPATH, imports
    from the current directory. The folder goes with this object.
    """

    def __init__(self, python: str) -> None:
        # The link itself: what it leads to is a Python without the packages of its environment.
        self.path = os.path.abspath(os.path.expanduser(python))
        self._temporary = TemporaryDirectory(prefix="rcdiag-")
        self.folder = Path(self._temporary.name)
        (self.folder / "rcdiag").symlink_to(PACKAGE)
        about = self.folder / "rcdiag-0.dist-info"
        about.mkdir()
        for name, text in METADATA.items():
            (about / name).write_text(text)

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables of a process: those of this one, with a path of its own."""
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONHOME"}
        return {**kept, "PYTHONSAFEPATH": "1", "PYTHONPATH": str(self.folder)}

    def close(self) -> None:
        """Remove the folder."""
        self._temporary.cleanup()


def from_anywhere(spec: PolicySpec) -> dict[str, Any]:
    """Return a policy whose checkpoint and adapter are found from any directory, as a dict."""

    def absolute(path: str) -> str:
        return os.path.abspath(path) if os.path.isdir(path) else path  # else it is a hub's id

    options = dict(spec.options)
    if "adapter" in options:
        options["adapter"] = absolute(options["adapter"])
    return {**spec.to_dict(), "model": absolute(spec.model), "options": options}


def check_python(spec: PolicySpec, backend: Backend) -> None:
    """Refuse `python=PATH` of a policy where the engine could not run there."""
    python = spec.options.get("python")
    if python is None:
        return
    policy = f"policy `{spec.name}`: python={python}"
    wanted = {"numpy": LEAST_NUMPY, **backend.packages}
    try:
        found = versions_in(python, tuple(wanted))
    except ValueError as error:
        inside = Path(python, "bin", "python")
        example = inside if inside.expanduser().exists() else "/venv/bin/python"
        raise RcdiagError(
            f"{policy}: does not run as a Python ({error})",
            hint=f"give the interpreter of the environment: python={example}",
        ) from error
    if _older(found["python"], LEAST_PYTHON):
        raise RcdiagError(
            f"{policy}: that environment has Python {found['python']}, which is too old",
            hint=f"give one with Python {LEAST_PYTHON} or later",
        )
    lacking = {name: least for name, least in wanted.items() if _older(found.get(name, ""), least)}
    if lacking:
        there = ", ".join(
            f"{name} {found[name]}" if name in found else f"no {name}" for name in lacking
        )
        needs = " ".join(f"'{name}>={least}'" for name, least in lacking.items())
        raise RcdiagError(
            f"{policy}: {there} in that environment, where {spec.backend} needs {needs}",
            hint=f"{python} -m pip install {needs}",
        )


@cache
def versions_in(python: str, packages: tuple[str, ...]) -> Mapping[str, str]:
    """Ask another Python for its version and those of packages; what it lacks is left out.

    Raises:
        ValueError: it is no Python, and why.
    """
    if os.path.isdir(os.path.expanduser(python)):
        raise ValueError("a folder")
    other = OtherPython(python)
    try:
        ran = subprocess.run(
            [other.path, "-c", ASK, *packages],
            cwd=other.folder,
            env=other.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=ANSWER_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ValueError(getattr(error, "strerror", f"no answer in {ANSWER_S} s")) from error
    finally:
        other.close()
    answer = ran.stdout.strip().rpartition("\n")[2]
    if ran.returncode or not answer.startswith('{"python": '):
        said = ran.stderr.strip().splitlines()
        raise ValueError(said[-1] if said else f"no answer, exit code {ran.returncode}")
    versions: Mapping[str, str] = json.loads(answer)
    return versions


def _older(version: str, least: str) -> bool:
    """Tell whether a version is older than another; no version at all is."""
    numbers = [int(number) for number in re.findall(r"\d+", version.partition("+")[0])]
    return numbers < [int(number) for number in least.split(".")]

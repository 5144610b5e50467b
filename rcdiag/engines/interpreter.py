"""The Python that an engine runs in: rcdiag's own, or another environment's by `python=PATH`.

In another environment only the package `rcdiag` is made importable, not the packages installed
beside it: mixing two environments' numpy, torch and vLLM would fail.
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
# vLLM finds plugins by package metadata, also in worker processes that it starts itself.
METADATA = {
    "METADATA": "Metadata-Version: 2.1\nName: rcdiag\nVersion: 0\n",
    "entry_points.txt": "[vllm.general_plugins]\nrcdiag = rcdiag.engines.vllm.plugin:register\n",
}
# A script that prints, as JSON, the versions of Python and of the packages in its arguments.
VERSIONS_SCRIPT = """
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
VERSIONS_TIMEOUT_S = 300  # for `VERSIONS_SCRIPT`; a slow network drive needs minutes


class OwnPython:
    """The Python interpreter that runs rcdiag."""

    path = sys.executable
    folder = None  # processes run in the current directory, so relative paths stay valid

    @property
    def environment(self) -> dict[str, str]:
        """Return a process's environment variables, without imports from the current directory.

        `python -m` would look for modules there first: a file `torch.py` beside a downloaded
        checkpoint would run. Processes that the engine starts inherit the variables. Empty and
        relative entries of PYTHONPATH mean the current directory, so they are removed. If rcdiag is
        not installed, its own folder is added.
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
    """The Python of another environment, with a temporary folder that makes only rcdiag importable.

    Processes run in that folder, because Python 3.10 does not know PYTHONSAFEPATH and imports from
    the current directory. `close` removes the folder.
    """

    def __init__(self, python: str) -> None:
        # Do not resolve the link: its target is a Python without the environment's packages.
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
        """Return this process's environment variables with PYTHONPATH set to the folder."""
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONHOME"}
        return {**kept, "PYTHONSAFEPATH": "1", "PYTHONPATH": str(self.folder)}

    def close(self) -> None:
        """Remove the folder."""
        self._temporary.cleanup()


def from_anywhere(spec: PolicySpec) -> dict[str, Any]:
    """Return a policy as a dict, with absolute paths of its checkpoint and adapter."""

    def absolute(path: str) -> str:
        return os.path.abspath(path) if os.path.isdir(path) else path  # otherwise a hub id

    options = dict(spec.options)
    if "adapter" in options:
        options["adapter"] = absolute(options["adapter"])
    return {**spec.to_dict(), "model": absolute(spec.model), "options": options}


def check_python(spec: PolicySpec, backend: Backend) -> None:
    """Refuse `python=PATH` if the policy's engine could not run in that environment."""
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
    """Ask another Python for its version and its packages' versions; missing ones are left out.

    Raises:
        ValueError: the path is not a working Python; the message says why.
    """
    if os.path.isdir(os.path.expanduser(python)):
        raise ValueError("a folder")
    other = OtherPython(python)
    try:
        ran = subprocess.run(
            [other.path, "-c", VERSIONS_SCRIPT, *packages],
            cwd=other.folder,
            env=other.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=VERSIONS_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ValueError(
            getattr(error, "strerror", f"no answer in {VERSIONS_TIMEOUT_S} s")
        ) from error
    finally:
        other.close()
    answer = ran.stdout.strip().rpartition("\n")[2]
    if ran.returncode or not answer.startswith('{"python": '):
        said = ran.stderr.strip().splitlines()
        raise ValueError(said[-1] if said else f"no answer, exit code {ran.returncode}")
    versions: Mapping[str, str] = json.loads(answer)
    return versions


def _older(version: str, least: str) -> bool:
    """Tell whether a version is older than `least`; "" counts as older."""
    numbers = [int(number) for number in re.findall(r"\d+", version.partition("+")[0])]
    return numbers < [int(number) for number in least.split(".")]

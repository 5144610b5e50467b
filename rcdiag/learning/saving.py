"""Write a trained policy as a folder that appears whole or not at all."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from rcdiag.engines.checkpoint import weight_files
from rcdiag.errors import RcdiagError
from rcdiag.files import not_writable
from rcdiag.learning.load import Policy
from rcdiag.learning.lora import save_adapter


def save_policy(policy: Policy, folder: Path) -> None:
    """The adapter, where one was trained; else the whole model with its tokenizer."""
    check_free(folder)
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    try:
        temporary.mkdir(parents=True)
        if any("lora_" in name for name in policy.parameters):
            save_adapter(policy.model, temporary)
        else:
            policy.model.save_pretrained(temporary)
            _copy_the_rest(policy.folder, temporary)
        os.replace(temporary, folder)
    except OSError as error:
        raise not_writable(folder, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def check_free(folder: Path) -> None:
    """Nothing is ever overwritten, so the given checkpoint is not either."""
    if folder.exists():
        raise RcdiagError(f"{folder}: already there", hint="give a folder that is not")


def _copy_the_rest(source: Path, target: Path) -> None:
    """Tokenizer, templates and code: all files but weights, where the model wrote none."""
    left_out = {path.name for path in weight_files(source)}
    for path in source.iterdir():
        weights = path.name in left_out or path.name.endswith(".index.json")
        if path.is_file() and not weights and not (target / path.name).exists():
            shutil.copyfile(path, target / path.name)

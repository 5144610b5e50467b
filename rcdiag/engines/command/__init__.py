"""Any program as an engine: it reads a parquet file of tokens and writes one with log-probs.

The two files are described in docs/scorers.md.
"""

from __future__ import annotations

import os
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rcdiag.engines.backend import Backend, Option, Say
from rcdiag.engines.spec import PolicySpec
from rcdiag.errors import RcdiagError

if TYPE_CHECKING:
    from rcdiag.engines.checkpoint import ModelFacts
    from rcdiag.engines.command.engine import CommandEngine

MODEL = "{model}"  # in `run=`: the policy's model
# Options of other engines that rcdiag cannot pass to a program.
OF_THE_PROGRAM = ("adapter", "top_k", "lm_head", "matmul")
UNSTATED = "unstated"  # the dtype of a program if the user states none


def words_of(spec: PolicySpec) -> list[str]:
    """Return program and arguments: `run=` split as in a shell, `{model}` replaced by the model."""
    words = shlex.split(str(spec.options["run"]))
    return [word.replace(MODEL, spec.model) for word in words]


def is_given_the_model(spec: PolicySpec) -> bool:
    """Tell whether `run=` contains `{model}`; if not, it is unknown which model was scored."""
    return MODEL in str(spec.options["run"])


def is_given_a_checkpoint(spec: PolicySpec) -> bool:
    """Tell whether the model that replaces `{model}` is a checkpoint on this machine."""
    return is_given_the_model(spec) and (Path(spec.model) / "config.json").is_file()


def _load(spec: PolicySpec, max_length: int, log: Path) -> CommandEngine:
    from rcdiag.engines.command.engine import CommandEngine

    return CommandEngine(spec, words_of(spec), log)


def _check(spec: PolicySpec) -> None:
    """Refuse a policy whose program does not exist or lacks what its command asks for."""
    policy, run = f"policy `{spec.name}`", spec.options.get("run")
    if not run:
        raise RcdiagError(
            f"{policy}: command needs the program that scores",
            hint=f"""--policy '{spec.name}=command,run="python score.py"'""",
        )
    if is_given_the_model(spec) and not spec.model:
        raise RcdiagError(
            f"{policy}: run= contains {MODEL}, but no model is given",
            hint="add model=PATH to the policy, or write the path into run=",
        )
    try:
        words = words_of(spec)
    except ValueError as error:
        raise RcdiagError(
            f"{policy}: run={run}: a quotation mark is not closed",
            hint="run= is split as in a shell, where quotation marks come in pairs",
        ) from error
    if not words or shutil.which(words[0]) is None:
        raise RcdiagError(
            f"{policy}: run={run}: `{words[0] if words else ''}` is not a program here",
            hint="it must be on PATH, or be the path of a file with execute permission; write the "
            "interpreter before a script (python score.py), and bash -c '...' for a line of shell",
        )


def _facts(spec: PolicySpec, say: Say) -> ModelFacts:
    """Return the limits of a checkpoint on this machine; of other models nothing is known."""
    from rcdiag.engines.checkpoint import ModelFacts, checkpoint_facts
    from rcdiag.table.trajectories import ModelLimits

    if is_given_a_checkpoint(spec):
        facts = checkpoint_facts(spec)
    else:
        model = spec.model if is_given_the_model(spec) else "the program"
        facts = ModelFacts(ModelLimits(model, None, None), "unknown")
    # Size and time of the files that the command names, so that edits are noticed.
    files = {word: os.stat(word) for word in words_of(spec) if os.path.isfile(word)}
    state = [f"{name} {one.st_size} {one.st_mtime_ns}" for name, one in files.items()]
    return replace(facts, program=" ".join(state))


def about_model(spec: PolicySpec) -> dict[str, Any]:
    """Return the model and precision of a policy as the table's metadata record them.

    None if unknown: a command without `{model}` may score any model.
    """
    return {
        "model": spec.model if is_given_the_model(spec) else None,
        "dtype": None if spec.dtype == UNSTATED else spec.dtype,
    }


COMMAND = Backend(
    name="command",
    says="Any program: it reads a parquet file of tokens and writes one with their log-probs "
    "(docs/scorers.md). The dtype is the one that you state.",
    role="trainer",
    dtypes=(UNSTATED, "float32", "bfloat16", "float16"),
    default_dtype=UNSTATED,
    example="""'old=command,run="torchrun --nproc-per-node 8 score.py"'""",
    refuses=dict.fromkeys(OF_THE_PROGRAM, "give the program's own option for it in run="),
    load=_load,
    options={
        "run": Option(
            says="the program and its arguments, split as in a shell but run without one; the "
            "paths of input and output are appended, and {model} is replaced by the policy's model",
            shown="{}",
            runs_code=True,
        ),
        "stays": Option(
            says="the program keeps running for further parts, its model loaded",
            shown="",
            takes=bool,
        ),
    },
    check=_check,
    needs_model=False,
    facts=_facts,
    runs_outside=True,
    # A program that ends after each part loads its model for every part, so parts are large.
    rows_per_part=lambda options: 1 << 20,
)

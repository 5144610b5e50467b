"""What a parameter has on the command line only: flags, place in the help, how its text is read.

Name, type, default and meaning come from the API (`parameters`). `OPTIONS` has the rest, by the
parameter's name. `OF_THE_COMMAND_LINE` are parameters that no function of the API has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from cli.parameters import Parameter, function_of
from rcdiag.errors import RcdiagError

CORRECTION, UPDATE, WITH_MODEL, OUTPUT = "Correction", "Update", "With a model", "Output"
LEVELS = ("never", "warning", "error")  # of --fail-on


class CommandOption(Struct, frozen=True):
    """A parameter as an option; without `flags` its flag is the parameter's name."""

    flags: tuple[str, ...] = ()
    metavar: str | None = None
    panel: str | None = None  # heading in the help
    common: bool = False  # shown by `--help`; the others only by `--help-all`
    repeats: bool = False  # may be given several times, once for each value
    argument: bool = False  # positional
    example: str = ""
    names: str = ""  # names that the help lists: a key of `cli.names.PLACES`
    # Parses the text of a value; for an option that repeats, all texts.
    read: Callable[[Any], Any] | None = None
    complete: Callable[[Any], Sequence[str]] | None = None  # context -> words for completion

    def flag(self, name: str) -> str:
        """Return the flag of a parameter of this name."""
        return self.flags[-1] if self.flags else f"--{name.replace('_', '-')}"


def pairs(texts: Sequence[str], option: str, form: str, example: str) -> list[tuple[str, str]]:
    """Split texts NAME=VALUE at the first `=`; refuse an empty NAME."""
    split = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise RcdiagError(f"{option} {text}: wanted {form}", hint=f"for example {example}")
        split.append((name, value))
    return split


def read_columns(texts: Sequence[str]) -> dict[str, str]:
    """Parse `--column CANONICAL=NAME` into a mapping; NAME may be empty."""
    example = "--column rollout_log_probs=inference_logprobs"
    return dict(pairs(texts, "--column", "CANONICAL=NAME", example))


def read_keys(texts: Sequence[str]) -> dict[str, str]:
    """Parse `--key QUANTITY=KEY` of a training log into a mapping."""
    return dict(pairs(texts, "--key", "QUANTITY=KEY", "--key k3=my/kl"))


def read_given(texts: Sequence[str]) -> dict[str, str]:
    """Parse `--given NAME=VALUE` into a mapping; refuse two values for one name."""
    values: dict[str, str] = {}
    for name, value in pairs(texts, "--given", "NAME=VALUE", "--given temperature=0.7"):
        if not value:
            raise RcdiagError(
                f"--given {name}=: wanted NAME=VALUE", hint="for example --given temperature=0.7"
            )
        if values.setdefault(name, value) != value:
            raise RcdiagError(
                f"--given {name}={value}: --given {name}={values[name]} is given as well",
                hint="one value holds for all rows",
            )
    return values


def read_settings(texts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Parse `--set PRESET.SETTING=VALUE` into preset -> setting -> value; values are YAML."""
    settings: dict[str, dict[str, Any]] = {}
    if not texts:
        return settings
    from rcdiag.trainers.config_text import read_yaml

    for text in texts:
        place, equals, value = text.partition("=")
        preset, dot, setting = place.partition(".")
        if not (equals and dot and preset and setting and value):
            raise RcdiagError(
                f"--set {text}: wanted PRESET.SETTING=VALUE",
                hint="for example --set decoupled_token_is.rollout_is_threshold=3",
            )
        # YAML reads 0.5_5 as 0.55; here it is a pair of bounds, so it stays text.
        try:
            settings.setdefault(preset, {})[setting] = value if "_" in value else read_yaml(value)
        except ValueError as error:
            raise RcdiagError(
                f"--set {text}: the value cannot be read ({error})",
                hint="a number, a word, true, false, null or a list: [0.5, 2]",
            ) from error
    return settings


def all_trainers(context: Any) -> list[str]:
    """Return the names of trainers for shell completion."""
    from rcdiag.trainers import trainer_names

    return [*trainer_names(), "all"]


def presets_of_trainer(context: Any) -> list[str]:
    """Return the presets of the given trainer, or of the default one, for shell completion."""
    from rcdiag.trainers import DEFAULT, find_trainer

    return [*find_trainer(context.params.get("trainer") or DEFAULT).presets]


PLAIN = CommandOption()
DUMP = CommandOption(argument=True, repeats=True, metavar="DUMP...")
NAME = CommandOption(metavar="NAME", common=True)
OF_UPDATE = CommandOption(panel=UPDATE)
OF_MODEL = CommandOption(panel=WITH_MODEL)

OPTIONS: dict[str, CommandOption] = {
    # Input
    "source": DUMP,
    "sources": DUMP,
    "format": CommandOption(("--from",), metavar="FORMAT", common=True, names="formats"),
    "given": CommandOption(
        metavar="NAME=VALUE",
        common=True,
        repeats=True,
        read=read_given,
        example="temperature=0.7",
    ),
    "columns": CommandOption(
        ("--column",),
        metavar="CANONICAL=NAME",
        repeats=True,
        read=read_columns,
        example="old_log_probs=logprobs",
    ),
    "keys": CommandOption(
        ("--key",),
        metavar="QUANTITY=KEY",
        repeats=True,
        read=read_keys,
        example="k3=my/kl",
    ),
    "tokenizer": CommandOption(metavar="PATH", common=True),
    "rows": CommandOption(metavar="N", common=True),
    # Policies, and how they are scored
    "behavior": NAME,
    "target": NAME,
    "rollout": CommandOption(metavar="NAME"),
    "old": CommandOption(metavar="NAME"),
    "current": CommandOption(metavar="NAME"),
    "model": CommandOption(metavar="PATH", common=True),
    "policies": CommandOption(
        ("--policy",),
        metavar="NAME=ENGINE",
        common=True,
        repeats=True,
        names="engines",
        example="old=hf:float32",
    ),
    "ladder": CommandOption(repeats=True),
    "on": CommandOption(metavar="WHERE"),
    "devices": CommandOption(metavar="N|LIST"),
    "workers": CommandOption(metavar="N"),
    "rate": CommandOption(metavar="TOKENS"),
    "checkpoints": CommandOption(("--checkpoint",), metavar="PATH", common=True, repeats=True),
    "budget": CommandOption(metavar="SECONDS", common=True),
    # A trainer and its corrections
    "trainer": CommandOption(
        metavar="NAME",
        panel=CORRECTION,
        common=True,
        names="trainers",
        complete=all_trainers,
    ),
    "presets": CommandOption(
        ("--preset",),
        metavar="NAME",
        panel=CORRECTION,
        common=True,
        repeats=True,
        complete=presets_of_trainer,
    ),
    "settings": CommandOption(
        ("--set",),
        metavar="PRESET.SETTING=VALUE",
        panel=CORRECTION,
        repeats=True,
        read=read_settings,
        example="disabled.rollout_is=token",
    ),
    "trainer_config": CommandOption(metavar="FILE", panel=CORRECTION, common=True),
    "arithmetic": CommandOption(panel=CORRECTION),
    "carry": CommandOption(metavar="TRAINER:PRESET", panel=CORRECTION, example="trl:sequence_mask"),
    "logged": CommandOption(metavar="FILE", panel=CORRECTION, common=True),
    # A sweep
    "thresholds": CommandOption(metavar="N", common=True),
    "emit": CommandOption(metavar="TRAINER", panel=OUTPUT, common=True, names="trainers"),
    "candidate": CommandOption(metavar="NAME", example="seq_tis_3"),
    # An update, and the model that is updated
    "step": CommandOption(metavar="N", panel=UPDATE, common=True),
    "loss": CommandOption(metavar="NAME", panel=UPDATE, common=True, names="losses"),
    "loss_settings": CommandOption(
        ("--loss-setting",), metavar="NAME=VALUE", panel=UPDATE, repeats=True, example="tau_pos=2"
    ),
    "aggregation": CommandOption(metavar="NAME", panel=UPDATE),
    "denominator": CommandOption(panel=UPDATE),
    "constant": CommandOption(metavar="N", panel=UPDATE),
    "loss_scale_factor": CommandOption(metavar="N", panel=UPDATE),
    "advantage": CommandOption(metavar="NAME", panel=UPDATE, common=True),
    **dict.fromkeys(("rebaseline", "clip_low", "clip_high", "clip_c", "dro_beta"), OF_UPDATE),
    "precision": CommandOption(metavar="DTYPE[,autocast=bfloat16][,...]", panel=WITH_MODEL),
    "reference": CommandOption(panel=WITH_MODEL),
    "optimizer": CommandOption(panel=WITH_MODEL),
    "lr": CommandOption(metavar="RATE", panel=WITH_MODEL),
    **dict.fromkeys(("weight_decay", "momentum", "max_grad_norm", "epochs"), OF_MODEL),
    **dict.fromkeys(("minibatches", "steps", "split", "lora", "checkpointing"), OF_MODEL),
    **dict.fromkeys(("batch_tokens", "evaluate"), OF_MODEL),
    "reward": CommandOption(metavar="FILE.py:FUNCTION", panel=WITH_MODEL),
    "save": CommandOption(metavar="DIR", panel=WITH_MODEL),
    # Outputs
    "output": CommandOption(("-o", "--output"), metavar="FILE", panel=OUTPUT, common=True),
    "result": CommandOption(("-o", "--result"), metavar="FILE", panel=OUTPUT, common=True),
    "csv": CommandOption(metavar="FILE", panel=OUTPUT),
    "html": CommandOption(metavar="FILE", panel=OUTPUT, common=True),
    "plots": CommandOption(metavar="DIR", panel=OUTPUT, common=True),
    "figures": CommandOption(("--figure",), metavar="NAME", panel=OUTPUT, repeats=True),
    "width": CommandOption(panel=OUTPUT),
    "notebook": CommandOption(metavar="FILE.ipynb", panel=OUTPUT, common=True),
    "host": CommandOption(("--host/--no-host",), panel=OUTPUT),
    "include_text": CommandOption(("--include-text/--no-text",), panel=OUTPUT),
    "sequences": CommandOption(("--sequence",), metavar="ROW", panel=OUTPUT, repeats=True),
    "json": CommandOption(panel=OUTPUT, common=True),
    "fail_on": CommandOption(common=True),
    "force": CommandOption(common=True),
    "dry_run": CommandOption(common=True),
    "quiet": CommandOption(("-q", "--quiet"), common=True),
    "verbose": CommandOption(("-v", "--verbose"), common=True),
    # Options of `report` and `explain`
    "results": CommandOption(argument=True, repeats=True, metavar="RESULT.json..."),
    "against": CommandOption(metavar="RESULT.json", common=True, repeats=True),
    "name": CommandOption(argument=True, metavar="NAME"),
}
# Options that differ in one command.
OF_COMMAND: Mapping[str, Mapping[str, CommandOption]] = {
    "score": {"result": CommandOption(metavar="FILE", panel=OUTPUT, common=True)},
    "compare": {
        "policies": CommandOption(
            ("--policy",),
            metavar="NAME[=ENGINE]",
            common=True,
            repeats=True,
            names="engines",
        )
    },
}

# Parameters that no function of the API has.
OF_THE_COMMAND_LINE = {
    parameter.name: parameter
    for parameter in (
        Parameter("result", str, None, "result JSON to write."),
        Parameter("csv", str, None, "CSV to write: one row for each metric and step."),
        Parameter("json", bool, False, "print only the result document."),
        Parameter(
            "fail_on",
            str,
            "never",
            "exit 1 on findings of this level or above, or if nothing was compared.",
            LEVELS,
        ),
        Parameter("force", bool, False, "overwrite outputs."),
        Parameter("dry_run", bool, False, "check inputs and print what would run."),
        Parameter("quiet", bool, False, "print errors only."),
        Parameter("verbose", bool, False, "print all numbers, limits, sources and changes."),
    )
}
# Options of a command besides its function's parameters; figures come from `rcdiag.report`.
BESIDE = {
    "explain": ("json",),
    "report": ("json", "fail_on", "quiet", "verbose"),
    "convert": ("json", "dry_run", "quiet", "verbose"),
}
BESIDE_MEASURING = (
    *("result", "csv", "html", "plots", "figures", "width"),
    *("json", "fail_on", "force", "dry_run", "quiet", "verbose"),
)


def options_of(command: str) -> dict[str, tuple[Parameter, CommandOption]]:
    """Return the parameters of a command by name with their options, those of the API first."""
    own = function_of(command).parameters
    beside = {**function_of("report").parameters, **OF_THE_COMMAND_LINE}
    names = [*own, *(name for name in BESIDE.get(command, BESIDE_MEASURING) if name not in own)]
    changed = OF_COMMAND.get(command, {})
    return {
        name: (own.get(name) or beside[name], changed.get(name) or OPTIONS.get(name, PLAIN))
        for name in names
        if name != "progress"
    }

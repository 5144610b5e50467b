"""`rcdiag`: its commands, and the options before a command."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from cli import commands
from cli.command import Command
from cli.config import CONFIG_HELP, read_defaults, spellings_of
from rcdiag.url_secrets import without_secrets

# Torch's threads spin while they wait. By default, one busy neighbour on two cores made scoring 20
# times slower; with this value 3 to 5 times, at a cost of 5% on an idle machine (measured). Engines
# inherit the setting.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")

# Command -> the function that runs it, and the end of its help.
COMMANDS: dict[str, tuple[Callable[[str, commands.Values], None], str]] = {
    "score": (
        commands.measure,
        """Examples

`rcdiag score sample_data/rollouts.parquet`

`rcdiag score sample_data/rollouts.parquet --model sample_data/policy/step_8
--policy vllm_bf16=vllm:bfloat16 --policy hf_fp32=hf:float32
--behavior vllm_bf16 --target hf_fp32 -o scored.parquet --html scored.html`

`rcdiag score rollouts.parquet --trainer-config config.yaml --logged metrics.jsonl`""",
    ),
    "compare": (
        commands.measure,
        """Examples

`rcdiag score sample_data/rollouts.parquet --model sample_data/policy/step_8 --ladder engine
--noise-floor -o scored.parquet`, then `rcdiag compare scored.parquet --html compare.html`

`rcdiag compare run_a.parquet run_b.parquet --policy rollout --policy old --policy old_run_b`""",
    ),
    "diagnose": (
        commands.measure,
        """Examples

`rcdiag diagnose sample_data/stale.parquet --model sample_data/policy/step_8 --html cause.html`

`rcdiag diagnose sample_data/rollouts.parquet --model 'sample_data/policy/step_{step}'
--checkpoint sample_data/policy --budget 60`""",
    ),
    "sweep": (
        commands.measure,
        """Examples

`rcdiag sweep sample_data/stale.parquet --html sweep.html`

`rcdiag sweep sample_data/stale.parquet --emit verl > correction.yaml`, then
`rcdiag score sample_data/stale.parquet --trainer-config correction.yaml`""",
    ),
    "replay": (
        commands.measure,
        """Examples

`rcdiag replay sample_data/stale.parquet --preset decoupled_token_is --preset bypass_ppo_clip`

`rcdiag replay sample_data/stale.parquet --set decoupled_token_is.rollout_is_threshold=3`

`rcdiag replay sample_data/stale.parquet --model sample_data/policy/step_8 --html replay.html`""",
    ),
    "convert": (
        commands.convert,
        """Examples

`rcdiag convert run/dump/ -o dump.parquet --given temperature=0.7`

`rcdiag convert sampler/ trainer/ -o dump.parquet`: two dumps of one run are joined

Formats (`rcdiag explain NAME`): {formats}""",
    ),
    "explain": (commands.explain, "Example: `rcdiag explain rollout_is_eff_sample_size`"),
    "report": (
        commands.report,
        """Examples: `rcdiag report score.json sweep.json --html page.html` makes one page of
several results for a dump; `rcdiag report before.json --against after.json --html page.html` shows
what changed.""",
    ),
}


# What Typer raises for words that it cannot read as a command and its options.
UsageError: type[Any] = typer.BadParameter.__bases__[0]


@contextmanager
def _without_secrets_of_words() -> Iterator[None]:
    """Remove secrets from an error of Typer, which quotes words and prints itself."""
    try:
        yield
    except UsageError as error:
        error.message = without_secrets(error.message)
        raise


class Root(TyperGroup):
    """`rcdiag` itself, which creates a command only when it is needed."""

    def make_context(self, *args: Any, **extra: Any) -> Any:
        """Read the options before the command."""
        with _without_secrets_of_words():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: Any) -> Any:
        """Read the command with its options, and run it."""
        with _without_secrets_of_words():
            return super().invoke(ctx)

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands in the order of the help."""
        return [*COMMANDS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; None if there is none of that name."""
        if cmd_name in COMMANDS and cmd_name not in self.commands:
            run, examples = COMMANDS[cmd_name]
            self.commands[cmd_name] = Command(cmd_name, partial(run, cmd_name), examples)
        return super().get_command(ctx, cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the requested command.

        For an unknown name all commands are created: the error suggests those with similar names.
        """
        if args and args[0] not in COMMANDS:
            self.all_commands(ctx)
        return super().resolve_command(ctx, args)

    def all_commands(self, ctx: Any) -> dict[str, Any]:
        """Return all commands by name."""
        return {name: self.get_command(ctx, name) for name in COMMANDS}


app = typer.Typer(
    name="rcdiag",
    cls=Root,
    help="Shows why and how far the policy that sampled and the policy that trains disagree.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_show_locals=False,
    epilog="Example: `rcdiag score sample_data/rollouts.parquet --html mismatch.html`",
)


def _version(requested: bool) -> None:
    if requested:
        import importlib.metadata

        typer.echo(f"rcdiag {importlib.metadata.version('rcdiag')}")
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    config: Annotated[
        Path | None,
        typer.Option(envvar="RCDIAG_CONFIG", help=CONFIG_HELP),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version")
    ] = False,
) -> None:
    """Options before the command."""
    if config is not None:
        assert isinstance(context.command, Root)
        options = spellings_of(context.command.all_commands(context))
        context.default_map = read_defaults(config, options)

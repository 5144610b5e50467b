"""The tables at `<!-- table: NAME -->` in pages, made from definitions and benchmark results."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from typer.core import TyperOption

from cli.app import COMMANDS
from cli.command import Command
from rcdiag.diagnosis.rules import rules_of
from rcdiag.engines import BACKENDS
from rcdiag.engines.ladders import LADDERS
from rcdiag.glossary import explain
from rcdiag.results.frames import FRAMES
from rcdiag.results.guide import Guide
from rcdiag.statistics.metrics import FAMILIES, METRICS
from rcdiag.table.column_names import KnownName, known_names
from rcdiag.trainers import TRAINERS
from tools.docs.causes import index_of_causes
from tools.docs.links import linked
from tools.docs.trainers import all_trainers

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return an HTML table; the cells are HTML."""
    titles = "".join(f"<th>{each}</th>" for each in head)
    body = "".join("<tr>" + "".join(f"<td>{c}</td>" for c in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table>"


def _code(text: str) -> str:
    return f"<code>{html.escape(text)}</code>"


def _name(name: str) -> str:
    """Return a metric's name as a link to its definition."""
    return f'<a href="reference/metrics.html#{name}">{_code(name)}</a>'


def _bound(guide: Guide, value: float) -> str:
    if math.isinf(value):
        return "-"
    if guide.around is not None:
        return f"{value:g} from {guide.around:g}" if value > 1e-300 else "any distance from 0"
    return f"{value:g} {'or more' if guide.error >= guide.warning else 'or less'}"


def _guide_cells(guide: Guide) -> list[str]:
    """Return the cells of warning, error and source."""
    error = guide.error
    # Rules that only warn have an error limit that cannot be reached.
    unreachable = math.isinf(error) or (guide.error < guide.warning and error == 0.0)
    return [
        _bound(guide, guide.warning),
        "-" if unreachable else _bound(guide, error),
        linked(guide.source),
    ]


def formulas(family: str) -> str:
    """Return the metrics of a family with formula and source."""
    chosen = [metric for metric in METRICS.values() if metric.family.name == family]
    return _table(
        ("metric", "formula", "source of the definition"),
        ([_name(m.name), _code(m.formula), linked(m.source or "-")] for m in chosen),
    )


def guides() -> str:
    """Return the limits of metrics."""
    return _table(
        ("metric", "warning", "error", "source of the limits"),
        ([_name(m.name), *_guide_cells(m.guide)] for m in METRICS.values() if m.guide is not None),
    )


def rules(concern: str) -> str:
    """Return the limits of the rules of one concern."""
    return _table(
        ("rule", "says", "warning", "error", "source of the limits"),
        (
            [_code(r.own_name), linked(r.says), *_guide_cells(r.guide)]
            for r in rules_of(concern).values()
        ),
    )  # fmt: skip


def generations(family: str) -> str:
    """Return the generations of a trainer that rcdiag knows."""
    known = [trainer for trainer in TRAINERS.values() if trainer.family == family]
    return _table(
        ("<code>--trainer</code>", "released", "what differs", "read in"),
        (
            [_code(t.name), linked(t.words.released), linked(t.words.says), linked(t.words.source)]
            for t in known
        ),
    )


def presets(family: str) -> str:
    """Return the presets of the newest generation of a trainer."""
    newest = [trainer for trainer in TRAINERS.values() if trainer.family == family][-1]
    return _table(
        ("preset", "does"),
        ([_code(name), html.escape(_does(name, newest.name))] for name in newest.presets),
    )


def _does(preset: str, trainer: str) -> str:
    """Return what a preset does in a generation, from the entry whose last generation it is."""
    by_generation = explain(preset).generations
    words = next((text for names, text in by_generation.items() if names.endswith(trainer)), None)
    return (words or explain(preset).what).split("  (")[0]


def engine_options() -> str:
    """Return the options of `--policy` by engine."""
    return _table(
        ("engine", "option", "does"),
        (
            [_code(backend.name), _code(name), linked(option.says)]
            for backend in BACKENDS.values()
            for name, option in backend.known_options.items()
        ),
    )


def ladders() -> str:
    """Return the predefined sets of policies."""
    return _table(
        ("<code>--ladder</code>", "policies, from the sampler to the trainer"),
        ([_code(name), "<br>".join(map(_code, specs))] for name, specs in LADDERS.items()),
    )


def options(command: str) -> str:
    """Return every option of a command, as `--help-all` lists them."""
    run, examples = COMMANDS[command]
    made = Command(command, partial(run, command), examples)
    rows = []
    for option in made.params:
        if isinstance(option, TyperOption) and option.name in made.own:
            flags = ", ".join(map(_code, [*option.opts, *option.secondary_opts]))
            default = _code(str(option.default)) if option.show_default else ""
            rows.append((flags, linked(made.help_of(option.name)), default))
    return _table(("option", "means", "default"), rows)


def frames() -> str:
    """Return the frames of each kind of result; the first is the default."""
    return _table(
        ("result of", "<code>frame(name)</code>"),
        ([_code(kind), ", ".join(map(_code, names))] for kind, names in FRAMES.items()),
    )


def _measured(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return loaded


def machine() -> str:
    """Return one line about the machine of the benchmarks."""
    run = _measured("mismatch")
    about = run["machine"]
    cores = f"{about['cores']} cores of an {about['cpu']}, {about['gpu'] or 'no GPU'}"
    return f"{cores}, torch {about['torch']}; {run['date']}."


def scoring() -> str:
    """Return the speed of scoring, compared with plain code."""
    return _table(
        (
            "model",
            "engine",
            "plain, tokens/s",
            "rcdiag, tokens/s",
            "faster",
            "extra memory, plain / rcdiag, MB",
            "differs by, nats",
        ),
        (
            [
                each["model"],
                _code(each["engine"]),
                f"{each['plain_tokens_per_s']:,}",
                f"{each['rcdiag_tokens_per_s']:,}",
                f"{each['speed_up']:.1f} x",
                f"{each['plain_extra_mb']:,.0f} / {each['rcdiag_extra_mb']:,.0f}",
                f"{each['largest_difference']:.1g}",
            ]
            for each in _measured("scoring")["results"]
        ),
    )


def _by_size(name: str) -> str:
    return _table(
        ("tokens", "sequences", "time", "peak memory"),
        (
            [
                f"{each['tokens'] / 1e6:,.0f} M",
                f"{each['sequences']:,}",
                f"{each['seconds']:.0f} s",
                f"{each['peak_memory_mb']:,} MB",
            ]
            for each in _measured(name)["results"]
        ),
    )


PARTS = {
    "reading": "pyarrow reads both columns, nothing else",
    "plain numpy": "plain numpy: k1, k2, k3, effective sample size, a sum for each sequence",
    "suite": "all metrics with their intervals",
    "score": "<code>rcdiag score</code>: profiles, figures, diagnosis and all presets too",
    "page": "the same with the page",
}


def mismatch_parts() -> str:
    """Return the cost of a pass over the largest table, of reading it, and of plain numpy."""
    largest = _measured("mismatch")["results"][-1]
    return _table(
        (
            f"{largest['tokens'] / 1e6:,.0f} M tokens",
            "time",
            "CPU time",
            "CPU time of plain numpy = 1",
            "tokens a second",
            "peak memory",
        ),
        (
            [
                PARTS[name],
                f"{part['seconds']:.1f} s",
                f"{part['cpu_seconds']:.1f} s",
                f"{part['cpu_seconds_to_plain']:.2f}",
                f"{part['mtokens_per_s']:.1f} M",
                f"{part['peak_memory_mb']:,} MB",
            ]
            for name, part in largest["parts"].items()
        ),
    )


def workers() -> str:
    """Return the time of `score` on one core and on several, here and at an earlier commit."""
    run = _measured("workers")
    return _table(
        ("cores", "commit", "time", "of the earlier", "CPU time", "memory", "of a worker"),
        (
            [
                str(each["cores"]),
                "this one" if each["commit"] == "now" else f"<code>{run['before']}</code>",
                f"{each['seconds']:.1f} s",
                f"{each['of_before']:.2f}" if "of_before" in each else "",
                f"{each['cpu_s']:.1f} s",
                f"{each['peak_mb']:,} MB",
                f"{each['peak_worker_mb']} MB",
            ]
            for each in run["results"]
        ),
    )


def trainer_helper() -> str:
    """Return the speed of the trainer's own helper on the same rows."""
    helper = _measured("statistics")["trainer"]
    first = _measured("statistics")["results"][0]
    return (
        f"verl's own helper, called once for each preset on tensors of {helper['rows']} rows "
        f"padded to {helper['padded_to']:,} tokens, takes "
        f"{helper['seconds_scaled_to_all_rows']:,.0f} s when scaled to the {first['sequences']:,} "
        f"rows of the first line: {first['times_the_trainer']:.0f} times as long."
    )


def sweep() -> str:
    """Return the speed of a sweep, compared with a loop."""
    run, loop = _measured("sweep"), _measured("sweep")["loop"]
    one = run["sweep"]
    return (
        f"{one['settings']:,} settings of {one['families']} families on "
        f"{one['tokens'] / 1e6:.1f} M tokens take {one['seconds']:.0f} s in one pass with "
        f"{one['peak_memory_mb']:,} MB. The code for one setting in a loop would take "
        f"{loop['seconds_scaled_to_all_settings']:,.0f} s, scaled from "
        f"{loop['sampled_settings_per_family']} settings of each family: "
        f"{run['times_faster']:.0f} times as long."
    )


def replay() -> str:
    """Return the cost of real updates."""
    return _table(
        ("variant", "updates", "backward passes", "time", "memory beside the model"),
        (
            [
                html.escape(each["variant"]),
                str(each["updates"]),
                str(each["backwards"]),
                f"{each['seconds']:.0f} s",
                f"{each['extra_mb']:,.0f} MB",
            ]
            for each in _measured("replay")["results"]
        ),
    )


def parquet() -> str:
    """Return the size and speed of the table's encodings."""
    return _table(
        ("encoding", "bytes a token", "written in", "all columns", "log-probs alone"),
        (
            [
                html.escape(each["encoding"]),
                f"{each['bytes_per_token']:.1f}",
                f"{each['write_s']:.1f} s",
                f"{each['read_all_mtok_per_s']} M tokens/s",
                f"{each['read_log_probs_mtok_per_s']} M tokens/s",
            ]
            for each in _measured("parquet")["results"]
        ),
    )


def diagnosis() -> str:
    """Return how often the diagnosis names the fault of generated tables, and the targets."""
    measured = _measured("diagnosis")
    aims = measured["aims"]
    rows = (
        ("first cause right, one fault", "right", f"at least {aims['right']:.0%}"),
        (
            "must be mended, called fine or correct",
            "fix_called_fine_or_correct",
            f"at most {aims['fix_missed']:.0%}",
        ),
        ("healthy, called fix", "healthy_called_fix", f"at most {aims['false_alarms']:.0%}"),
        ("two faults, both named", "both_named", f"at least {aims['both_named']:.0%}"),
    )
    names = {"table_alone": "table alone", "with_model": "with the checkpoint"}
    runs = [(run, name) for run in measured["runs"] for name in names if name in run]
    return _table(
        (
            "share of tables",
            "aim",
            *(
                f"seed {run['seed']}, {run[name]['tables']} tables, {names[name]}"
                for run, name in runs
            ),
        ),
        ([label, aim, *(_share(run[name][key]) for run, name in runs)] for label, key, aim in rows),
    )


def _share(measured: dict[str, Any]) -> str:
    """Return a share with the number of tables that it is of."""
    share, tables = measured["share"], measured["tables"]
    return "-" if share is None else f"{share:.1%} of {tables}"


def convert() -> str:
    """Return the speed and memory of converting two kinds of dump."""
    measured = _measured("convert")
    return _table(
        ("dump", "response tokens", "size", "time", "tokens a second", "peak memory"),
        (
            [
                html.escape(each["format"]),
                f"{each['tokens'] / 1e6:.0f} M",
                f"{each['dump_mb']} MB",
                f"{each['seconds']:.1f} s",
                f"{each['mtok_per_s']:.1f} M",
                f"{each['peak_mb']} MB",
            ]
            for each in measured["results"]
        ),
    )


def recorder() -> str:
    """Return how long a training loop waits until a batch is on disk."""
    measured = _measured("recorder")
    size = f"{measured['responses']} responses of {measured['tokens_per_response']:,} tokens, as"
    return _table(
        (size, "on disk after", "CPU time", "bytes a token"),
        (
            [
                html.escape(each["form"]),
                f"{each['wall_s']:.2f} s",
                f"{each['cpu_s']:.2f} s",
                f"{each['bytes_per_token']:.1f}",
            ]
            for each in measured["results"]
        ),
    )


# Metrics whose coverage is shown; the results file has all.
COVERED = ("k1_kl", "k2_kl", "k3_kl", "prob_diff_mean", "ess_token", "chi2_token", "ess_seq")


def coverage() -> str:
    """Return how often intervals contain the truth: least and most over the numbers of groups."""
    measured = _measured("coverage")
    now = _least_and_most(measured["results"])
    return _table(
        ("law of the table", *map(_name, COVERED)),
        (
            [html.escape(law), *(cells[name] for name in COVERED)]
            for law, cells in now.items()
            if "far apart" not in law
        ),
    )


def _least_and_most(results: list[dict[str, Any]]) -> dict[str, dict[str, str]]:
    """Return the least and the most coverage, in per cent, by law and metric."""
    shares: dict[str, dict[str, list[float]]] = {}
    for result in results:
        for name, share in result["metrics"].items():
            of_law = shares.setdefault(result["law"], {}).setdefault(name, [])
            of_law += [share["holds"]] * (share["given"] > 0.0)
    return {
        law: {
            name: f"{100 * min(each):.0f} to {100 * max(each):.0f}" for name, each in cells.items()
        }
        for law, cells in shares.items()
    }


def names() -> str:
    """Return the table's columns, other programs' names for them, and pages that show these."""
    rows = [
        (_code(column), _code(known.name), _programs(known), html.escape(_condition(known)))
        for column, names in known_names().items()
        for known in names
    ]
    return _table(("column", "other name", "written by", "read"), rows)


def _programs(known: KnownName) -> str:
    """Return the programs that write a name, each linked to a page that shows it."""
    pages = zip(known.programs, known.pages, strict=False)
    return ", ".join(f'<a href="{page}">{program}</a>' for program, page in pages) or "your loop"


def _condition(known: KnownName) -> str:
    """Return the condition under which a column with another name is read."""
    if known.doubt:
        return f"never by itself: {known.doubt}"
    conditions = []
    if known.whole:
        conditions.append("where it is the response alone, without the prompt")
    if known.beside:
        conditions.append(f"beside {' or '.join(known.beside)}")
    if known.alone:
        conditions.append("where no other column may hold log-probs")
    return ", ".join(conditions) or "where its type and lengths fit"


TABLES: dict[str, Callable[[], str]] = {
    **{f"formulas {name}": partial(formulas, name) for name in FAMILIES},
    "causes": index_of_causes,
    "guides": guides,
    "rules of corrections": partial(rules, "correction"),
    "rules of updates": partial(rules, "health"),
    "constraints": partial(rules, "constraint"),
    "generations verl": partial(generations, "verl"),
    "generations slime": partial(generations, "slime"),
    "presets verl": partial(presets, "verl"),
    "presets slime": partial(presets, "slime"),
    "trainers": all_trainers,
    "engine options": engine_options,
    "ladders": ladders,
    "frames": frames,
    **{f"options {command}": partial(options, command) for command in COMMANDS},
    "names": names,
    "machine": machine,
    "scoring": scoring,
    "mismatch by size": partial(_by_size, "mismatch"),
    "mismatch parts": mismatch_parts,
    "presets by size": partial(_by_size, "statistics"),
    "trainer helper": trainer_helper,
    "workers": workers,
    "sweep": sweep,
    "replay": replay,
    "parquet": parquet,
    "diagnosis": diagnosis,
    "coverage": coverage,
    "recorder": recorder,
    "convert": convert,
}

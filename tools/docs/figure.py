"""The figure of the start page: three shipped tables, three kinds of mismatch."""

from __future__ import annotations

import io
from pathlib import Path

TABLES = {
    "rollouts": "healthy: bfloat16 against float32",
    "stale": "sampled with old weights",
    "temperature": "recorded before the temperature",
}
COLOURS = ("#2f7fb8", "#c2691c", "#b03a48")
GREY = "#808080"  # readable on white and on black


def index_figure(root: Path) -> bytes:
    """Return histograms of the log-ratios of three tables of sample_data, as SVG."""
    import matplotlib as mpl
    import numpy as np
    import polars as pl
    from matplotlib.figure import Figure

    style = {
        "svg.hashsalt": "rcdiag",
        "svg.fonttype": "none",
        "font.family": "sans-serif",
        "font.sans-serif": ["system-ui", "Helvetica", "Arial", "DejaVu Sans"],
        "font.size": 9,
        **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor"), GREY),
        **dict.fromkeys(("xtick.color", "ytick.color"), GREY),
    }
    with mpl.rc_context(style):
        figure = Figure(figsize=(8.4, 2.3), layout="constrained")
        axes = figure.subplots(1, 3, sharex=True, sharey=True)
        edges = np.linspace(-5.0, 5.0, 81)
        for (name, title), colour, axis in zip(TABLES.items(), COLOURS, axes, strict=True):
            table = pl.read_parquet(root / "sample_data" / f"{name}.parquet")
            old, rollout = (
                table[column].explode().to_numpy()
                for column in ("old_log_probs", "rollout_log_probs")
            )
            counts, _ = np.histogram(old - rollout, edges)
            axis.stairs(counts / counts.sum(), edges, fill=True, color=colour)
            axis.set_yscale("log")
            axis.set_title(title, fontsize=9, loc="left")
            axis.spines[["top", "right"]].set_visible(False)
        axes[0].set_ylabel("share of tokens")
        axes[1].set_xlabel("log-ratio of a token, trainer less sampler (nats)")
        stream = io.BytesIO()
        figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None})
    return stream.getvalue()

"""How well an experiment with a checkpoint explains a column, as input of its confidence."""

from __future__ import annotations

from msgspec import Struct

# What an experiment's conclusion rests on: a hypothesis whose predicted column fits; checkpoints
# that explain rows; the likelihood of the sampled tokens; a pattern of the residual that no
# hypothesis explains; the unchanged model, which explains the columns.
KINDS = ("hypothesis", "weights", "tokens", "pattern", "unchanged")
NO_RIVAL = 10.0  # lead, in standard errors, of a cause that no other cause competes with


class ExperimentFit(Struct, frozen=True, kw_only=True):
    """The evidence of an experiment in numbers, from which `confidence` computes a probability."""

    kind: str  # of KINDS
    explained: float  # share of the squares, rows or tokens that the cause explains, 0 to 1
    z: float = 0.0  # gain over the unchanged model, standard errors
    lead: float = NO_RIVAL  # over the best experiment that names another cause, standard errors
    scale: float = 1.0  # logit noise of the residual, in units of the engine's logit noise
    tail: float = 1.0  # (rms / scale) of the residual / (rms / scale) of the engine's noise
    by_token: float = 0.0  # share of the residual's sum of squares that the token id explains
    tokens: int  # that the experiment compared
    rows: int
    not_run: float = 0.0  # share of the experiments for which no time was left

"""Single tokens and sequences in a result: the worst ones, and examples."""

from __future__ import annotations

from typing import Annotated, TypedDict

from msgspec import field

from rcdiag.results.base import (
    LOG_RATIO,
    LogRatioMean,
    LogRatioRmsNumber,
    NumTokens,
    ShareOfSquares,
    Step,
    TokensOfPart,
)
from rcdiag.results.doc import Doc, Number
from rcdiag.results.parts import Part

_GIVEN = "; given if a tokenizer is available and no option forbids text."
_TEXT = Doc("Text of the token" + _GIVEN, example="--no-text leaves all text out")


class _WorstToken(TypedDict):
    """These fields locate one of the tokens with the largest log-ratios and give its numbers."""

    row: Annotated[int, Doc("Row of the table that holds the token, from 0.")]
    position: Annotated[int, Doc("Position of the token in the response, from 0.", unit="tokens")]
    token_id: Annotated[int, Doc("Id of the token in the tokenizer's vocabulary.")]
    behavior_log_prob: Annotated[
        Number, Doc("Log-prob of the token under the behavior policy.", unit="nats")
    ]
    target_log_prob: Annotated[
        Number, Doc("Log-prob of the token under the target policy.", unit="nats")
    ]
    log_ratio: Annotated[
        Number,
        Doc(
            "Log-prob of the token under the target minus that under the behavior policy.",
            unit="nats",
            formula="target_log_prob - behavior_log_prob",
            direction=LOG_RATIO,
        ),
    ]


class WorstToken(_WorstToken, total=False):
    """A worst token is one of those with the largest log-ratios; its text may be left out."""

    text: Annotated[str, _TEXT]


class TokenProfile(Part, frozen=True, kw_only=True):
    """A token profile gives the mismatch on all tokens with one token id."""

    token_id: Annotated[int, Doc("Id of the token in the tokenizer's vocabulary.")]
    tokens: TokensOfPart
    log_ratio_mean: LogRatioMean
    log_ratio_rms: LogRatioRmsNumber
    share_of_squares: ShareOfSquares
    share_of_tokens: Annotated[
        Number,
        Doc(
            "Share of all tokens that have this token id.",
            unit="share",
            formula="tokens of the id / all tokens",
            see=("share_of_squares",),
        ),
    ]
    text: Annotated[str | None, _TEXT] = None


class TokenWeights(Part, frozen=True, kw_only=True):
    """Token weights say what one correction does to the stored tokens of a sequence."""

    weight: Annotated[
        Number | None,
        Doc(
            "Weight of every token that `changed` does not list, before batch normalisation; 1 "
            "without weights, null where it is each token's own ratio.",
            unit="ratio",
            see=("changed",),
        ),
    ]
    changed: Annotated[
        list[list[Number]],
        Doc(
            "Tokens with a different weight, truncated ones for example: place in the sequence's "
            "lists, from 0, and weight.",
            unit="ratio",
            see=("weight",),
        ),
    ] = field(default_factory=list)
    rejected: Annotated[
        list[list[int]],
        Doc(
            "Tokens that the correction removes from the loss, as ranges: first and last place in "
            "the sequence's lists, from 0."
        ),
    ] = field(default_factory=list)


class TokenAlternatives(Part, frozen=True, kw_only=True):
    """Token alternatives are the tokens a policy finds most likely in place of a stored one."""

    place: Annotated[int, Doc("Place of the token in the sequence's lists, from 0.")]
    likely_under: Annotated[str, Doc("Policy whose most likely tokens these are.")]
    token_ids: Annotated[list[int], Doc("Ids of the most likely tokens, the likeliest first.")]
    token_log_probs: Annotated[
        list[Number],
        Doc("Log-prob of each of the most likely tokens.", unit="nats", as_many_as="token_ids"),
    ]
    texts: Annotated[
        list[str] | None, Doc("Texts of the most likely tokens" + _GIVEN, as_many_as="token_ids")
    ] = None


class SequenceContext(Part, frozen=True, kw_only=True):
    """A sequence context holds what is shown around a sequence's unmasked tokens."""

    prompt_length: Annotated[
        int | None, Doc("Tokens of the prompt; null where the table holds none.", unit="tokens")
    ] = None
    prompt_ids: Annotated[
        list[int], Doc("Ids of the last tokens of the prompt, at most 100.", see=("prompt_length",))
    ] = field(default_factory=list)
    masked_positions: Annotated[
        list[int],
        Doc(
            "Positions in the response of tokens that the mask leaves out (tools, environment, "
            "template), from 0: at most 100, those beside stored tokens.",
        ),
    ] = field(default_factory=list)
    masked_ids: Annotated[
        list[int],
        Doc(
            "Ids of the tokens that the mask leaves out.",
            see=("masked_positions",),
            as_many_as="masked_positions",
        ),
    ] = field(default_factory=list)
    prompt_texts: Annotated[
        list[str] | None,
        Doc("Texts of the stored tokens of the prompt" + _GIVEN, as_many_as="prompt_ids"),
    ] = None
    masked_texts: Annotated[
        list[str] | None,
        Doc("Texts of the tokens that the mask leaves out" + _GIVEN, as_many_as="masked_ids"),
    ] = None
    prompt: Annotated[
        str | None,
        Doc(
            "Text of the prompt from the table, its last 1,000 characters; given only if no "
            "tokenizer is available."
        ),
    ] = None
    response: Annotated[
        str | None,
        Doc(
            "Text of the response from the table, its first 2,000 characters; given only if no "
            "tokenizer is available."
        ),
    ] = None
    token_weights: Annotated[
        dict[str, TokenWeights],
        Doc("What every correction does to the stored tokens, by the name of its preset."),
    ] = field(default_factory=dict)
    alternatives: Annotated[
        list[TokenAlternatives],
        Doc(
            "Most likely tokens in place of those with the largest log-ratios, if the table has "
            "columns `{policy}_top_ids` and `{policy}_top_logprobs`."
        ),
    ] = field(default_factory=list)


class SequenceTokens(Part, frozen=True, kw_only=True):
    """A sequence with its tokens: one of the worst, a named or a drawn one.

    Of a long one only the first tokens and those around its largest |log-ratio| are stored.
    """

    row: Annotated[int, Doc("Row of the table that holds the sequence, from 0.")]
    sample_id: Annotated[
        str | int | None, Doc("The sequence's `sample_id` in the table; null without that column.")
    ]
    step: Step
    reward: Annotated[Number | None, Doc("Reward of the sequence; null without rewards.")]
    num_tokens: NumTokens
    log_ratio_sum: Annotated[
        Number,
        Doc(
            "Summed log-ratio of a sequence: the log of the product of its ratios.",
            unit="nats",
            formula="sum log_ratio over the tokens of the sequence",
            direction=LOG_RATIO,
            healthy="ideal 0",
            example="log-ratios 0.1, -0.1, 1.5: 1.5",
            see=("log_ratio", "sequence"),
        ),
    ]
    positions: Annotated[
        list[int],
        Doc("Positions of the sequence's unmasked tokens in the response, from 0.", unit="tokens"),
    ]
    token_ids: Annotated[
        list[int], Doc("Ids of the sequence's unmasked tokens.", as_many_as="positions")
    ]
    log_ratio: Annotated[
        list[Number],
        Doc(
            "Log-ratio of each unmasked token of the sequence.",
            unit="nats",
            direction=LOG_RATIO,
            as_many_as="positions",
        ),
    ]
    texts: Annotated[
        list[str] | None,
        Doc(
            "Texts of the sequence's unmasked tokens" + _GIVEN,
            example="--no-text leaves all text out",
            as_many_as="positions",
        ),
    ] = None
    behavior_log_probs: Annotated[
        list[Number] | None,
        Doc(
            "Log-prob of each unmasked token of the sequence under the behavior policy; null in "
            "documents of earlier versions.",
            unit="nats",
            see=("log_ratio",),
            as_many_as="positions",
            sparse=True,
        ),
    ] = None
    context: Annotated[
        SequenceContext | None,
        Doc(
            "What is around the sequence's unmasked tokens, and what corrections do to them; null "
            "in documents of earlier versions.",
            see=("prompt_ids", "masked_ids", "token_weights"),
            sparse=True,
        ),
    ] = None
    gaps: Annotated[
        list[list[Number]] | None,
        Doc(
            "Where unmasked tokens of a long sequence are not stored: place in the sequence's "
            "lists of the next stored token, from 0, number of tokens left out, and their summed "
            "log-ratio in nats; null where all are stored.",
            see=("log_ratio_sum", "positions"),
            sparse=True,
        ),
    ] = None


class BinExamples(Part, frozen=True, kw_only=True):
    """Bin examples are the tokens with the largest |log-ratio| in each bin of a figure.

    A bin has at most six, from different rows. All lists have an entry for each token.
    """

    row: Annotated[list[int], Doc("Rows of the table that hold the tokens, from 0.")]
    position: Annotated[
        list[int], Doc("Positions of the tokens in their responses, from 0.", as_many_as="row")
    ]
    token_id: Annotated[list[int], Doc("Ids of the tokens.", as_many_as="row")]
    behavior_log_prob: Annotated[
        list[Number],
        Doc("Log-prob of each token under the behavior policy.", unit="nats", as_many_as="row"),
    ]
    log_ratio: Annotated[
        list[Number],
        Doc("Log-ratio of each token.", unit="nats", direction=LOG_RATIO, as_many_as="row"),
    ]
    before: Annotated[
        list[list[int]],
        Doc("Ids of the sampled tokens before each token, at most six.", as_many_as="row"),
    ]
    after: Annotated[
        list[list[int]],
        Doc("Ids of the sampled tokens after each token, at most three.", as_many_as="row"),
    ]
    by_bin: Annotated[
        dict[str, dict[str, list[int]]],
        Doc(
            "Examples of every bin, as places in the other lists, from 0: by profile, or "
            "`likelier_target` and `likelier_behavior` for bins by |log-ratio|, and by the label "
            "of the bin.",
            see=("profiles",),
        ),
    ]
    texts: Annotated[
        list[list[str]] | None,
        Doc("Text before each token, of the token, and after it" + _GIVEN, as_many_as="row"),
    ] = None

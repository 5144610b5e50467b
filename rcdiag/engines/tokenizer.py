"""Token ids become text by the tokenizer of a model folder, for pages and rewards."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rcdiag.engines.checkpoint import resolve_model
from rcdiag.errors import RcdiagError, setting

TOKENIZERS = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "tokenizer_config.json",
    "*.tiktoken",
)


def decoder(model: str) -> Callable[[Sequence[int]], list[str]]:
    """Make a function from token ids to texts; ids that the tokenizer lacks show as <id>."""
    folder = resolve_model(model)
    if not any(next(folder.glob(pattern), None) for pattern in TOKENIZERS):
        raise RcdiagError(
            f"model {model}: no tokenizer in the folder",
            hint="copy the tokenizer files beside the weights (tokenizer.save_pretrained), or "
            f"give a folder that has them by {setting('model')}",
        )
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise RcdiagError(
            "text needs the transformers package", hint='pip install "rcdiag[hf]"'
        ) from error
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError) as error:
        raise RcdiagError(
            f"model {model}: its tokenizer cannot be loaded ({str(error).splitlines()[0]})",
            hint=f"give a folder with a tokenizer by {setting('model')}, or leave "
            f"{setting('include_text')} away",
        ) from error
    size = len(tokenizer)

    def decode(ids: Sequence[int]) -> list[str]:
        return [
            tokenizer.decode([token_id]) if token_id < size else f"<{token_id}>" for token_id in ids
        ]

    return decode

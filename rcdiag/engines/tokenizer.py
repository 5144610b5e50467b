"""Turn token ids into text with the tokenizer of a model folder, for pages and rewards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from rcdiag.engines.checkpoint import resolve_model
from rcdiag.errors import RcdiagError, setting
from rcdiag.extras import saying_what_to_install

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
    file = folder / "tokenizer.json"
    one, size = _of_file(file) if file.exists() else _of_folder(folder, model)

    def decode(ids: Sequence[int]) -> list[str]:
        return [one(token_id) if token_id < size else f"<{token_id}>" for token_id in ids]

    return decode


# The function from one token id to its text, and the size of the vocabulary.
OneToken = tuple[Callable[[int], str], int]


def _of_file(file: Path) -> OneToken:
    """Read `tokenizer.json` with the library tokenizers: transformers takes seconds to load."""
    with saying_what_to_install("text: "):
        from tokenizers import Tokenizer
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing more specific
        raise _unreadable(str(file), error) from error

    def one(token_id: int) -> str:
        text = tokenizer.decode([token_id], skip_special_tokens=False)
        piece = tokenizer.id_to_token(token_id) or ""
        # A tokenizer that marks spaces drops the one before the first token of a text.
        return f" {text}" if piece.startswith("▁") and not text.startswith(" ") else text

    return one, tokenizer.get_vocab_size()


def _of_folder(folder: Path, model: str) -> OneToken:
    """Read any other tokenizer with transformers."""
    with saying_what_to_install("text: "):
        from transformers import AutoTokenizer
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError) as error:
        raise _unreadable(f"model {model}", error) from error
    return lambda token_id: str(tokenizer.decode([token_id])), len(tokenizer)


def _unreadable(what: str, error: Exception) -> RcdiagError:
    return RcdiagError(
        f"{what}: the tokenizer cannot be loaded ({(str(error).splitlines() or [''])[0]})",
        hint=f"give a folder with a tokenizer by {setting('model')}, or show no text: --no-text",
    )


def coders(
    folder: Path,
) -> tuple[Callable[[str], list[int]] | None, Callable[[Sequence[int]], str] | None]:
    """Return a checkpoint's tokenizer as functions encode and decode; None without a tokenizer."""
    if not any(next(folder.glob(pattern), None) for pattern in TOKENIZERS):
        return None, None
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError):
        return None, None

    def encode(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False))

    def decode(ids: Sequence[int]) -> str:
        return str(tokenizer.decode(ids))

    return encode, decode

"""What is secret in a URL: user and password, query and fragment.

A query may be the signature that gives access to a file. Where a URL ends is known only while it
stands alone, as an argument does: a password may hold spaces, a signature quotes and brackets.
So arguments are parsed, and what is secret in them is removed from every later text. URLs that
nobody gave, such as those of a foreign error, are found in the text by a pattern.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

# A URL begins so, also where a path was made of it, which loses a slash.
_SCHEME = r"[A-Za-z][A-Za-z0-9+.-]*:/{1,2}"
# One argument can hold several: `zip://a.jsonl::http://host/b.zip`, `url=http://...,model=s3://...`.
_NEXT = re.compile(rf"(?:::|[=,\s])(?={_SCHEME})")
# A host without a port, or a bucket. If anything else stands before an `@`, it holds a password.
_PLAIN_HOST = re.compile(r"[a-z0-9._-]*")
# In addresses other than web addresses, `?` is a wildcard and `#` a letter unless `name=` follows.
_OF_WEB = re.compile(r"[?#]")
_OF_STORAGE = re.compile(r"[?#][^/=]*=")
# Shorter parts are not searched for in texts: `?a` may be a part of any sentence.
_LEAST = 4

# Secrets in the arguments of this process: they are removed from texts wherever they occur.
_known: set[str] = set()


def without_own_secrets(argument: str) -> str:
    """Return an argument, such as a URL or `model=URL`, without what is secret in it."""
    for secret in _secrets(argument):
        argument = argument.replace(secret, "")
    return argument


def has_credentials(url: str) -> bool:
    """Tell whether a URL holds a user or a password, of which a foreign error may quote a part."""
    return any("@" in secret for secret in _secrets(url))


def remember_secrets(*arguments: object) -> None:
    """Have `without_secrets` remove what is secret in these arguments.

    Strings and paths count, alone, in a list or as values of a mapping.
    """
    for argument in arguments:
        values = argument.values() if isinstance(argument, Mapping) else argument
        several = isinstance(argument, (list, tuple, Mapping))
        for value in values if several else [argument]:  # type: ignore[attr-defined]
            if isinstance(value, (str, Path)):
                _known.update(one for one in _secrets(str(value)) if len(one) >= _LEAST)


def _secrets(argument: str) -> Iterator[str]:
    """Yield what is secret in the URLs of an argument, in order; a query ends with the argument."""
    first = re.search(_SCHEME, argument)
    if first is None:
        return
    begins = [first.start(), *(found.end() for found in _NEXT.finditer(argument, first.start()))]
    for begin, end in zip(begins, [*begins[1:], len(argument)], strict=True):
        scheme, rest = re.split(r":/{1,2}", argument[begin:end], maxsplit=1)
        scheme = scheme.lower()
        host = re.split(r"[/?#]", rest, maxsplit=1)[0]
        # In an address of Hugging Face, a revision follows an @.
        in_path = scheme == "hf" or _PLAIN_HOST.fullmatch(host) is not None
        if "@" in host or ("@" in rest and not in_path):
            user, _, after = rest.rpartition("@")
            if re.search(r"[?#]", user):  # a password with `?` or a query with `@`: all is secret
                yield argument[end - len(rest) :]
                return
            yield f"{user}@"
            rest = after
        query = (_OF_WEB if scheme in ("http", "https") else _OF_STORAGE).search(rest)
        if query is not None:
            yield argument[end - len(rest) + query.start() :]
            return


# In a text, what follows the colon of a server's name is a port if it is a number: anything else
# is a password, and goes to the last @, because it may hold @, / and spaces itself.
_PASSWORD = re.compile(
    rf"(\b{_SCHEME})[^\s/@:'\"\[]*:(?!\d+(?:[/?#:,;)'\"\s]|$)|\s|$)(?:(?!://)[^\n])*@"
)
_USER = re.compile(rf"(\b{_SCHEME})[^\s/'\"]*@")
# Punctuation at the end of a URL belongs to the sentence around it.
_END = r"(?=[:,;'\")\]]*(?:\s|$))"
_WEB_QUERY = re.compile(rf"(\bhttps?:/{{1,2}}[^\s?#]+)[?#]\S*?{_END}", re.IGNORECASE)
_STORAGE_QUERY = re.compile(rf"(\b{_SCHEME}[^\n]*?)[?#][^\s/=]*=\S*?{_END}")


def without_secrets(text: str) -> str:
    """Return a text without known secrets, and its URLs without user, password, query, fragment.

    A `?` in a name behind `s3://` stays: it stands for any letter.
    """
    for secret in sorted(_known, key=len, reverse=True):
        text = text.replace(secret, "")
    if ":/" not in text:
        return text
    text = _USER.sub(r"\1", _PASSWORD.sub(r"\1", text))
    return _STORAGE_QUERY.sub(r"\1", _WEB_QUERY.sub(r"\1", text))

"""Small readers of rows and words that the parsers of command output share. None of them raises on input."""

from __future__ import annotations

from ipaddress import ip_address, ip_network
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from podwire.explain.snapshot import Object


def rows(value: Any) -> list[Object]:
    """The objects of a JSON list, or of a list in a list; everything else is left out."""
    if isinstance(value, dict):
        value = [value]
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def text_of(row: Object, key: str) -> str:
    """A text (or number as text) of a row, '' for anything else."""
    value = row.get(key)
    return str(value) if isinstance(value, (str, int)) and not isinstance(value, bool) else ""


def number_of(row: Object, key: str) -> int:
    """A number of a row, 0 for anything else."""
    value = row.get(key)
    if isinstance(value, bool):
        return 0
    if isinstance(value, int):
        return value
    return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else 0


def inner(row: Object, *keys: str) -> Object:
    """The object below these keys, empty where there is none."""
    value: Any = row
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def hexadecimal(shown: str) -> int | None:
    """A number as 0x4000 or 16384, None for anything else."""
    try:
        return int(shown, 0) if shown else None
    except ValueError:
        return None


def word(words: list[str], key: str) -> str:
    """The word after `key`, '' where there is none."""
    return words[words.index(key) + 1] if key in words[:-1] else ""


def number_after(words: list[str], key: str, default: int) -> int:
    """The number after `key`, or the default."""
    value = word(words, key)
    return int(value) if value.isdigit() else default


def is_ip(text: str) -> bool:
    """Whether it is an address."""
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def is_prefix(text: str) -> bool:
    """Whether it is an address with or without a prefix length."""
    try:
        ip_network(text, strict=False)
    except ValueError:
        return False
    return True


def texts(value: Any) -> list[str]:
    """The texts of a JSON list; everything else is left out."""
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []

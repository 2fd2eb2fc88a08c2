"""Resource quantities: `250m`, `64Mi`, `1.5`, `2e3` (apimachinery `pkg/api/resource/quantity.go`).

The API server reads a quantity and writes it back in canonical form: no fraction, the largest suffix that loses nothing
(`1000m` → `1`, `0.5` → `500m`, `1024Mi` → `1Gi`), nothing finer than nano. The suffix family of the input is kept.
Values here are whole numbers of nano-units: exact, and ordered as the quantities are.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from podwire.apiserver.status import bad_request

if TYPE_CHECKING:
    from collections.abc import Iterator

NANO = 10**9
_SYNTAX = "^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$"
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_DECIMAL_SUFFIX = {exponent: suffix for suffix, exponent in _DECIMAL.items()}
_BINARY_SUFFIX = {0: "", **{power: suffix for suffix, power in _BINARY.items()}}


def parse(text: str) -> tuple[int, str]:
    """The value in nano-units, rounded up, and the suffix family: "decimal", "binary" or "exponent".

    Raises ValueError with Go's message.
    """
    match = re.match(_SYNTAX, text)
    if match is None:
        raise ValueError(f"quantities must match the regular expression '{_SYNTAX}'")
    number, suffix = match.groups()
    digits = re.fullmatch(r"([+-]?)([0-9]*)(?:\.([0-9]*))?", number)
    if digits is None or not (digits[2] or digits[3]):
        raise ValueError("unable to parse numeric part of quantity")
    fraction = digits[3] or ""
    mantissa = int(f"{digits[1]}{digits[2] or '0'}{fraction}")
    if suffix in _BINARY:
        scale, shrink, family = NANO * 1024 ** _BINARY[suffix], 10 ** len(fraction), "binary"
    else:
        exponent, family = _exponent(suffix)
        power = 9 + exponent - len(fraction)
        scale, shrink = (10**power, 1) if power >= 0 else (1, 10**-power)
    return -(-mantissa * scale // shrink), family


def _exponent(suffix: str) -> tuple[int, str]:
    """The power of ten that a suffix means, and its family."""
    if suffix in _DECIMAL:
        return _DECIMAL[suffix], "decimal"
    if match := re.fullmatch("[eE]([+-]?[0-9]{1,3})", suffix):
        return int(match[1]), "exponent"
    raise ValueError("unable to parse quantity's suffix")


def canonical(value: Any) -> str:
    """A quantity as the server writes it. A JSON number is taken as its text. Raises ValueError."""
    nano, family = parse(str(value))
    if nano == 0:
        return "0"
    if family == "binary" and abs(nano) >= 1024 * NANO:
        amount, power = -(-nano // NANO), 0
        while amount % 1024 == 0 and power < 6:
            amount, power = amount // 1024, power + 1
        return f"{amount}{_BINARY_SUFFIX[power]}"
    amount, exponent = nano, -9
    while amount % 1000 == 0 and exponent < 18:
        amount, exponent = amount // 1000, exponent + 3
    if family == "exponent":
        return f"{amount}e{exponent}" if exponent else str(amount)
    return f"{amount}{_DECIMAL_SUFFIX[exponent]}"


def canonicalise(lists: Iterator[dict[str, Any]], kind: str) -> None:
    """Rewrite the values of resource lists in place; 400 for one that is no quantity, as when Go fails to decode it."""
    for resources in lists:
        for name, value in resources.items():
            try:
                resources[name] = canonical(value)
            except ValueError as error:
                message = f'{kind} in version "v1" cannot be handled as a {kind}: {error}'
                raise bad_request(message) from None

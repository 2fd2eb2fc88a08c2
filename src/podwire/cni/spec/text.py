"""JSON as the CNI's programs read and write it: the notation of Go's encoding/json, without importing `json`.

`json` needs `re` and with it 5 to 10 ms of imports, a third of what a plugin may take in all; the C scanner that does
`json`'s work can be had without it. What differs from `json` is on purpose:

* reading: NaN and Infinity are errors, bytes that are no UTF-8 become U+FFFD (as in Go);
* writing: `<`, `>` and `&` are escaped, keys keep their order unless `ordered`, a whole float is written as an integer;
* fields are found whatever the case of their keys (`Fields`), null is the same as absent, and a value of the wrong kind is
  an error in Go's words, because runtimes and tests know those.
"""

from __future__ import annotations

import _json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn


class TextError(ValueError):
    """Text that is not the JSON that was expected."""


def _constant(name: str) -> NoReturn:
    raise TextError(f"invalid character '{name[0]}' looking for beginning of value")


class _Scanner:
    """What the C scanner asks its context for."""

    strict = True
    object_hook = None
    object_pairs_hook: Callable[[list[tuple[str, Any]]], Any] | None = None
    parse_float = float
    parse_int = int
    parse_constant = staticmethod(_constant)


_SPACE = " \t\n\r"


def decode(data: bytes, pairs: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """The value of a JSON text; `pairs` makes what is to stand for an object. Raises TextError."""
    text = data.decode("utf-8", "replace")
    stripped = text.strip(_SPACE)
    if not stripped:
        raise TextError("unexpected end of JSON input")
    scanner = _Scanner()
    scanner.object_pairs_hook = pairs
    try:
        value, end = _json.make_scanner(scanner)(stripped, 0)  # type: ignore[arg-type]  # any object with these attributes
    except StopIteration as stop:
        at = stop.value if isinstance(stop.value, int) else 0
        if at >= len(stripped):
            raise TextError("unexpected end of JSON input") from None
        raise TextError(f"invalid character {stripped[at]!r} looking for beginning of value") from None
    except TextError:
        raise
    except (
        SystemError
    ):  # the C scanner takes the class of its error from json.decoder, and has none until that is imported
        __import__("json.decoder")
        return decode(data, pairs)
    except (ValueError, RecursionError) as error:
        raise TextError(f"invalid JSON: {error}") from None
    if end != len(stripped):
        raise TextError(f"invalid character {stripped[end]!r} after top-level value")
    return value


def encode(value: object, *, indent: int = 0, ordered: bool = False) -> str:
    """JSON text: in one line, or with `indent` spaces a level; with `ordered` keys are sorted as Go sorts maps."""
    return _encode(value, "\n" if indent else "", " " * indent, ordered)


def _encode(value: object, line: str, step: str, ordered: bool) -> str:
    if isinstance(value, str):
        return _string(value)
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e21 else repr(value)
    deeper = line + step if line else ""
    if isinstance(value, dict):
        keys = sorted(value) if ordered else value
        colon = ": " if line else ":"
        inner = [_string(key) + colon + _encode(value[key], deeper, step, ordered) for key in keys]
        return _bracket("{", inner, "}", deeper, line)
    if isinstance(value, (list, tuple)):
        return _bracket("[", [_encode(item, deeper, step, ordered) for item in value], "]", deeper, line)
    raise TypeError(f"{type(value).__name__} has no JSON")


def _bracket(left: str, inner: list[str], right: str, deeper: str, line: str) -> str:
    if not inner:
        return left + right
    return f"{left}{deeper}{f',{deeper}'.join(inner)}{line}{right}"


def _string(value: str) -> str:
    quoted: str = _json.encode_basestring(value)
    if "<" in quoted or ">" in quoted or "&" in quoted:
        quoted = quoted.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return quoted


def quoted(value: str) -> str:
    r"""A string as Go's %q shows it in error messages: "a\nb"."""
    shown = []
    for character in value:
        if character in '"\\':
            shown.append("\\" + character)
        elif character in "\n\t\r":
            shown.append({"\n": "\\n", "\t": "\\t", "\r": "\\r"}[character])
        elif character.isprintable():
            shown.append(character)
        else:
            code = ord(character)
            shown.append(f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")
    return f'"{"".join(shown)}"'


class Fields:
    """An object whose fields are looked up without regard to the case of their keys; null is the same as absent."""

    __slots__ = ("_fields", "_where")

    def __init__(self, value: object, where: str) -> None:
        self._where = where
        self._fields: dict[str, Any] = {}
        if value is None:
            return
        if not isinstance(value, dict):
            raise TextError(f"json: cannot unmarshal {_kind(value)} into Go value of type {where}")
        for key, item in value.items():
            if item is not None:
                self._fields[key.lower()] = item

    def _get(self, name: str, kind: type | tuple[type, ...], go: str) -> Any:
        value = self._fields.get(name.lower())
        if value is None:
            return None
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise TextError(
                f"json: cannot unmarshal {_kind(value)} into Go struct field {self._where}.{name} of type {go}"
            )
        return value

    def raw(self, name: str) -> Any:
        """The value as it is; None where absent."""
        return self._fields.get(name.lower())

    def text(self, name: str, default: str = "") -> str:
        """A string."""
        value: str | None = self._get(name, str, "string")
        return default if value is None else value

    def integer(self, name: str, default: int = 0) -> int:
        """A whole number."""
        value = self.maybe_integer(name)
        return default if value is None else value

    def maybe_integer(self, name: str) -> int | None:
        """A whole number, or None where absent."""
        value: int | None = self._get(name, int, "int")
        if value is not None and not -(1 << 63) <= value < 1 << 63:
            raise TextError(
                f"json: cannot unmarshal number {value} into Go struct field {self._where}.{name} of type int"
            )
        return value

    def flag(self, name: str) -> bool:
        """A boolean; absent is false."""
        return bool(self._get(name, bool, "bool"))

    def array(self, name: str, go: str = "[]string") -> list[Any]:
        """A list; absent is empty."""
        value: list[Any] | None = self._get(name, list, go)
        return [] if value is None else value

    def texts(self, name: str) -> list[str]:
        """A list of strings."""
        found = []
        for item in self.array(name):
            if item is not None and not isinstance(item, str):
                raise TextError(
                    f"json: cannot unmarshal {_kind(item)} into Go struct field {self._where}.{name} of type string"
                )
            found.append(item or "")
        return found

    def mapping(self, name: str) -> dict[str, Any] | None:
        """An object whose keys stay as they are (their case matters), or None where absent."""
        value: dict[str, Any] | None = self._get(name, dict, "map[string]interface {}")
        return value

    def inner(self, name: str) -> Fields:
        """The fields of an object inside; absent is an object without fields."""
        self._get(name, dict, "struct")
        return Fields(self.raw(name), f"{self._where}.{name}")


def _kind(value: object) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, (int, float)):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object" if isinstance(value, dict) else "null"

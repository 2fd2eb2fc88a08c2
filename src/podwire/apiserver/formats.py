"""The text formats of the API: names, label keys and values, ports, addresses. A function answers with what is wrong.

Each returns a list of messages, empty when the value is good; the caller adds path and value
(`Cause.invalid(path, value, message)`). The rules are those of apimachinery's `pkg/util/validation`, and the messages
are worded as there, because people search for them. Lengths count bytes of UTF-8 as in Go.
"""

from __future__ import annotations

import ipaddress
import re

_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_LABEL_1035 = "[a-z]([-a-z0-9]*[a-z0-9])?"
_KEY = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_CONFIG_KEY = "[-._a-zA-Z0-9]+"


def _no_match(what: str, pattern: str, *examples: str) -> str:
    """Go's RegexError: what it must be, examples, and the expression."""
    quoted = " or ".join(f"'{example}', " for example in examples)
    return f"{what} (e.g. {quoted}regex used for validation is '{pattern}')"


def _check(value: str, pattern: str, maximum: int, unit: str, message: str) -> list[str]:
    wrong = []
    if len(value.encode()) > maximum:
        wrong.append(f"must be no more than {maximum} {unit}")
    if not re.fullmatch(pattern, value):
        wrong.append(message)
    return wrong


_LABEL_WRONG = _no_match(
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end "
    "with an alphanumeric character",
    _LABEL,
    "my-name",
    "123-abc",
)
_SUBDOMAIN_WRONG = _no_match(
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start "
    "and end with an alphanumeric character",
    _SUBDOMAIN,
    "example.com",
)
_LABEL_1035_WRONG = _no_match(
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, "
    "and end with an alphanumeric character",
    _LABEL_1035,
    "my-name",
    "abc-123",
)
_KEY_WRONG = _no_match(
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character",
    _KEY,
    "MyName",
    "my.name",
    "123-abc",
)
_LABEL_VALUE_WRONG = _no_match(
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character",
    f"({_KEY})?",
    "MyValue",
    "my_value",
    "12345",
)
_CONFIG_KEY_WRONG = _no_match(
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.'",
    _CONFIG_KEY,
    "key.name",
    "KEY_NAME",
    "key-name",
)


def label(value: str) -> list[str]:
    """An RFC 1123 label: container names, Namespace names, port names of a Service."""
    message = "must not contain dots" if re.fullmatch(_SUBDOMAIN, value) else _LABEL_WRONG
    return _check(value, _LABEL, 63, "characters", message)


def subdomain(value: str) -> list[str]:
    """An RFC 1123 subdomain: the name of most objects."""
    return _check(value, _SUBDOMAIN, 253, "characters", _SUBDOMAIN_WRONG)


def label_1035(value: str) -> list[str]:
    """An RFC 1035 label, which does not begin with a digit: the name of a Service."""
    return _check(value, _LABEL_1035, 63, "characters", _LABEL_1035_WRONG)


NAME_RULES = {"label": label, "subdomain": subdomain, "label1035": label_1035}
"""By `Resource.name_rule`."""


def qualified_name(value: str) -> list[str]:
    """A label key: `name` or `prefix/name`; also annotation keys, condition types, finalizers."""
    parts = value.split("/")
    if len(parts) > 2:
        return [
            f"a valid label key {_KEY_WRONG} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
        ]
    name = parts[-1]
    wrong = []
    if len(parts) == 2:
        prefix = ["must be non-empty"] if not parts[0] else subdomain(parts[0])
        wrong += [f"prefix part {message}" for message in prefix]
    if not name:
        wrong.append("name part must be non-empty")
    elif len(name.encode()) > 63:
        wrong.append("name part must be no more than 63 bytes")
    if not re.fullmatch(_KEY, name):
        wrong.append(f"name part {_KEY_WRONG}")
    return wrong


def label_value(value: str) -> list[str]:
    """A label value, which may be empty."""
    return _check(value, f"({_KEY})?", 63, "bytes", _LABEL_VALUE_WRONG)


def config_key(value: str) -> list[str]:
    """A key of a ConfigMap: a file name in a volume."""
    wrong = _check(value, _CONFIG_KEY, 253, "characters", _CONFIG_KEY_WRONG)
    if value in {".", ".."}:
        wrong.append(f"must not be '{value}'")
    elif value.startswith(".."):
        wrong.append("must not start with '..'")
    return wrong


def environment_name(value: str) -> list[str]:
    """The name of an environment variable: printable ASCII but for '='."""
    if not value:
        return ["environment variable name must be non-empty"]
    if all(" " <= character <= "~" and character != "=" for character in value):
        return []
    return ["a valid environment variable name must consist only of printable ASCII characters other than '='"]


def port_number(value: int) -> list[str]:
    """1 to 65535."""
    return [] if 1 <= value <= 65535 else ["must be between 1 and 65535, inclusive"]


def port_name(value: str) -> list[str]:
    """A named port of a container (RFC 6335 service name)."""
    wrong = []
    if len(value.encode()) > 15:
        wrong.append("must be no more than 15 characters")
    if not re.fullmatch("[-a-z0-9]+", value):
        wrong.append("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)")
    if not re.search("[a-z]", value):
        wrong.append("must contain at least one letter (a-z)")
    if "--" in value:
        wrong.append("must not contain consecutive hyphens")
    if value.startswith("-") or value.endswith("-"):
        wrong.append("must not begin or end with a hyphen")
    return wrong


def address(value: str) -> list[str]:
    """An IPv4 or IPv6 address."""
    try:
        ipaddress.ip_address(value)
    except ValueError:
        return ["must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"]
    return ["must not be an IPv4-mapped IPv6 address"] if value.lower().startswith("::ffff:") else []


def family(value: str) -> str:
    """`IPv4` or `IPv6` of a text that `address` found good (or a prefix)."""
    return "IPv6" if ":" in value else "IPv4"


def ordinary_address(value: str) -> list[str]:
    """Beyond `address`: not one that only means something on one node (endpoints, external IPs)."""
    try:
        ip = ipaddress.ip_address(value)
    except ValueError:
        return ["must be a valid IP address"]
    wrong = []
    if ip.is_unspecified:
        wrong.append(f"may not be unspecified ({value})")
    if ip.is_loopback:
        wrong.append("may not be in the loopback range (127.0.0.0/8, ::1/128)")
    if ip.is_link_local:
        wrong.append("may not be in the link-local range (169.254.0.0/16, fe80::/10)")
    if ip.is_multicast and (ip.packed[:3] == b"\xe0\x00\x00" or ip.packed[:2] == b"\xff\x02"):
        wrong.append("may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)")
    return wrong


def prefix(value: str) -> list[str]:
    """An address prefix, `address/length`; bits beyond the length are let through, as Kubernetes 1.34 does."""
    try:
        ipaddress.ip_network(value, strict=False)
    except ValueError:
        wrong = True
    else:
        wrong = "/" not in value
    return ["must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"] if wrong else []

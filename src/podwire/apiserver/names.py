"""Names, labels and annotations: what is allowed, and the words a real API server refuses with.

The rules are those of apimachinery's `pkg/util/validation` (RFC 1123 and 1035 names, qualified names, label values) and
`pkg/api/validation` (ObjectMeta). Functions ending in `_problems` answer a list of texts, empty when all is well.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from podwire.apiserver.resource import Cause

if TYPE_CHECKING:
    from podwire.apiserver.resource import Object

_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_LABEL_1035 = "[a-z]([-a-z0-9]*[a-z0-9])?"
_QUALIFIED = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_VALUE = f"({_QUALIFIED})?"

_RULES = {
    "subdomain": (
        _SUBDOMAIN,
        253,
        (
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
            "end with an alphanumeric character"
        ),
        "'example.com'",
    ),
    "label": (
        _LABEL,
        63,
        (
            "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with "
            "an alphanumeric character"
        ),
        "'my-name',  or '123-abc'",
    ),
    "label1035": (
        _LABEL_1035,
        63,
        (
            "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, "
            "and end with an alphanumeric character"
        ),
        "'my-name',  or 'abc-123'",
    ),
}

MAX_ANNOTATIONS = 256 * 1024
"""Bytes of all annotations of an object together."""


def name_problems(rule: str, name: str) -> list[str]:
    """What is wrong with a name under `Resource.name_rule`."""
    pattern, longest, text, example = _RULES[rule]
    problems = []
    if len(name) > longest:
        problems.append(f"must be no more than {longest} bytes")
    if re.fullmatch(pattern, name) is None:
        problems.append(f"{text} (e.g. {example}, regex used for validation is '{pattern}')")
    return problems


def qualified_name_problems(key: str) -> list[str]:
    """What is wrong with a label or annotation key, `[prefix/]name`."""
    prefix, slash, name = key.rpartition("/")
    problems = []
    if slash:
        if not prefix:
            problems.append("prefix part must be non-empty")
        elif trouble := name_problems("subdomain", prefix):
            problems += [f"prefix part {text}" for text in trouble]
        if "/" in prefix:
            return [
                (
                    "a qualified name must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
                    "alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
                    f"'{_QUALIFIED}') with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
                )
            ]
    if not name:
        problems.append("name part must be non-empty")
    elif len(name) > 63:
        problems.append("name part must be no more than 63 bytes")
    if re.fullmatch(_QUALIFIED, name) is None:
        problems.append(
            "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
            "alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
            f"'{_QUALIFIED}')"
        )
    return problems


def label_value_problems(value: str) -> list[str]:
    """What is wrong with a label's value."""
    problems = []
    if len(value) > 63:
        problems.append("must be no more than 63 bytes")
    if re.fullmatch(_VALUE, value) is None:
        problems.append(
            "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start "
            "and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation "
            f"is '{_VALUE}')"
        )
    return problems


def label_causes(labels: dict[str, str], path: str) -> list[Cause]:
    """Every bad key and value of a map of labels."""
    causes = []
    for key, value in labels.items():
        causes += [Cause.invalid(path, key, text) for text in qualified_name_problems(key)]
        causes += [Cause.invalid(path, value, text) for text in label_value_problems(value)]
    return causes


def metadata_causes(metadata: Object, name_rule: str) -> list[Cause]:
    """What is wrong with an object's metadata; names, labels, annotations, owner references, finalizers."""
    causes = []
    name, prefix = metadata.get("name", ""), metadata.get("generateName", "")
    if prefix:
        # A generated name has letters behind the prefix, so the prefix may end in a dash.
        causes += [Cause.invalid("metadata.generateName", prefix, text) for text in _prefix_problems(name_rule, prefix)]
    if not name:
        causes.append(Cause.required("metadata.name", "name or generateName is required"))
    else:
        causes += [Cause.invalid("metadata.name", name, text) for text in name_problems(name_rule, name)]
    causes += label_causes(metadata.get("labels", {}), "metadata.labels")
    annotations: dict[str, str] = metadata.get("annotations", {})
    for key in annotations:
        causes += [Cause.invalid("metadata.annotations", key, text) for text in qualified_name_problems(key.lower())]
    if sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items()) > MAX_ANNOTATIONS:
        causes.append(Cause.too_long("metadata.annotations", MAX_ANNOTATIONS))
    causes += _owner_causes(metadata.get("ownerReferences", []))
    for finalizer in metadata.get("finalizers", []):
        problems = qualified_name_problems(finalizer)
        causes += [Cause.invalid("metadata.finalizers", finalizer, text) for text in problems]
        if not problems and "/" not in finalizer and finalizer not in {"orphan", "foregroundDeletion", "kubernetes"}:
            causes.append(
                Cause.invalid(
                    "metadata.finalizers",
                    finalizer,
                    "name is neither a standard finalizer name nor is it fully qualified",
                )
            )
    return causes


def _prefix_problems(rule: str, prefix: str) -> list[str]:
    return name_problems(rule, f"{prefix[:-1]}a" if prefix.endswith("-") else prefix)


def _owner_causes(owners: list[dict[str, Any]]) -> list[Cause]:
    causes = []
    controllers = []
    for index, owner in enumerate(owners):
        path = f"metadata.ownerReferences[{index}]"
        for field, text in (
            ("apiVersion", "version must not be empty"),
            ("kind", "must not be empty"),
            ("name", "must not be empty"),
            ("uid", "must not be empty"),
        ):
            if not owner.get(field):
                causes.append(Cause.invalid(f"{path}.{field}", owner.get(field, ""), text))
        if owner.get("controller"):
            controllers.append(f"{owner.get('kind')}/{owner.get('name')}")
    if len(controllers) > 1:
        causes.append(
            Cause.invalid(
                "metadata.ownerReferences",
                owners,
                f'Only one reference can have Controller set to true. Found "true" in references for {controllers[0]} and {controllers[1]}',
            )
        )
    return causes

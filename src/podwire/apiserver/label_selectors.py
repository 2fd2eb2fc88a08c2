"""Label selectors as objects hold them (meta/v1 LabelSelector): checked, matched against labels, written as text.

Those of a query string are in module `selectors`.

The text form is the one of the `SELECTOR` column and of `scale.status.selector`
(apimachinery `pkg/labels/selector.go`): requirements sorted by key, `key=value`, `key in (a,b)`, `key`, `!key`.
"""

from __future__ import annotations

from typing import Any

from podwire.apiserver import formats
from podwire.apiserver.metadata import label_causes
from podwire.apiserver.resource import Cause

Labels = dict[str, str]


def check_selector(path: str, selector: dict[str, Any] | None) -> list[Cause]:
    """Its `matchLabels` and `matchExpressions`."""
    if selector is None:
        return []
    causes = label_causes(selector.get("matchLabels") or {}, f"{path}.matchLabels")
    for index, requirement in enumerate(selector.get("matchExpressions") or ()):
        causes += _check_requirement(f"{path}.matchExpressions[{index}]", requirement)
    return causes


def _check_requirement(path: str, requirement: dict[str, Any]) -> list[Cause]:
    operator, values = requirement.get("operator", ""), requirement.get("values") or []
    causes = []
    if operator in {"In", "NotIn"}:
        if not values:
            detail = "must be specified when `operator` is 'In' or 'NotIn'"
            causes.append(Cause.required(f"{path}.values", detail))
    elif operator in {"Exists", "DoesNotExist"}:
        if values:
            detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
            causes.append(Cause.forbidden(f"{path}.values", detail))
    else:
        causes.append(Cause.invalid(f"{path}.operator", operator, "not a valid selector operator"))
    key = requirement.get("key", "")
    causes += [Cause.invalid(f"{path}.key", key, message) for message in formats.qualified_name(key)]
    for index, value in enumerate(values):
        causes += [Cause.invalid(f"{path}.values[{index}]", value, message) for message in formats.label_value(value)]
    return causes


def is_empty(selector: dict[str, Any] | None) -> bool:
    """No requirement at all."""
    return not selector or not (selector.get("matchLabels") or selector.get("matchExpressions"))


def matches(selector: dict[str, Any], labels: Labels | None) -> bool:
    """Whether labels satisfy every requirement; a label that is absent satisfies NotIn and DoesNotExist."""
    labels = labels or {}
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    return all(_satisfied(requirement, labels) for requirement in selector.get("matchExpressions") or ())


def _satisfied(requirement: dict[str, Any], labels: Labels) -> bool:
    key, values = requirement.get("key", ""), requirement.get("values") or []
    match requirement.get("operator"):
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
    return False


def text(selector: dict[str, Any] | None) -> str:
    """`app=web,tier in (a,b),!old`; empty for a selector that selects everything."""
    if selector is None:
        return ""
    rows = [(key, f"{key}={value}") for key, value in (selector.get("matchLabels") or {}).items()]
    for requirement in selector.get("matchExpressions") or ():
        key, values = requirement.get("key", ""), ",".join(sorted(requirement.get("values") or ()))
        spelled = {"In": f"{key} in ({values})", "NotIn": f"{key} notin ({values})", "DoesNotExist": f"!{key}"}
        rows.append((key, spelled.get(requirement.get("operator", ""), key)))
    return ",".join(spelling for _, spelling in sorted(rows))


def labels_text(labels: Labels | None) -> str:
    """A plain label map as a cell: `a=b,c=d`, `<none>`."""
    return ",".join(f"{key}={value}" for key, value in sorted((labels or {}).items())) or "<none>"

"""What the server answers when it says no: a `Status` object (meta/v1), raised as `StatusError`.

kubectl and every client-go program decide by `reason` and `details`, people read `message`; so the wording here is
that of apimachinery's `pkg/api/errors/errors.go`, including the qualified names: resources are written `pods` and
`deployments.apps`, kinds `Service` and `Deployment.apps`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from podwire.errors import PodwireError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from podwire.apiserver.resource import Cause, Resource


class StatusError(PodwireError):
    """A refusal: HTTP `code`, `reason`, `message`, `details` and list `metadata` as the client gets them."""

    def __init__(
        self, code: int, reason: str, message: str, details: dict[str, Any] | None = None, retry_after: int = 0
    ) -> None:
        super().__init__("answering", "a request", f"{message} [{code} {reason}]")
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details
        self.retry_after = retry_after
        self.metadata: dict[str, Any] = {}

    def body(self) -> dict[str, Any]:
        """The Status object."""
        status: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": self.metadata,
            "status": "Failure",
            "message": self.message,
        }
        if self.reason:
            status["reason"] = self.reason
        details = dict(self.details or {})
        if self.retry_after:
            details["retryAfterSeconds"] = self.retry_after
        if details or self.details is not None:
            status["details"] = details
        status["code"] = self.code
        return status


def qualified(word: str, group: str) -> str:
    """`deployments.apps`, `Deployment.apps`; the core group adds nothing."""
    return f"{word}.{group}" if group else word


def _details(resource: Resource, name: str) -> dict[str, Any]:
    """`details` of errors about one object: the plural stands in `kind`, as the real server writes it."""
    details = {"name": name, "group": resource.group, "kind": resource.plural}
    return {key: value for key, value in details.items() if value}


def not_found(resource: Resource, name: str) -> StatusError:
    """404: `pods "x" not found`."""
    message = f'{qualified(resource.plural, resource.group)} "{name}" not found'
    return StatusError(404, "NotFound", message, _details(resource, name))


def path_not_found() -> StatusError:
    """404 for a path that is not served; kubectl prints it as a missing resource type."""
    return StatusError(404, "NotFound", "the server could not find the requested resource", {})


def already_exists(resource: Resource, name: str) -> StatusError:
    """409 on create: the name is taken."""
    message = f'{qualified(resource.plural, resource.group)} "{name}" already exists'
    return StatusError(409, "AlreadyExists", message, _details(resource, name))


def conflict(resource: Resource, name: str, why: str) -> StatusError:
    """409: `Operation cannot be fulfilled on services "x": why`."""
    message = f'Operation cannot be fulfilled on {qualified(resource.plural, resource.group)} "{name}": {why}'
    return StatusError(409, "Conflict", message, _details(resource, name))


def modified(resource: Resource, name: str) -> StatusError:
    """409 because the resourceVersion sent is not the newest."""
    return conflict(
        resource,
        name,
        "the object has been modified; please apply your changes to the latest version and try again",
    )


def forbidden(resource: Resource, name: str, why: str, cause: dict[str, str] | None = None) -> StatusError:
    """403: `pods "x" is forbidden: why`; without a name the plural stands alone, as for generateName."""
    where = qualified(resource.plural, resource.group)
    message = f'{where} "{name}" is forbidden: {why}' if name else f"{where} is forbidden: {why}"
    details = _details(resource, name)
    if cause is not None:
        details["causes"] = [cause]
    return StatusError(403, "Forbidden", message, details)


def invalid(resource: Resource, name: str, causes: Sequence[Cause]) -> StatusError:
    """422 with one cause a field; equal messages are said once (apimachinery's Aggregate does the same)."""
    return invalid_object(resource.kind, resource.group, name, causes)


def invalid_object(kind: str, group: str, name: str, causes: Sequence[Cause]) -> StatusError:
    """422 about something that need not be a resource."""
    texts = list(dict.fromkeys(f"{cause.field}: {cause.message}" for cause in causes))
    text = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    details = {"name": name, "group": group, "kind": kind}
    details = {key: value for key, value in details.items() if value}
    rows = [{"reason": cause.reason, "message": cause.message, "field": cause.field} for cause in causes]
    return StatusError(
        422, "Invalid", f'{qualified(kind, group)} "{name}" is invalid: {text}', {**details, "causes": rows}
    )


def options_invalid(kind: str, causes: Sequence[Cause]) -> StatusError:
    """422 about the options of a request: `ListOptions.meta.k8s.io "" is invalid: …`."""
    return invalid_object(kind, "meta.k8s.io", "", causes)


def bad_dry_run(kind: str, word: str) -> StatusError:
    """422: dryRun says something else than All."""
    from podwire.apiserver.resource import Cause

    return options_invalid(kind, [Cause.not_supported("dryRun", word, ["All"])])


def bad_request(message: str) -> StatusError:
    """400."""
    return StatusError(400, "BadRequest", message)


def unauthorized() -> StatusError:
    """401: no token, or not ours."""
    return StatusError(401, "Unauthorized", "Unauthorized")


def method_not_supported(resource: Resource, verb: str) -> StatusError:
    """405: the resource exists, the verb does not."""
    message = f'{verb} is not supported on resources of kind "{qualified(resource.plural, resource.group)}"'
    return StatusError(405, "MethodNotAllowed", message, _details(resource, ""))


def method_not_allowed() -> StatusError:
    """405: no such method on this path."""
    return StatusError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource", {})


def not_acceptable(accepted: Sequence[str]) -> StatusError:
    """406: nothing the client takes can be written here."""
    types = ", ".join(accepted)
    message = f"only the following media types are accepted: {types}"
    return StatusError(406, "NotAcceptable", message)


def unsupported_media_type(accepted: Sequence[str], hint: str = "") -> StatusError:
    """415: the body's type is not read here."""
    message = f"the body of the request was in an unknown format - accepted media types include: {', '.join(accepted)}"
    return StatusError(415, "UnsupportedMediaType", message + (f" ({hint})" if hint else ""))


def not_implemented(what: str) -> StatusError:
    """501: known to Kubernetes, not served by this server."""
    return StatusError(501, "NotImplemented", f"podwire's API server does not serve {what}")


def expired(message: str) -> StatusError:
    """410: the resourceVersion or the continue token is older than what is kept; list again."""
    return StatusError(410, "Expired", message)


def too_large_resource_version(asked: int, current: int) -> StatusError:
    """504: a revision that does not exist yet; the client tries again (`ResourceVersionTooLarge`)."""
    cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
    message = f"Too large resource version: {asked}, current: {current}"
    return StatusError(504, "Timeout", message, {"causes": [cause]}, retry_after=1)


def internal(message: str) -> StatusError:
    """500."""
    return StatusError(
        500,
        "InternalError",
        f"Internal error occurred: {message}",
        {"causes": [{"message": message}]},
    )


def success(resource: Resource | None = None, name: str = "", uid: str = "") -> dict[str, Any]:
    """The Status that answers a DELETE which removed the object at once."""
    status: dict[str, Any] = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    if resource is not None:
        status["details"] = {**_details(resource, name), "uid": uid}
    return status

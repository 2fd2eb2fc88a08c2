"""The exception tree.

    PodwireError
    ├── UsageError                wrong input: one line, exit status 2
    ├── MissingCapability         the machine cannot do it: no root, no iptables, a kernel without vxlan
    ├── KernelError               the kernel refused (errno, object, operation)
    │   ├── NotFound              ENOENT, ENODEV, ESRCH, EADDRNOTAVAIL
    │   ├── AlreadyExists         EEXIST
    │   ├── Busy                  EBUSY
    │   └── NotPermitted          EPERM, EACCES
    ├── CommandFailed             a program we started exited non-zero (its arguments, status and stderr)
    ├── CniError                  a CNI error object: code, msg, details (spec, section "Error")
    ├── ApiError                  the API server's Status: code, reason, message
    │   ├── ApiNotFound           404
    │   ├── ApiConflict           409 Conflict (stale resourceVersion)
    │   ├── ApiAlreadyExists      409 AlreadyExists
    │   ├── ApiGone               410 (resourceVersion too old: list again)
    │   └── ApiUnavailable        no connection, 429, 5xx: try again later
    └── CriError                  the CRI server's gRPC status

errno, HTTP status and exit codes become one of these classes once, at the edge; nobody above it matches text.
Each says what we were doing (`doing`), to which object (`target`), what was answered (`answer`) and, where we know it,
what to try (`hint`). `str()` is one line that a tired person can act on. This module is slim: no imports but errno.
"""

import errno


class PodwireError(Exception):
    """What we were doing, to which object, what the system answered, and what to try."""

    exit_status = 1

    def __init__(self, doing: str, target: str = "", answer: str = "", hint: str = "") -> None:
        super().__init__(doing, target, answer, hint)
        self.doing = doing
        self.target = target
        self.answer = answer
        self.hint = hint

    def __str__(self) -> str:
        text = f"{self.doing} {self.target}".strip()
        if self.answer:
            text = f"{text}: {self.answer}"
        if self.hint:
            text = f"{text} ({self.hint})"
        return text


class UsageError(PodwireError):
    """Wrong input: what is wrong and what is expected."""

    exit_status = 2


class MissingCapability(PodwireError):
    """The machine cannot do it: no root, a missing program, a kernel without vxlan."""

    exit_status = 3


class KernelError(PodwireError):
    """The kernel refused; `errno` is its positive error number."""

    def __init__(self, doing: str, target: str = "", answer: str = "", hint: str = "", *, number: int = 0) -> None:
        super().__init__(doing, target, answer, hint)
        self.errno = number

    @staticmethod
    def of(number: int, doing: str, target: str = "", hint: str = "", answer: str = "") -> "KernelError":
        """Choose the class for `number`; `answer` is the kernel's own text (extended ack) where there is one."""
        import os

        name = errno.errorcode.get(number, str(number))
        said = f"{answer} [{name}]" if answer else f"{os.strerror(number)} [{name}]"
        return _BY_ERRNO.get(number, KernelError)(doing, target, said, hint, number=number)


class NotFound(KernelError):
    """ENOENT, ENODEV, ESRCH, EADDRNOTAVAIL."""


class AlreadyExists(KernelError):
    """EEXIST."""


class Busy(KernelError):
    """EBUSY."""


class NotPermitted(KernelError):
    """EPERM, EACCES."""


_BY_ERRNO: dict[int, type[KernelError]] = {
    errno.ENOENT: NotFound,
    errno.ENODEV: NotFound,
    errno.ESRCH: NotFound,
    errno.EADDRNOTAVAIL: NotFound,
    errno.EEXIST: AlreadyExists,
    errno.EBUSY: Busy,
    errno.EPERM: NotPermitted,
    errno.EACCES: NotPermitted,
}


class CommandFailed(PodwireError):
    """A program exited non-zero; `status` is its exit status (negative: the signal), `stderr` what it said."""

    def __init__(self, argv: list[str], status: int, stderr: str, hint: str = "") -> None:
        lines = stderr.strip().splitlines()
        super().__init__(
            "running", " ".join(argv), f"exit status {status}: {lines[-1] if lines else 'no output'}", hint
        )
        self.argv = argv
        self.status = status
        self.stderr = stderr


class CniError(PodwireError):
    """A CNI error object (https://www.cni.dev/docs/spec/#error): `code`, `msg`, `details`."""

    def __init__(self, code: int, msg: str, details: str = "") -> None:
        super().__init__(msg, answer=details)
        self.code = code
        self.msg = msg
        self.details = details


class ApiError(PodwireError):
    """The API server's answer: HTTP `code`, Status `reason`, `message`."""

    def __init__(self, doing: str, target: str, code: int, reason: str, message: str, hint: str = "") -> None:
        super().__init__(doing, target, f"{message} [{code} {reason}]", hint)
        self.code = code
        self.reason = reason
        self.message = message


class ApiNotFound(ApiError):
    """404."""


class ApiConflict(ApiError):
    """409 Conflict: the resourceVersion sent is no longer the newest."""


class ApiAlreadyExists(ApiError):
    """409 AlreadyExists."""


class ApiGone(ApiError):
    """410: the resourceVersion asked for is no longer kept; list again."""


class ApiUnavailable(ApiError):
    """No connection, 429 or 5xx: try again later (code 0 when there was no answer)."""


class CriError(PodwireError):
    """The CRI server answered with a gRPC status; `code` is its name (NOT_FOUND, UNAVAILABLE, …)."""

    def __init__(self, doing: str, target: str, code: str, message: str, hint: str = "") -> None:
        super().__init__(doing, target, f"{message} [{code}]", hint)
        self.code = code
        self.message = message

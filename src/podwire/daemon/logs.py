"""Log lines a person can read and a program can split: `2026-05-01T10:00:00.123Z INFO kube-proxy synced rules=12`.

One line a record, to stderr, values with spaces in quotes. Fields come from `extra={"kv": {…}}`, or shorter from `kv`.
What looks like a credential (bearer tokens, JSON web tokens, values named token or password, private keys) is replaced
before it is written, in messages and tracebacks alike, whoever logged it.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from typing import IO

_SECRETS = re.compile(
    r"""(?ix)
    (?P<bearer> \b(?:bearer|basic)\s+ ) [\w.~+/=-]{6,}
    | (?P<named> \b(?:[\w-]*token|password|passwd|client-key-data|secret) ["']? \s*[:=]\s* ["']? ) [^\s"',}]{6,}
    | \beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*
    | -----BEGIN[ ][A-Z ]*PRIVATE[ ]KEY-----.*?(?:-----END[ ][A-Z ]*PRIVATE[ ]KEY-----|\Z)
    """,
    re.DOTALL | re.VERBOSE,
)
_PLAIN = re.compile(r"[^\s\"'=\\]+")


def redact(text: str) -> str:
    """`text` without credentials."""
    return _SECRETS.sub(lambda match: (match["bearer"] or match["named"] or "") + "[redacted]", text)


class Formatter(logging.Formatter):
    """Time (UTC, milliseconds), level, component, message, key=value."""

    def __init__(self, component: str) -> None:
        super().__init__()
        self._component = component

    def format(self, record: logging.LogRecord) -> str:
        """One line, and the traceback below it if there is one."""
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        parts = [f"{moment}.{int(record.msecs):03d}Z", record.levelname, self._component, record.getMessage()]
        parts += [f"{name}={_value(value)}" for name, value in getattr(record, "kv", {}).items()]
        line = " ".join(part.replace("\n", "\\n") for part in parts)
        if record.exc_info:
            line = f"{line}\n{self.formatException(record.exc_info)}"
        return redact(line)


def _value(value: object) -> str:
    text = str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)


def configure(component: str, verbosity: int = 0, stream: IO[str] | None = None) -> logging.Handler:
    """Log to `stream` (stderr) as `component`: from INFO on, with verbosity 1 from DEBUG on; of libraries warnings only."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(Formatter(component))
    root = logging.getLogger()
    for old in [old for old in root.handlers if isinstance(old.formatter, Formatter)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("podwire").setLevel(logging.DEBUG if verbosity > 0 else logging.INFO)
    logging.captureWarnings(capture=True)
    return handler


def kv(log: logging.Logger, level: int, message: str, **fields: object) -> None:
    """Log `message` with fields: kv(log, logging.INFO, "synced", rules=12)."""
    log.log(level, message, extra={"kv": fields}, stacklevel=2)

"""From a kubeconfig to an HTTP client: addresses, certificates and tokens.

lightkube reads the kubeconfig and builds TLS contexts and authentication (tokens, token files, exec plug-ins, client
certificates); nothing of that is repeated here. What is added: wrong input is one line (`UsageError`).

One connection pool serves all threads. A watch keeps its connection for as long as it lasts, so the pool has no upper
limit; idle connections are few and short-lived, because servers close theirs after some seconds.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import httpx2

from podwire.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lightkube.config.kubeconfig import SingleConfig

REQUEST_SECONDS = 30.0
CONNECT_SECONDS = 5.0
IDLE_SECONDS = 4.0  # uvicorn closes idle connections after 5 s, a real API server after 120 s


def open_connection(path: str | None, environ: Mapping[str, str]) -> httpx2.Client:
    """The client for a kubeconfig file; None: in-cluster, then $KUBECONFIG, then ~/.kube/config."""
    import yaml
    from lightkube.config import client_adapter
    from lightkube.core.exceptions import ConfigError

    named = path or environ.get("KUBECONFIG", "~/.kube/config")
    doing, hint = "reading kubeconfig", "give --kubeconfig a file as kubectl uses it"
    try:
        config = _load(path, named)
        if config.cluster is None or config.user is None:
            raise UsageError(doing, named, f"context {config.context_name!r} names no cluster or no user", hint)
        parameters = client_adapter.ConnectionParams(timeout=httpx2.Timeout(REQUEST_SECONDS, connect=CONNECT_SECONDS))
        arguments: dict[str, Any] = parameters.httpx_params(config)
    except KeyError as error:
        raise UsageError(doing, named, f"there is no {error}", hint) from None
    except yaml.YAMLError as error:
        raise UsageError(doing, named, " ".join(str(error).split()), hint) from None
    except OSError as error:  # ssl.SSLError too
        raise UsageError(doing, named, error.strerror or str(error), hint) from None
    except (ConfigError, ValueError, TypeError, AttributeError) as error:
        raise UsageError(
            doing, named, str(error).splitlines()[0] if str(error) else type(error).__name__, hint
        ) from None
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=4, keepalive_expiry=IDLE_SECONDS)
    return httpx2.Client(limits=limits, follow_redirects=False, **arguments)


def _load(path: str | None, named: str) -> SingleConfig:
    from lightkube.config.kubeconfig import SERVICE_ACCOUNT, KubeConfig

    if path is None and os.path.exists(f"{SERVICE_ACCOUNT}/token"):
        config = KubeConfig.from_service_account()
    else:
        # $KUBECONFIG may list several files; kubectl merges them, podwire takes the first that is there.
        files = [name for name in named.split(":") if name]
        present = [name for name in files if os.path.exists(os.path.expanduser(name))]
        config = KubeConfig.from_file((present or files)[0])
    chosen = config.get()
    if chosen is None:
        raise UsageError("reading kubeconfig", named, "no current-context is set")
    return chosen


def failure(error: Exception) -> str | None:
    """What went wrong below HTTP, in one line; None if `error` is something else (a bug)."""
    from lightkube.core.exceptions import ConfigError  # an exec plug-in that fails, a token file that is gone

    if not isinstance(error, httpx2.HTTPError | httpx2.StreamError | OSError | ConfigError):
        closed = isinstance(error, RuntimeError) and "client has been closed" in str(error)
        return "the client is closed" if closed else None
    text = " ".join(str(error).split()) or type(error).__name__
    if "CERTIFICATE_VERIFY" in text:
        return f"{text}: the server's certificate is not signed by the kubeconfig's certificate authority"
    return text

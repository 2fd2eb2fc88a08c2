"""From a kubeconfig to an HTTP client: addresses, certificates and tokens.

lightkube reads the kubeconfig and builds TLS contexts and authentication (tokens, token files, exec plug-ins, client
certificates); nothing of that is repeated here. What is added: wrong input is one line (`UsageError`).

Only lightkube's `config` half is wanted. Importing it the plain way runs `lightkube/__init__.py`, which brings two
clients and the models of every API object: 2.5 MB and 20 ms in each of a node's processes. So it is imported below an
empty package, once, and what was imported is taken out of `sys.modules` again: a later `import lightkube` gets the whole.

One pool of connections serves all threads (`transport`). A watch keeps its connection for as long as it lasts, so the pool
has no upper limit; idle connections are few and short-lived, because servers close theirs after some seconds.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import sys
import types
import urllib.parse
import urllib.request
from typing import TYPE_CHECKING, Any

import httpx2

from podwire.errors import UsageError
from podwire.kube.transport import KEPT, Transport

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lightkube.config.kubeconfig import SingleConfig

REQUEST_SECONDS = 30.0
CONNECT_SECONDS = 5.0
IDLE_SECONDS = 4.0  # uvicorn closes idle connections after 5 s, a real API server after 120 s
DOING, HINT = "reading kubeconfig", "give --kubeconfig a file as kubectl uses it"


def open_connection(path: str | None, environ: Mapping[str, str]) -> httpx2.Client:
    """The client for a kubeconfig file; None: in-cluster, then $KUBECONFIG, then ~/.kube/config."""
    import yaml

    named = path or environ.get("KUBECONFIG") or "~/.kube/config"
    try:
        arguments = _arguments(_load(path, named))
    except UsageError:
        raise
    except KeyError as error:
        raise UsageError(DOING, named, f"there is no {error}", HINT) from None
    except OSError as error:  # ssl.SSLError too
        raise UsageError(DOING, named, error.strerror or str(error), HINT) from None
    except (AttributeError, TypeError):  # lightkube took a text, a list or a null for a mapping
        raise UsageError(
            DOING, named, "it is no kubeconfig: a mapping was expected where it has something else", HINT
        ) from None
    except (yaml.YAMLError, ValueError) as error:
        raise UsageError(DOING, named, _one_line(error), HINT) from None
    except Exception as error:
        if not _of_lightkube(error):
            raise
        raise UsageError(DOING, named, _one_line(error), HINT) from None
    if _proxied(arguments["base_url"]):
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=KEPT, keepalive_expiry=IDLE_SECONDS)
        return httpx2.Client(limits=limits, **arguments)
    arguments["transport"] = Transport(arguments.pop("verify"), IDLE_SECONDS)
    # The transport verifies, by the context it was given; `verify` only keeps httpx2 from loading a trust store of its own.
    return httpx2.Client(verify=False, **arguments)


def _proxied(server: str) -> bool:
    """Whether the environment sets a proxy for the server, as HTTPS_PROXY and NO_PROXY do for kubectl."""
    url = urllib.parse.urlsplit(server)
    proxies = urllib.request.getproxies_environment()
    if url.hostname is None or not ({url.scheme, "all"} & set(proxies)):
        return False
    return not urllib.request.proxy_bypass(url.hostname)


def failure(error: Exception) -> str | None:
    """What went wrong below HTTP, in one line; None if `error` is something else (a bug)."""
    if isinstance(error, RuntimeError) and "client has been closed" in str(error):
        return "the client is closed"
    if not isinstance(error, httpx2.HTTPError | httpx2.StreamError | OSError) and not _of_lightkube(error):
        return None
    text = _one_line(error)
    if "CERTIFICATE_VERIFY" in text:
        return f"{text}: the server's certificate is not signed by the kubeconfig's certificate authority"
    return text


def _load(path: str | None, named: str) -> SingleConfig:
    kubeconfig = _lightkube().kubeconfig
    if path is None and os.path.exists(f"{kubeconfig.SERVICE_ACCOUNT}/token"):
        config = kubeconfig.KubeConfig.from_service_account()
    else:
        # $KUBECONFIG may list several files; kubectl merges them, podwire takes the first that is there.
        files = [name for name in named.split(":") if name]
        present = [name for name in files if os.path.exists(os.path.expanduser(name))]
        if not present:
            raise UsageError(DOING, named, "no such file", HINT)
        with open(os.path.expanduser(present[0]), encoding="utf-8") as readable:  # lightkube says "not found" to EACCES
            readable.read(1)
        config = kubeconfig.KubeConfig.from_file(present[0])
    chosen: SingleConfig = config.get()
    if chosen.cluster is None:
        raise UsageError(DOING, named, f"context {chosen.context_name!r} names no cluster", HINT)
    if chosen.user is None:
        chosen = chosen._replace(user=_lightkube().models.User())  # no credentials: an anonymous client
    return chosen


def _arguments(config: SingleConfig) -> dict[str, Any]:
    parameters = _lightkube().client_adapter.ConnectionParams(
        timeout=httpx2.Timeout(REQUEST_SECONDS, connect=CONNECT_SECONDS)
    )
    arguments: dict[str, Any] = parameters.httpx_params(config)
    return arguments


@functools.cache
def _lightkube() -> Any:
    """The modules kubeconfig, client_adapter and models of lightkube, without the rest of it."""
    before = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "lightkube"}
    if not before:
        spec = importlib.util.find_spec("lightkube")
        if spec is None:
            raise ModuleNotFoundError("lightkube")
        sys.modules["lightkube"] = importlib.util.module_from_spec(spec)
        models = types.ModuleType("lightkube.core.internal_models")  # read for one annotation in core.exceptions
        models.meta_v1 = None  # type: ignore[attr-defined]
        sys.modules[models.__name__] = models
    try:
        names = ("kubeconfig", "client_adapter", "models")
        return types.SimpleNamespace(**{name: importlib.import_module(f"lightkube.config.{name}") for name in names})
    finally:
        if not before:
            for name in [name for name in sys.modules if name.partition(".")[0] == "lightkube"]:
                del sys.modules[name]


def _of_lightkube(error: Exception) -> bool:
    """Whether lightkube raised it: an exec plug-in that failed, a token file that is gone, a context that is missing."""
    return type(error).__module__.partition(".")[0] == "lightkube"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__

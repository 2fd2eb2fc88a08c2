"""The kinds this server serves, one module a kind or concept. To serve another: write its module, add it here.

A kind that kubectl or a typed client posts in protobuf also needs its message (the .proto files and
`protobuf.MESSAGES`).
"""

from __future__ import annotations

from podwire.apiserver.kinds import endpointslice, event, lease, namespace, node, pod, service
from podwire.apiserver.kinds.configuration import CONFIG_MAP, SERVICE_ACCOUNT
from podwire.apiserver.kinds.workloads import DEPLOYMENT, REPLICA_SET
from podwire.apiserver.resource import Registry


def registry() -> Registry:
    """All kinds, in the order of discovery."""
    return Registry(
        (
            namespace.RESOURCE,
            node.RESOURCE,
            pod.RESOURCE,
            service.RESOURCE,
            CONFIG_MAP,
            event.RESOURCE,
            SERVICE_ACCOUNT,
            DEPLOYMENT,
            REPLICA_SET,
            endpointslice.RESOURCE,
            lease.RESOURCE,
        )
    )

# ruff: noqa: N802 - the methods' names are the CRI's
"""The gRPC face of the runtime: one method for each RPC, and errors as statuses.

What goes wrong is answered as containerd answers it, UNKNOWN with the whole sentence, except where a client reads the code:
NOT_FOUND, ALREADY_EXISTS, INVALID_ARGUMENT, FAILED_PRECONDITION. Stopping and removing what is not there is no error, as the
CRI demands.

The server is the synchronous one. StopContainer and GetContainerEvents hold a thread each for as long as they last, so the
pool's limit is generous; threads are made only when needed.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import time
from typing import TYPE_CHECKING, TypeVar

import grpc

from podwire import __version__
from podwire.cri import containers, convert, images, states
from podwire.cri.network import NOT_READY_MESSAGE, NOT_READY_REASON
from podwire.criapi import api_pb2
from podwire.errors import CriError, PodwireError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from podwire.cri.config import CniSettings
    from podwire.cri.events import Events
    from podwire.cri.network import Pods
    from podwire.cri.records import Store
    from podwire.cri.sandboxes import Sandboxes

log = logging.getLogger("podwire.cri")

Request = TypeVar("Request")
Response = TypeVar("Response")


def rpc(
    method: Callable[[Service, Request], Response],
) -> Callable[[Service, Request, grpc.ServicerContext], Response]:
    """A method that may raise; its errors become statuses."""

    @functools.wraps(method)
    def call(self: Service, request: Request, context: grpc.ServicerContext) -> Response:
        try:
            return method(self, request)
        except CriError as error:
            code = getattr(grpc.StatusCode, error.code)
            text = error.message if error.code == "UNKNOWN" else f"{error.doing} {error.target}: {error.message}"
        except states.IllegalTransition as error:
            code, text = grpc.StatusCode.FAILED_PRECONDITION, str(error)
        except (PodwireError, OSError) as error:
            code, text = grpc.StatusCode.UNKNOWN, str(error)
        except Exception as error:
            log.exception("a fault in %s", method.__name__)
            code, text = grpc.StatusCode.INTERNAL, f"{type(error).__name__}: {error}"
        if code is not grpc.StatusCode.NOT_FOUND:
            log.warning("request failed", extra={"kv": {"method": method.__name__, "error": text}})
        context.abort(code, text)
        raise AssertionError  # abort has raised

    return call


class Service:
    """RuntimeService and ImageService; the names are the CRI's."""

    def __init__(
        self,
        store: Store,
        sandboxes: Sandboxes,
        all_containers: containers.Containers,
        network: Pods,
        events: Events,
        settings: CniSettings,
    ) -> None:
        self._store = store
        self._sandboxes = sandboxes
        self._containers = all_containers
        self._network = network
        self._events = events
        self._settings = settings
        self._pod_cidr = ""

    # the runtime

    @rpc
    def Version(self, _request: api_pb2.VersionRequest) -> api_pb2.VersionResponse:
        """Who we are; 0.1.0 is the version of kubelet's own request, which every runtime answers."""
        return api_pb2.VersionResponse(
            version="0.1.0",
            runtime_name=convert.RUNTIME_NAME,
            runtime_version=__version__,
            runtime_api_version="v1",
        )

    @rpc
    def Status(self, request: api_pb2.StatusRequest) -> api_pb2.StatusResponse:
        """Whether sandboxes can be run."""
        ready = bool(self._network.conf.networks())
        network = api_pb2.RuntimeCondition(type="NetworkReady", status=ready)
        if not ready:
            network.reason, network.message = NOT_READY_REASON, NOT_READY_MESSAGE
        runtime = api_pb2.RuntimeCondition(type="RuntimeReady", status=True)
        status = api_pb2.RuntimeStatus(conditions=[runtime, network])
        return api_pb2.StatusResponse(status=status, info=self._info() if request.verbose else {})

    def _info(self) -> dict[str, str]:
        settings = self._settings
        cni = {
            "confDir": settings.conf_dir,
            "binDirs": list(settings.bin_dirs),
            "maxConfNum": settings.max_conf_num,
        }
        networks = [
            {
                "file": network.source,
                "name": network.name,
                "cniVersion": network.cni_version,
                "plugins": [
                    {"type": kind, "capabilities": plugin.get("capabilities", {})}
                    for kind, plugin in zip(network.types, network.plugins, strict=True)
                ],
            }
            for network in self._network.conf.networks()
        ]
        return {
            "config": json.dumps({"cni": cni, "stateDir": self._store.root, "podCIDR": self._pod_cidr}),
            "cniconfig": json.dumps({"Networks": networks}),
            "lastCNILoadStatus": json.dumps(self._network.conf.problem or "OK"),
        }

    @rpc
    def UpdateRuntimeConfig(self, request: api_pb2.UpdateRuntimeConfigRequest) -> api_pb2.UpdateRuntimeConfigResponse:
        """The node's podCIDR; containerd fills a template with it, here it is only shown."""
        self._pod_cidr = request.runtime_config.network_config.pod_cidr
        return api_pb2.UpdateRuntimeConfigResponse()

    @rpc
    def RuntimeConfig(self, _request: api_pb2.RuntimeConfigRequest) -> api_pb2.RuntimeConfigResponse:
        """There are no cgroups here; a kubelet has to be told something."""
        return api_pb2.RuntimeConfigResponse(linux=api_pb2.LinuxRuntimeConfiguration(cgroup_driver=api_pb2.CGROUPFS))

    # sandboxes

    @rpc
    def RunPodSandbox(self, request: api_pb2.RunPodSandboxRequest) -> api_pb2.RunPodSandboxResponse:
        """Make and wire a sandbox."""
        return api_pb2.RunPodSandboxResponse(
            pod_sandbox_id=self._sandboxes.run(request.config, request.runtime_handler).id
        )

    @rpc
    def StopPodSandbox(self, request: api_pb2.StopPodSandboxRequest) -> api_pb2.StopPodSandboxResponse:
        """Kill its containers, give the network back."""
        record = self._store.sandbox(request.pod_sandbox_id)
        if record is not None:
            self._sandboxes.stop(record)
        return api_pb2.StopPodSandboxResponse()

    @rpc
    def RemovePodSandbox(self, request: api_pb2.RemovePodSandboxRequest) -> api_pb2.RemovePodSandboxResponse:
        """Stop it if necessary, then forget it and its containers."""
        record = self._store.sandbox(request.pod_sandbox_id)
        if record is not None:
            self._sandboxes.remove(record)
        return api_pb2.RemovePodSandboxResponse()

    @rpc
    def PodSandboxStatus(self, request: api_pb2.PodSandboxStatusRequest) -> api_pb2.PodSandboxStatusResponse:
        """One sandbox, with the statuses of its containers, so that a kubelet needs one call for a pod."""
        record = self._sandboxes.find(request.pod_sandbox_id)
        self._sandboxes.lost(record)
        return api_pb2.PodSandboxStatusResponse(
            status=convert.sandbox_status(record),
            info=convert.sandbox_info(record) if request.verbose else {},
            containers_statuses=[convert.container_status(one) for one in self._store.containers(record.id)],
            timestamp=time.time_ns(),
        )

    @rpc
    def ListPodSandbox(self, request: api_pb2.ListPodSandboxRequest) -> api_pb2.ListPodSandboxResponse:
        """Those that match the filter."""
        wanted = request.filter
        found = []
        for record in self._store.sandboxes():
            self._sandboxes.lost(record)
            if (
                record.id.startswith(wanted.id)
                and (not wanted.HasField("state") or convert.sandbox_state(record) == wanted.state.state)
                and convert.selected(record.config.labels, wanted.label_selector)
            ):
                found.append(convert.sandbox_item(record))
        return api_pb2.ListPodSandboxResponse(items=found)

    # containers

    @rpc
    def CreateContainer(self, request: api_pb2.CreateContainerRequest) -> api_pb2.CreateContainerResponse:
        """Make a record; nothing runs yet."""
        sandbox = self._sandboxes.find(request.pod_sandbox_id)
        return api_pb2.CreateContainerResponse(container_id=self._containers.create(sandbox, request.config).id)

    @rpc
    def StartContainer(self, request: api_pb2.StartContainerRequest) -> api_pb2.StartContainerResponse:
        """Run it."""
        record = self._containers.find(request.container_id)
        self._containers.start(record, self._sandboxes.find(record.sandbox))
        return api_pb2.StartContainerResponse()

    @rpc
    def StopContainer(self, request: api_pb2.StopContainerRequest) -> api_pb2.StopContainerResponse:
        """SIGTERM, patience, SIGKILL; returns when it has ended."""
        record = self._store.container(request.container_id)
        if record is not None:
            self._containers.stop(record, request.timeout)
        return api_pb2.StopContainerResponse()

    @rpc
    def RemoveContainer(self, request: api_pb2.RemoveContainerRequest) -> api_pb2.RemoveContainerResponse:
        """Kill it if it runs, and forget it."""
        record = self._store.container(request.container_id)
        if record is not None:
            self._containers.remove(record)
        return api_pb2.RemoveContainerResponse()

    @rpc
    def ContainerStatus(self, request: api_pb2.ContainerStatusRequest) -> api_pb2.ContainerStatusResponse:
        """One container."""
        record = self._containers.find(request.container_id)
        info = convert.container_info(record, self._containers.pid(record)) if request.verbose else {}
        return api_pb2.ContainerStatusResponse(status=convert.container_status(record), info=info)

    @rpc
    def ListContainers(self, request: api_pb2.ListContainersRequest) -> api_pb2.ListContainersResponse:
        """Those that match the filter."""
        wanted = request.filter
        return api_pb2.ListContainersResponse(
            containers=[
                convert.container_item(record)
                for record in self._store.containers()
                if record.id.startswith(wanted.id)
                and record.sandbox.startswith(wanted.pod_sandbox_id)
                and (not wanted.HasField("state") or convert.container_state(record) == wanted.state.state)
                and convert.selected(record.config.labels, wanted.label_selector)
            ]
        )

    @rpc
    def ReopenContainerLog(self, request: api_pb2.ReopenContainerLogRequest) -> api_pb2.ReopenContainerLogResponse:
        """The kubelet has renamed the log file."""
        self._containers.reopen_log(self._containers.find(request.container_id))
        return api_pb2.ReopenContainerLogResponse()

    def GetContainerEvents(
        self, _request: api_pb2.GetEventsRequest, context: grpc.ServicerContext
    ) -> Iterator[api_pb2.ContainerEventResponse]:
        """What happens from now on, until the client goes."""
        subscription = self._events.subscribe()
        if not context.add_callback(subscription.close):
            subscription.close()
        yield from subscription

    # images

    @rpc
    def ListImages(self, request: api_pb2.ListImagesRequest) -> api_pb2.ListImagesResponse:
        """The images that containers name: nothing else could be listed where every name exists."""
        wanted = request.filter.image.image
        names = containers.used_images(self._store)
        return api_pb2.ListImagesResponse(
            images=[images.describe(name) for name in ([wanted] if wanted in names else [] if wanted else names)]
        )

    @rpc
    def ImageStatus(self, request: api_pb2.ImageStatusRequest) -> api_pb2.ImageStatusResponse:
        """Every image exists, and says what runs in its place."""
        name = request.image.image
        return api_pb2.ImageStatusResponse(
            image=images.describe(name), info=images.info(name) if request.verbose else {}
        )

    @rpc
    def PullImage(self, request: api_pb2.PullImageRequest) -> api_pb2.PullImageResponse:
        """Nothing is pulled, and nothing has to be."""
        return api_pb2.PullImageResponse(image_ref=images.identity(request.image.image))

    @rpc
    def RemoveImage(self, _request: api_pb2.RemoveImageRequest) -> api_pb2.RemoveImageResponse:
        """There is nothing to remove."""
        return api_pb2.RemoveImageResponse()

    @rpc
    def ImageFsInfo(self, _request: api_pb2.ImageFsInfoRequest) -> api_pb2.ImageFsInfoResponse:
        """The file system of the state folder, which holds all that there is."""
        found = os.statvfs(self._store.root)
        usage = api_pb2.FilesystemUsage(
            timestamp=time.time_ns(),
            fs_id=api_pb2.FilesystemIdentifier(mountpoint=self._store.root),
            used_bytes=api_pb2.UInt64Value(value=(found.f_blocks - found.f_bfree) * found.f_frsize),
            inodes_used=api_pb2.UInt64Value(value=found.f_files - found.f_ffree),
        )
        return api_pb2.ImageFsInfoResponse(image_filesystems=[usage], container_filesystems=[usage])

"""Sandboxes and containers are started here, and it is said on the pod what happened.

Nothing is decided here (see decide) and nothing is remembered: a failure is an Event on the pod and an exception; what it
means for a container that it hit is in `StartFailed.reason`, a waiting reason of Kubernetes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from podwire.errors import ApiNotFound, CriError, PodwireError
from podwire.kube.kinds import CONFIG_MAPS
from podwire.kube.meta import ObjectReference, reference
from podwire.kubelet import environment, honour, podstatus, translate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from podwire.kube.client import Client
    from podwire.kube.events import EventRecorder
    from podwire.kube.objects import Container, Pod, Service
    from podwire.kubelet.runtime import Image, Runtime, RuntimeStatus
    from podwire.kubelet.view import Sandbox


class StartFailed(PodwireError):
    """A container was not started; `reason` is for what it waits now ('': it has ended, and says why itself)."""

    def __init__(self, container: str, reason: str, message: str) -> None:
        super().__init__("starting", container, message)
        self.reason = reason
        self.message = message


class Voice:
    """Says things about a pod, or about one of its containers, as Events."""

    def __init__(self, recorder: EventRecorder) -> None:
        self._recorder = recorder

    def normal(self, pod: Pod, reason: str, message: str, container: Container | None = None) -> None:
        """Something happened as it should."""
        self._say(pod, "Normal", reason, message, container)

    def warning(self, pod: Pod, reason: str, message: str, container: Container | None = None) -> None:
        """Something did not."""
        self._say(pod, "Warning", reason, message, container)

    def _say(self, pod: Pod, kind: str, reason: str, message: str, container: Container | None) -> None:
        target = reference(pod)
        if container is not None:
            section = "initContainers" if container in pod.spec.init_containers else "containers"
            target = ObjectReference(
                kind=target.kind,
                namespace=target.namespace,
                name=target.name,
                uid=target.uid,
                api_version=target.api_version,
                resource_version=target.resource_version,
                field_path=f"spec.{section}{{{container.name}}}",
            )
        self._recorder.event(target, kind, reason, message)


class Starter:
    """Makes sandboxes and containers for this node's pods."""

    def __init__(
        self,
        client: Client,
        runtime: Runtime,
        voice: Voice,
        node_name: str,
        node: podstatus.Node,
        settings: translate.NodeSettings,
        services: Callable[[], Iterable[Service]],
        runtime_status: Callable[[], RuntimeStatus],
    ) -> None:
        self._client = client
        self._runtime = runtime
        self._voice = voice
        self._node_name = node_name
        self._node = node
        self._settings = settings
        self._services = services
        self._runtime_status = runtime_status

    def run_sandbox(self, pod: Pod, attempt: int, *, announce: bool) -> None:
        """Run a sandbox for the pod, announcing first what the pod gets here. CriError if there is none afterwards."""
        status = self._runtime_status()
        if status.network_problem and not pod.spec.host_network:
            self._voice.warning(pod, "NetworkNotReady", f"network is not ready: {status.network_problem}")
            raise CriError("running", pod.key, "UNAVAILABLE", status.network_problem)
        if announce and attempt == 0:
            self._announce(pod)
        elif attempt > 0:
            self._voice.normal(pod, "SandboxChanged", "Pod sandbox changed, it will be killed and re-created.")
        try:
            self._runtime.run_sandbox(translate.sandbox_config(pod, attempt, self._settings))
        except CriError as error:
            text = f"Failed to create pod sandbox: rpc error: code = {_go_name(error.code)} desc = {error.message}"
            self._voice.warning(pod, "FailedCreatePodSandBox", text)
            raise

    def _announce(self, pod: Pod) -> None:
        """Say once what this pod gets here and what not."""
        everything = (*pod.spec.init_containers, *pod.spec.containers)
        stand_ins = frozenset(one.name for one in everything if self._runtime.image(one.image).runs == "stand-in")
        host_ports = honour.wants_host_ports(pod) and self._runtime.maps_ports()
        settings = honour.not_honoured(pod, stand_ins, host_ports=host_ports)
        if settings:
            self._voice.warning(pod, "NotHonoured", f"podwire does not honour: {'; '.join(settings)}")
        for container in everything:
            if container.name in stand_ins:
                self._voice.normal(pod, "StandIn", honour.stand_in_message(container), container)

    def start(self, pod: Pod, container: Container, attempt: int, sandbox: Sandbox) -> None:
        """Create and start a container. StartFailed if it does not run afterwards."""
        reason = "ErrImagePull"
        try:
            image = self._image(pod, container)
            reason = "CreateContainerConfigError"
            if image.runs != "stand-in":
                translate.check_user(pod, container)
            env = self._environment(pod, container, sandbox.ips)
            reason = "CreateContainerError"
            key = self._runtime.create_container(
                sandbox.id,
                translate.container_config(pod, container, attempt, image.id, env),
                translate.sandbox_config(pod, sandbox.attempt, self._settings),
            )
            self._voice.normal(pod, "Created", f"Created container: {container.name}", container)
            reason = ""
            self._runtime.start_container(key)
        except (CriError, environment.ConfigError) as error:
            message = error.message if isinstance(error, CriError) else error.answer
            self._voice.warning(pod, "Failed", f"Error: {message}", container)
            raise StartFailed(container.name, reason, message) from error
        self._voice.normal(pod, "Started", f"Started container {container.name}", container)

    def _image(self, pod: Pod, container: Container) -> Image:
        """The image, pulled if the policy wants it; podwire's own runtime needs no pulling, and says what runs instead."""
        name, policy = container.image, container.image_pull_policy
        image = self._runtime.image(name)
        if image.runs:
            return image
        if image.id and policy != "Always":
            self._voice.normal(pod, "Pulled", f'Container image "{name}" already present on machine', container)
            return image
        if policy == "Never":
            raise CriError(
                "finding image", name, "NOT_FOUND", f'Container image "{name}" is not present with pull policy of Never'
            )
        self._voice.normal(pod, "Pulling", f'Pulling image "{name}"', container)
        image = self._runtime.pull(name)
        self._voice.normal(pod, "Pulled", f'Successfully pulled image "{name}"', container)
        return image

    def _environment(self, pod: Pod, container: Container, ips: tuple[str, ...]) -> dict[str, str]:
        links = pod.spec.enable_service_links
        services = environment.service_variables(self._services(), pod.metadata.namespace, links=links)
        facts = environment.Downward(self._node_name, self._node.ips, self._node.ips if pod.spec.host_network else ips)

        def config_map(name: str) -> Mapping[str, str] | None:
            try:
                return self._client.get(CONFIG_MAPS, name, pod.metadata.namespace).data
            except ApiNotFound:
                return None

        return environment.container_environment(pod, container, facts, services, config_map)


def _go_name(code: str) -> str:
    """FAILED_PRECONDITION as Go spells it: FailedPrecondition."""
    return "".join(part.capitalize() for part in code.split("_"))

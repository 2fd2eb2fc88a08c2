"""Deployments: plans and statuses, and whole rollouts played through without an API."""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podwire.controllers import rollout, rolloutstatus
from podwire.kube.kinds import DEPLOYMENTS, REPLICA_SETS

if TYPE_CHECKING:
    from podwire.kube.objects import Deployment, ReplicaSet

pytestmark = pytest.mark.unit

NOW = 1_700_000_000.0


def deployment(replicas: int = 3, image: str = "web:1", **more: Any) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "replicas": replicas,
        "selector": {"matchLabels": {"app": "web"}},
        "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": image}]}},
        "progressDeadlineSeconds": 600,
        "revisionHistoryLimit": 10,
        **more,
    }
    return {"metadata": {"name": "web", "namespace": "ns", "uid": "d", "generation": 1}, "spec": spec}


def rolling(surge: int | str, unavailable: int | str) -> dict[str, Any]:
    return {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}


class World:
    """What the API server, the ReplicaSet controller and the kubelets would make of the plans."""

    def __init__(self, spec: dict[str, Any], rand: random.Random | None = None) -> None:
        self.deployment = spec
        self.sets: dict[str, dict[str, Any]] = {}
        self.clock = itertools.count()
        self.random = rand or random.Random(0)
        self.broken: set[str] = set()  # images whose pods never become available
        self.log: list[rollout.Plan] = []

    def view(self) -> rollout.View:
        sets = [REPLICA_SETS.convert(body) for body in self.sets.values()]
        old_running = False
        view = rollout.sort_out(self.typed, sets)
        if self.typed.spec.strategy.type == "Recreate":
            old_running = any(rs.status.replicas for rs in view.old)
        return rollout.sort_out(self.typed, sets, old_pods_running=old_running)

    @property
    def typed(self) -> Deployment:
        return DEPLOYMENTS.convert(self.deployment)

    def step(self) -> rollout.Plan:
        """One sync of the Deployment controller."""
        view = self.view()
        plan = rollout.plan(view)
        status = rolloutstatus.status_of(view, NOW, created=plan.create["metadata"]["name"] if plan.create else "")
        for replica_set, patch in plan.annotate:
            body = self.sets[replica_set.metadata.name]
            body["metadata"]["annotations"] |= patch.get("metadata", {}).get("annotations", {})
            body["spec"] |= patch.get("spec", {})
        if plan.create is not None:
            name = plan.create["metadata"]["name"]
            assert name not in self.sets
            plan.create["metadata"] |= {
                "uid": name,
                "generation": 1,
                "creationTimestamp": f"2026-01-01T00:00:{next(self.clock):02}Z",
            }
            self.sets[name] = {**plan.create, "status": {"replicas": 0, "observedGeneration": 0}}
        for replica_set, size, notes in plan.scales:
            body = self.sets[replica_set.metadata.name]
            assert size >= 0
            if body["spec"]["replicas"] != size:
                body["metadata"]["generation"] += 1
            body["spec"]["replicas"] = size
            body["metadata"]["annotations"] |= notes
        for replica_set in plan.delete:
            del self.sets[replica_set.metadata.name]
        if plan.revision is not None:
            self.deployment["metadata"].setdefault("annotations", {})[rollout.REVISION] = plan.revision
        self.deployment["status"] = status
        self.log.append(plan)
        return plan

    def pods_move(self, share: float = 1.0) -> bool:
        """The ReplicaSet controller and the kubelets do a part of what there is to do; False if there is nothing left."""
        left = False
        for body in self.sets.values():
            status, size = body["status"], body["spec"]["replicas"]
            image = body["spec"]["template"]["spec"]["containers"][0]["image"]
            if (status["replicas"], status["observedGeneration"]) != (size, body["metadata"]["generation"]):
                left = True
                if self.random.random() <= share:  # pods that are not available go first
                    available = min(status.get("availableReplicas", 0), size)
                    status |= {"replicas": size, "availableReplicas": available, "readyReplicas": available}
                    status["observedGeneration"] = body["metadata"]["generation"]
            aim = 0 if image in self.broken else status["replicas"]
            if status.get("availableReplicas", 0) < aim:
                left = True
                if self.random.random() <= share:
                    status["availableReplicas"] = status["readyReplicas"] = status.get("availableReplicas", 0) + 1
        return left

    def settle(self, rounds: int = 500, share: float = 1.0, check: Any = None) -> None:
        quiet = 0
        for _ in range(rounds):
            plan = self.step()
            if check:
                check(self)
            left = self.pods_move(share)
            if check:
                check(self)
            quiet = (
                0 if left or any((plan.create, plan.scales, plan.delete, plan.annotate, plan.revision)) else quiet + 1
            )
            if quiet > 2:
                return
        raise AssertionError("it never settles")

    def sizes(self) -> dict[str, int]:
        return {
            body["spec"]["template"]["spec"]["containers"][0]["image"]: body["spec"]["replicas"]
            for body in self.sets.values()
        }

    def set_image(self, image: str) -> None:
        self.deployment["spec"]["template"]["spec"]["containers"][0]["image"] = image
        self.deployment["metadata"]["generation"] += 1


def condition(world: World, kind: str) -> tuple[str, str]:
    return next((c["status"], c["reason"]) for c in world.deployment["status"]["conditions"] if c["type"] == kind)


def test_a_new_deployment_gets_one_replica_set_of_its_size() -> None:
    world = World(deployment(3))
    plan = world.step()
    assert plan.create is not None
    body = plan.create
    digest = body["metadata"]["labels"]["pod-template-hash"]
    assert body["metadata"]["name"] == f"web-{digest}"
    assert body["spec"]["selector"]["matchLabels"] == {"app": "web", "pod-template-hash": digest}
    assert body["spec"]["template"]["metadata"]["labels"] == {"app": "web", "pod-template-hash": digest}
    assert body["spec"]["replicas"] == 3
    annotations = body["metadata"]["annotations"]
    assert {key.rpartition("/")[2]: value for key, value in annotations.items()} == {
        "revision": "1",
        "desired-replicas": "3",
        "max-replicas": "4",
    }
    assert condition(world, "Progressing") == ("True", "NewReplicaSetCreated")
    world.settle()
    assert condition(world, "Progressing") == ("True", "NewReplicaSetAvailable")
    assert condition(world, "Available") == ("True", "MinimumReplicasAvailable")


def test_the_hash_is_of_letters_that_make_no_words_and_changes_with_the_template() -> None:
    first = rollout.template_hash(DEPLOYMENTS.convert(deployment()))
    assert first == rollout.template_hash(DEPLOYMENTS.convert(deployment()))
    assert first != rollout.template_hash(DEPLOYMENTS.convert(deployment(image="web:2")))
    collided = deployment() | {"status": {"collisionCount": 1}}
    assert first != rollout.template_hash(DEPLOYMENTS.convert(collided))
    assert set(first) <= set("bcdfghjklmnpqrstvwxz2456789")
    assert len(first) <= 10


@pytest.mark.parametrize(
    ("replicas", "surge", "unavailable", "expected"),
    [
        (4, "25%", "25%", (1, 1)),
        (3, "25%", "25%", (1, 0)),
        (10, "25%", "25%", (3, 2)),
        (3, 0, 0, (0, 1)),
        (3, "0%", "10%", (0, 1)),
        (3, 2, 5, (2, 3)),
        (0, "25%", "25%", (0, 0)),
    ],
)
def test_percentages_of_surge_round_up_and_of_unavailability_down(
    replicas: int, surge: int | str, unavailable: int | str, expected: tuple[int, int]
) -> None:
    typed = DEPLOYMENTS.convert(deployment(replicas, strategy=rolling(surge, unavailable)))
    assert rollout.surge_and_unavailable(typed) == expected


def test_the_template_is_compared_without_the_hash_and_with_nothing_else_left_out() -> None:
    world = World(deployment())
    world.settle()
    assert world.view().new is not None
    world.set_image("web:2")
    assert world.view().new is None


def test_going_back_to_an_old_template_takes_its_replica_set_again_as_a_new_revision() -> None:
    world = World(deployment())
    world.settle()
    world.set_image("web:2")
    world.settle()
    world.set_image("web:1")
    world.settle()
    assert world.sizes() == {"web:1": 3, "web:2": 0}
    assert world.deployment["metadata"]["annotations"][rollout.REVISION] == "3"
    back = world.view().new
    assert back is not None
    assert back.metadata.annotations[rollout.REVISION] == "3"
    assert back.metadata.annotations[rollout.HISTORY] == "1"


def test_a_rollout_that_fails_leaves_the_available_pods_alone_and_says_so() -> None:
    world = World(deployment(4, strategy=rolling(1, 1)))
    world.settle()
    world.broken.add("web:2")
    world.set_image("web:2")
    world.settle()
    assert world.sizes() == {"web:1": 3, "web:2": 2}
    assert condition(world, "Progressing") == ("True", "ReplicaSetUpdated")
    late = rolloutstatus.status_of(world.view(), NOW + 601)
    (progressing,) = [c for c in late["conditions"] if c["type"] == "Progressing"]
    assert (progressing["status"], progressing["reason"]) == ("False", "ProgressDeadlineExceeded")
    assert rollout.seconds_until_deadline(world.typed, NOW + 100) == 500


def test_recreate_makes_nothing_new_while_old_pods_run() -> None:
    world = World(deployment(3, strategy={"type": "Recreate"}))
    world.settle()
    world.set_image("web:2")

    def never_both(world: World) -> None:
        present = [body for body in world.sets.values() if body["status"]["replicas"] or body["spec"]["replicas"]]
        assert len(present) <= 1

    world.settle(check=never_both)
    assert world.sizes() == {"web:1": 0, "web:2": 3}


def test_a_paused_deployment_scales_and_does_not_roll() -> None:
    world = World(deployment(3))
    world.settle()
    world.deployment["spec"]["paused"] = True
    world.set_image("web:2")
    world.deployment["spec"]["replicas"] = 5
    world.settle()
    assert world.sizes() == {"web:1": 5}
    assert condition(world, "Progressing") == ("Unknown", "DeploymentPaused")
    world.deployment["spec"]["paused"] = False
    world.settle()
    assert world.sizes() == {"web:1": 0, "web:2": 5}
    assert condition(world, "Progressing") == ("True", "NewReplicaSetAvailable")


def test_scaling_in_the_middle_of_a_rollout_is_shared_out_in_proportion() -> None:
    world = World(deployment(10, strategy=rolling(3, 2)))
    world.settle()
    world.broken.add("web:2")
    world.set_image("web:2")
    world.settle()
    assert world.sizes() == {"web:1": 8, "web:2": 5}
    world.deployment["spec"]["replicas"] = 15
    world.step()
    assert world.sizes() == {"web:1": 11, "web:2": 7}, "the example of the Kubernetes documentation"


def test_only_as_many_old_replica_sets_are_kept_as_the_history_allows() -> None:
    world = World(deployment(1, revisionHistoryLimit=2))
    for number in range(1, 6):
        world.set_image(f"web:{number}")
        world.settle()
    assert sorted(world.sizes()) == ["web:3", "web:4", "web:5"]


def test_a_deployment_that_is_being_deleted_is_left_alone() -> None:
    body = deployment()
    body["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert World(body).step() == rollout.Plan()


def test_annotations_of_the_deployment_are_on_its_replica_sets_but_kubectls_are_not() -> None:
    body = deployment()
    body["metadata"]["annotations"] = {"team": "net", "kubectl.kubernetes.io/last-applied-configuration": "{}"}
    plan = World(body).step()
    assert plan.create is not None
    annotations = plan.create["metadata"]["annotations"]
    assert annotations["team"] == "net"
    assert "kubectl.kubernetes.io/last-applied-configuration" not in annotations


def test_zero_replicas_are_a_complete_rollout() -> None:
    world = World(deployment(0))
    world.settle()
    assert condition(world, "Progressing") == ("True", "NewReplicaSetAvailable")
    assert condition(world, "Available") == ("True", "MinimumReplicasAvailable")


def test_a_replica_set_that_cannot_make_pods_is_a_condition() -> None:
    world = World(deployment(1))
    world.step()
    failure = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "forbidden"}
    for body in world.sets.values():
        body["status"]["conditions"] = [failure]
    world.step()
    assert condition(world, "ReplicaFailure") == ("True", "FailedCreate")


@settings(deadline=None, max_examples=200)
@given(
    replicas=st.integers(0, 8),
    surge=st.one_of(st.integers(0, 4), st.sampled_from(["0%", "25%", "50%", "100%"])),
    unavailable=st.one_of(st.integers(0, 4), st.sampled_from(["0%", "25%", "50%", "100%"])),
    images=st.lists(st.sampled_from(["web:1", "web:2", "web:3"]), min_size=1, max_size=4),
    scale=st.one_of(st.none(), st.integers(0, 8)),
    seed=st.integers(0, 1000),
    pause=st.integers(0, 12),
)
def test_every_rollout_ends_complete_within_its_limits(
    replicas: int, surge: Any, unavailable: Any, images: list[str], scale: int | None, seed: int, pause: int
) -> None:
    """Whatever is changed in the middle of whatever: limits hold while nothing is scaled, and the end is what was asked for."""
    world = World(deployment(replicas, strategy=rolling(surge, unavailable)), random.Random(seed))
    world.settle()
    max_surge, max_unavailable = rollout.surge_and_unavailable(world.typed)

    def within(world: World) -> None:
        wanted = world.deployment["spec"]["replicas"]
        total = sum(body["spec"]["replicas"] for body in world.sets.values())
        present = sum(
            min(body["spec"]["replicas"], body["status"].get("availableReplicas", 0)) for body in world.sets.values()
        )
        assert total <= wanted + max_surge
        assert present >= wanted - max_unavailable

    for image in images:
        world.set_image(image)
        for _ in range(pause):  # the next change may come long before this one is through
            world.step()
            within(world)
            world.pods_move(0.5)
            within(world)
    world.settle(share=0.5, rounds=2000, check=within)
    if scale is not None:
        world.deployment["spec"]["replicas"] = scale
        world.settle(share=0.5, rounds=2000)
    sizes = world.sizes()
    assert sizes.pop(images[-1]) == world.deployment["spec"]["replicas"]
    assert not any(sizes.values())
    status = world.deployment["status"]
    assert status["updatedReplicas"] == status["availableReplicas"] == status["replicas"]
    assert status["unavailableReplicas"] == 0


def test_the_status_is_written_only_when_it_differs() -> None:
    world = World(deployment(2))
    world.settle()
    view = world.view()
    assert not rolloutstatus.differs(rolloutstatus.status_of(view, NOW + 50), view.deployment.status)


def typed(**more: Any) -> ReplicaSet:
    return REPLICA_SETS.convert({"metadata": {"name": "x"}, **more})


def test_a_revision_that_is_no_number_counts_as_none() -> None:
    assert rollout.revision_of(typed()) == 0
    assert rollout.revision_of(typed(metadata={"name": "x", "annotations": {rollout.REVISION: "seven"}})) == 0

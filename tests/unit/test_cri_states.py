"""The tables of a sandbox's and a container's life."""

import itertools

import pytest

from podwire.cri import states

pytestmark = pytest.mark.unit


def reachable(table, start):
    found, todo = {start}, [start]
    while todo:
        state = todo.pop()
        for (source, _), target in table.items():
            if source is state and target not in found:
                found.add(target)
                todo.append(target)
    return found


def test_every_state_can_be_reached_and_has_a_recovery():
    assert reachable(states.SANDBOX, states.Sandbox.PREPARING) == set(states.Sandbox)
    assert reachable(states.CONTAINER, states.Container.CREATED) == set(states.Container)
    assert set(states.RECOVERY) == {*states.Sandbox, *states.Container}


def test_a_stop_leads_to_stopped_from_every_state_of_a_sandbox():
    for state in states.Sandbox:
        after = states.next_sandbox(state, states.SandboxEvent.STOP)
        assert states.next_sandbox(after, states.SandboxEvent.RELEASED) is states.Sandbox.STOPPED


def test_a_container_that_ended_never_runs_again():
    assert reachable(states.CONTAINER, states.Container.EXITED) == {states.Container.EXITED}


def test_what_the_tables_do_not_have_is_refused_with_a_sentence():
    refused = [
        (state, event)
        for state, event in itertools.product(states.Container, states.ContainerEvent)
        if (state, event) not in states.CONTAINER
    ]
    assert (states.Container.RUNNING, states.ContainerEvent.START) in refused
    for state, event in refused:
        with pytest.raises(states.IllegalTransition, match=f"{event.value} is not possible when {state.value}"):
            states.next_container(state, event)
    with pytest.raises(states.IllegalTransition):
        states.next_sandbox(states.Sandbox.STOPPED, states.SandboxEvent.WIRED)

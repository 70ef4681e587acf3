"""Ray clusters of made-up machines on this one, each in a process of its own.

Run as a script it is that process: it starts the machines, then follows commands on its standard
input, and ends the cluster when that closes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

# Nothing of Ray's beside machines and workers; an object store holds what results need.
_QUIET = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_enable_metrics_collection": "0",
    "RAY_task_events_report_interval_ms": "0",
    "RAY_enable_worker_prestart": "0",
    "RAY_prestart_worker_first_driver": "0",
}
_STORE_BYTES = 80 * 2**20
_NODES_TIMEOUT_S = 120.0
_END_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeUpCluster:
    """A running cluster; its head gives out nothing. Machines count from 0 as they were added."""

    address: str
    process: subprocess.Popen[str]

    def add(self, *nodes: dict[str, Any]) -> None:
        """Adds machines (arguments of ``Cluster.add_node``) and waits until they are known."""
        self._tell("add", nodes)

    def remove(self, index: int) -> None:
        """Kills a machine with everything on it."""
        self._tell("remove", index)

    def remove_last(self) -> None:
        """Kills the machine that was added last."""
        self.remove(-1)

    def pause(self, index: int) -> None:
        """Stops a machine's raylet (SIGSTOP): to the others it is a network that went silent."""
        self._tell("pause", index)

    def resume(self, index: int) -> None:
        """Lets it go on."""
        self._tell("resume", index)

    def _tell(self, command: str, argument: Any) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps([command, argument]) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer and json.loads(answer) == command, (command, answer)


@contextmanager
def made_up_cluster(
    nodes: Sequence[dict[str, Any]], *, light: bool = False, health_check_ms: int | None = None
) -> Iterator[MadeUpCluster]:
    """A cluster with ``nodes`` (each the arguments of ``Cluster.add_node``) beside its head.

    Args:
        light: Without Ray's agents, which many machines have no room for here.
        health_check_ms: How often Ray asks whether a machine still lives; five answers that are
            missing are a loss. None for Ray's own 3 s.
    """
    quiet = _QUIET | (
        {"RAY_health_check_period_ms": str(health_check_ms)} if health_check_ms else {}
    )
    words = [json.dumps(list(nodes)), *(["light"] if light else [])]
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            [sys.executable, __file__, *words], env={**os.environ, **quiet}, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said,
        )  # fmt: skip
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            said.seek(0)
            assert address, f"the cluster did not start: {said.read()[-3000:]}"
            yield MadeUpCluster(address=address, process=process)
        finally:
            process.communicate(timeout=_END_TIMEOUT_S)


@contextmanager
def _light() -> Iterator[None]:
    """The machines of this process start none of Ray's helpers and agents, 60 MB each."""
    import ray
    import ray._private.services as services

    from analyzer.cluster.ray_agents import without_agents, without_helpers

    real = services.start_ray_process

    def start(command: list[str], *arguments: Any, **named: Any) -> Any:
        return real(without_agents(ray, command), *arguments, **named)

    services.start_ray_process = start
    with without_helpers(ray):
        yield


def main(nodes: list[dict[str, Any]]) -> None:
    """The cluster's process."""
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": _STORE_BYTES}
    cluster: Any = Cluster(initialize_head=True, head_node_args=head)
    own = [_add(cluster, arguments) for arguments in nodes]
    cluster.wait_for_nodes(_NODES_TIMEOUT_S)
    print(cluster.address, flush=True)
    for line in sys.stdin:
        command, argument = json.loads(line)
        if command == "add":
            own += [_add(cluster, arguments) for arguments in argument]
            _wait(cluster)
        elif command == "remove":
            cluster.remove_node(own.pop(argument), allow_graceful=False)
        else:
            (raylet,) = own[argument].all_processes["raylet"]
            sent = signal.SIGSTOP if command == "pause" else signal.SIGCONT
            os.kill(raylet.process.pid, sent)
        print(json.dumps(command), flush=True)
    for node in own:  # at once: Ray would let each end in peace
        cluster.remove_node(node, allow_graceful=False)
    cluster.shutdown()


def _add(cluster: Any, arguments: dict[str, Any]) -> Any:
    named = {"object_store_memory": _STORE_BYTES, **arguments}
    return cluster.add_node(wait=False, **named)


def _wait(cluster: Any) -> None:
    """Until every machine is known; one that was lost on purpose still counts in Ray's own wait."""
    import time

    deadline = time.monotonic() + _NODES_TIMEOUT_S
    while len(cluster.global_state._live_node_ids()) < len(cluster.list_all_nodes()):
        assert time.monotonic() < deadline, "machines do not come up"
        time.sleep(0.1)


if __name__ == "__main__":
    with _light() if "light" in sys.argv[2:] else nullcontext():
        main(json.loads(sys.argv[1]))

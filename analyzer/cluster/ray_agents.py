"""A local Ray without the Python processes that it starts beside its daemons and workers.

Of its node manager's ("raylet") two agents one serves the dashboard, the other installs runtime
environments. Nobody here asks either, each is a second or two of processor time, and the node
manager waits for both before it takes a worker. ``ray.init`` has no option for that. The node
manager learns their ports from files in the session's folder, where -1 stands for a service that is
not in use, and ends with an agent that ends. So the files are written for it, and what it starts in
the agents' place does nothing until it is gone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

# Reads the pipe that the node manager holds the other end of; what Ray adds to the command is
# ignored.
_IDLE = '/bin/sh -c "exec cat" agent'
_NODE_MANAGER = "raylet"
_COMMANDS = ("--dashboard_agent_command=", "--runtime_env_agent_command=")
_PORT_NAMES = (
    "METRICS_AGENT_PORT_NAME",
    "METRICS_EXPORT_PORT_NAME",
    "DASHBOARD_AGENT_LISTEN_PORT_NAME",
    "RUNTIME_ENV_AGENT_PORT_NAME",
)
_NOT_IN_USE = -1
_HELPERS = ("start_monitor", "start_api_server", "start_log_monitor")


def without_agents(ray: ModuleType, command: Sequence[str]) -> list[str]:
    """A process's command line, which starts no agents if it is the node manager's.

    Another process's is returned as it is, and so is that of a version of Ray whose node manager
    learns of its agents in another way.
    """
    given = list(command)
    if not given or Path(given[0]).name != _NODE_MANAGER:
        return given
    core: Any = getattr(ray, "_raylet", None)
    words = dict(word[2:].split("=", 1) for word in given if word[:2] == "--" and "=" in word)
    folder, node = words.get("session_dir"), words.get("node_id")
    named = [getattr(core, name, None) for name in _PORT_NAMES]
    known = all(any(word.startswith(of) for word in given) for of in _COMMANDS)
    if not (known and folder and node and all(named) and hasattr(core, "persist_port")):
        return given
    for name in named:
        core.persist_port(folder, node, name, _NOT_IN_USE)
    return [
        next((f"{of}{_IDLE}" for of in _COMMANDS if word.startswith(of)), word) for word in given
    ]


@contextmanager
def without_helpers(ray: ModuleType) -> Iterator[None]:
    """Keeps a local Ray from starting autoscaler, dashboard and log monitor.

    Nobody here asks them, each is a Python process of nearly a second of CPU, and ``ray.init`` has
    no option for that. Where Ray's node has no such methods any more, it starts them.
    """
    node: Any = ray._private.node.Node
    kept = {name: getattr(node, name) for name in _HELPERS if hasattr(node, name)}
    for name in kept:
        setattr(node, name, lambda self, *args, **options: None)
    try:
        yield
    finally:
        for name, method in kept.items():
            setattr(node, name, method)

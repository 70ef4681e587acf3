"""Where Ray cannot start, the user is told what works without it."""

from __future__ import annotations

import subprocess
import sys
import tempfile

import psutil
import pytest
from click.testing import CliRunner

from analyzer.cli.search import search
from analyzer.cluster.processes import lives
from analyzer.cluster.ray_agents import without_agents
from analyzer.cluster.ray_session import as_startup_error, ray_session
from analyzer.errors import AnalyzerError, MissingPartError, UsageError

WITHOUT_RAY = "--executor in-process"


def test_the_hints_name_an_option_that_exists() -> None:
    shown = CliRunner().invoke(search, ["--help"]).output
    assert "--executor [ray|in-process]" in shown


def start() -> AnalyzerError:
    with pytest.raises(MissingPartError) as refusal, ray_session(address=None, cores=1):
        pass
    return refusal.value


# In a process of its own, since Ray leaves what it has started to whoever ends the process.
REFUSED_BY_RAY = """
from analyzer.cluster.ray_session import ray_session
from analyzer.errors import MissingPartError

try:
    with ray_session(address=None, cores=-1):
        pass
except MissingPartError as error:
    print(error.message, error.hint)
"""


def test_ray_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    error = start()
    assert "cannot be imported" in error.message
    assert "pip install ray" in error.hint and WITHOUT_RAY in error.hint


@pytest.mark.ray
def test_ray_that_does_not_start() -> None:
    pytest.importorskip("ray", reason="Ray is not installed")
    done = subprocess.run(
        [sys.executable, "-c", REFUSED_BY_RAY],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.stdout.startswith("Ray does not start on this machine"), done
    assert WITHOUT_RAY in done.stdout


def test_a_folder_that_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason="Ray is not installed")
    monkeypatch.setattr(tempfile, "tempdir", "/proc/nowhere")
    error = start()
    assert "/proc/nowhere" in error.message
    assert "TMPDIR" in error.hint and WITHOUT_RAY in error.hint


def test_any_other_fault_at_the_start() -> None:
    error = as_startup_error(RuntimeError("no room\nand more"))
    assert "RuntimeError: no room" in error.message and "and more" not in error.message
    assert WITHOUT_RAY in error.hint
    own = UsageError("wrong", hint="right")
    assert as_startup_error(own) is own


# The names of its processes while a worker answers; a second that is asked for still starts.
RUNNING = """
import psutil
from analyzer.cluster.ray_session import ray_session

with ray_session(address=None, cores=1) as ray:
    answer = ray.remote(num_cpus=1)(lambda: 7)
    assert ray.get(answer.remote(), timeout=60) == 7
    for process in psutil.Process().children(recursive=True):
        print(process.pid, *process.cmdline()[:2])
"""


@pytest.mark.ray
def test_a_local_ray_starts_no_agents_and_leaves_nothing_in_their_place() -> None:
    pytest.importorskip("ray", reason="Ray is not installed")
    done = subprocess.run(
        [sys.executable, "-c", RUNNING],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "raylet" in done.stdout, done.stdout
    assert "gent" not in done.stdout, "neither ray::DashboardAgent nor dashboard/agent.py"
    numbers = [int(line.split()[0]) for line in done.stdout.splitlines()]
    left = [psutil.Process(number) for number in numbers if psutil.pid_exists(number)]
    _, alive = psutil.wait_procs(left, timeout=30)  # a worker ends a moment after its daemons
    assert not [process for process in alive if lives(process)], done.stdout


def test_what_is_no_node_manager_of_a_version_that_is_known_is_started_as_it_is() -> None:
    class Core:
        """As of a version that has no files of ports."""

    class Ray:
        _raylet = Core()

    words = ["--session_dir=/nowhere", "--node_id=1", "--dashboard_agent_command=a"]
    raylet = ["/usr/bin/raylet", *words, "--runtime_env_agent_command=b"]
    for command in (["/usr/bin/gcs_server", "--node_id=1"], [], raylet):
        assert without_agents(Ray(), command) == command  # type: ignore[arg-type]

"""The end of a local Ray: how long it takes, what it leaves, and signals that come before it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from analyzer.cluster import guardian
from analyzer.cluster.processes import lives

ROOT = Path(__file__).parents[2]

# On a busy machine a worker's process takes as long to come up.
SLOW_WORKERS = """
import sys, time
if any("default_worker.py" in word for word in sys.orig_argv):
    time.sleep(60.0)
"""
END_WHILE_A_WORKER_STARTS = """
import sys, time
from pathlib import Path
from analyzer.cluster.ray_executor import RayExecutor

with RayExecutor(device="cpu", cache_dir=Path(sys.argv[1]), cores=1) as executor:
    assert executor.ready(60.0)
    time.sleep(2.0)
    began = time.monotonic()
print(time.monotonic() - began)
"""


@pytest.mark.ray
@pytest.mark.timing
def test_a_worker_that_still_starts_is_not_waited_for(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed")
    (tmp_path / "sitecustomize.py").write_text(SLOW_WORKERS)
    done = subprocess.run(
        [sys.executable, "-c", END_WHILE_A_WORKER_STARTS, str(tmp_path / "cache")],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])},
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    # Ray's own end takes one of them; the worker was waited for 15.
    assert float(done.stdout) < 6.0


# A signal every millisecond, from before Ray's start until after its end.
SIGNALS_ALL_THE_TIME = """
import os, signal, subprocess, sys, threading
from analyzer.cluster.ray_session import ray_session

heard = 0
def hear(number, frame):
    global heard
    heard += 1
signal.signal(signal.SIGTERM, hear)
sender = subprocess.Popen([sys.executable, "-c", (
    "import os, signal, sys, time\\n"
    "while True:\\n"
    "    os.kill(int(sys.argv[1]), signal.SIGTERM)\\n"
    "    time.sleep(0.001)\\n"
), str(os.getpid())])

def host():
    with ray_session(address=None, cores=1):
        pass
session = threading.Thread(target=host)
session.start()
session.join()
sender.kill()
print(heard)
"""


@pytest.mark.ray
def test_every_signal_finds_our_handler() -> None:
    """Ray's core would print a stack trace and end the process while it connects."""
    pytest.importorskip("ray", reason="Ray is not installed")
    done = subprocess.run(
        [sys.executable, "-c", SIGNALS_ALL_THE_TIME],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 100
    assert "***" not in done.stderr, done.stderr


def test_the_guardian_finds_children_that_have_lost_their_environment() -> None:
    """As Ray's agents do, whose title lies where their environment was."""
    mark = f"TRITUNE_TEST_GUARDIAN={os.getpid()}"
    code = "import subprocess; subprocess.run(['sleep', '1000'], env={})"
    name, _, value = mark.partition("=")
    parent = subprocess.Popen([sys.executable, "-c", code], env=os.environ | {name: value})
    try:
        while not (children := psutil.Process(parent.pid).children()) or children[0].environ():
            assert parent.poll() is None
        assert guardian.find(mark.encode(), set()) == {parent.pid, children[0].pid}
        subprocess.run(
            [sys.executable, "-I", "-S", guardian.__file__, mark, ""],
            stdin=subprocess.DEVNULL, check=True, timeout=30,
        )  # fmt: skip
        parent.wait(10)
        assert not lives(children[0])
    finally:
        parent.kill()


def test_the_guardian_ends_a_group_whose_leader_is_gone() -> None:
    """A killed driver takes Ray's daemon with it at once, and leaves the daemon's agents."""
    code = "import subprocess, sys; subprocess.Popen(['sleep', '1000'], env={}); sys.stdin.read()"
    leader = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, process_group=0)
    while not (children := psutil.Process(leader.pid).children()) or children[0].environ():
        assert leader.poll() is None
    leader.kill()
    leader.communicate()
    subprocess.run(
        [sys.executable, "-I", "-S", guardian.__file__, "TRITUNE_TEST_NOBODY=1", ""],
        input=f"{leader.pid}\n".encode(), check=True, timeout=30,
    )  # fmt: skip
    assert not lives(children[0])

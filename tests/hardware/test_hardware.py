"""Facts of the machine and sampling of processes; GPUs are in test_gpus.py."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from analyzer.hardware.fake_nvml import FakeGpu, FakeNvml
from analyzer.hardware.machine import (
    Machine,
    busy_seconds,
    core_seconds_max,
    inspect_machine,
    same_hardware,
    usable_cores,
)
from analyzer.hardware.processes import cpu_seconds, resident_bytes, with_children
from analyzer.hardware.sampler import ResourceSampler
from analyzer.hardware.timing import first_in_line, set_timer_slack_ns

NO_DRIVER = {"nvmlInit": "NVML_ERROR_DRIVER_NOT_LOADED"}


def test_this_machine() -> None:
    machine = inspect_machine()
    assert 1 <= machine.cores <= machine.cores_total
    assert machine.memory_bytes > 1 << 20
    assert f"{machine.cores} ×" in machine.hardware
    assert inspect_machine().hardware_key == machine.hardware_key


def test_control_groups_limit_cores_and_memory(tmp_path: Path) -> None:
    group = tmp_path / "sys/fs/cgroup/a/b"
    group.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/a/b\n")
    (tmp_path / "proc/cpuinfo").write_text("model name\t: Intel(R) Xeon(R) CPU @ 2.10GHz\n")
    (tmp_path / "proc/meminfo").write_text("MemTotal:       8388608 kB\n")
    (group / "cpu.max").write_text("max 100000\n")
    (group.parent / "cpu.max").write_text("100000 100000\n")
    (group / "memory.max").write_text(f"{2 << 30}\n")
    machine = inspect_machine(root=tmp_path, nvml=FakeNvml(faults=NO_DRIVER))
    assert machine.cores == 1
    assert machine.memory_bytes == 2 << 30
    assert machine.hardware == "1 × Intel Xeon @ 2.10GHz, 2 GiB"
    (group / "memory.max").write_text("max\n")
    assert inspect_machine(root=tmp_path, nvml=FakeNvml(faults=NO_DRIVER)).memory_bytes == 8 << 30


def cpu_info(name: str, flags: str, *, model: int = 1) -> str:
    """``/proc/cpuinfo`` of two cores."""
    core = (
        f"processor\t: 0\ncpu family\t: 25\nmodel\t\t: {model}\nmodel name\t: {name}\n"
        f"flags\t\t: {flags}\n"
    )
    return f"{core}\n{core}\n"


def test_generations_behind_one_name_are_machines_of_their_own(tmp_path: Path) -> None:
    """A virtual machine calls a CPU with and one without products of 8 bits alike."""
    (tmp_path / "proc").mkdir()
    found = []
    for flags, model in (("fma avx2", 1), ("fma avx2", 17), ("avx2 avx512f avx512_vnni", 17)):
        text = cpu_info("AMD EPYC", flags, model=model)
        (tmp_path / "proc/cpuinfo").write_text(text)
        found.append(inspect_machine(root=tmp_path, nvml=FakeNvml(faults=NO_DRIVER)))
    older, newer, with_vnni = found
    assert older.cpu == newer.cpu == "AMD EPYC (AVX2)"
    assert with_vnni.cpu == "AMD EPYC (AVX-512 VNNI)"
    assert len({machine.hardware_key for machine in found}) == 3


def test_measurements_hold_on_a_machine_of_another_memory() -> None:
    first = "2 × AMD EPYC (AVX2), 24 GiB, NVIDIA H200"
    assert same_hardware(first, "2 × AMD EPYC (AVX2), 16 GiB, NVIDIA H200")
    assert not same_hardware(first, "2 × AMD EPYC (AVX2), 24 GiB")
    assert not same_hardware(first, "4 × AMD EPYC (AVX2), 24 GiB, NVIDIA H200")


def test_an_arm_cpu_tells_its_features_and_part(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text(
        "processor\t: 0\nFeatures\t: fp asimd asimddp i8mm\nCPU part\t: 0xd40\n\n"
    )
    machine = inspect_machine(root=tmp_path, nvml=FakeNvml(faults=NO_DRIVER))
    assert machine.cpu.endswith(" (I8MM)")
    assert machine.generation == "0xd40"


@pytest.mark.parametrize(
    ("membership", "files", "expected"),
    [
        ("0::/\n", {}, 64),
        ("0::/\n", {"cpu.max": "max 100000\n"}, 64),
        ("0::/a\n", {"a/cpu.max": "250000 100000\n"}, 2),
        ("0::/a\n", {"a/cpu.max": "50000 100000\n"}, 1),
        ("0::/a/b\n", {"a/b/cpu.max": "800000 100000\n", "a/cpu.max": "300000 100000\n"}, 3),
        # A container that sees only its own group, mounted as the root.
        ("0::/docker/77\n", {"cpu.max": "400000 100000\n"}, 4),
        (
            "4:cpu,cpuacct:/a\n0::/\n",
            {"cpu/a/cpu.cfs_quota_us": "200000\n", "cpu/a/cpu.cfs_period_us": "100000\n"},
            2,
        ),
        (
            "4:cpu,cpuacct:/a\n",
            {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"},
            64,
        ),
    ],
)
def test_usable_cores_know_affinity_and_quotas(
    membership: str,
    files: dict[str, str],
    expected: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 128)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(membership)
    for name, content in files.items():
        file = tmp_path / "sys/fs/cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    assert usable_cores(root=tmp_path) == expected
    told = inspect_machine(root=tmp_path, nvml=FakeNvml(faults=NO_DRIVER)).cpu
    fraction = files == {"a/cpu.max": "250000 100000\n"} or "50000 100000\n" in files.values()
    assert ("(a quota of " in told) == fraction


def test_gpus_are_told_and_part_of_the_key() -> None:
    nvml = FakeNvml([FakeGpu(uuid="GPU-1"), FakeGpu(uuid="GPU-2")])
    machine = inspect_machine(nvml=nvml)
    assert machine.hardware.endswith("2 × NVIDIA H200")
    without = inspect_machine(nvml=FakeNvml(faults=NO_DRIVER))
    assert machine.hardware_key != without.hardware_key
    assert nvml.sessions == 0
    plain = Machine(cpu="x", cores=1, cores_total=1, memory_bytes=1 << 30)
    assert (
        plain.hardware_key
        != Machine(cpu="x", cores=2, cores_total=2, memory_bytes=1 << 30).hardware_key
    )


def test_peak_memory_is_that_of_the_window_and_misses_nothing() -> None:
    program = (
        "import sys\n"
        "big = bytearray(200 << 20); big[::4096] = b'1' * len(big[::4096]); del big\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "mid = bytearray(80 << 20); mid[::4096] = b'1' * len(mid[::4096]); del mid\n"
        "print('done', flush=True); sys.stdin.readline()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    ) as process:
        assert process.stdout.readline() == b"ready\n"
        with ResourceSampler([process.pid], interval_s=10) as sampler:
            process.stdin.write(b"\n")
            assert process.stdout.readline() == b"done\n"
        process.stdin.write(b"\n")
    peak = sampler.result().memory_bytes_peak
    assert peak is not None
    # The 200 MiB came before the window; the 80 MiB came and went between two samples.
    assert 80 << 20 < peak < 180 << 20


@pytest.mark.timing
def test_children_count() -> None:
    child = (
        "x = bytearray(60 << 20); x[::4096] = b'1' * len(x[::4096])\n"
        "print('up', flush=True); input()"
    )
    program = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {child!r}])\n"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"up\n"
        assert len(with_children([process.pid])) == 2
        with ResourceSampler([process.pid], interval_s=0.01) as sampler:
            time.sleep(0.05)
        process.communicate(b"\n")
    assert sampler.result().memory_bytes_peak > 60 << 20


@pytest.mark.timing
def test_cpu_is_a_share_of_the_usable_cores() -> None:
    cores = usable_cores()
    with ResourceSampler([os.getpid()], interval_s=0.05) as sampler:
        end = time.process_time() + 1.0  # the kernel counts in hundredths of a second
        while time.process_time() < end:
            pass
    use = sampler.result().cpu_utilization
    assert 0 < use <= 1.05 / cores


@pytest.mark.timing
def test_other_programs_share_of_the_cores_is_told() -> None:
    def other(seconds: float = 1.0) -> float:
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as target:
            with ResourceSampler([target.pid]) as sampler:
                time.sleep(seconds)
            target.kill()
        return sampler.result().other_utilization or 0.0

    quiet = other()
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as neighbour:
        busy = other()
        neighbour.kill()
    assert busy == pytest.approx(quiet + 1.0 / usable_cores(), abs=0.35 / usable_cores())


def test_a_share_of_half_a_core_is_one_of_half_a_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that used up its quota of half a core was told to be idle half the time."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(4)))
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    for told, allowed in (("50000 100000\n", 0.5), ("250000 100000\n", 2.5), ("max 100000\n", 4)):
        (tmp_path / "sys/fs/cgroup/cpu.max").write_text(told)
        assert core_seconds_max(root=tmp_path) == allowed
    monkeypatch.setattr("analyzer.hardware.machine._smallest_quota", lambda root: 0.5)
    sampler = ResourceSampler([os.getpid()])
    with sampler:
        pass
    sampler._start_s, sampler._end_s = 0.0, 10.0
    sampler._cpu_start, sampler._cpu_last = {1: 2.0}, {1: 4.0}
    assert sampler.result().cpu_utilization == pytest.approx(2.0 / (10.0 * 0.5))


def test_what_control_groups_limit_does_not_tell_what_others_leave(tmp_path: Path) -> None:
    cores = sorted(os.sched_getaffinity(0))
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    lines = ["cpu 9 9 9 9 9 9 9 9 0 0"]
    lines += [f"cpu{core} 100 20 30 4000 50 6 7 8 90 0" for core in (*cores, cores[-1] + 1)]
    (tmp_path / "proc/stat").write_text("\n".join([*lines, "intr 5 0", "ctxt 7"]))
    ticks = os.sysconf("SC_CLK_TCK")
    assert busy_seconds(root=tmp_path) == pytest.approx(171 * len(cores) / ticks)
    (tmp_path / "sys/fs/cgroup/cpu.max").write_text("50000 100000\n")
    assert busy_seconds(root=tmp_path) is None


def test_processes_that_are_gone_do_no_harm() -> None:
    with subprocess.Popen([sys.executable, "-c", "pass"]) as process:
        pass
    with ResourceSampler([process.pid], interval_s=0.01) as sampler:
        time.sleep(0.03)
    assert sampler.result().memory_bytes_peak is None
    assert resident_bytes(process.pid) == 0
    assert cpu_seconds(process.pid) == 0


def test_timer_slack_is_put_back() -> None:
    before = set_timer_slack_ns(1)
    assert set_timer_slack_ns(before) == 1


def test_a_thread_is_first_in_line_only_meanwhile() -> None:
    with first_in_line() as priority:
        inside = os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK
        assert inside == (os.SCHED_FIFO if priority == "realtime" else os.SCHED_OTHER)
        with first_in_line() as again:
            assert again == ("normal" if priority == "realtime" else priority)
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


def test_without_the_right_to_real_time_a_short_slice_does(monkeypatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    with first_in_line() as priority:
        assert priority in ("short_slice", "normal")

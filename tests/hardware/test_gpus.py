"""Which GPU is which, and what it tells, over a fake with the real NVML's enums and errors."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from analyzer.errors import MissingPartError
from analyzer.hardware.fake_nvml import FakeGpu, FakeNvml
from analyzer.hardware.gpu_meter import GpuMeter
from analyzer.hardware.gpus import (
    GpuIdentity,
    cuda_environment,
    find_gpu,
    first_gpu,
    list_gpus,
    visible_gpus,
)
from analyzer.hardware.machine import inspect_machine
from analyzer.hardware.sampler import ResourceSampler, gpu_used_bytes

pynvml = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")

SMALL = FakeGpu(uuid="GPU-aaaa0000-1", name="NVIDIA T4", memory_total=16 << 30, capability=(7, 5))
LARGE = FakeGpu(uuid="GPU-bbbb0000-2", name="NVIDIA H200")
SPARE = FakeGpu(uuid="GPU-bbbb1111-3", name="NVIDIA H200")
SLICES = (
    FakeGpu(uuid="MIG-cccc0000-4", name="NVIDIA H200 MIG 3g.71gb", memory_total=71 << 30),
    FakeGpu(uuid="MIG-dddd0000-5", name="NVIDIA H200 MIG 1g.18gb", memory_total=18 << 30),
)


def mixed() -> FakeNvml:
    return FakeNvml([SMALL, LARGE, SPARE])


def split() -> FakeNvml:
    return FakeNvml([SMALL, FakeGpu(uuid="GPU-eeee0000-6", instances=SLICES)])


def uuids(written: str | None, nvml: FakeNvml) -> list[str]:
    environment = {} if written is None else {"CUDA_VISIBLE_DEVICES": written}
    return [gpu.uuid for gpu in visible_gpus(nvml=nvml, environment=environment)]


def test_the_fake_has_the_real_functions_and_parameters() -> None:
    functions = [name for name in vars(FakeNvml) if name.startswith("nvml")]
    assert len(functions) > 15
    for name in functions:
        own = list(inspect.signature(getattr(FakeNvml, name)).parameters)[1:]
        real = list(inspect.signature(getattr(pynvml, name)).parameters.values())
        assert own == [p.name for p in real[: len(own)]], name
        assert all(p.default is not p.empty for p in real[len(own) :]), name
    with pytest.raises(AttributeError, match="the fake has no nvmlDeviceReset"):
        _ = FakeNvml().nvmlDeviceResetApplicationsClocks
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        mixed().nvmlDeviceGetCount()


def test_every_gpu_is_told_by_uuid() -> None:
    small, large, spare = list_gpus(nvml=mixed())
    assert large == GpuIdentity(
        uuid="GPU-bbbb0000-2", index=1, name="NVIDIA H200", memory_bytes=139 << 30,
        driver="580.65.06", compute_capability=(9, 0),
    )  # fmt: skip
    assert (small.index, spare.index) == (0, 2)
    assert small.compute_capability == (7, 5)


def test_a_gpu_in_mig_mode_is_its_instances() -> None:
    whole, *instances = list_gpus(nvml=split())
    assert not whole.mig
    assert [(gpu.uuid, gpu.index, gpu.mig) for gpu in instances] == [
        ("MIG-cccc0000-4", 1, True),
        ("MIG-dddd0000-5", 1, True),
    ]
    assert instances[1].memory_bytes == 18 << 30


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (None, ["GPU-aaaa0000-1", "GPU-bbbb0000-2", "GPU-bbbb1111-3"]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("2,0", ["GPU-bbbb1111-3", "GPU-aaaa0000-1"]),
        ("GPU-bbbb1", ["GPU-bbbb1111-3"]),  # any unambiguous beginning
        ("GPU-bbbb", []),  # ambiguous
        ("1, 7, 0", ["GPU-bbbb0000-2"]),  # what follows an entry that names nothing is hidden
    ],
)
def test_what_is_visible_is_what_cuda_sees(written: str | None, expected: list[str]) -> None:
    assert uuids(written, mixed()) == expected


def test_mig_instances_are_visible_by_uuid() -> None:
    assert uuids("MIG-dddd0000-5", split()) == ["MIG-dddd0000-5"]
    assert uuids("1", split()) == ["MIG-cccc0000-4"]


def test_hidden_gpus_stay_hidden_and_a_sentence_says_so() -> None:
    with pytest.raises(MissingPartError, match="CUDA_VISIBLE_DEVICES='' hides every GPU") as caught:
        first_gpu(nvml=mixed(), environment={"CUDA_VISIBLE_DEVICES": ""})
    assert "GPU-bbbb0000-2" in caught.value.hint
    with pytest.raises(MissingPartError, match="NVML finds no NVIDIA GPU"):
        first_gpu(nvml=FakeNvml(), environment={})
    assert inspect_machine(nvml=mixed()).gpus  # this test's own environment hides none


def test_children_see_the_one_gpu_whatever_the_numbers_mean() -> None:
    chosen = first_gpu(nvml=mixed(), environment={"CUDA_VISIBLE_DEVICES": "2"})
    environment = cuda_environment(chosen)
    assert environment == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "GPU-bbbb1111-3",
    }
    # What a child reads back is the same GPU again.
    assert first_gpu(nvml=mixed(), environment=environment) == chosen


@pytest.mark.parametrize("name", ["1", "GPU-bbbb0000-2"])
def test_rays_names_are_numbers_or_uuids(name: str) -> None:
    assert find_gpu(name, nvml=mixed()).uuid == "GPU-bbbb0000-2"


def test_a_name_that_nvml_does_not_know_is_kept() -> None:
    unknown = find_gpu(
        "MIG-ffff", nvml=FakeNvml(faults={"nvmlInit": "NVML_ERROR_DRIVER_NOT_LOADED"})
    )
    assert unknown == GpuIdentity(uuid="MIG-ffff")
    assert cuda_environment(unknown)["CUDA_VISIBLE_DEVICES"] == "MIG-ffff"


def test_memory_that_is_not_told_leaves_the_gpu_there() -> None:
    unified = FakeGpu(
        name="NVIDIA GB10", faults={"nvmlDeviceGetMemoryInfo": "NVML_ERROR_NOT_SUPPORTED"}
    )
    nvml = FakeNvml([unified, LARGE])
    machine = inspect_machine(nvml=nvml)
    assert [(gpu.name, gpu.memory_bytes) for gpu in machine.gpus] == [
        ("NVIDIA GB10", None),
        ("NVIDIA H200", 139 << 30),
    ]
    assert "NVIDIA GB10" in machine.hardware
    assert machine.hardware_key
    assert gpu_used_bytes(machine.gpus[0], nvml=nvml) is None


def test_a_lost_gpu_takes_no_other_with_it() -> None:
    lost = FakeGpu(uuid="GPU-0", faults={"*": "NVML_ERROR_GPU_IS_LOST"})
    assert [gpu.index for gpu in list_gpus(nvml=FakeNvml([lost, LARGE]))] == [1]


@pytest.mark.parametrize(
    "error", ["NVML_ERROR_DRIVER_NOT_LOADED", "NVML_ERROR_LIB_RM_VERSION_MISMATCH"]
)
def test_without_a_fitting_driver_there_is_no_gpu(error: str) -> None:
    assert list_gpus(nvml=FakeNvml([LARGE], faults={"nvmlInit": error})) == ()


class Clock:
    def __init__(self) -> None:
        self.now = 1_760_000_000.0

    def __call__(self) -> float:
        return self.now


def metered(
    gpu: FakeGpu,
    *,
    seconds: float = 3.0,
    base: int | None = None,
    during: Callable[[FakeGpu, float], None] = lambda gpu, second: None,
    others: tuple[FakeGpu, ...] = (),
):
    """What a meter says of ``seconds`` under load, sampled ten times a second."""
    clock = Clock()
    nvml = FakeNvml([gpu, *others], clock=clock)
    (identity, *_) = list_gpus(nvml=nvml)
    meter = GpuMeter(identity, base, nvml, clock)
    clock.now += 5.0
    meter.open()
    for step in range(round(seconds * 10)):
        during(gpu, step / 10)
        meter.sample((os.getpid(),))
        clock.now += 0.1
    meter.sample((os.getpid(),))
    meter.close()
    assert nvml.sessions == 0
    return meter.result()


def test_memory_is_the_processes_own_where_nvml_matches_them() -> None:
    own = metered(FakeGpu(processes={os.getpid(): 3 << 30, 1: 9 << 30}))
    assert (own.gpu_memory_bytes_peak, own.gpu_memory_source) == (3 << 30, "process")


@pytest.mark.parametrize("processes", [{}, {1: 9 << 30}, {os.getpid(): None}])
def test_memory_is_what_the_device_gained_elsewhere(processes: dict[int, int | None]) -> None:
    gpu = FakeGpu(processes=processes, memory_used=5 << 30)
    use = metered(gpu, base=1 << 30)
    assert (use.gpu_memory_bytes_peak, use.gpu_memory_source) == (4 << 30, "device")
    assert metered(gpu).gpu_memory_bytes_peak is None


def busy_from(start: float) -> Callable[[float], int]:
    return lambda at: 100 if at >= start else 0


def test_utilization_leaves_out_windows_that_began_before() -> None:
    # Idle until the load begins: what is told is the load's alone.
    busy = busy_from(1_760_000_005.0)
    assert metered(FakeGpu(utilization=busy)).gpu_utilization == 1.0
    latest = metered(FakeGpu(utilization=busy, buffered=False))
    assert latest.gpu_utilization == 1.0


def test_each_window_of_utilization_counts_once() -> None:
    def rising(at: float) -> int:
        return 20 if at < 1_760_000_006.5 else 80

    # Half of three seconds each, whatever the rhythm of the samples.
    use = metered(FakeGpu(utilization=rising))
    assert use.gpu_utilization == pytest.approx(0.5, abs=0.03)


def test_a_run_shorter_than_a_window_tells_no_average() -> None:
    use = metered(FakeGpu(buffered=False), seconds=0.5)
    assert use.gpu_utilization is None
    assert use.power_watts is None
    assert use.energy_joules is None
    assert use.gpu_clock_mhz == 1980


def test_energy_comes_from_the_counter_and_power_from_energy() -> None:
    use = metered(FakeGpu(watts=400.0))
    assert use.energy_joules == pytest.approx(1200.0, rel=0.01)
    assert use.power_watts == pytest.approx(400.0, rel=0.01)
    older = FakeGpu(
        watts=70.0, faults={"nvmlDeviceGetTotalEnergyConsumption": "NVML_ERROR_NOT_SUPPORTED"}
    )
    use = metered(older)
    assert use.energy_joules is None
    assert use.power_watts == pytest.approx(70.0)


def test_throttling_is_told_with_its_share_and_reason() -> None:
    def heat(gpu: FakeGpu, second: float) -> None:
        hot = 1.0 <= second < 2.0
        gpu.reasons = pynvml.nvmlClocksEventReasonSwPowerCap
        gpu.reasons |= pynvml.nvmlClocksEventReasonHwThermalSlowdown if hot else 0

    use = metered(FakeGpu(), during=heat)
    assert use.gpu_throttled == pytest.approx(1 / 3, abs=0.03)
    assert use.gpu_clock_limits == ("sw_power_cap", "hw_thermal_slowdown")


def test_limits_that_somebody_set_are_no_throttling() -> None:
    def capped(gpu: FakeGpu, second: float) -> None:
        gpu.reasons = (
            pynvml.nvmlClocksEventReasonSwPowerCap
            | pynvml.nvmlClocksEventReasonApplicationsClocksSetting
            | pynvml.nvmlClocksEventReasonGpuIdle
        )

    use = metered(FakeGpu(), during=capped)
    assert use.gpu_throttled == 0.0
    assert use.gpu_clock_limits == ("applications_clocks_setting", "sw_power_cap")


def test_a_mig_instance_tells_its_memory_and_the_gpus_clocks_alone() -> None:
    clock = Clock()
    board = FakeGpu(
        uuid="GPU-eeee0000-6",
        instances=(FakeGpu(uuid="MIG-1", memory_used=2 << 30, buffered=False),),
        reasons=pynvml.nvmlClocksEventReasonSwThermalSlowdown,
        sm_clock_mhz=1200,
    )
    nvml = FakeNvml([board], clock=clock)
    meter = GpuMeter(find_gpu("MIG-1", nvml=nvml), 1 << 30, nvml, clock)
    meter.open()
    clock.now += 2.0
    meter.sample(())
    meter.close()
    use = meter.result()
    assert use.gpu_memory_bytes_peak == 1 << 30
    assert (use.gpu_clock_mhz, use.gpu_throttled) == (1200, 1.0)
    # The board's power is its neighbours' too.
    assert use.power_watts is None
    assert use.energy_joules is None


def test_a_gpu_that_is_lost_meanwhile_ends_no_run() -> None:
    def lose(gpu: FakeGpu, second: float) -> None:
        if second >= 1.0:
            gpu.faults["*"] = "NVML_ERROR_GPU_IS_LOST"

    use = metered(FakeGpu(memory_used=5 << 30), base=0, during=lose)
    assert use.gpu_memory_bytes_peak == 5 << 30
    assert use.energy_joules is None


def test_the_sampler_asks_for_the_gpu_by_its_uuid() -> None:
    nvml = FakeNvml([SMALL, FakeGpu(uuid="GPU-9", processes={os.getpid(): 7 << 30})])
    with ResourceSampler([os.getpid()], gpu=find_gpu("GPU-9", nvml=nvml), nvml=nvml) as sampler:
        pass
    assert sampler.result().gpu_memory_bytes_peak == 7 << 30
    absent = GpuIdentity(uuid="GPU-none")
    with ResourceSampler([os.getpid()], gpu=absent, nvml=nvml) as sampler:
        pass
    assert sampler.result().gpu_clock_mhz is None
    assert gpu_used_bytes(absent, nvml=nvml) is None


def test_the_in_process_lease_shows_its_jobs_one_gpu(tmp_path) -> None:
    from analyzer.cluster.in_process import InProcessExecutor
    from analyzer.measure.jobs import Job

    def see(context) -> tuple[str, str]:
        code = (
            "import os; print(os.environ['CUDA_DEVICE_ORDER'], os.environ['CUDA_VISIBLE_DEVICES'])"
        )
        return context.gpu.uuid, subprocess.check_output([sys.executable, "-c", code], text=True)

    gpu = GpuIdentity(uuid="GPU-bbbb0000-2", index=1)
    before = dict(os.environ)
    with InProcessExecutor(device="gpu", cache_dir=tmp_path, gpu=gpu) as executor:
        executor.submit(Job("1", see, 60.0))
        result = executor.next_result(60.0)
    assert result is not None and result.error is None
    assert result.value == ("GPU-bbbb0000-2", "PCI_BUS_ID GPU-bbbb0000-2\n")
    assert dict(os.environ) == before

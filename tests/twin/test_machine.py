"""Constants of the machine: measured ones are used, kept for a week, and told from the fitted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from analyzer.domain.configuration import Configuration
from analyzer.domain.sla import Sla
from analyzer.domain.workload import Poisson
from analyzer.twin.calibration import VariantCalibration
from analyzer.twin.fitted import HOST_MS, OVERHEAD_MS_GUESS
from analyzer.twin.machine_cache import MachineCache
from analyzer.twin.machine_constants import FALLBACK, MachineConstants
from analyzer.twin.probes import Probe, ProbeResult
from analyzer.twin.twin import Twin

FP32 = Configuration().variant
NOW = 1.7e9
MEASURED = MachineConstants(
    overhead_ms=0.5,
    host_ms=0.2,
    interference=((2, 1.1), (4, 1.6)),
    slowness=(1.0, 1.02, 0.0, 1.1),
    wake_ms_p99=0.2,
    witness_share=0.003,
    measured_at=NOW,
)


def calibration(*busy: int) -> VariantCalibration:
    results = [
        ProbeResult(
            probe=Probe(threads=1, busy=k, batch=batch),
            samples_ms=((2.0 + 0.5 * batch) * (1.6 if k > 1 else 1.0),) * 12,
        )
        for k in busy
        for batch in (1, 8)
    ]
    return VariantCalibration(variant=FP32, results=tuple(results))


def factors(known: VariantCalibration, instances: int, constants: MachineConstants) -> list[float]:
    service = known.service(1, instances, cores=4, constants=constants)
    assert service is not None
    return [float(f) for f in service.interference_at(instances, np.array([1]))[:, 0]]


def test_what_was_measured_is_kept_for_a_week_by_hardware(tmp_path: Path) -> None:
    now = [NOW]

    def opened(hardware: str = "a") -> MachineCache:
        return MachineCache(tmp_path / "new", hardware, now=lambda: now[0])

    assert opened().load() is FALLBACK
    opened().save(MEASURED)
    assert opened().load() == MEASURED
    assert opened("b").load() is FALLBACK
    now[0] += 6 * 86400.0
    assert opened().load() == MEASURED
    now[0] += 2 * 86400.0
    assert opened().load() is FALLBACK, "machines change"
    now[0] = NOW
    (file,) = (tmp_path / "new").iterdir()
    file.write_text(file.read_text().replace('"format": 1', '"format": 0'))
    assert opened().load() is FALLBACK
    file.write_text("{")
    assert opened().load() is FALLBACK


def test_other_runtimes_are_measured_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = MachineCache(tmp_path, "a", now=lambda: NOW)
    cache.save(MEASURED)
    monkeypatch.setattr("analyzer.twin.machine_cache.runtimes", lambda: "onnxruntime-99")
    assert cache.load() is FALLBACK


def test_constants_say_where_they_come_from() -> None:
    assert "another machine" in FALLBACK.sentence() and "--calibrate" in FALLBACK.sentence()
    assert MEASURED.sentence().startswith("measured here, 2023-11-14T22:13")
    assert (FALLBACK.overhead_ms, FALLBACK.host_ms) == (OVERHEAD_MS_GUESS, HOST_MS)
    assert FALLBACK.variation is None


def test_interference_below_the_core_count_is_as_measured() -> None:
    """Probed with one and four instances: between them the machine's own shape, not a line."""
    known = calibration(1, 4)
    assert factors(known, 4, FALLBACK) == pytest.approx([1.0, 1.2, 1.4, 1.6])
    assert factors(known, 4, MEASURED) == pytest.approx([1.0, 1.1, 1.35, 1.6])
    assert factors(known, 2, MEASURED) == pytest.approx([1.0, 1.1])
    # A machine without a slow-down gives no shape.
    flat = replace(MEASURED, interference=((2, 1.0), (4, 1.01)))
    assert factors(known, 4, flat) == factors(known, 4, FALLBACK)


def test_instances_never_probed_side_by_side_slow_down_as_the_machine_does() -> None:
    known = calibration(1)
    assert factors(known, 4, FALLBACK) == [1.0] * 4
    assert factors(known, 4, MEASURED) == pytest.approx([1.0, 1.1, 1.35, 1.6])
    assert factors(known, 8, MEASURED)[-1] == pytest.approx(3.2), "beyond the cores in turn"


def test_the_host_costs_what_was_measured() -> None:
    """Two instances on two cores leave none to server and generator."""
    two = Configuration(
        max_batch_size=8, dynamic_batching=True, instance_count=2, intra_op_threads=1
    ).canonical()
    known = calibration(1, 2)
    sla = Sla(latency_budget_ms=40.0)
    times = []
    for constants in (FALLBACK, replace(FALLBACK, host_ms=0.2)):
        model = Twin(
            {FP32: known}, sla, Poisson(), seed=1, cores=2, constants=constants
        ).server_model(two)
        assert model is not None
        times.append(model.service.service_ms[0])
    assert times == pytest.approx([2.5 + 0.12, 2.5 + 0.2])
    model = Twin({FP32: known}, sla, Poisson(), seed=1, cores=2, constants=MEASURED).server_model(
        two
    )
    assert model is not None and model.overhead_ms == 0.5

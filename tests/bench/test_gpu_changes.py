"""What another batch size than the last costs on a GPU: the twin beside recorded load tests."""

from __future__ import annotations

import json

import numpy as np

from analyzer.domain.configuration import VariantKey
from analyzer.twin.calibration import VariantCalibration
from benchlib.gpu_changes import TABLE, compare


def test_the_twin_knows_the_executions_of_a_real_gpu_only_with_changes() -> None:
    """Executions took 3 to 9 ms where batches changed; timed alone, those sizes take 0.3 to 1."""
    found = [each for each in compare() if "0.5 ms" in each.label or "64" in each.label]
    assert len(found) > 20
    live = np.array([each.recorded["execution_ms_mean"] for each in found])
    twin = np.array([each.with_changes[0] for each in found])
    without = np.array([each.without_changes[0] for each in found])
    assert np.median(np.abs(twin / live - 1)) < 0.35
    assert np.all(without < 0.2 * live)
    batches = np.array([each.recorded["batch_size_mean"] for each in found])
    assert np.median([each.with_changes[1] for each in found] / batches) < 1.4


def test_changes_are_kept_with_the_probes_and_left_out_where_they_cost_nothing() -> None:
    document = json.loads(TABLE.read_text(encoding="utf-8"))["probes"]["fp32"]
    key = VariantKey(precision="fp32")
    known = VariantCalibration.from_dict(key, document)
    service = known.service(0, 2, cores=16)
    assert service is not None and min(service.change_ms) > 5
    again = VariantCalibration.from_dict(key, json.loads(json.dumps(known.to_dict())))
    assert again.service(0, 2, cores=16) == service
    for result in document["results"]:
        result["changed_ms"] = [float(np.mean(result["samples_ms"])) * 1.2]
    plain = VariantCalibration.from_dict(key, document).service(0, 2, cores=16)
    assert plain is not None and plain.change_ms == ()

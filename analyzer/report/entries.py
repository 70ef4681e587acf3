"""What every report of a study shows, computed once from its result.

The JSON document, the page, Markdown and the terminal are all made from a :class:`StudyReport`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from analyzer.domain.answer import (
    Miss,
    closest_miss,
    find,
    measured,
    misses,
    pareto_front,
    rank,
    representative_test,
)
from analyzer.domain.configuration import Configuration, baseline_configuration
from analyzer.domain.cost import Fleet, fleet_for
from analyzer.domain.gain import Basis, Gain, common_basis, gain, rate_of
from analyzer.domain.load_test import (
    LatencySummary,
    LoadTest,
    ResourceUse,
)
from analyzer.domain.measurement import (
    Accuracy,
    Edge,
    Failure,
    Measurement,
)
from analyzer.domain.sla import Sla
from analyzer.domain.study import InstanceTypeResult, Pricing, StudyResult, Verification
from analyzer.domain.twin_error import with_errors


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One configuration with what follows from its measurement; the contract's ENTRY.

    Args:
        test: The load test that stands for it; its rate is ``measured_at_rps``. None without a
            valid one.
        resources: Of ``test``; a peak that it does not tell is that of all load tests.
        fleet: Of devices that each carry the rate on ``fleet_basis``; None where that rate, or
            both target rate and price, are unknown.
        fleet_basis: The certified capacity; or the edge, where recommendation and baseline can
            only be compared by that, or nothing was certified.
        pricing: Of one machine.
    """

    measurement: Measurement
    test: LoadTest | None
    resources: ResourceUse
    fleet: Fleet | None
    fleet_basis: Basis
    pricing: Pricing

    @property
    def configuration(self) -> Configuration:
        """The canonical configuration."""
        return self.measurement.configuration

    @property
    def measured_at_rps(self) -> float | None:
        """The rate of the load test that stands for the configuration."""
        return self.test.offered_rps if self.test is not None else None

    @property
    def latency_ms(self) -> LatencySummary:
        """Latency at ``measured_at_rps``; every field is None without a load test."""
        return self.test.latency_ms if self.test is not None else LatencySummary()

    @property
    def accuracy(self) -> Accuracy | None:
        """As :attr:`Measurement.real_accuracy`."""
        return self.measurement.real_accuracy


@dataclass(frozen=True, slots=True, kw_only=True)
class Closest:
    """What came closest where nothing is recommended, and the limits that it missed."""

    entry: Entry
    misses: tuple[Miss, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeEntry:
    """What one of several instance types came to.

    Args:
        entry: What is best there: recommended or, without a proof, closest; None if nothing was
            measured.
        recommended: Whether the study recommends it.
    """

    result: InstanceTypeResult
    entry: Entry | None
    recommended: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyReport:
    """A study's result with everything that reports derive from it.

    Args:
        measured: One measurement for each configuration.
        failures: In the order of the trials.
        recommendation: None without one.
        baseline: Without a load test if it failed; None if it never ran.
        gain: The recommendation's over the baseline; None without a recommendation, or if the
            baseline never keeps the SLA.
        closest_gain: The same of what came closest.
        front: The Pareto front, the highest edge first.
        closest: None where a configuration is recommended or nothing was measured. Of a study
            whose search did not end, the highest rate that is certified so far, if one is.
        verifications: Each with the entry of its measurement.
        types: The instance types that were compared; empty where there was one.
        store_url: The database that the study was read from, without a password; None: the one
            that the study's own command names.
    """

    result: StudyResult
    measured: tuple[Measurement, ...]
    failures: tuple[Failure, ...]
    recommendation: Entry | None
    baseline: Entry | None
    gain: Gain | None
    closest_gain: Gain | None
    front: tuple[Entry, ...]
    closest: Closest | None
    verifications: tuple[tuple[Verification, Entry], ...]
    types: tuple[TypeEntry, ...]
    store_url: str | None = None

    @property
    def shown(self) -> Entry | None:
        """The entry that the report speaks of: the recommended one, else the closest."""
        return self.recommendation or (self.closest.entry if self.closest else None)

    @property
    def is_baseline(self) -> bool:
        """Whether that is the baseline itself."""
        shown, baseline = self.shown, self.baseline
        if shown is None or baseline is None:
            return False
        return shown.configuration == baseline.configuration

    @property
    def baseline_name(self) -> str:
        """What the baseline is called: a model directory may bring another than Triton's."""
        if self.baseline is None or _is_automatic(self.baseline.configuration, self.result):
            return "Triton's default"
        return "its own config.pbtxt"

    @property
    def closest_name(self) -> str:
        """What came closest is called: of a search that did not end it may be certified."""
        if self.closest is not None and not self.closest.misses:
            return "certified so far"
        return "closest"


def _is_automatic(configuration: Configuration, result: StudyResult) -> bool:
    """Whether Triton would serve the model so without a ``config.pbtxt``."""
    larger = configuration.max_batch_size if result.request_batch_size > 1 else 1
    automatic = baseline_configuration(
        batchable=configuration.max_batch_size > 0,
        device=configuration.device,
        request_batch_size=larger,
    )
    served = replace(
        automatic, backend=configuration.backend, instance_type=configuration.instance_type
    )
    return served.canonical() == configuration.canonical()


def make_report(result: StudyResult, *, store_url: str | None = None) -> StudyReport:
    """The report of a study; its outcomes may be many (100,000 are fine).

    Args:
        store_url: As :attr:`StudyReport.store_url`.
    """
    measurements = with_errors(measured(result.outcomes))
    failures = tuple(outcome for outcome in result.outcomes if isinstance(outcome, Failure))
    recommendation = find(measurements, result.recommended_id)
    # What is compared, whether it is recommended or only came closest.
    closest = (
        _certified_so_far(measurements, result)
        or closest_miss(measurements, result.sla, among=result.recommendable)
        if recommendation is None
        else None
    )
    front = pareto_front(
        measurements,
        result.sla,
        pricing_of=result.pricing_of,
        request_batch_size=result.request_batch_size,
    )

    best = closest[0] if closest is not None else recommendation
    baseline_id = result.baseline_of(best.configuration) if best else result.baseline_id
    baseline = find(measurements, baseline_id)
    devices = (
        result.pricing_of(best.configuration) if best else result.pricing
    ).devices_per_machine
    best_gain = gain(result.sla, best, baseline, devices_per_machine=devices)
    basis: Basis = "certified"
    if best_gain is not None:
        basis = best_gain.basis
    elif best is not None:  # nothing to compare with: the best that is known of it
        basis = common_basis(result.sla, best, None)

    def entry(measurement: Measurement, fleet_basis: Basis = "certified") -> Entry:
        return study_entry(measurement, result, fleet_basis=fleet_basis)

    return StudyReport(
        result=result,
        measured=measurements,
        failures=failures,
        recommendation=entry(recommendation, basis) if recommendation is not None else None,
        baseline=entry(baseline, basis)
        if baseline is not None
        else _failed_entry(failures, baseline_id, result),
        gain=best_gain if recommendation is not None else None,
        closest_gain=best_gain if recommendation is None else None,
        front=tuple(map(entry, front)),
        closest=Closest(entry=entry(closest[0], basis), misses=closest[1]) if closest else None,
        verifications=tuple((item, entry(item.measured)) for item in result.verifications),
        types=tuple(_type_entry(one, measurements, result) for one in result.instance_types),
        store_url=store_url,
    )


def _certified_so_far(
    measurements: Sequence[Measurement], result: StudyResult
) -> tuple[Measurement, tuple[Miss, ...]] | None:
    """What a search that did not end has certified; None where it ended, or has nothing.

    As a search would recommend it: the highest rate, or the best where all rates are the target's.
    """
    sla = result.sla
    proven = [m for m in rank(measurements, sla) if m.capacity_rps and not misses(m, sla)]
    if not result.unfinished or not proven:
        return None
    if not sla.at_any_rate:
        return proven[0], ()
    return max(proven, key=lambda m: m.capacity_rps or 0.0), ()


def _type_entry(
    one: InstanceTypeResult, measurements: Sequence[Measurement], result: StudyResult
) -> TypeEntry:
    own = [m for m in measurements if m.configuration.instance_type == one.name]
    best = find(own, one.recommended_id)
    if best is None:
        closest = closest_miss(own, result.sla, among=result.recommendable)
        best = closest[0] if closest is not None else None
    entry = None
    if best is not None:
        basis = common_basis(result.sla, best, None)
        entry = study_entry(best, result, fleet_basis=basis)
    recommended = one.recommended_id is not None and one.recommended_id == result.recommended_id
    return TypeEntry(result=one, entry=entry, recommended=recommended)


def study_entry(
    measurement: Measurement, result: StudyResult, *, fleet_basis: Basis = "certified"
) -> Entry:
    """:func:`make_entry` under the SLA and the prices of a study."""
    return make_entry(
        measurement,
        sla=result.sla,
        pricing=result.pricing_of(measurement.configuration),
        request_batch_size=result.request_batch_size,
        fleet_basis=fleet_basis,
    )


def make_entry(
    measurement: Measurement,
    *,
    sla: Sla,
    pricing: Pricing,
    request_batch_size: float = 1,
    fleet_basis: Basis = "certified",
) -> Entry:
    """The entry of one measured configuration.

    It is measured at the rate of the certificate (or the target rate); without one, at the highest
    rate that was measured to keep the budget, or the one closest to it.
    """
    test = representative_test(measurement, sla)
    return Entry(
        measurement=measurement,
        test=test,
        resources=_with_peaks(
            test.resources if test is not None else ResourceUse(), measurement.resources
        ),
        fleet=fleet_for(
            capacity_rps=rate_of(measurement, fleet_basis),
            target_rate_rps=sla.target_rate_rps,
            price_per_hour=pricing.price_per_hour,
            devices_per_machine=pricing.devices_per_machine,
            request_batch_size=request_batch_size,
        ),
        fleet_basis=fleet_basis,
        pricing=pricing,
    )


def _with_peaks(use: ResourceUse, peaks: ResourceUse) -> ResourceUse:
    """``use``, its unknown peaks of memory taken from ``peaks``."""
    if use.memory_bytes_peak is None:
        use = replace(use, memory_bytes_peak=peaks.memory_bytes_peak)
    if use.gpu_memory_bytes_peak is None:
        use = replace(
            use,
            gpu_memory_bytes_peak=peaks.gpu_memory_bytes_peak,
            gpu_memory_source=peaks.gpu_memory_source,
        )
    return use


def _failed_entry(
    failures: tuple[Failure, ...], config_id: str, result: StudyResult
) -> Entry | None:
    """An entry with nothing measured for a configuration that failed; None if it did not."""
    for failure in failures:
        if failure.configuration.config_id == config_id:
            nothing = Measurement(
                configuration=failure.configuration, edge=Edge(interval_rps=(None, None))
            )
            return study_entry(nothing, result)
    return None

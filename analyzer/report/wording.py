"""Numbers and configurations as people read them; a dash where nothing was measured."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from decimal import ROUND_FLOOR, Decimal

from analyzer.domain.configuration import Configuration
from analyzer.domain.measurement import Failure
from analyzer.domain.study import Claim, Explanation, WhatIf
from analyzer.domain.units import format_duration, format_size, parse_size_bytes

NOT_MEASURED = "–"

GIVEN = 6
"""Digits of what somebody gave: a limit, a rate or a price is not rounded as a measurement is."""

# Nothing that is measured is as small, in any unit.
_NOTHING = 1e-12

# Of what was measured; and at most, where it has to stay apart from another number.
_DIGITS, _DIGITS_MAX = 3, 9

_ACCELERATORS = {"openvino": "OpenVINO", "tensorrt": "TensorRT"}
_BACKENDS = {"onnxruntime": "ONNX Runtime", "tensorrt": "TensorRT", "python": "Python backend"}

# Threads that are not given: what a runtime then takes.
_ONE_PER_CORE = "one per core"


def number(value: float | None, digits: int = _DIGITS) -> str:
    """``value`` with ``digits`` significant digits, thousands apart, without an exponent."""
    if value is None or not math.isfinite(value):
        return NOT_MEASURED
    if abs(value) < _NOTHING:
        return "0"
    if float(value).is_integer():
        return f"{value:,.0f}"
    if abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    return f"{Decimal(f'{value:.{digits}g}'):,f}"


def floored(value: float | None) -> float | None:
    """A rate that was proven, as :func:`number` spells it: rounded down, as no higher one was."""
    if not value or not math.isfinite(value):
        return value
    exact = Decimal(str(value))
    decimals = max(_DIGITS - 1 - exact.adjusted(), 0)
    return float(exact.quantize(Decimal(1).scaleb(-decimals), ROUND_FLOOR))


def proven_rate(value: float | None) -> str:
    """:func:`rate` of what was proven (:func:`floored`)."""
    return rate(floored(value))


def digits_apart(value: float, limit: float) -> int:
    """The digits, three and more, with which ``value`` does not read as ``limit``.

    Rounding to *d* digits moves a number by at most 0.5 · 10^(1 − *d*) of itself.
    """
    gap = abs(value / limit - 1) if limit else math.inf
    if not 0 < gap < math.inf:
        return _DIGITS
    needed = math.floor(1 - math.log10(2 * gap)) + 1
    return max(_DIGITS, min(needed, _DIGITS_MAX))


def rate(value: float | None, digits: int = _DIGITS) -> str:
    """Requests per second: ``556 /s``."""
    return NOT_MEASURED if value is None else f"{number(value, digits)} /s"


def milliseconds(value: float | None, digits: int = _DIGITS) -> str:
    """``39.3 ms``."""
    return NOT_MEASURED if value is None else f"{number(value, digits)} ms"


def size(value: float | None, digits: int = _DIGITS) -> str:
    """``131MiB``."""
    if value is None:
        return NOT_MEASURED
    unit = format_size(value).lstrip("0123456789.e+")
    return f"{number(value / parse_size_bytes(f'1{unit}'), digits)}{unit}"


def dollars(value: float | None) -> str:
    """``$2.95``; four digits below a dollar: ``$0.3683``."""
    if value is None:
        return NOT_MEASURED
    return f"${value:,.2f}" if value >= 1 or value == 0 else _with_cents(number(value, 4))


def price_per_hour(value: float | None) -> str:
    """A price as it was given: ``$0.7364/h``, ``$12.00/h``."""
    return NOT_MEASURED if value is None else f"{_with_cents(number(value, GIVEN))}/h"


def _with_cents(text: str) -> str:
    """Dollars with at least two decimals."""
    whole, _, decimals = text.partition(".")
    return f"${whole}.{decimals:0<2}"


def percent(value: float | None, digits: int = _DIGITS) -> str:
    """The fraction ``value`` (0 to 1) in percent: ``96.7 %``; below 1 it never reads 100 %."""
    if value is None:
        return NOT_MEASURED
    text = number(value * 100, digits)
    if text == "100" and value < 1:
        text = number(value * 100, digits_apart(value, 1.0))
    return f"{text} %"


def signed_percent(value: float | None) -> str:
    """The change ``value`` in percent with its sign: ``+63 %``, ``−2.3 %``."""
    if value is None:
        return NOT_MEASURED
    digits = 0 if abs(value) >= 0.1 else 1
    return f"{value * 100:+.{digits}f} %".replace("-", "−")


def times(value: float | None) -> str:
    """A ratio: ``2.91×``."""
    return NOT_MEASURED if value is None else f"{number(value)}×"


def interval(bounds: tuple[float | None, float | None] | None) -> str:
    """``593 to 637``; empty without an interval."""
    low, high = bounds or (None, None)
    if low is None and high is None:
        return ""
    if low is None:
        return f"below {number(high)}"
    return f"above {number(low)}" if high is None else f"{number(low)} to {number(high)}"


def claim_text(claim: Claim) -> str:
    """What a verification measured: ``34b4d3aecd69 at 516 /s, 99 % within 50 ms``."""
    budget = milliseconds(claim.sla.latency_budget_ms, GIVEN)
    kept = f"{number(claim.sla.percentile, 9)} % within {budget}"
    return f"{claim.configuration.config_id} at {rate(floored(claim.rate_rps))}, {kept}"


def percentile_name(percentile: float) -> str:
    """``p99``, ``p99.9``."""
    return f"p{number(percentile, 9)}"


def delay(delay_us: int | None) -> str:
    """A queue delay: ``2ms``; ``none`` for 0."""
    if delay_us is None:
        return NOT_MEASURED
    return format_duration(delay_us / 1e6) if delay_us else "none"


def precision_label(configuration: Configuration) -> str:
    """``int8 static``, ``fp16 TensorRT``."""
    parts: list[str] = [configuration.precision, configuration.quantization or ""]
    if configuration.backend == "tensorrt":
        parts.append("TensorRT")
    if configuration.accelerator is not None:
        parts.append(f"with {_ACCELERATORS[configuration.accelerator]}")
    return " ".join(part for part in parts if part)


def configuration_label(configuration: Configuration) -> str:
    """A short name for charts: ``int8 static · batch ≤16, 2ms · 1 inst × 2 thr``."""
    if configuration.dynamic_batching:
        batching = f"batch ≤{configuration.max_batch_size}"
        if configuration.max_queue_delay_us:
            batching += f", {delay(configuration.max_queue_delay_us)}"
    else:
        batching = "no batching"
    instances = f"{configuration.instance_count} inst"
    if configuration.intra_op_threads:
        instances += f" × {configuration.intra_op_threads} thr"
    place = (configuration.instance_type,) if configuration.instance_type else ()
    return " · ".join((*place, precision_label(configuration), batching, instances))


def failure_label(failure: Failure) -> str:
    """What failed: a configuration; or the variant that was left out, whatever it is served as."""
    if failure.leaves_out:
        return precision_label(failure.configuration)
    return configuration_label(failure.configuration)


def configuration_sentence(configuration: Configuration) -> str:
    """The configuration in words, to follow ``Serve the model as``."""
    if configuration.dynamic_batching:
        preferred = configuration.preferred_batch_size or ()
        batching = f"dynamic batches of up to {configuration.max_batch_size}"
        if preferred and preferred != (configuration.max_batch_size,):
            batching += f" (preferred {', '.join(map(str, preferred))})"
        if configuration.max_queue_delay_us:
            batching += f" that wait up to {delay(configuration.max_queue_delay_us)} "
            batching += "for further requests"
    else:
        batching = "no dynamic batching"
    count = configuration.instance_count
    instances = "one instance" if count == 1 else f"{count} instances"
    threads = configuration.intra_op_threads
    if threads:
        instances += f" with {threads} thread{'s' if threads > 1 else ''}"
        instances += " each" if count > 1 else ""
    backend = _BACKENDS[configuration.backend]
    if configuration.accelerator is not None:
        backend += f" with {_ACCELERATORS[configuration.accelerator]}"
    place = "the GPU" if configuration.device == "gpu" else "the CPU"
    if configuration.instance_type:
        place += f" of a {configuration.instance_type}"
    precision = " ".join(filter(None, (configuration.precision, configuration.quantization)))
    further = [word for word in configuration.execution.words if word not in _ACCELERATORS]
    return ", ".join((f"{precision} in {backend} on {place}", batching, instances, *further))


def explanation_in_words(explanation: Explanation) -> Explanation:
    """The explanation as people read it: in the JSON, threads that are not given are 0."""

    def value(item: WhatIf, text: str) -> str:
        return _ONE_PER_CORE if (item.setting, text) == ("intra_op_threads", "0") else text

    return replace(
        explanation,
        what_if=tuple(
            replace(
                item,
                from_value=value(item, item.from_value),
                to_value=value(item, item.to_value),
            )
            for item in explanation.what_if
        ),
    )


def configuration_rows(configuration: Configuration) -> list[tuple[str, str]]:
    """Each setting under its own name, as Triton spells it; those without effect are left out."""
    preferred = configuration.preferred_batch_size
    threads = configuration.intra_op_threads
    rows = [
        (
            "precision",
            " ".join(filter(None, (configuration.precision, configuration.quantization))),
        ),
        ("backend", configuration.backend),
        ("device", configuration.device),
        ("max_batch_size", str(configuration.max_batch_size)),
        ("dynamic_batching", "on" if configuration.dynamic_batching else "off"),
    ]
    if configuration.dynamic_batching:
        rows.append(("preferred_batch_size", ", ".join(map(str, preferred or ()))))
        rows.append(("max_queue_delay", delay(configuration.max_queue_delay_us)))
    rows.append(("instance_count", str(configuration.instance_count)))
    if threads is not None:
        rows.append(("intra_op_threads", str(threads) if threads else _ONE_PER_CORE))
    if configuration.instance_type is not None:
        rows.append(("instance_type", configuration.instance_type))
    execution = configuration.execution
    for field in fields(execution):
        value = getattr(execution, field.name)
        if value is not None:
            rows.append((field.name, str(value).lower()))
    return rows

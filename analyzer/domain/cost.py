"""What a fleet costs: replicas, machines, dollars an hour and dollars a million inferences."""

from __future__ import annotations

import math
from dataclasses import dataclass

# A ratio this close above an integer is that integer: rates come out of divisions (30000/min is
# 500.00000000000006/s on some paths), and one replica too many is money.
_RELATIVE_TOLERANCE = 1e-10

# Prices are per hour, costs per million inferences.
INFERENCES_PER_MILLION = 1_000_000
SECONDS_PER_HOUR = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """The machines that carry a target rate; each field is None where an input is unknown.

    Args:
        replicas: Devices that serve the model.
        machines: Machines that hold them.
        cost_per_hour: US dollars for all machines.
        cost_per_million_inferences: US dollars, every device busy at its capacity.
    """

    replicas: int | None
    machines: int | None
    cost_per_hour: float | None
    cost_per_million_inferences: float | None


def _ceil(ratio: float) -> int:
    """⌈ratio⌉, at least 1, blind to the rounding error of the division."""
    return max(1, math.ceil(ratio - _RELATIVE_TOLERANCE * max(1.0, abs(ratio))))


def replicas_needed(target_rate: float, capacity: float) -> int:
    """⌈target rate / capacity⌉ devices; both rates above 0 and in one unit."""
    assert target_rate > 0, target_rate
    assert capacity > 0, capacity
    return _ceil(target_rate / capacity)


def machines_needed(replicas: int, devices_per_machine: int) -> int:
    """⌈replicas / devices per machine⌉."""
    assert replicas >= 1, replicas
    assert devices_per_machine >= 1, devices_per_machine
    return -(-replicas // devices_per_machine)


def cost_per_hour(machines: int, price_per_hour: float) -> float:
    """US dollars an hour: machines × the price of one."""
    return machines * price_per_hour


def cost_per_million_inferences(
    price_per_hour: float, capacity_ips: float, devices_per_machine: int = 1
) -> float:
    """US dollars: price / (capacity × 3600 × devices per machine) × 10^6.

    Args:
        price_per_hour: Of one machine.
        capacity_ips: Inferences per second of one device (requests × their batch), above 0.
        devices_per_machine: Devices of one machine that serve.
    """
    assert capacity_ips > 0, capacity_ips
    per_hour = capacity_ips * SECONDS_PER_HOUR * devices_per_machine
    return price_per_hour / per_hour * INFERENCES_PER_MILLION


def fleet_for(
    *,
    capacity_rps: float | None,
    target_rate_rps: float | None,
    price_per_hour: float | None,
    devices_per_machine: int = 1,
    request_batch_size: float = 1,
) -> Fleet | None:
    """The fleet of devices that each carry ``capacity_rps``; None if nothing of it is known.

    Args:
        capacity_rps: Requests per second of one device.
        target_rate_rps: Requests per second to carry together.
        request_batch_size: Inferences per request.
    """
    if not capacity_rps or (target_rate_rps is None and price_per_hour is None):
        return None
    replicas = replicas_needed(target_rate_rps, capacity_rps) if target_rate_rps else None
    machines = machines_needed(replicas, devices_per_machine) if replicas else None
    known_price = price_per_hour is not None
    return Fleet(
        replicas=replicas,
        machines=machines,
        cost_per_hour=cost_per_hour(machines, price_per_hour)
        if machines is not None and price_per_hour is not None
        else None,
        cost_per_million_inferences=cost_per_million_inferences(
            price_per_hour or 0.0, capacity_rps * request_batch_size, devices_per_machine
        )
        if known_price
        else None,
    )

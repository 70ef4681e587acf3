"""The catalogue of prices: small, dated, sourced (``templates/prices.yaml``)."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

from analyzer.domain.study import Pricing
from analyzer.errors import UsageError
from analyzer.resources import templates_dir


def read_prices(path: Path | None = None) -> dict[str, Pricing]:
    """Every entry of the catalogue, by instance type.

    Args:
        path: The file; the shipped one by default.
    """
    import yaml

    document: dict[str, Any] = yaml.safe_load(
        (path or templates_dir() / "prices.yaml").read_text(encoding="utf-8")
    )
    sources = document["sources"]
    prices: dict[str, Pricing] = {}
    for entry in document["instances"]:
        source = sources[entry["source"]]
        prices[entry["instance_type"]] = Pricing(
            instance_type=entry["instance_type"],
            price_per_hour=float(entry["usd_per_hour"]),
            devices_per_machine=int(entry["devices"]),
            source=f"catalogue, {entry['as_of']}: {source['title']} ({source['url']})",
        )
    return prices


def lookup_price(instance_type: str, *, price_per_hour: float | None = None) -> Pricing:
    """What a machine of ``instance_type`` costs.

    Args:
        instance_type: The cloud's name of the machine.
        price_per_hour: US dollars from ``--price``; it replaces the catalogue's price, and then a
            type that the catalogue does not have is taken as a machine with one device.

    Raises:
        UsageError: The catalogue does not have the type and no price was given.
    """
    prices = read_prices()
    known = prices.get(instance_type)
    if price_per_hour is not None:
        return Pricing(
            instance_type=instance_type,
            price_per_hour=price_per_hour,
            devices_per_machine=known.devices_per_machine if known else 1,
            source="--price",
        )
    if known is None:
        near = difflib.get_close_matches(instance_type, prices, n=3, cutoff=0.5) or sorted(prices)
        raise UsageError(
            f"No price is known for the instance type {instance_type!r}.",
            hint=f"Give it with --price, for instance --price 0.7364/h. The catalogue has "
            f"{', '.join(near)}.",
        )
    return known

"""The catalogue of prices: small, dated, sourced (``templates/prices.yaml``)."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from analyzer.domain.study import Pricing
from analyzer.errors import UsageError
from analyzer.resources import templates_dir
from analyzer.spaces.yaml_file import Table, broken, nearest, read_table


class Source(Table):
    """Where prices were read."""

    title: str
    url: str
    note: str = ""


class MachineType(Table):
    """The price of one machine, in US dollars per hour, on the day ``as_of``."""

    instance_type: str
    usd_per_hour: Annotated[float, Field(gt=0)]
    devices: Annotated[int, Field(ge=1)]
    device: str = ""
    as_of: str
    source: str


class PriceFile(Table):
    """The document; each instance names one of the sources."""

    sources: dict[str, Source]
    instances: list[MachineType]

    @model_validator(mode="after")
    def _sources_are_there(self) -> Self:
        for entry in self.instances:
            if entry.source not in self.sources:
                broken(
                    f"{entry.instance_type} names the source {entry.source!r}, which is not there.",
                    f"{nearest(entry.source, list(self.sources))}Add it under sources.",
                )
        return self


def read_prices(path: Path | None = None) -> dict[str, Pricing]:
    """Every entry of the catalogue, by instance type.

    Args:
        path: The file; the shipped one by default.

    Raises:
        UsageError: It cannot be read or breaks a rule; the message names file, key and value.
    """
    shipped = templates_dir() / "prices.yaml"
    hint = f"{shipped} shows what a catalogue looks like."
    catalogue = read_table(path or shipped, PriceFile, UsageError, hint)
    return {
        entry.instance_type: Pricing(
            instance_type=entry.instance_type,
            price_per_hour=entry.usd_per_hour,
            devices_per_machine=entry.devices,
            source=f"catalogue, {entry.as_of}: {source.title} ({source.url})",
            device=entry.device,
        )
        for entry in catalogue.instances
        for source in [catalogue.sources[entry.source]]
    }


def lookup_price(
    instance_type: str, *, price_per_hour: float | None = None, catalogue: Path | None = None
) -> Pricing:
    """What a machine of ``instance_type`` costs.

    Args:
        instance_type: The cloud's name of the machine.
        price_per_hour: US dollars from ``--price``; it replaces the catalogue's price, and then a
            type that the catalogue does not have is taken as a machine with one device.
        catalogue: The file; the shipped one by default.

    Raises:
        UsageError: The catalogue does not have the type and no price was given, or it cannot be
            read.
    """
    prices = read_prices(catalogue)
    known = prices.get(instance_type)
    if price_per_hour is not None:
        return Pricing(
            instance_type=instance_type,
            price_per_hour=price_per_hour,
            devices_per_machine=known.devices_per_machine if known else 1,
            device=known.device if known else "",
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


def unknown_type(instance_type: str, *, catalogue: Path | None = None) -> str:
    """What is supposed of a machine that only ``--price`` tells of; empty if it is catalogued.

    Raises:
        UsageError: The catalogue cannot be read.
    """
    prices = read_prices(catalogue)
    if instance_type in prices:
        return ""
    return (
        f"--instance-type {instance_type} is not in the price catalogue, so it is taken as a mere "
        f"name for a machine with one device at --price. {nearest(instance_type, list(prices))}"
    ).rstrip()

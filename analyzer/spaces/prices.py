"""The catalogue of prices: small, dated, sourced (``templates/prices.yaml``)."""

from __future__ import annotations

import difflib
import re
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from analyzer.domain.configuration import DeviceKind
from analyzer.domain.study import Pricing
from analyzer.errors import UsageError
from analyzer.resources import templates_dir
from analyzer.spaces.yaml_file import Table, broken, nearest, read_table, says

_MONTH = re.compile(r"\d{4}-\d{2}")


class Source(Table):
    """Where prices were read."""

    title: str
    url: str
    note: str = ""


def _day(value: Any) -> str:
    """A day or month, which YAML reads as a date or, in quotation marks, as text."""
    text = str(value)
    try:
        date.fromisoformat(f"{text}-01" if _MONTH.fullmatch(text) else text)
    except ValueError:
        broken(f"{value!r} is no day.", "Write it like 2026-06-17, or a month like 2026-06.")
    return text


class MachineType(Table):
    """The price of one machine, in US dollars per hour, on the day ``as_of``."""

    instance_type: str
    usd_per_hour: Annotated[
        Annotated[float, Field(gt=0, allow_inf_nan=False)],
        says("is no price above 0.", "Write US dollars an hour, like 0.7364."),
    ]
    devices: Annotated[int, Field(ge=1)]
    device: str = ""
    as_of: Annotated[str, BeforeValidator(_day)]
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
        names = [entry.instance_type for entry in self.instances]
        for name in names:
            if names.count(name) > 1:
                broken(f"instances has {name} twice.", "Leave one row of it.")
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


def priced_as_measured(pricing: Pricing, device: DeviceKind) -> Pricing:
    """The price of a machine on which ``device`` is measured.

    A replica on a CPU takes all its cores: a machine with four GPUs holds one, not four.
    """
    if device == "gpu" or not _names_gpu(pricing):
        return pricing
    return replace(
        pricing,
        devices_per_machine=1,
        device="",
        source=f"{pricing.source}; its {pricing.device} is not used, a CPU was measured",
    )


def price_doubts(
    pricing: Pricing, device: DeviceKind, hardware: str, *, catalogue: Path | None = None
) -> list[str]:
    """What qualifies a price: ``--price`` in the place of another, or another device measured.

    Args:
        pricing: As of :func:`lookup_price`.
        device: What is measured.
        hardware: Its name, for people.
        catalogue: As of :func:`lookup_price`.

    Raises:
        UsageError: The catalogue cannot be read.
    """
    name, found = pricing.instance_type or "", []
    known = read_prices(catalogue).get(name)
    if known is None and name:
        found.append(unknown_type(name, catalogue=catalogue))
    elif known is not None and known.price_per_hour != pricing.price_per_hour:
        found.append(
            f"--price {pricing.price_per_hour:g}/h counts, not the {known.price_per_hour:g}/h "
            f"that the catalogue has for {name}."
        )
    other = _names_gpu(pricing) if device == "cpu" else not _mentions(hardware, pricing.device)
    if pricing.device and other:
        measured = "the CPU is measured" if device == "cpu" else f"measured is {hardware}"
        found.append(
            f"--instance-type {name} is a machine with {pricing.device}, and {measured}: its price "
            "is taken for another device."
        )
    return found


def _names_gpu(pricing: Pricing) -> bool:
    return "nvidia" in pricing.device.lower()


def _mentions(hardware: str, device: str) -> bool:
    """Whether the words of ``NVIDIA T4`` are among those of ``2 × Intel …, Tesla T4``."""
    words, own = (set(re.findall(r"[a-z0-9]+", text.lower())) for text in (hardware, device))
    return own - {"nvidia", "tesla"} <= words


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

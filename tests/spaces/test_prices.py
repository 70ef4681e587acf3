"""The catalogue of prices."""

from __future__ import annotations

from pathlib import Path

import pytest

from analyzer.errors import UsageError
from analyzer.spaces.prices import (
    lookup_price,
    price_doubts,
    priced_as_measured,
    read_prices,
    unknown_type,
)

ROW = "{instance_type: a, usd_per_hour: 1.5, devices: 1, as_of: 2026-06-17, source: here}"


@pytest.mark.parametrize(
    ("name", "price", "devices"),
    [("ml.g4dn.xlarge", 0.7364, 1), ("ml.g4dn.2xlarge", 0.94, 1), ("ml.g4dn.12xlarge", 4.89, 4)],
)
def test_the_instances_of_the_published_table(name: str, price: float, devices: int) -> None:
    pricing = lookup_price(name)
    assert (pricing.price_per_hour, pricing.devices_per_machine) == (price, devices)
    assert "2024-03-28" in (pricing.source or "")


def test_every_entry_has_a_date_and_an_address() -> None:
    for pricing in read_prices().values():
        assert pricing.price_per_hour and pricing.price_per_hour > 0
        assert pricing.source and "https://" in pricing.source and "catalogue, 20" in pricing.source


def test_an_unknown_type_suggests_near_ones() -> None:
    with pytest.raises(UsageError) as caught:
        lookup_price("ml.g4dn.xlrge")
    assert "ml.g4dn.xlarge" in caught.value.hint
    assert "--price" in caught.value.hint


def test_a_given_price_wins_and_keeps_the_devices() -> None:
    pricing = lookup_price("ml.g4dn.12xlarge", price_per_hour=3.5)
    assert (pricing.price_per_hour, pricing.devices_per_machine) == (3.5, 4)
    assert pricing.source == "--price"
    assert lookup_price("my.own", price_per_hour=1.0).devices_per_machine == 1


def test_a_type_that_only_its_price_makes_usable_is_told() -> None:
    assert unknown_type("ml.g4dn.12xlarge") == ""
    note = unknown_type("ml.g4dn.12xlrge")
    assert "not in the price catalogue" in note and "one device" in note
    assert "Did you mean 'ml.g4dn.12xlarge'?" in note


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("usd_per_hour: 1.5", "usd_per_hour: free"), ["instances[0].usd_per_hour", "'free'"]),
        (("usd_per_hour: 1.5", "usd_per_hour: -1"), ["instances[0].usd_per_hour", "-1"]),
        (("usd_per_hour", "usd_per_huor"), ["instances[0]", "Did you mean 'usd_per_hour'"]),
        (("source: here", "source: hre"), ["'hre'", "Did you mean 'here'"]),
        ((", devices: 1", ""), ["instances[0].devices", "missing"]),
        (("usd_per_hour: 1.5", "usd_per_hour: .inf"), ["instances[0].usd_per_hour", "inf"]),
        (("as_of: 2026-06-17", "as_of: soon"), ["instances[0].as_of", "'soon'", "2026-06-17"]),
        # PyYAML takes each for what it is written like, and failed.
        (("as_of: 2026-06-17", "as_of: 2026-06-31"), ["instances[0].as_of", "'2026-06-31'"]),
        (("as_of: 2026-06-17", "as_of: !!timestamp soon"), ["instances[0].as_of", "'soon'"]),
        (("devices: 1", "devices: 0x_"), ["instances[0].devices", "'0x_'"]),
        (("devices: 1", "devices: !!bool maybe"), ["instances[0].devices", "'maybe'"]),
        (("usd_per_hour", "devices: 2, usd_per_hour"), ["line 2", "'devices' stands twice"]),
        (("instances: [", f"instances: [{ROW}, "), ["a twice"]),
    ],
)
def test_a_catalogue_with_a_mistake(
    tmp_path: Path, change: tuple[str, str], says: list[str]
) -> None:
    path = tmp_path / "mine.yaml"
    text = f"sources: {{here: {{title: T, url: 'https://x'}}}}\ninstances: [{ROW}]\n"
    path.write_text(text)
    assert read_prices(path)["a"].price_per_hour == 1.5
    path.write_text(text.replace(*change))
    with pytest.raises(UsageError) as caught:
        read_prices(path)
    message = f"{caught.value.message} {caught.value.hint}"
    assert all(part in message for part in ["mine.yaml", *says]), message


def test_a_catalogue_of_your_own_takes_the_place_of_the_shipped_one(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(
        "sources: {mine: {title: Own, url: http://x}}\n"
        "instances:\n"
        "  - {instance_type: big, usd_per_hour: 2.5, devices: 2, as_of: 2026-01, source: mine}\n"
    )
    pricing = lookup_price("big", catalogue=own)
    assert (pricing.price_per_hour, pricing.devices_per_machine) == (2.5, 2)
    with pytest.raises(UsageError, match="big"):
        lookup_price("big")


def test_a_cpu_of_a_machine_with_gpus_serves_one_replica_and_says_so() -> None:
    priced = lookup_price("ml.g4dn.12xlarge")
    on_cpu = priced_as_measured(priced, "cpu")
    assert on_cpu.devices_per_machine == 1 and on_cpu.price_per_hour == priced.price_per_hour
    assert "its NVIDIA T4 is not used, a CPU was measured" in (on_cpu.source or "")
    assert priced_as_measured(on_cpu, "cpu") == on_cpu
    assert priced_as_measured(priced, "gpu") == priced
    (doubt,) = price_doubts(priced, "cpu", "2 × Intel Xeon")
    assert "NVIDIA T4" in doubt and "the CPU is measured" in doubt
    (doubt,) = price_doubts(priced, "gpu", "8 × AMD EPYC, NVIDIA H100 80GB HBM3")
    assert "H100" in doubt
    assert price_doubts(priced, "gpu", "8 × Intel Xeon, 4 × Tesla T4") == []
    assert price_doubts(lookup_price("m7g.large"), "cpu", "2 × Graviton") == []


def test_a_price_in_the_place_of_the_catalogues_is_told() -> None:
    hardware = "4 × AMD EPYC, NVIDIA A10G"
    (doubt,) = price_doubts(lookup_price("g5.xlarge", price_per_hour=3.0), "gpu", hardware)
    assert "--price 3/h counts, not the 1.006/h" in doubt
    (doubt,) = price_doubts(lookup_price("g5.xlrge", price_per_hour=3.0), "gpu", hardware)
    assert "not in the price catalogue" in doubt

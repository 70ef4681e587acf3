"""``analyze verify``: a claim measured again, with fresh arrivals and a restart."""

from __future__ import annotations

import secrets
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from analyzer.cli import options
from analyzer.domain.configuration import Configuration
from analyzer.domain.model import ModelInfo
from analyzer.domain.sla import Sla
from analyzer.errors import UsageError

if TYPE_CHECKING:
    from analyzer.domain.measurement import Certificate, LoadTest, Measurement
    from analyzer.domain.study import StudyResult
    from analyzer.targets.target import Target
    from analyzer.twin.server_model import ServerModel

_VERDICTS = {"PASS": "holds", "FAIL": "refuted", "UNDECIDED": "undecided"}
_EXIT_CODES = {"holds": 0, "refuted": 3, "undecided": 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What is measured again, and where it comes from.

    Args:
        model_path: The file that is served.
        data_path: Real inputs; None for made-up ones.
        variant_sha256: Of the file that is served, under which its probes are kept.
        rate_scale: The twin's edge over the measured one; 1 if unknown.
    """

    model: ModelInfo
    configuration: Configuration
    model_path: Path
    sla: Sla
    rate_rps: float
    arrivals: str
    request_batch_size: int
    source: str
    data_path: Path | None = None
    variant_sha256: str = ""
    rate_scale: float = 1.0

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, units in the keys."""
        return {
            "source": self.source,
            "model": self.model.name,
            "config_id": self.configuration.config_id,
            "config": self.configuration.to_dict(),
            "rate_rps": self.rate_rps,
            "latency_budget_ms": self.sla.latency_budget_ms,
            "percentile": self.sla.percentile,
            "confidence": self.sla.confidence,
            "arrivals": self.arrivals,
            "request_batch_size": self.request_batch_size,
        }


def claim_of_study(facts: StudyResult, config_id: str | None) -> Claim:
    """The recommendation of a study (or another certified configuration of it)."""
    from analyzer.cli.export import chosen_measurement, variant_of

    measurement = chosen_measurement(facts, config_id)
    if measurement.capacity_rps is None:
        raise UsageError(
            f"The configuration {measurement.configuration.config_id} of {facts.name!r} was not "
            "certified at any rate.",
            hint="Give the rate to verify with --target-rate.",
        )
    variant = variant_of(facts, measurement.configuration)
    data = facts.provenance.get("calibration_data")
    return Claim(
        model=facts.model,
        configuration=measurement.configuration,
        model_path=Path(variant.path),
        sla=facts.sla,
        rate_rps=measurement.capacity_rps,
        arrivals=facts.arrivals,
        request_batch_size=facts.request_batch_size,
        source=f"study {facts.name}",
        data_path=Path(data) if data and Path(data).is_file() else None,
        variant_sha256=variant.sha256,
        rate_scale=(measurement.predicted.edge_rps or 0.0) / (measurement.edge.rate_rps or 1.0)
        or 1.0,
    )


def claim_of_repository(repository: Path, model_name: str) -> Claim:
    """What the manifest of an exported model says of it."""
    from analyzer.export.manifest import read_manifest
    from analyzer.variants.inspect import inspect_model

    manifest = read_manifest(repository, model_name)
    changed = manifest.changed_files()
    if changed:
        click.echo(
            f"Note: changed since the export: {', '.join(changed)}. What is there is measured.",
            err=True,
        )
    evidence = manifest.evidence
    sla, entry = evidence.get("sla", {}), evidence.get("entry", {})
    rate = entry.get("capacity_rps")
    if not sla.get("latency_budget_ms") or not rate:
        raise UsageError(
            f"The manifest of {model_name} claims no certified rate.",
            hint="Export a study's recommendation, or give --target-rate and --latency-budget.",
        )
    files = [manifest.version_dir / name for name in ("model.onnx", "model.plan")]
    model_path = next((file for file in files if file.exists()), files[0])
    data = evidence.get("provenance", {}).get("calibration_data")
    names = {field: sla[field] for field in Sla.__dataclass_fields__ if sla.get(field) is not None}
    return Claim(
        model=inspect_model(model_path, name=model_name),
        configuration=manifest.configuration,
        model_path=model_path,
        sla=Sla(**names),
        rate_rps=rate,
        arrivals=sla.get("arrivals", "poisson"),
        request_batch_size=sla.get("request_batch_size", 1),
        source=f"repository {repository}, {model_name} version {manifest.version}",
        data_path=Path(data) if data and Path(data).is_file() else None,
    )


@click.command()
@click.argument("study", required=False)
@click.option(
    "--repository",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="An exported repository, instead of a study; with --model.",
)
@click.option("--model", "model_name", metavar="NAME", help="The model in --repository.")
@click.option(
    "--config",
    "config_id",
    metavar="ID",
    help="Configuration to verify.  [default: the recommended one]",
)
@click.option(
    "--server",
    default="embedded",
    show_default=True,
    metavar="SERVER",
    help="embedded, triton, grpc://HOST:PORT or http://HOST:PORT.",
)
@click.option(
    "--latency-budget",
    type=options.DURATION_MS,
    help="How long a request may take (50ms).  [default: the claim's]",
)
@click.option(
    "--percentile",
    type=options.Percentile(),
    help="Share of requests within the budget, in percent.  [default: the claim's]",
)
@click.option(
    "--confidence",
    type=options.Fraction(open_ends=True),
    help="Confidence of the verdict.  [default: the claim's]",
)
@click.option(
    "--target-rate",
    type=options.RATE_RPS,
    help="Rate to verify (100/s).  [default: the certified rate]",
)
@click.option(
    "--budget", type=options.DURATION_S, default="60s", show_default=True, help="Time to spend."
)
@click.option(
    "--seed",
    type=click.IntRange(0, 2**62),
    metavar="N",
    help="Seed of the arrivals.  [default: drawn]",
)
@options.store
@options.common
def verify(study: str | None, **values: Any) -> int:
    """Measure a claim again: of STUDY (default: the newest), or of an exported repository.

    The server is restarted once in between, and no arrival is one of the search's.
    Exit code 0: the claim holds; 3: it is refuted; 4: undecided.
    """
    import json

    from analyzer.cli.facts import load_facts
    from analyzer.store.results import open_store
    from analyzer.targets.open import check_server

    check_server(values["server"])
    repository = values["repository"]
    if (repository is None) != (values["model_name"] is None):
        raise UsageError(
            "--repository and --model belong together.",
            hint="Write --repository models --model NAME, or name a study instead.",
        )
    facts = None
    if repository is not None:
        claim = claim_of_repository(repository, values["model_name"])
    else:
        with open_store(values["store_url"], create=False) as store:
            facts = load_facts(store, study)
        claim = claim_of_study(facts, values["config_id"])
    claim = _overridden(claim, values)
    quiet = values["quiet"]
    if not quiet:
        click.echo(
            f"Claim ({claim.source}): {claim.rate_rps:.1f} requests/s, {claim.sla.percentile:g} % "
            f"within {claim.sla.latency_budget_ms:g} ms, {claim.configuration.config_id}.",
            err=True,
        )
    measured = _measure(claim, values, quiet=quiet)
    assert measured.certificate is not None
    verdict = _VERDICTS[measured.certificate.verdict]
    if facts is not None:
        _store(values["store_url"], facts.name, claim, verdict, measured, values["server"])
    if values["as_json"]:
        click.echo(json.dumps(_document(claim, measured, verdict)))
    else:
        _print(claim, measured, verdict)
    return _EXIT_CODES[verdict]


def _overridden(claim: Claim, values: dict[str, Any]) -> Claim:
    changed = {
        field: values[option]
        for option, field in (
            ("latency_budget", "latency_budget_ms"),
            ("percentile", "percentile"),
            ("confidence", "confidence"),
        )
        if values[option] is not None
    }
    return replace(
        claim,
        sla=replace(claim.sla, **changed),
        rate_rps=values["target_rate"] or claim.rate_rps,
    )


def _measure(claim: Claim, values: dict[str, Any], *, quiet: bool) -> Measurement:
    from analyzer.cli.search_run import cache_dir
    from analyzer.domain.workload import parse_arrivals
    from analyzer.measure.plan import LoadPlan
    from analyzer.measure.tasks import Assets
    from analyzer.measure.verify import VerifyPlan, verify_claim
    from analyzer.targets.open import open_target

    seed = values["seed"] if values["seed"] is not None else secrets.randbits(48)
    load = LoadPlan(
        sla=claim.sla,
        arrivals=parse_arrivals(claim.arrivals),
        request_batch_size=claim.request_batch_size,
        seed=seed,
    )
    assets = Assets(
        model=claim.model,
        calibration_path=str(claim.data_path) if claim.data_path else None,
        seed=seed % 2**32,
    )
    inputs = assets.request_inputs(cache_dir())

    def start() -> AbstractContextManager[Target]:
        return open_target(
            values["server"],
            model=claim.model,
            model_path=claim.model_path,
            inputs_path=inputs,
            configuration=claim.configuration,
        )

    def told(test: LoadTest, certificate: Certificate) -> None:
        if not quiet:
            click.echo(
                f"  {test.requests} requests in {test.duration_s:.1f} s, {test.over_budget} over "
                f"budget; so far {certificate.requests} and {certificate.over_budget}: "
                f"{certificate.verdict}",
                err=True,
            )

    plan = VerifyPlan(
        load=load,
        rate_rps=claim.rate_rps,
        seconds=values["budget"],
        twin=_twin(claim, values["store_url"]),
    )
    return verify_claim(claim.configuration, plan, start, on_block=told)


def _twin(claim: Claim, store_url: str) -> ServerModel | None:
    """The twin from the probes that the search has kept; None where this machine has none."""
    from analyzer.hardware.machine import inspect_machine
    from analyzer.store.results import open_store
    from analyzer.twin.probe_cache import ProbeCache
    from analyzer.twin.twin import kept_server_model

    if not claim.variant_sha256:
        return None
    machine = inspect_machine()
    with open_store(store_url, create=False) as store:
        return kept_server_model(
            ProbeCache(store.get_cache, store.put_cache, machine.hardware_key),
            claim.configuration,
            claim.variant_sha256,
            cores=machine.cores,
            rate_scale=claim.rate_scale,
        )


def _document(claim: Claim, measured: Measurement, verdict: str) -> dict[str, Any]:
    from analyzer.domain.study import Pricing
    from analyzer.report.document import build_entry

    entry = build_entry(
        measured,
        sla=claim.sla,
        pricing=Pricing(),
        request_batch_size=claim.request_batch_size,
    )
    return {"schema": 1, "claim": claim.to_dict(), "measured": entry, "verdict": verdict}


def _print(claim: Claim, measured: Measurement, verdict: str) -> None:
    certificate, test = measured.certificate, measured.headline
    assert certificate is not None and test is not None
    tail = test.latency_ms.sla
    click.echo(f"The claim {'holds' if verdict == 'holds' else 'is ' + verdict}.")
    click.echo(
        f"  rate         {claim.rate_rps:.1f} requests/s offered, {test.achieved_rps:.1f} done"
    )
    click.echo(
        f"  p{claim.sla.percentile:g}          "
        f"{f'{tail:.2f} ms' if tail is not None else 'none'}, budget "
        f"{claim.sla.latency_budget_ms:g} ms"
    )
    click.echo(
        f"  requests     {certificate.requests} ({certificate.effective_requests:.0f} effective), "
        f"{certificate.over_budget} over budget"
    )
    if certificate.requests_missing:
        click.echo(
            f"  missing      about {certificate.requests_missing} requests: give it more time "
            f"(--budget {certificate.requests_missing / claim.rate_rps + 60:.0f}s)"
        )
    for reason in test.validity.reasons:
        click.echo(f"  invalid      {reason}")
    for note in measured.notes:
        click.echo(f"  note         {note}")


def _store(
    store_url: str, study: str, claim: Claim, verdict: Any, measured: Measurement, server: str
) -> None:
    from analyzer.domain.study import Verification
    from analyzer.store.results import open_store

    with open_store(store_url) as store:
        store.add_verification(
            study,
            Verification(
                claim=claim.to_dict(),
                verdict=verdict,
                measured=measured,
                server=server,
                at=datetime.now(UTC).isoformat(timespec="seconds"),
            ),
        )

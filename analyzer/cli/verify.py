"""``analyze verify``: a claim measured again, with fresh arrivals and a restart."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from analyzer.cli import options
from analyzer.cli.streams import answer, say
from analyzer.cli.verify_answer import print_verification, verification_document
from analyzer.domain.study import CLAIM_VERDICTS, Claim, Verification
from analyzer.errors import UsageError

if TYPE_CHECKING:
    from analyzer.domain.configuration import DeviceKind
    from analyzer.domain.load_test import LoadTest
    from analyzer.domain.measurement import Certificate, Measurement
    from analyzer.export.claims import ClaimedModel
    from analyzer.store.results import ResultStore
    from analyzer.targets.target import Target
    from analyzer.twin.server_model import ServerModel

# The contract's, as those of a search.
_EXIT_CODES = {"holds": 0, "refuted": 3, "undecided": 4}

# What the end of the command takes: the answer stored and printed.
_END_S = 0.5
# What loading the model may take beyond the budget: a verdict rests on two starts.
_LOAD_S_MIN = 10.0


@click.command()
@click.argument("study", required=False)
@click.option(
    "--repository",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="An exported repository, instead of a study; with --model. Any other repository, with "
    "--latency-budget and --target-rate.",
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
    type=options.LATENCY_BUDGET_MS,
    help="How long a request may take (50ms).  [default: the claim's]",
)
@click.option(
    "--percentile",
    type=options.Percentile(),
    help="Share of requests within the budget, in percent.  [default: the claim's]",
)
@click.option(
    "--confidence",
    type=options.Confidence(),
    help="Confidence of the verdict.  [default: the claim's]",
)
@click.option(
    "--target-rate",
    type=options.RATE_RPS,
    help="Rate to verify (100/s).  [default: the certified rate]",
)
@click.option(
    "--budget",
    type=options.BUDGET_S,
    default="5m",
    show_default=True,
    help="Wall time at most, the server's two starts included: it ends as soon as the claim is "
    "decided. Up to a quarter more where a claim that holds so far lacks no more.",
)
@click.option(
    "--seed",
    type=options.SEED,
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

    started = time.monotonic()
    from analyzer.cli.devices import check_instances, default_device, why_on_cpu
    from analyzer.cli.preflight import check_endpoint
    from analyzer.engine.gpu_backends import gpu_backends
    from analyzer.export.claims import claim_of_repository, claim_of_study
    from analyzer.export.study import chosen_measurement
    from analyzer.store.engine import check_writable, parse_url
    from analyzer.store.results import open_store
    from analyzer.targets.open import check_server

    check_server(values["server"])
    if "://" in values["server"]:
        check_endpoint(values["server"])
    repository = values["repository"]
    if (repository is None) != (values["model_name"] is None):
        raise UsageError(
            "--repository and --model belong together.",
            hint="Write --repository models --model NAME, or name a study instead.",
        )
    if repository is not None and study is not None:
        raise UsageError(
            f"The study {study!r} and --repository are two claims.",
            hint="Name the study, or --repository with --model.",
        )
    if repository is not None and values["config_id"] is not None:
        raise UsageError(
            f"--config {values['config_id']} names a configuration of a study, and --repository "
            "holds the one that it verifies.",
            hint="Leave --config out, or name the study in place of --repository.",
        )
    result = None
    if repository is not None:
        subject = claim_of_repository(
            repository,
            values["model_name"],
            rate_rps=values["target_rate"],
            latency_budget_ms=values["latency_budget"],
            gpus=(0,) if default_device() == "gpu" else (),
        )
        if "://" not in values["server"]:
            device: DeviceKind = "gpu" if gpu_backends() else "cpu"
            check_instances(repository / values["model_name"], device, why_on_cpu)
    else:
        check_writable(parse_url(values["store_url"]))  # what is measured is kept there
        with open_store(values["store_url"], create=False) as store:
            result = store.load_result(study)
        measurement = chosen_measurement(result, values["config_id"])
        subject = claim_of_study(
            result, measurement, options.cache_dir(), rate_rps=values["target_rate"]
        )
    quiet = values["quiet"]
    notes = [*_engine_notes(subject, values["server"]), *subject.notes]
    claim = _overridden(subject.claim, values)
    subject = replace(subject, claim=claim)
    for note in () if quiet else notes:
        say(f"Note: {note}")
    if not quiet:
        say(_claim_line(subject))
    values["seed"] = options.seed_or_drawn(values["seed"])
    measured = _measure(subject, values, started=started, quiet=quiet)
    measured = replace(measured, notes=(*notes, *measured.notes))
    assert measured.certificate is not None
    verification = Verification(
        claim=claim,
        verdict=CLAIM_VERDICTS[measured.certificate.verdict],
        measured=measured,
        server=values["server"],
        at=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    if result is not None:
        with open_store(values["store_url"]) as store:
            store.add_verification(result.name, verification)
            if "://" not in values["server"]:
                _keep_speeds(store, verification)
    if values["as_json"]:
        answer(json.dumps(verification_document(verification, subject) | {"seed": values["seed"]}))
    else:
        print_verification(verification, subject)
    return _EXIT_CODES[verification.verdict]


def _claim_line(subject: ClaimedModel) -> str:
    from analyzer.report.wording import GIVEN, floored, milliseconds, number

    claim, sla = subject.claim, subject.claim.sla
    said = f"Claim ({claim.source})" if subject.claimed else f"No claim of {claim.source}, but"
    colon = ":" if subject.claimed else " what the command names:"
    return (
        f"{said}{colon} {number(floored(claim.rate_rps))} requests/s, "
        f"{number(sla.percentile, 9)} % within {milliseconds(sla.latency_budget_ms, GIVEN)} at "
        f"{number(sla.confidence, 9)} confidence, "
        f"{claim.configuration.config_id}."
    )


def _engine_notes(subject: ClaimedModel, server: str) -> list[str]:
    """What is measured instead of what was exported, or what a Triton elsewhere must have for it.

    Raises:
        MissingPartError: The Triton of this machine has another TensorRT.
    """
    if server == "embedded" and subject.exported_for == "python":
        instead = "which the embedded server does not have: it runs the graph itself"
        return [f"Exported for Triton's python backend, {instead} (--server triton has it)."]
    if server == "embedded" or not subject.tensorrt:
        return []
    from analyzer.targets.triton_install import require_triton
    from analyzer.targets.triton_tensorrt import elsewhere, require_same_tensorrt

    if server == "triton":
        require_same_tensorrt(require_triton(), subject.tensorrt)
        return []
    return [elsewhere(server, subject.tensorrt)]


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
    )


def _measure(
    subject: ClaimedModel, values: dict[str, Any], *, started: float, quiet: bool
) -> Measurement:
    from analyzer.domain.workload import parse_arrivals
    from analyzer.hardware.gpu_lock import measuring_on
    from analyzer.hardware.gpus import first_gpu
    from analyzer.hardware.machine import inspect_machine
    from analyzer.measure.plan import LoadPlan
    from analyzer.measure.tasks import Assets
    from analyzer.measure.verify import VerifyPlan, verify_claim
    from analyzer.targets.open import open_target

    claim = subject.claim
    load = LoadPlan(
        sla=claim.sla,
        arrivals=parse_arrivals(claim.arrivals),
        request_batch_size=round(claim.request_batch_size),
        seed=values["seed"],
    )
    # Made-up inputs are the search's, one file in the cache; the arrivals alone are fresh.
    assets = Assets(
        model=subject.model,
        calibration_path=str(subject.data_path) if subject.data_path else None,
    )
    inputs = assets.request_inputs(options.cache_dir())

    here = "://" not in values["server"]
    gpu = first_gpu() if here and claim.configuration.device == "gpu" else None

    def start() -> AbstractContextManager[Target]:
        return open_target(
            values["server"],
            model=subject.model,
            model_path=subject.model_path,
            inputs_path=inputs,
            configuration=claim.configuration,
            exported=subject.exported,
            load_s=max(_LOAD_S_MIN, values["budget"] - (time.monotonic() - started)),
        )

    def told(test: LoadTest, certificate: Certificate) -> None:
        if not quiet:
            say(
                f"  {test.requests} requests in {test.duration_s:.1f} s, {test.over_budget} over "
                f"budget; so far {certificate.requests} and {certificate.over_budget}: "
                f"{certificate.verdict}"
            )

    def beyond(seconds: float) -> None:
        if not quiet:
            say(f"  The claim lacks little: about {seconds:.0f} s beyond --budget.")

    twin = _twin(subject, values["store_url"], values["server"])
    with measuring_on(gpu):
        plan = VerifyPlan(
            load=load,
            rate_rps=claim.rate_rps,
            seconds=values["budget"] - (time.monotonic() - started) - _END_S,
            twin=twin,
            gpu=gpu,
            hardware=inspect_machine().hardware if here else "",
        )
        return verify_claim(claim.configuration, plan, start, on_block=told, on_beyond=beyond)


def _twin(subject: ClaimedModel, store_url: str, server: str) -> ServerModel | None:
    """The twin from the probes that the search has kept; None where this machine has none."""
    from analyzer.cli.machine import constants_of
    from analyzer.hardware.machine import inspect_machine
    from analyzer.store.results import open_store
    from analyzer.twin.probe_cache import ProbeCache
    from analyzer.twin.twin import kept_server_model

    if not subject.variant_sha256:
        return None
    machine = inspect_machine()
    with open_store(store_url, create=False) as store:
        return kept_server_model(
            ProbeCache(
                store.get_cache,
                store.put_cache,
                machine.hardware_key,
                inputs=subject.model.inputs,
            ),
            subject.claim.configuration,
            subject.variant_sha256,
            cores=machine.cores,
            rate_scale=subject.rate_scale,
            constants=constants_of(machine, server=server),
        )


def _keep_speeds(store: ResultStore, verification: Verification) -> None:
    """Lets later searches know how fast this machine was."""
    from analyzer.hardware.machine import inspect_machine
    from analyzer.twin.speed_memory import SpeedMemory

    certificate = verification.measured.certificate
    seen = certificate.conditions if certificate is not None else None
    if seen is not None:
        speeds = SpeedMemory(store.get_cache, store.put_cache, inspect_machine().hardware_key)
        speeds.keep(f"verify {verification.at}", seen.work_us)

"""The record with which a search begins: a new study, or the one that ``--resume`` goes on with."""

from __future__ import annotations

from dataclasses import asdict, replace
from datetime import UTC, datetime
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analyzer import __version__
from analyzer.cli.machine import constants_of
from analyzer.cli.search_options import SearchOptions
from analyzer.domain.configuration import DeviceKind
from analyzer.domain.model import ModelInfo
from analyzer.domain.sla import Sla
from analyzer.domain.study import Pricing
from analyzer.domain.workload import inferences_per_request, parse_arrivals
from analyzer.errors import UsageError

if TYPE_CHECKING:
    from analyzer.hardware.machine import Machine
    from analyzer.store.records import StoredOutcome, StudyRecord
    from analyzer.store.results import ResultStore

# Of a study's options: the hash of its real data, None without any.
_DATA_KEY = "calibration_sha256"
# Packages whose versions decide what a model carries; that of a Triton is no package's.
_RUNTIMES = ("onnxruntime", "tritonserver")
# Of an instant as ISO 8601 has it: up to its seconds.
_SECONDS = 19
# What its record keeps of each command that goes on with it.
_KEPT_OF_RESUMES = ("started_at", "command", "analyzer", "hardware", "libraries")
# The hash of its space's file and of its trace; None for a shipped space, for other arrivals.
_CONTENTS = {"space": "space_sha256", "arrivals": "trace_sha256"}


def begin_study(
    options: SearchOptions,
    store: ResultStore,
    model: ModelInfo,
    sla: Sla,
    machine: Machine,
    device: DeviceKind,
    data_sha256: str | None,
    *,
    pricing: Pricing | None = None,
    hardware: str | None = None,
) -> StudyRecord:
    """The study's record: a new one, or the one that ``--resume`` goes on with.

    Args:
        data_sha256: Hash of what ``--calibration-data`` holds; None without it.
        pricing: What the options tell of the machine's price; None where several are compared.
        hardware: What is measured, for people; None for this machine.

    Raises:
        UsageError: What is resumed is about another model or other shapes of its inputs, another
            SLA or other real data, or was measured otherwise.
        StoreError: The name is taken, or there is no such study to go on with, or another command
            searches it now.
    """
    from analyzer.spaces.prices import priced_as_measured
    from analyzer.store.records import PRICING_KEY, StudyRecord

    told = _told(options, model, device, data_sha256)
    if pricing is not None:
        told[PRICING_KEY] = asdict(priced_as_measured(pricing, device))
    if options.resume:
        assert options.study is not None, "preflight.check_store has asked for it"
        record = store.study(options.study)
        _check_model(record, model)
        if record.sla != sla:
            raise UsageError(
                f"--resume: the study {record.name!r} has another SLA than this command.",
                hint=f"Repeat its options: {_spell(record.sla)}.",
            )
        _check_same(record, told)
        _check_data(record, options, data_sha256)
        if options.seed_given and options.seed != record.seed:
            raise UsageError(
                f"--resume: the study {record.name!r} goes on with its own seed, {record.seed}.",
                hint="Leave --seed out, or start a new study with another --study NAME.",
            )
        store.hold_study(record.name)
        now = _provenance(options, machine, hardware)
        kept = {key: now[key] for key in _KEPT_OF_RESUMES}
        resumes = [*record.provenance.get("resumes", ()), kept]
        provenance = {**record.provenance, "resumes": resumes}
        # The same files may lie elsewhere by now: exports and claims start from them.
        if _DATA_KEY in record.options:  # else nobody knows whether these are the same rows
            data = ("calibration_data", "calibration_data_sha256")
            provenance |= {key: now[key] for key in data}
        found = replace(record.model, path=model.path)
        begun = {**record.options, "model_path": model.path}
        if pricing is not None and pricing.price_per_hour is not None:
            begun = {**begun, PRICING_KEY: told[PRICING_KEY]}
        store.set_status(record.name, "running", provenance=provenance, options=begun, model=found)
        return replace(record, provenance=provenance, options=begun, model=found)
    provenance = _provenance(options, machine, hardware)
    record = store.create_study(
        StudyRecord(
            name=options.study or "",
            model=model,
            sla=sla,
            options=told,
            seed=options.seed,
            started_at=provenance["started_at"],
            provenance=provenance,
        )
    )
    store.hold_study(record.name)
    return record


def price_kept(options: SearchOptions, pricing: Pricing, store: ResultStore) -> Pricing:
    """``pricing``, or with ``--resume`` what this command does not give of the study's own.

    The price of a command that goes on counts, for the machine that the study was begun with.
    """
    if not options.resume or options.study is None or options.instance_type is not None:
        return pricing
    begun = store.load_result(options.study).pricing
    if options.price is None:
        return begun
    return replace(begun, price_per_hour=pricing.price_per_hour, source=pricing.source)


def _told(
    options: SearchOptions, model: ModelInfo, device: DeviceKind, data_sha256: str | None
) -> dict[str, Any]:
    """What the study's record tells of the options."""
    sizes = inferences_per_request(parse_arrivals(options.arrivals), options.request_batch_size)
    return {
        "arrivals": options.arrivals,
        "request_batch_size": sizes,
        "server": options.server,
        "sampler": options.sampler,
        "space": options.space,
        _CONTENTS["space"]: _file_sha256(options.space),
        _CONTENTS["arrivals"]: _file_sha256(_trace_file(options.arrivals)),
        "device": device,
        "calibration_data": str(options.calibration_data or "") or None,
        _DATA_KEY: data_sha256,
        "model_path": model.path,
        "budget_s": options.budget,
        "instance_types": list(options.instance_types) or None,
    }


def _trace_file(arrivals: str) -> str | None:
    name, _, file = arrivals.partition(":")
    return file if name == "trace" else None


def _file_sha256(name: str | None) -> str | None:
    """Hash of the file of that name; None where there is none: a shipped space has its own."""
    file = Path(name) if name is not None else None
    return sha256(file.read_bytes()).hexdigest() if file is not None and file.is_file() else None


def _check_model(record: StudyRecord, model: ModelInfo) -> None:
    """Raises UsageError where the study is about another model, or about other shapes of it.

    Its measurements are pooled with those to come; of another size they say nothing.
    """
    told = f"--resume: the study {record.name!r}"
    anew = "or start a new study with another --study NAME."
    if record.model.sha256 != model.sha256:
        raise UsageError(
            f"{told} is about another model ({record.model.name}, {record.model.sha256[:12]}…).",
            hint=f"Give the same model, {anew}",
        )
    if record.model.batchable != model.batchable:
        before, now = (
            "in batches" if own.batchable else "one request at a time"
            for own in (record.model, model)
        )
        raise UsageError(
            f"{told} ran the model {before}; as this command reads it, it runs {now}.",
            hint="Repeat the options --input-shape and --calibration-data, and give a --budget in "
            f"which the model can be tried as it was then, {anew}",
        )
    begun, given = (
        [f"{tensor.name}:{','.join(map(str, tensor.shape))}" for tensor in own.inputs]
        for own in (record.model, model)
    )
    if begun != given:
        repeat = " ".join(f"--input-shape {shape}" for shape in begun if shape not in given)
        raise UsageError(
            f"{told} measured inputs of {' and '.join(begun)}, and this command has "
            f"{' and '.join(given)}.",
            hint=f"Give {repeat}, {anew}",
        )


def _check_same(record: StudyRecord, told: dict[str, Any]) -> None:
    """Raises UsageError where the study was begun with another space, load or server.

    Its measurements are compared and pooled with those to come; those of another device are none of
    the same configurations. A study of an older version tells less.
    """
    begun = record.options
    for key in ("space", "arrivals", "request_batch_size", "server"):
        content = _CONTENTS.get(key, key)
        by_content = content != key and begun.get(content) and told[content]
        compared = content if by_content else key
        if compared not in begun or begun[compared] == told[compared]:
            continue
        if key == "space" and {begun[key], told[key]} == {None, told["device"]}:
            continue  # the default, and its name
        option, before = f"--{key.replace('_', '-')}", begun[key]
        if by_content and before == told[key]:
            what = f"with another content of {before}"
        else:
            what = f"{_with(option, before)}, and this command is {_with(option, told[key])}"
        raise UsageError(
            f"--resume: the study {record.name!r} was begun {what}.",
            hint="Give what it was begun with, or start a new study with another --study NAME.",
        )


def _with(option: str, value: object) -> str:
    return f"without {option}" if value is None else f"with {option} {value}"


def outcomes_to_keep(
    options: SearchOptions, store: ResultStore, study: str, hardware: str
) -> list[StoredOutcome]:
    """Outcomes that ``--resume`` does not measure again; none of a new study.

    A worker that was lost is no reason to leave its configuration out: it may have been the
    machine. Nor does what another machine carries say anything of this one, nor what runtimes of
    other versions did of these; which of the failures there do, nobody knows.

    Args:
        hardware: What is measured, for people.
    """
    from analyzer.domain.measurement import Failure
    from analyzer.hardware.machine import same_hardware

    if not options.resume:
        return []
    record = store.study(study)
    kept = [
        known
        for known in store.outcomes(study)
        if not (isinstance(known.outcome, Failure) and known.outcome.reason == "worker_lost")
        and _other_runtimes(options, record, _run_at(record, known.created_at)) is None
    ]
    if not _other_hardware(options, record, hardware):
        return kept
    return [
        known
        for known in kept
        if not isinstance(known.outcome, Failure)
        and same_hardware(known.outcome.hardware, hardware)
    ]


def moved_notes(options: SearchOptions, record: StudyRecord, hardware: str) -> tuple[str, ...]:
    """Of a study that goes on elsewhere: a sentence for each machine that it was on before.

    The same of the runtimes that ran its models, where their versions are others now.
    """
    elsewhere = _other_hardware(options, record, hardware)
    moved = [(f"on {name}", f"on this machine ({hardware})") for name in elsewhere]
    others = (_other_runtimes(options, record, run) for run in _runs(record))
    moved += dict.fromkeys(filter(None, others))
    return tuple(
        f"What was measured {before} does not count {now}: it is measured again."
        for before, now in moved
    )


def _other_hardware(options: SearchOptions, record: StudyRecord, hardware: str) -> tuple[str, ...]:
    """What else the study was measured on, in order; nothing where this machine is not measured."""
    from analyzer.hardware.machine import same_hardware

    if not options.measures_here:
        return ()
    runs = _runs(record)
    told = dict.fromkeys(run["hardware"] for run in runs if run.get("hardware"))
    return tuple(name for name in told if not same_hardware(name, hardware))


def _runs(record: StudyRecord) -> list[dict[str, Any]]:
    """What the record tells of each command that searched the study; the last one is this one."""
    return [record.provenance, *record.provenance.get("resumes", ())]


def _run_at(record: StudyRecord, created_at: str) -> dict[str, Any]:
    """The command that stored something at an instant (ISO 8601, UTC)."""
    runs = _runs(record)
    begun = [run for run in runs if run.get("started_at", "")[:_SECONDS] <= created_at[:_SECONDS]]
    return begun[-1] if begun else runs[0]


def _other_runtimes(
    options: SearchOptions, record: StudyRecord, run: dict[str, Any]
) -> tuple[str, str] | None:
    """What ran models in a command of the study, and what does now, for people: where they differ.

    None where nothing tells so, as in a command of an older version, and where this machine is not
    measured.
    """
    on_gpu = record.options.get("device") == "gpu"

    def runtimes(run: dict[str, Any]) -> dict[str, str]:
        return {
            name: version
            for name, version in (run.get("libraries") or {}).items()
            if name.startswith(_RUNTIMES) or (on_gpu and name == "tensorrt")
        }

    def spelled(own: dict[str, str], other: dict[str, str]) -> str:
        changed = {name: told for name, told in own.items() if other.get(name) != told} or own
        return "with " + " and ".join(f"{name} {told}" for name, told in changed.items())

    before, now = runtimes(run), runtimes(_runs(record)[-1])
    same = all(now.get(name) == version for name, version in before.items())
    if not options.measures_here or not now or same:
        return None
    return spelled(before, now), spelled(now, before)


def _check_data(record: StudyRecord, options: SearchOptions, data_sha256: str | None) -> None:
    """Raises UsageError where the study was begun with other real data than this command's.

    Accuracies of one study are compared with each other, so that all rest on the same rows. A study
    of an older version does not say which it had.
    """
    begun_with = record.options.get(_DATA_KEY)
    if _DATA_KEY not in record.options or begun_with == data_sha256:
        return
    before, given = record.options.get("calibration_data"), options.calibration_data
    if begun_with is None:
        what, repeat = f"without --calibration-data, and this command gives {given}", "Leave it out"
    elif data_sha256 is None:
        what = f"with --calibration-data {before}, and this command gives none"
        repeat = f"Add --calibration-data {before}"
    else:
        what = f"with other rows (--calibration-data {before}) than {given} holds"
        repeat = "Give the same rows"
    raise UsageError(
        f"--resume: the study {record.name!r} was begun {what}.",
        hint=f"{repeat}, or start a new study with another --study NAME.",
    )


def _spell(sla: Sla) -> str:
    text = f"--latency-budget {sla.latency_budget_ms:.12g}ms --percentile {sla.percentile:.12g}"
    text += f" --confidence {sla.confidence:.12g} --max-accuracy-drop {sla.max_accuracy_drop:.12g}"
    if sla.target_rate_rps:
        text += f" --target-rate {sla.target_rate_rps:.12g}/s"
    if sla.max_memory_bytes:
        text += f" --max-memory {sla.max_memory_bytes}B"
    return f"{text} --objective {sla.objective}"


def _provenance(options: SearchOptions, machine: Machine, hardware: str | None) -> dict[str, Any]:
    from analyzer.engine.runtimes.providers import onnxruntime_versions
    from analyzer.targets.triton_install import find_triton
    from analyzer.variants.cache import data_sha256

    data = options.calibration_data
    libraries = onnxruntime_versions()
    if options.server == "triton" and (triton := find_triton()) is not None and triton.version:
        libraries["tritonserver"] = triton.version
    for name in ("numpy", "onnx", "optuna", "ray", "tensorrt"):
        try:
            libraries[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {
        "analyzer": __version__,
        "hardware": hardware or machine.hardware,
        "twin_constants": constants_of(machine, local=options.ray_address is None).sentence(),
        "libraries": libraries,
        "seeds": {"study": options.seed, "drawn": not options.seed_given},
        "calibration_data": str(data.absolute()) if data is not None else None,
        "calibration_data_sha256": data_sha256(data) if data is not None else None,
        "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": options.command,
    }

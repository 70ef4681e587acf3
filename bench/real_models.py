"""Models that Python packages ship: inspected, their variants built, served, searched, verified.

    python bench/real_models.py check              # inspect, build, serve (minutes; any machine)
    python bench/real_models.py search --budget 300 [--only magika ...]   # quiet machine; hours
    python bench/real_models.py table              # bench/results/real_models.json, docs page

``search`` runs the real ``analyze search`` from nothing, exports its choice and verifies the claim
on a real Triton. Needs a package index and, for verifying, ``make tools``. Steps of single models
are kept in between, so that the models may be run one by one; what is not run again stays as the
committed results have it.
"""

from __future__ import annotations

import json
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from analyzer.domain.configuration import VariantKey, baseline_configuration
from analyzer.domain.load_test import STATUS_OK
from analyzer.domain.model import ModelInfo
from analyzer.errors import AnalyzerError
from analyzer.measure.jobs import WorkerContext
from analyzer.measure.tasks import Assets
from analyzer.targets.open import open_target
from analyzer.targets.target import Connection
from analyzer.variants.build import Variant
from analyzer.variants.inputs import load_calibration, synthetic_inputs
from analyzer.variants.inspect import inspect_model
from analyzer.variants.try_model import try_model
from benchlib import real_triton
from benchlib.command import RESULTS, ROOT, Command, cell, put_into_page, say, table
from benchlib.packaged import FOLDER, MODELS, PackagedModel

COMMITTED = RESULTS / "real_models.json"
PAGE = ROOT / "docs" / "real-models.md"
STEPS = real_triton.Steps(FOLDER / "steps")
# Rows of natural input: an eighth calibrates, the rest scores.
ROWS = 96
REQUESTS = 8
SERVED_WITHIN_S = 60.0
KEYS = (
    VariantKey(precision="fp32"),
    VariantKey(precision="fp16"),
    VariantKey(precision="int8", quantization="static"),
    VariantKey(precision="int8", quantization="dynamic"),
)


def check(model: PackagedModel) -> dict[str, Any]:
    """What inspection says, every variant or why there is none, and a few requests served."""
    source = model.fetch()
    data = model.write_inputs(ROWS)
    scratch = FOLDER / "models"
    info = inspect_model(source, input_shapes=model.shapes, name=model.name, scratch=scratch)
    rows = load_calibration(data, info).inputs if data else synthetic_inputs(info, 2, 0)
    info, _ = try_model(info, {name: array[:2] for name, array in rows.items()})
    cache = FOLDER / "cache"
    cache.mkdir(parents=True, exist_ok=True)
    context = WorkerContext(
        worker_id="bench", device="cpu", gpu=None, cores=1, cache_dir=cache, node=""
    )
    assets = Assets(model=info, calibration_path=str(data) if data else None)
    start = time.monotonic()
    built = assets.build(KEYS, context)
    seconds = time.monotonic() - start
    return {
        "source": f"{model.package} {model.version}: {model.file}",
        "what": model.what,
        "size_bytes": info.size_bytes,
        "opset": info.opset,
        "batchable": info.batchable,
        "notes": list(info.notes),
        "inputs": [
            {"name": i.name, "datatype": i.datatype, "shape": i.shape, "value_range": i.value_range}
            for i in info.inputs
        ],
        "natural_inputs": data is not None,
        "variants": {key.label: told(variant) for key, variant in built.items()},
        "build_seconds": seconds,
        "replies": served(info, assets.request_inputs(cache)),
    }


def told(variant: Variant | AnalyzerError) -> dict[str, Any]:
    """A variant's accuracy, or why it was not built."""
    if isinstance(variant, AnalyzerError):
        return {"excluded": variant.message}
    accuracy = variant.accuracy
    return {
        "metric": accuracy.metric,
        "drop": accuracy.drop,
        "interval": accuracy.interval,
        "rows": accuracy.samples,
        "notes": list(variant.notes),
    }


def served(info: ModelInfo, inputs: Path) -> int:
    """How many of a few requests the embedded server answers."""
    opened = open_target(
        "embedded",
        model=info,
        model_path=Path(info.path),
        inputs_path=inputs,
        configuration=baseline_configuration(batchable=info.batchable),
    )
    with opened as target, target.connect() as connection:
        return sum(answered(connection, number) for number in range(REQUESTS))


def answered(connection: Connection, number: int) -> bool:
    """Sends one request and waits for its reply."""
    connection.send(number, 1)
    deadline = time.monotonic() + SERVED_WITHIN_S
    while time.monotonic() < deadline:
        for reply in connection.receive(1.0):
            if reply.request == number:
                return reply.status == STATUS_OK
    return False


def searched(model: PackagedModel, budget_s: float, verify_s: float) -> dict[str, Any]:
    """One real search, its export, and the claim verified on a real Triton if there is time."""
    data = model.write_inputs(ROWS)
    name = f"real-{model.name}"
    options = [*model.shape_options(), "--seed", "1"]
    if data is not None:
        options += ["--calibration-data", str(data)]
    found = real_triton.search(
        model.fetch(),
        name=name,
        budget_s=budget_s,
        latency_budget_ms=model.latency_budget_ms,
        options=options,
    )
    document = found.document
    result: dict[str, Any] = {
        "command": " ".join(["analyze", *found.command]),
        "budget_seconds": budget_s,
        "wall_seconds": found.wall_seconds,
        "latency_budget_ms": model.latency_budget_ms,
        "verdict": document["verdict"],
        "speedup": document["speedup"],
        "speedup_basis": document.get("speedup_basis"),
        "search": document["search"],
        "choice": summary(real_triton.chosen(document)),
        "baseline": summary(document["baseline"]),
    }
    if document["verdict"] == "found" and verify_s:
        result["verify"] = verified_on_triton(name, verify_s)
    return result


def verified_on_triton(name: str, seconds: float) -> dict[str, Any]:
    """A claim measured again on a real Triton, or the sentence that it ended with."""
    try:
        verified = real_triton.verify(name, server="triton", budget_s=seconds)
    except SystemExit as ended:
        return {"failed": str(ended).strip()}
    return {
        "verdict": verified["verdict"],
        "rate_rps": verified["claim"]["rate_rps"],
        "certificate": verified["measured"]["certificate"],
    }


def summary(entry: dict[str, Any] | None) -> dict[str, Any] | None:
    """What is kept of a configuration's measurement."""
    keys = ("config_id", "config", "capacity_rps", "edge_rps", "edge_interval_rps", "accuracy")
    return entry and {key: entry.get(key) for key in keys}


def attempt(step: str, model: PackagedModel, budget_s: float, verify_s: float) -> None:
    """Runs a step of one model and keeps its result, or the sentence that it ended with."""
    say(f"{step} {model.name}")
    result: dict[str, Any]
    try:
        result = check(model) if step == "check" else searched(model, budget_s, verify_s)
    except AnalyzerError as error:
        result = {"failed": f"{error.message} {error.hint or ''}".strip()}
    except SystemExit as ended:
        result = {"failed": str(ended).strip()}
    if "failed" in result:
        say(f"  {result['failed']}")
    STEPS.save(step_name(step, model, budget_s), result)


def step_name(step: str, model: PackagedModel, budget_s: float) -> str:
    """The file that a step's result is kept in; searches of several budgets beside each other."""
    return f"search-{budget_s:g}-{model.name}" if step == "search" else f"{step}-{model.name}"


def collect(budget_s: float) -> dict[str, Any]:
    """Everything that is known of each model: what was committed, and newer steps over it."""
    committed = json.loads(COMMITTED.read_text())["models"] if COMMITTED.is_file() else {}
    known: dict[str, Any] = {}
    for model in MODELS:
        facts = committed.get(model.name, {"check": {}, "search": {}})
        check = STEPS.load(step_name("check", model, budget_s), {})
        search = STEPS.load(step_name("search", model, budget_s), {})
        known[model.name] = {
            "check": check or facts["check"],
            "search": facts["search"] | ({f"{budget_s:g}": search} if search else {}),
        }
    searched_any = any(steps["search"] for steps in known.values())
    own = {"onnxruntime": metadata.version("onnxruntime")}
    return {"versions": real_triton.versions() if searched_any else own, "models": known}


def page(document: dict[str, Any]) -> str:
    """The tables of ``docs/real-models.md``."""
    models = document["models"]
    said = [
        f"- **{name}**: {' '.join(facts['check']['notes'])}"
        for name, facts in models.items()
        if facts["check"].get("notes")
    ]
    checks = table(
        ["model", "from", "inputs", "batched", "fp16", "static int8", "dynamic int8", "served"],
        [check_row(name, facts["check"]) for name, facts in models.items() if facts["check"]],
    )
    parts = [checks, "What inspection says of them:", "\n".join(said)]
    titles = ["model", "p99 within", "verdict", "wall time", "certified", "edge"]
    titles += ["baseline's edge", "gain", "choice", "verified on Triton"]
    for budget in sorted({b for facts in models.values() for b in facts["search"]}, key=float):
        found = {name: f["search"][budget] for name, f in models.items() if budget in f["search"]}
        parts.append(
            f"Searched with `--budget {budget}s` (an edge that is open above is told as ≥):"
        )
        parts.append(table(titles, [search_row(name, facts) for name, facts in found.items()]))
    return "\n\n".join(parts)


def check_row(name: str, facts: dict[str, Any]) -> list[str]:
    """A model's row in the first table; the drops are those of accuracy."""
    if "failed" in facts:
        return [name, facts["failed"], *["–"] * 6]
    shapes = "; ".join(
        f"{tensor['name']} {tensor['datatype']} {'×'.join(map(str, tensor['shape'])) or 'scalar'}"
        for tensor in facts["inputs"]
    )
    variants = [facts["variants"][label] for label in ("fp16", "int8-static", "int8-dynamic")]
    drops = [
        cell(variant.get("drop"), ".4f") if "excluded" not in variant else "none"
        for variant in variants
    ]
    batched = "yes" if facts["batchable"] else "no"
    replies = f"{facts['replies']} of {REQUESTS}"
    return [name, facts["source"].partition(":")[0], shapes, batched, *drops, replies]


def search_row(name: str, facts: dict[str, Any]) -> list[str]:
    """A model's row in the second table."""
    if "failed" in facts:
        return [name, "–", facts["failed"], *["–"] * 7]
    choice, baseline = facts["choice"] or {}, facts["baseline"] or {}
    config = choice.get("config") or {}
    spelled = " ".join(filter(None, map(config.get, ("precision", "quantization"))))
    spelled += f", {config.get('instance_count')} × {config.get('intra_op_threads')} threads"
    spelled += f", batch ≤ {config.get('max_batch_size')}"
    return [
        name,
        f"{facts['latency_budget_ms']:g} ms",
        facts["verdict"],
        f"{facts['wall_seconds']:.0f} s",
        f"{cell(choice.get('capacity_rps'), '.1f')}/s",
        edge_cell(choice),
        edge_cell(baseline),
        cell(facts["speedup"], ".2f"),
        spelled,
        facts.get("verify", {}).get("verdict", "–"),
    ]


def edge_cell(entry: dict[str, Any]) -> str:
    """An entry's edge, or the end of its interval that is known."""
    if entry.get("edge_rps"):
        return f"{entry['edge_rps']:.1f}/s"
    low, high = entry.get("edge_interval_rps") or (None, None)
    if low:
        return f"≥ {low:.1f}/s"
    return f"< {high:.1f}/s" if high else "–"


def main() -> int:
    """Runs a step."""
    command = Command("real_models", __doc__, timing=True, offline=("check", "table"))
    command.argument("step", choices=["check", "search", "table"])
    command.argument("--budget", type=float, default=300.0, help="seconds of each search")
    command.argument(
        "--verify", type=float, default=60.0, metavar="SECONDS", help="on a real Triton; 0 for not"
    )
    command.argument("--only", nargs="+", choices=[m.name for m in MODELS], metavar="MODEL")
    options = command.start()
    if options.step != "table":
        for model in MODELS:
            if not options.only or model.name in options.only:
                attempt(options.step, model, options.budget, options.verify)
    document = collect(options.budget)
    put_into_page(PAGE, "real_models", page(document))
    return command.finish(options, document, page)


if __name__ == "__main__":
    raise SystemExit(main())

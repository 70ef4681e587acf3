"""Loads a model's folder: configuration, versions, runtimes, warm-up. All of it or nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from analyzer.engine.backends import TEST_BACKENDS, complete, open_instances, require_backend
from analyzer.engine.ensemble import Ensemble
from analyzer.engine.ensemble_steps import Resolve, labels_of_member, validate_ensemble
from analyzer.engine.loaded_model import Engine, LoadedModel
from analyzer.engine.model_policy import policy_from_config
from analyzer.engine.response_cache import ResponseCache
from analyzer.engine.served_model import ServedModel
from analyzer.engine.signature import signature_of
from analyzer.engine.warmup import warm_up
from analyzer.errors import RepositoryError
from analyzer.modelconfig.repository import list_versions, load_config, version_files
from analyzer.modelconfig.rules import (
    BACKEND_FILES,
    MAX_BATCH_SIZE_DEFAULT,
    expand_instances,
    fill_from_repository,
    finish,
    prepare,
    select_versions,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSettings:
    """What applies to every load.

    Args:
        auto_complete: Whether backends complete configurations (Triton's default).
        gpus: CUDA's numbers of the GPUs that each backend can run on, by its name.
        cache: The response cache; None if it is off.
        config_name: ``--model-config-name``; None for ``config.pbtxt``.
        max_batch_size_default: ``--backend-config=default-max-batch-size``.
        on_failure: As of :class:`ServedModel`, of every model.
    """

    auto_complete: bool = True
    gpus: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    cache: ResponseCache | None = None
    config_name: str | None = None
    max_batch_size_default: int = MAX_BATCH_SIZE_DEFAULT
    on_failure: Callable[[Exception], None] | None = None


def read_model_config(folder: Path, name: str, settings: LoadSettings, override: Any | None) -> Any:
    """The configuration before its backend sees it.

    Raises:
        AnalyzerError: Triton would refuse it.
    """
    config = (
        override if override is not None else load_config(folder, config_name=settings.config_name)
    )
    files = version_files(folder)
    fill_from_repository(config, directory_name=name, version_files=files)
    if not (config.backend or config.platform or config.HasField("ensemble_scheduling")):
        known = ", ".join(filename for _, filename in BACKEND_FILES.values())
        raise RepositoryError(
            f"unexpected platform type '' for {name}: it names no backend, and its newest version "
            f"holds {', '.join(map(repr, files[:8])) or 'nothing'}",
            hint=f"Triton knows a backend by one of the files {known}; another file needs "
            "'backend' and 'default_model_filename' in config.pbtxt.",
        )
    usable = settings.gpus.get(config.backend, ())
    prepare(config, directory_name=name, version_files=files, gpus=usable)
    return config


def chosen_versions(folder: Path, config: Any) -> tuple[int, ...]:
    """The versions of a model's folder that its policy selects, ascending.

    Raises:
        RepositoryError: There is none.
    """
    available = list_versions(folder)
    if config.platform == "ensemble" and not available:
        available = [1]  # Triton asks for a version folder; an ensemble has no file in it
    return select_versions(config, available)


def load_versions(
    folder: Path,
    config: Any,
    settings: LoadSettings,
    resolve: Resolve,
) -> dict[int, LoadedModel]:
    """Every version that the policy selects, ready to answer; all of them or an error.

    Args:
        folder: The model's folder.
        config: From :func:`read_model_config`; completed here.
        resolve: Finds a loaded model by name and version (−1: the newest), for ensembles.

    Raises:
        AnalyzerError: A version cannot be loaded; none is left in memory.
    """
    name = config.name
    ensemble = config.platform == "ensemble"
    if not ensemble:
        require_backend(config)
    versions = chosen_versions(folder, config)
    if settings.auto_complete and not ensemble:
        complete(
            config,
            folder / str(versions[-1]),
            max_batch_size_default=settings.max_batch_size_default,
        )
    if config.backend in TEST_BACKENDS:
        config.platform = ""
    if ensemble:
        config.model_transaction_policy.decoupled = False  # Triton tells it; no member is decoupled
    finish(config, directory_name=name)
    with ExitStack() as undo:
        loaded: dict[int, LoadedModel] = {}
        for version in versions:
            model = _load(folder, version, config, settings, resolve)
            undo.callback(model.close)
            loaded[version] = model
        undo.pop_all()
    return loaded


def _load(
    folder: Path, version: int, config: Any, settings: LoadSettings, resolve: Resolve
) -> LoadedModel:
    start = time.monotonic()
    signature = signature_of(config)
    ensemble = config.platform == "ensemble"
    if ensemble:
        validate_ensemble(config, resolve)
        engine: Engine = Ensemble(config, resolve)
    else:
        engine = _open_engine(folder, version, config, settings)
    cached = settings.cache is not None and config.response_cache.enable
    return LoadedModel(
        config=config,
        version=version,
        engine=engine,
        signature=signature,
        cache=settings.cache if cached else None,
        load_seconds=time.monotonic() - start,
        labels=_read_labels(config, folder),
        inherited_labels=partial(labels_of_member, config, resolve) if ensemble else None,
    )


def _open_engine(folder: Path, version: int, config: Any, settings: LoadSettings) -> ServedModel:
    if config.HasField("sequence_batching"):
        raise RepositoryError(
            f"model '{config.name}' uses sequence batching, which this server does not have.",
            hint="Remove sequence_batching, or use a real Triton.",
        )
    if config.model_transaction_policy.decoupled:
        raise RepositoryError(
            f"model '{config.name}' is decoupled, which no backend of this server can be.",
            hint="Remove model_transaction_policy, or use a real Triton.",
        )
    signature = signature_of(config)
    instances = _active(expand_instances(config), config.name)
    runtimes = open_instances(config, folder / str(version), instances)
    try:
        warmed = warm_up(config, folder, runtimes)
    except BaseException:
        for runtime in runtimes:
            runtime.close()
        raise
    return ServedModel(
        config.name,
        policy_from_config(config, instance_count=len(instances)),
        runtimes,
        batchable=config.max_batch_size > 0,
        enforce_shapes=signature.dynamic_shapes,
        optional_inputs=signature.optional_inputs,
        counters=warmed,
        on_failure=settings.on_failure,
    )


def _active(instances: Sequence[Any], name: str) -> list[Any]:
    active = [instance for instance in instances if not instance.passive]
    if not active:
        raise RepositoryError(
            f"model '{name}' has passive instances alone.",
            hint="Triton never schedules these; add an instance group that is not passive.",
        )
    return active


def _read_labels(config: Any, folder: Path) -> dict[str, tuple[str, ...]]:
    """The labels of each output whose configuration names a file with them, one per line.

    Raises:
        RepositoryError: A file is not there, as in Triton, or lies outside the model's folder.
    """
    labels: dict[str, tuple[str, ...]] = {}
    for output in config.output:
        if not output.label_filename:
            continue
        path = folder / output.label_filename
        if ".." in path.parts or not path.is_relative_to(folder):
            raise RepositoryError(
                f"model '{config.name}': the label file {output.label_filename!r} of output "
                f"'{output.name}' lies outside the model's folder."
            )
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise RepositoryError(
                f"failed to open text file for read {path}: {error.strerror}",
                hint=f"The label file of output '{output.name}' lies in the model's folder.",
            ) from error
        labels[output.name] = tuple(text.splitlines())
    return labels

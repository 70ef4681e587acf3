"""One TensorRT engine of each variant in a study: what is measured is what is exported."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, replace

from analyzer.domain.measurement import Measurement
from analyzer.domain.study import MeasuredEngine
from analyzer.search.build import BuiltVariants
from analyzer.search.context import SearchContext

_KIND = "engines"


def with_measured_engines(context: SearchContext) -> SearchContext:
    """The context of a study that goes on, with the engines that were measured before.

    Another build of the same graph chooses other kernels, so that its figures are of another file.
    """
    measured = {
        stored.outcome.configuration.variant.label
        for stored in context.log.stored
        if isinstance(stored.outcome, Measurement)
    }
    kept = context.store.get_cache(_KIND, context.request.part) or {}
    engines = [MeasuredEngine(**values) for values in kept.get("engines", ())]
    return _with(context, (engine for engine in engines if engine.label in measured))


def keep_engines(context: SearchContext, built: BuiltVariants) -> SearchContext:
    """The context with the engines that were built now; no others are measured, or exported."""
    known = {engine.label: engine for engine in context.assets.engines}
    for key, variant in built.variants.items():
        if variant.engine is not None:
            known[key.label] = MeasuredEngine(
                label=key.label,
                entry=variant.entry,
                sha256=variant.sha256,
                instance_type=context.request.space.instance_type,
                **asdict(variant.engine),
            )
    if known:
        values = [asdict(engine) for engine in known.values()]
        context.store.put_cache(_KIND, context.request.part, {"engines": values})
    return _with(context, known.values())


def _with(context: SearchContext, engines: Iterable[MeasuredEngine]) -> SearchContext:
    return replace(context, assets=replace(context.assets, engines=tuple(engines)))

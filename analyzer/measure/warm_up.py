"""Warms a target up before its load tests."""

from __future__ import annotations

from analyzer.domain.configuration import Configuration
from analyzer.measure.plan import LoadPlan
from analyzer.measure.session import Session

# Filling the server is worth so long: 64 requests in flight of a model that takes a second for each
# would take a minute, which a search does not have (a choice).
_FILLING_S_MAX = 1.0
_FILLING_STEP = 4


def warm_up(
    session: Session, configuration: Configuration, load: LoadPlan, *, saturating: bool
) -> float:
    """Reaches every instance with two requests each, then fills the server where that is wanted.

    In steps, since more in flight make larger batches: each only if the replies before let expect
    that all of it are answered in a second.

    Args:
        saturating: Whether the replies per second at saturation are wanted, too.

    Returns:
        Replies per second.

    Raises:
        TargetCrashError: Not one request was answered.
    """
    in_flight = 2 * configuration.instance_count
    replies_rps = session.warm_up(concurrency=in_flight)
    most = load.saturating_concurrency(configuration) if saturating else in_flight
    while in_flight < most:
        in_flight = min(_FILLING_STEP * in_flight, most)
        if in_flight > _FILLING_S_MAX * replies_rps:
            break
        replies_rps = session.warm_up(concurrency=in_flight)
    return replies_rps

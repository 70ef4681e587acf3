"""Warms a target up before its load tests."""

from __future__ import annotations

from analyzer.domain.configuration import Configuration
from analyzer.measure.plan import LoadPlan
from analyzer.measure.session import Session

# Filling the server is worth so long: 64 requests in flight of a model that takes a second for each
# would take a minute, which a search does not have (a choice).
_FILLING_S_MAX = 1.0


def warm_up(
    session: Session, configuration: Configuration, load: LoadPlan, *, saturating: bool
) -> float:
    """Reaches every instance with two requests each, then fills the server where that is wanted.

    It is filled only if the first replies let expect that all in flight are answered in a second.

    Args:
        saturating: Whether the replies per second at saturation are wanted, too.

    Returns:
        Replies per second.

    Raises:
        TargetCrashError: Not one request was answered.
    """
    few = 2 * configuration.instance_count
    replies_rps = session.warm_up(concurrency=few)
    many = load.saturating_concurrency(configuration)
    if saturating and few < many <= _FILLING_S_MAX * replies_rps:
        return session.warm_up(concurrency=many)
    return replies_rps

"""Requests that were late since the server stood still, not since its rate was too high."""

from __future__ import annotations

import numpy as np

from analyzer.domain.load_test import RequestLog

# No reply for so long, and for so many of the run's median latencies, while a request waited for
# at least half of that time, as where a host takes a core of a virtual machine away for some tens
# of milliseconds. Executions of the largest batches take a few median latencies.
_STALL_S_MIN = 0.02
_LATENCIES_MIN = 6.0


def late_by_stalls(log: RequestLog, budget_s: float) -> int:
    """How many requests were over the latency budget since they waited for a stalled server.

    From the last reply before a stall to the first request after it that is in time again; the
    requests of a queue that only grows are none, since replies go on. Warm-up is left out.
    """
    latency_s, sent_s = log.latency_s[log.warmup :], log.intended_s[log.warmup :]
    answered = np.isfinite(latency_s)
    if np.count_nonzero(answered) < 2 or not np.any(latency_s > budget_s):
        return 0
    done_s = sent_s + latency_s
    # A run that was given up may end in a stall.
    replies_s = np.append(np.sort(done_s[answered]), sent_s[-1])
    least_s = max(_STALL_S_MIN, _LATENCIES_MIN * float(np.median(latency_s[answered])))
    late = latency_s > budget_s
    stalled = np.zeros(len(late), dtype=bool)
    for at in np.flatnonzero(np.diff(replies_s) > least_s):
        begin_s, end_s = replies_s[at], replies_s[at + 1]
        waiting = (sent_s <= (begin_s + end_s) / 2) & (done_s >= end_s)
        if waiting.any():
            in_time = np.flatnonzero((sent_s >= end_s) & ~late)
            until_s = sent_s[in_time[0]] if len(in_time) else np.inf
            stalled |= late & (done_s >= end_s) & (sent_s < until_s)
    return int(np.count_nonzero(stalled))

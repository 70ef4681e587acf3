"""The process behind :mod:`analyzer.hardware.canary`; imports the standard library only.

Arguments: the inherited file descriptor of the ring, its number of samples, the period in
nanoseconds, and the parent's process id.
"""

from __future__ import annotations

import mmap
import struct
import sys
import time

from analyzer.hardware.lifetime import die_with_parent
from analyzer.hardware.timing import first_in_line, set_timer_slack_ns

#: One sample: when it was due (CLOCK_MONOTONIC, ns), how late it was (ns), CPU time of the fixed
#: work (ns). The due time is written last, so that a reader never sees half a sample.
SAMPLE = struct.Struct("<qqq")
_DUE = struct.Struct("<q")
# Long enough for the clock's resolution, short enough to take no capacity: some 4 µs.
_WORK = range(400)


def main(arguments: list[str]) -> None:
    """Writes samples to the ring until it is killed."""
    descriptor, samples, period_ns, parent_pid = map(int, arguments)
    die_with_parent(parent_pid=parent_pid)
    ring = mmap.mmap(descriptor, samples * SAMPLE.size)
    set_timer_slack_ns(1)
    number = 0
    with first_in_line():
        due_ns = time.monotonic_ns()
        while True:
            due_ns += period_ns
            ahead_ns = due_ns - time.monotonic_ns()
            if ahead_ns > 0:
                time.sleep(ahead_ns / 1e9)
            late_ns = max(time.monotonic_ns() - due_ns, 0)
            # Of the first one the time tells how long this core slept: 5 µs beside a model under
            # load, 8 to 15 on an idle machine. The second one takes 4 in both cases.
            sum(_WORK)
            before_ns = time.thread_time_ns()
            sum(_WORK)
            work_ns = time.thread_time_ns() - before_ns
            place = number % samples * SAMPLE.size
            SAMPLE.pack_into(ring, place, 0, late_ns, work_ns)
            _DUE.pack_into(ring, place, due_ns)
            number += 1
            # After a stall the samples that it swallowed are not made up for: it is one stall.
            due_ns += late_ns // period_ns * period_ns


if __name__ == "__main__":
    main(sys.argv[1:])

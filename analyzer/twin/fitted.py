"""Every number of the twin that was fitted to measurements, and what it was fitted to.

All come from one machine of two cores (machine E of docs/figures.md) with ONNX Runtime on its CPU.
``OVERHEAD_MS_GUESS`` and ``HOST_MS`` are fallbacks where ``analyze doctor --calibrate`` was not run
(:mod:`analyzer.twin.machine_constants`).
Run again, for each subject and server, what they were fitted to::

    python bench/twin_live.py measure --model NAME --raw DIR [--server triton]
    python bench/twin_live.py report --raw DIR

The report lists the twin's error at each configuration; docs/twin.md tells what the fits left.
"""

from __future__ import annotations

#: Milliseconds that a request takes outside the queue and the model, until live runs have told: the
#: socket, the scheduler, two thread switches. The embedded server's overhead at light load.
OVERHEAD_MS_GUESS = 0.3

# What a request costs the machine's cores besides the model: the server's socket and scheduler, and
# a load generator on the same machine. While no core is left over, executions pay for it.
# Fitted to the embedded rows whose instances times threads take every core.
#: With one thread per instance: milliseconds per inference, and at most this share of the model's
#: own time, since quick models are served in larger batches. On a real Triton there is no such
#: bound: executions of a perceptron of a millisecond (bench/peers.py) took that much longer there.
HOST_MS = 0.12
HOST_SHARE_MAX = 0.12
#: With several threads: milliseconds per inference, and at least this share, since all wait for the
#: one that was interrupted, and for each other after every pause.
HOST_MS_THREADS = 0.08
HOST_SHARE_THREADS = 0.14

#: What the embedded server's one Python thread at a time spends on an execution, and on each
#: request in it, milliseconds, whatever the instances; scaled as a measured ``HOST_MS`` is.
#: Fitted to edges of a perceptron whose executions take 0.01 to 0.06 ms (``tiny``, embedded):
#: 7,200/s without batches, 26,500/s in batches of 8 on two instances, 39,700/s in batches of 32.
DISPATCH_MS = 0.11
REQUEST_MS = 0.02

#: What Triton's python backend adds to each execution, and for each inference in it, milliseconds:
#: shared memory, its stub process, the server's own threads, gRPC. An instance is occupied by it.
#: Fitted to the rows of ``--server triton``.
PYTHON_BACKEND_MS = 0.5
PYTHON_BACKEND_ITEM_MS = 0.1

#: An execution's time falls with this power of the threads, where one thread count alone was
#: probed. Assumed; what two of them show takes its place.
THREADS_GAIN = 0.8

#: Percent of a probe's executions, the quickest, that its mean counts; the rest is the machine's.
TRIMMED_PERCENT = 99.0
#: With several threads: executions slower than this times the lower quartile shared a core, which
#: takes up to three times as long.
SHARED_CORE_FACTOR = 1.5

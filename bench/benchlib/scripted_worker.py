"""A worker of the service whose command is scripted; it ends with the process that started it.

python -m benchlib.scripted_worker STORE DATA DEVICE LEASE_S
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from analyzer.hardware.lifetime import die_with_parent
from analyzer.service.content import ContentStore
from analyzer.service.database import open_service_database
from analyzer.service.folder import Program
from analyzer.service.limits import ServiceLimits
from analyzer.service.queue import Device
from analyzer.service.worker import Worker
from benchlib.command import ROOT

SCRIPT = ROOT / "tests" / "service" / "scripted.py"


def main() -> int:
    """Works until it is killed."""
    url, data, device, lease_s = sys.argv[1:]
    die_with_parent(signal.SIGKILL)
    Worker(
        open_service_database(url, upgrade=False, idle_s=float(lease_s)),
        ContentStore(Path(data)),
        Device(id=device, kind="cpu", host=f"host{os.getpid()}", name="a CPU"),
        ServiceLimits(),
        stopping=lambda: False,
        lease_s=float(lease_s),
        analyze=Program((sys.executable, str(SCRIPT)), reading=(str(ROOT / "tests"),)),
    ).run()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""An API that gets stuck in the transaction that creates a job, for test_idempotency.py.

    python stuck_api.py STORE_URL DATA_FOLDER IDLE_S

Prints its port, and "stuck" once it is.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

from analyzer.server.http_server import listen
from analyzer.service import audit
from analyzer.service.api import service_server
from analyzer.service.content import ContentStore
from analyzer.service.context import ServiceContext
from analyzer.service.database import open_service_database
from analyzer.service.event_stream import EventHub
from analyzer.service.inspection import Inspector
from analyzer.service.limits import ServiceLimits
from analyzer.service.sandbox import Isolation


def stuck(*_: Any, **__: Any) -> None:
    """In the place of the last write of a creation but the key's answer."""
    print("stuck", flush=True)
    time.sleep(600)


def main() -> None:
    """Serves until it is killed."""
    url, data, idle_s = sys.argv[1:]
    audit.note = stuck
    database = open_service_database(url, idle_s=float(idle_s))
    context = ServiceContext(
        database=database, content=ContentStore(Path(data)), limits=ServiceLimits(),
        hub=EventHub(database, 1), inspector=Inspector(Isolation()), tokens=False,
    )  # fmt: skip
    listener = listen("127.0.0.1", 0)
    listener.listen()
    print(listener.getsockname()[1], flush=True)
    server = service_server(context, drain_timeout_s=1)
    asyncio.run(server.serve(sockets=[listener]))


if __name__ == "__main__":
    main()

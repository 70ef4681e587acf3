"""The journey of a user whose client was generated from ``/openapi.json``; run by its own Python.

    python journey.py FOLDER BASE_URL TOKEN MODEL DATA OUT

``FOLDER`` holds the generated package ``tritune_client``. Uploads the model and the data, hands a
search in, watches its events to the end, fetches result, report, manifest and repository, and
lists, clones and cancels; prints what it saw as JSON. Imports nothing of ours.
"""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any


def main() -> int:
    """The journey."""
    folder, base, token, model, data, out = sys.argv[1:]
    sys.path.insert(0, folder)
    from tritune_client import AuthenticatedClient  # type: ignore[import-not-found]
    from tritune_client.api.calibration import (  # type: ignore[import-not-found]
        upload_calibration,
    )
    from tritune_client.api.jobs import (  # type: ignore[import-not-found]
        job_artifact,
        job_cancel,
        job_clone,
        job_create,
        job_events,
        job_get,
        job_list,
        job_result,
        job_trials,
    )
    from tritune_client.api.models import upload_model  # type: ignore[import-not-found]
    from tritune_client.models import (  # type: ignore[import-not-found]
        JobArtifactName,
        NewJob,
        NewJobKind,
        NewJobOptions,
        ProblemDocument,
    )
    from tritune_client.types import File  # type: ignore[import-not-found]

    def good(answer: Any, status: int) -> Any:
        assert answer.status_code == status, (answer.status_code, answer.content[:500])
        assert not isinstance(answer.parsed, ProblemDocument), answer.parsed
        return answer.parsed

    with AuthenticatedClient(base_url=base, token=token, timeout=600.0) as client:
        uploaded = good(
            upload_model.sync_detailed(
                client=client, name="digits", idempotency_key="model-1",
                body=File(payload=io.BytesIO(Path(model).read_bytes())),
            ),
            201,
        )  # fmt: skip
        rows = good(
            upload_calibration.sync_detailed(
                client=client, name="digits", body=File(payload=io.BytesIO(Path(data).read_bytes()))
            ),
            201,
        )
        options = NewJobOptions.from_dict(
            {
                "latency_budget": "500ms", "budget": "180s", "accept": "estimated",
                "calibration_data": rows.id, "precisions": "fp32", "max_trials": 1, "seed": 7,
            }
        )  # fmt: skip
        body = NewJob(kind=NewJobKind.SEARCH, model=uploaded.id, options=options)
        job = good(job_create.sync_detailed(client=client, body=body, idempotency_key="job-1"), 201)
        again = good(
            job_create.sync_detailed(client=client, body=body, idempotency_key="job-1"), 201
        )
        assert again.id == job.id, "the same key made a second job"
        stream = job_events.sync_detailed(client=client, job=job.id)
        assert stream.status_code == 200
        numbers = [
            int(line[4:])
            for line in stream.content.decode().splitlines()
            if line.startswith("id: ")
        ]
        ended = good(job_get.sync_detailed(client=client, job=job.id), 200)
        assert str(ended.state.value) == "SUCCEEDED", (ended.reason, ended.message, ended.log_tail)
        found = good(job_trials.sync_detailed(client=client, job=job.id), 200)
        answer = job_result.sync_detailed(client=client, job=job.id)
        assert answer.status_code == 200
        verdict = json.loads(answer.content)["verdict"]
        for name in ("report.html", "manifest.json", "repository.tar"):
            file = job_artifact.sync_detailed(client=client, job=job.id, name=JobArtifactName(name))
            assert file.status_code == 200, (name, verdict, ended.log_tail)
            (Path(out) / name).write_bytes(file.content)
        second = good(job_clone.sync_detailed(client=client, job=job.id), 201)
        good(job_cancel.sync_detailed(client=client, job=second.id), 200)
        listed = good(job_list.sync_detailed(client=client), 200)
        unknown = job_get.sync_detailed(client=client, job="0" * 32)
        assert isinstance(unknown.parsed, ProblemDocument) and unknown.parsed.status == 404
        print(
            json.dumps(
                {
                    "job": job.id, "verdict": verdict, "events": len(numbers),
                    "events_in_order": numbers == list(range(1, len(numbers) + 1)),
                    "trials": len(found.trials), "listed": len(listed.items),
                }
            )
        )  # fmt: skip
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

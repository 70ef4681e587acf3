"""The queues of an executor, without processes."""

from __future__ import annotations

import threading

from analyzer.cluster.job_queue import JobQueue
from analyzer.measure.jobs import Job, JobResult


def result_of(job: Job) -> JobResult:
    return JobResult(
        job_id=job.job_id, value=1, error=None, lost=False, seconds=0.0, worker_id="cpu-0"
    )


def test_a_cancelled_job_that_ends_after_the_wait_for_it_hands_nothing_over() -> None:
    """What it left on a server elsewhere may take longer to unload than the wait lasts."""
    queue, taken, go_on = JobQueue(), threading.Event(), threading.Event()

    def work() -> None:
        while (job := queue.take()) is not None:
            taken.set()
            if job.job_id == "late":
                go_on.wait(10.0)
            queue.finish(result_of(job))

    worker = threading.Thread(target=work)
    worker.start()
    queue.put(Job("late", result_of, 1.0))
    assert taken.wait(10.0)
    assert not queue.cancel(lambda: None, timeout_s=0.0), "it still runs"
    go_on.set()
    queue.put(Job("next", result_of, 1.0))
    found = queue.next_result(10.0)
    queue.close(1)
    worker.join(10.0)
    assert found is not None and found.job_id == "next"
    assert queue.next_result(0.0) is None


def test_a_cancelled_job_that_is_put_back_is_forgotten() -> None:
    queue = JobQueue()
    queue.put(Job("late", result_of, 1.0))
    job = queue.take()
    assert job is not None
    queue.cancel(lambda: None, timeout_s=0.0)
    queue.put_back(job)
    queue.close(1)
    assert queue.take() is None
    assert queue.cancel(lambda: None, timeout_s=0.0), "nothing is left"

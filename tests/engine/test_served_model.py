"""The served model on the real clock: exactly one reply each, delays, failures, counters."""

import threading
import time

import numpy as np
import pytest

from analyzer.engine.fault import Fault
from analyzer.engine.policy import BatchingPolicy, QueuePolicy
from analyzer.engine.requests import InferenceReply, InferenceRequest
from analyzer.engine.served_model import ServedModel


class Recorded:
    """A runtime that doubles its input, notes its batches and can be held back."""

    def __init__(self, service_s: float = 0.0) -> None:
        self.service_s = service_s
        self.batches: list[int] = []
        self.gate = threading.Event()
        self.gate.set()
        self.ended = threading.Event()
        self.fail = False

    def run(self, inputs):
        self.gate.wait(60)
        time.sleep(self.service_s)
        self.batches.append(len(inputs["x"]))
        if self.fail:
            raise ValueError("no")
        return {"y": inputs["x"] * 2}

    @property
    def closed(self) -> bool:
        return self.ended.is_set()

    def close(self) -> None:
        self.ended.set()


class Replies:
    """Collects replies by request; waits for a number of them."""

    def __init__(self) -> None:
        self.got: list[tuple[int, InferenceReply, float]] = []
        self._condition = threading.Condition()

    def request(self, number: int, rows: int = 1, **fields) -> InferenceRequest:
        def done(reply: InferenceReply) -> None:
            with self._condition:
                self.got.append((number, reply, time.monotonic()))
                self._condition.notify_all()

        return InferenceRequest(rows, {"x": np.full((rows, 2), float(number))}, done, **fields)

    def wait(self, count: int) -> list[tuple[int, InferenceReply, float]]:
        with self._condition:
            assert self._condition.wait_for(lambda: len(self.got) >= count, 60), len(self.got)
            return list(self.got)


def policy(**fields) -> BatchingPolicy:
    defaults = {"max_batch_size": 8, "dynamic_batching": True, "instance_count": 1}
    return BatchingPolicy(**(defaults | fields))


def test_every_request_gets_its_own_rows_exactly_once() -> None:
    runtimes = [Recorded(), Recorded()]
    replies = Replies()
    with ServedModel("m", policy(instance_count=2), runtimes, batchable=True) as model:
        for number in range(300):
            model.submit(replies.request(number, rows=1 + number % 3))
        got = replies.wait(300)
    assert sorted(number for number, _, _ in got) == list(range(300))
    for number, reply, _ in got:
        assert reply.fault is None
        np.testing.assert_array_equal(
            reply.outputs["y"], np.full((1 + number % 3, 2), 2.0 * number)
        )
    assert all(runtime.closed for runtime in runtimes)


def test_requests_that_queue_behind_a_busy_instance_are_joined() -> None:
    runtime = Recorded()
    runtime.gate.clear()
    replies = Replies()
    with ServedModel("m", policy(), [runtime], batchable=True) as model:
        for number in range(13):
            model.submit(replies.request(number))
        runtime.gate.set()
        replies.wait(13)
    assert runtime.batches == [1, 8, 4]


@pytest.mark.timing
def test_a_delay_is_waited_for_and_ended_by_the_clock() -> None:
    runtime = Recorded()
    replies = Replies()
    with ServedModel("m", policy(max_queue_delay_us=30_000), [runtime], batchable=True) as model:
        start = time.monotonic()
        for number in range(3):
            model.submit(replies.request(number))
        got = replies.wait(3)
        # Again, after the timer's thread has gone idle.
        again = time.monotonic()
        model.submit(replies.request(3))
        got = replies.wait(4)
    assert runtime.batches == [3, 1]
    assert min(at for _, _, at in got[:3]) - start >= 0.030
    assert got[3][2] - again >= 0.030
    assert got[0][1].queue_ns >= 30_000_000


def test_a_preferred_size_ends_the_delay() -> None:
    runtime = Recorded()
    replies = Replies()
    delayed = policy(max_queue_delay_us=60_000_000, preferred_batch_size=(4,))
    with ServedModel("m", delayed, [runtime], batchable=True) as model:
        for number in range(4):
            model.submit(replies.request(number))
        replies.wait(4)
    assert runtime.batches == [4]


def test_a_failing_execution_fails_its_requests_and_nothing_else() -> None:
    runtime = Recorded()
    runtime.fail = True
    failures: list[Exception] = []
    replies = Replies()
    with ServedModel("m", policy(), [runtime], batchable=True, on_failure=failures.append) as model:
        model.submit(replies.request(0))
        (_, reply, _), *_ = replies.wait(1)
        assert reply.outputs is None
        assert reply.fault.kind == "internal"
        assert reply.fault.message == "ValueError: no"
        runtime.fail = False
        model.submit(replies.request(1))
        assert replies.wait(2)[1][1].fault is None
        counters = model.statistics()
    assert len(failures) == 1
    assert (counters.fail_count, counters.success_count, counters.execution_count) == (1, 1, 1)


def test_a_callback_that_raises_costs_neither_the_instance_nor_its_batch(capsys) -> None:
    def broken(reply: InferenceReply) -> None:
        raise RuntimeError("front end")

    runtime = Recorded()
    runtime.gate.clear()
    replies = Replies()
    with ServedModel("m", policy(), [runtime], batchable=True) as model:
        model.submit(replies.request(0))
        model.submit(InferenceRequest(1, {"x": np.zeros((1, 2))}, broken))
        model.submit(replies.request(1))
        runtime.gate.set()
        replies.wait(2)
        model.submit(replies.request(2))
        replies.wait(3)
    assert runtime.batches == [1, 2, 1]
    assert "front end" in capsys.readouterr().err


def test_what_is_told_of_failures_and_time_outs_may_raise(capsys) -> None:
    """The instance's thread ended: nothing was answered any more, and its runtime stayed open."""

    def broken(*_: object) -> None:
        raise RuntimeError("front end")

    runtime = Recorded()
    runtime.fail = True
    replies = Replies()
    timed = policy(default_queue_policy=QueuePolicy(default_timeout_us=1_000))
    with ServedModel(
        "m", timed, [runtime], batchable=True, on_failure=broken, after_batch=broken
    ) as model:
        model.submit(replies.request(0))
        replies.wait(1)
        runtime.fail = False
        runtime.gate.clear()
        model.submit(replies.request(1))
        model.submit(replies.request(2))  # expires
        replies.wait(2)
        runtime.gate.set()
        replies.wait(3)
        model.submit(replies.request(3))
        got = replies.wait(4)
    assert [number for number, _, _ in got] == [0, 2, 1, 3]
    assert [reply.fault is None for _, reply, _ in got] == [False, False, True, True]
    assert capsys.readouterr().err.count("RuntimeError: front end") >= 4


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_instance_whose_thread_dies_closes_its_runtime() -> None:
    class Dying(Recorded):
        def run(self, inputs):
            raise SystemExit

    runtime = Dying()
    model = ServedModel("m", policy(), [runtime], batchable=True)
    model.submit(Replies().request(0))
    assert runtime.ended.wait(60)
    model.close()


def test_outputs_without_a_row_per_inference_are_an_error() -> None:
    class Odd(Recorded):
        def run(self, inputs):
            super().run(inputs)
            return {"y": np.zeros(3)}

    runtime = Odd()
    runtime.gate.clear()
    replies = Replies()
    with ServedModel("m", policy(), [runtime], batchable=True) as model:
        for number in range(3):
            model.submit(replies.request(number))
        runtime.gate.set()
        got = {number: reply for number, reply, _ in replies.wait(3)}
    assert got[0].fault is None  # alone, its outputs are its own whatever their shape
    assert "output y has shape (3,) for a batch of 2" in got[1].fault.message


def test_counters_add_up() -> None:
    runtime = Recorded(service_s=0.002)
    replies = Replies()
    with ServedModel("m", policy(), [runtime], batchable=True) as model:
        for number in range(40):
            model.submit(replies.request(number, rows=2))
        got = replies.wait(40)
        counters = model.statistics()
        details = model.details()
    assert counters.success_count == 40
    assert counters.inference_count == 80
    assert counters.execution_count == len(runtime.batches)
    assert sum(size * count for size, count in counters.batches) == 80
    # Each request is charged the whole batch's time: the replies say the same.
    assert counters.queue_ns == sum(reply.queue_ns for _, reply, _ in got)
    assert counters.compute_infer_ns == sum(reply.compute_infer_ns for _, reply, _ in got)
    stages = counters.queue_ns + counters.compute_input_ns + counters.compute_infer_ns
    assert counters.success_ns >= stages + counters.compute_output_ns
    assert details.waiting_count == 0
    assert sum(batch.compute_infer_ns for batch in details.batches) <= counters.compute_infer_ns
    assert details.last_inference_ms > 0


def test_a_full_queue_refuses() -> None:
    runtime = Recorded()
    runtime.gate.clear()
    replies = Replies()
    limited = policy(default_queue_policy=QueuePolicy(max_queue_size=2))
    with ServedModel("m", limited, [runtime], batchable=True) as model:
        accepted = refused = 0
        for number in range(10):
            try:
                model.submit(replies.request(number))
                accepted += 1
            except Fault:
                refused += 1
        assert refused > 0
        tickets = model.submit_many([replies.request(10), replies.request(11)])
        assert tickets == [-1, -1]
        runtime.gate.set()
        got = replies.wait(accepted + 2)
    errors = [reply.fault.message for _, reply, _ in got if reply.fault]
    assert errors == ["Exceeds maximum queue size"] * 2


def test_an_expired_request_that_is_kept_runs_after_the_delay() -> None:
    kept = QueuePolicy(timeout_action="DELAY", default_timeout_us=1)
    timed = policy(max_queue_delay_us=20_000, default_queue_policy=kept)
    replies = Replies()
    with ServedModel("m", timed, [Recorded()], batchable=True) as model:
        for number in range(3):
            model.submit(replies.request(number))
            replies.wait(number + 1)
    assert all(reply.fault is None for _, reply, _ in replies.got)


@pytest.mark.timing
def test_an_expired_request_is_rejected() -> None:
    runtime = Recorded()
    runtime.gate.clear()
    replies = Replies()
    timed = policy(default_queue_policy=QueuePolicy(default_timeout_us=20_000))
    with ServedModel("m", timed, [runtime], batchable=True) as model:
        model.submit(replies.request(0))
        model.submit(replies.request(1))
        number, reply, _ = replies.wait(1)[0]
        assert (number, reply.fault.message) == (1, "Request timeout expired")
        assert reply.fault.kind == "unavailable"
        runtime.gate.set()
        replies.wait(2)
        assert model.details().rejected_count == 1
        assert model.statistics().fail_count == 1


@pytest.mark.parametrize("dynamic", [True, False])
def test_cancelled_requests_never_run(dynamic: bool) -> None:
    runtime = Recorded()
    runtime.gate.clear()
    replies = Replies()
    with ServedModel("m", policy(dynamic_batching=dynamic), [runtime], batchable=True) as model:
        tickets = [model.submit(replies.request(number)) for number in range(30)]
        assert not model.cancel(tickets[0]), "it runs already"
        assert model.cancel(tickets[5])
        assert not model.cancel(tickets[5])
        assert model.cancel_where(lambda request: request.inputs["x"][0, 0] >= 10) == 20
        runtime.gate.set()
        replies.wait(9)
        model.submit(replies.request(99))
        got = replies.wait(10)
    assert sorted(number for number, _, _ in got) == [0, 1, 2, 3, 4, 6, 7, 8, 9, 99]
    assert sum(runtime.batches) == 10
    details = model.details()
    assert (details.cancelled_count, details.server.fail_count) == (21, 21)
    assert details.fail_ns > 0


def test_a_batch_that_is_too_large_is_invalid() -> None:
    replies = Replies()
    with ServedModel("m", policy(), [Recorded()], batchable=True) as model:
        with pytest.raises(Fault, match="batch-size must be <= 8"):
            model.submit(replies.request(0, rows=9))
        assert model.submit_many([replies.request(1, rows=9)]) == [-1]
        assert replies.wait(1)[0][1].fault.kind == "invalid"


@pytest.mark.timing
def test_closing_drains_or_refuses() -> None:
    for drain in (True, False):
        runtime = Recorded()
        runtime.gate.clear()
        replies = Replies()
        model = ServedModel("m", policy(), [runtime], batchable=True)
        for number in range(20):
            model.submit(replies.request(number))
        threading.Timer(0.05, runtime.gate.set).start()
        model.close(drain=drain)
        with pytest.raises(Fault, match="is stopping"):
            model.submit(replies.request(20))
        got = replies.wait(20)
        assert len(got) == 20
        unavailable = [reply for _, reply, _ in got if reply.fault is not None]
        assert bool(unavailable) != drain
        assert runtime.closed


@pytest.mark.timing
def test_a_hanging_instance_blocks_only_itself() -> None:
    hung, sound = Recorded(), Recorded()
    hung.gate.clear()
    replies = Replies()
    unbatched = policy(max_batch_size=1, dynamic_batching=False, instance_count=2)
    model = ServedModel("m", unbatched, [hung, sound], batchable=True)
    for number in range(50):
        model.submit(replies.request(number))
    assert len(replies.wait(49)) == 49
    start = time.monotonic()
    model.close(drain=False, timeout_s=0.2)
    assert time.monotonic() - start < 5
    assert sound.closed
    assert not hung.closed
    hung.gate.set()
    assert len(replies.wait(50)) == 50
    model.close()
    assert hung.closed


def test_a_hanging_instance_keeps_no_other_from_its_end() -> None:
    """A close without a limit waited until nothing ran before it ended any instance."""
    hung, sound = Recorded(), Recorded()
    hung.gate.clear()
    replies = Replies()
    unbatched = policy(max_batch_size=1, dynamic_batching=False, instance_count=2)
    model = ServedModel("m", unbatched, [hung, sound], batchable=True)
    for number in range(10):
        model.submit(replies.request(number))
    closing = threading.Thread(target=model.close, kwargs={"timeout_s": None})
    closing.start()
    assert len(replies.wait(9)) == 9
    assert sound.ended.wait(60)
    assert closing.is_alive() and not hung.closed
    hung.gate.set()
    closing.join(60)
    assert hung.closed and not closing.is_alive()
    assert [reply.fault for _, reply, _ in replies.wait(10)] == [None] * 10


def test_a_close_without_a_limit_waits_until_another_has_one() -> None:
    runtime = Recorded()
    runtime.gate.clear()
    replies = Replies()
    unbatched = policy(max_batch_size=1, dynamic_batching=False)
    model = ServedModel("m", unbatched, [runtime], batchable=True)
    for number in range(2):
        model.submit(replies.request(number))
    closing = threading.Thread(target=model.close, kwargs={"timeout_s": None})
    closing.start()
    model.close(timeout_s=0.05)
    (refused,) = replies.wait(1)
    assert refused[0] == 1 and refused[1].fault.message == "the server is stopping"
    assert closing.is_alive() and not runtime.closed
    runtime.gate.set()
    closing.join(60)
    assert runtime.closed
    assert replies.wait(2)[1][1].fault is None


def test_only_requests_with_the_same_inputs_are_joined_where_some_are_optional() -> None:
    runtime = Recorded()
    runtime.gate.clear()
    got: dict[int, InferenceReply] = {}
    done = threading.Event()
    x, bias = np.ones((1, 2)), np.zeros((1, 2))
    with ServedModel("m", policy(), [runtime], batchable=True, optional_inputs=True) as model:
        given = [{"x": x}, {"x": x}, {"x": x, "bias": bias}, {"bias": bias, "x": x}, {"x": x}]
        for number, inputs in enumerate(given):

            def on_done(reply: InferenceReply, number: int = number) -> None:
                got[number] = reply
                if len(got) == len(given):
                    done.set()

            model.submit(InferenceRequest(1, inputs, on_done))
        runtime.gate.set()
        assert done.wait(60)
    assert [got[number].fault for number in range(5)] == [None] * 5
    # The first starts at once; the others wait for the instance.
    assert runtime.batches == [1, 1, 2, 1]


def test_only_equal_shapes_are_joined_where_that_is_asked() -> None:
    runtime = Recorded()
    runtime.gate.clear()
    replies = Replies()
    got: list[InferenceReply] = []
    with ServedModel("m", policy(), [runtime], batchable=True, enforce_shapes=True) as model:
        model.submit(replies.request(0))
        for width in (2, 2, 3, 3):
            model.submit(InferenceRequest(1, {"x": np.zeros((1, width))}, got.append))
        model.submit(replies.request(5))
        runtime.gate.set()
        replies.wait(2)
        deadline = time.monotonic() + 60
        while len(got) < 4 and time.monotonic() < deadline:
            time.sleep(0.001)
    assert [reply.fault for reply in got] == [None] * 4
    assert runtime.batches == [1, 2, 2, 1]

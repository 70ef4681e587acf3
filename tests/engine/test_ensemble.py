"""Ensembles: what the tests of the repository cannot bring about."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from analyzer.engine.ensemble import Ensemble
from analyzer.engine.ensemble_steps import Step, needed_steps
from analyzer.engine.fault import Fault
from analyzer.engine.requests import InferenceReply, InferenceRequest
from analyzer.engine.signature import Port, Signature

CONFIG = """
name: "e" platform: "ensemble" max_batch_size: 8
input [{ name: "X" data_type: TYPE_FP32 dims: [2] }]
output [{ name: "Y" data_type: TYPE_FP32 dims: [2] }]
ensemble_scheduling { step [{ model_name: "m" model_version: -1
  input_map { key: "x" value: "X" } output_map { key: "y" value: "Y" } }] }
"""
TWICE = (
    CONFIG[: CONFIG.index("ensemble_scheduling")]
    + """
ensemble_scheduling { step [
  { model_name: "m" model_version: -1
    input_map { key: "x" value: "between" } output_map { key: "y" value: "Y" } },
  { model_name: "m" model_version: -1
    input_map { key: "x" value: "X" } output_map { key: "y" value: "between" } }] }
"""
)
ROW = np.zeros((1, 2), np.float32)


class Member:
    """A model that answers when it is told to."""

    signature = Signature(
        model="m",
        batch_size_max=8,
        inputs={"x": Port(name="x", datatype="FP32", dims=(2,))},
        outputs={"y": Port(name="y", datatype="FP32", dims=(2,))},
    )

    def __init__(self, *, closed: bool = False) -> None:
        self.on_done: Any = None
        self.on_infer: Callable[[], object] = lambda: None
        self.cancelled: list[int] = []
        self.closed = closed
        self.holds = 0

    def infer(self, call: Any, on_done: Any, *, submit: Any) -> int:
        assert submit == self.infer
        self.on_done = on_done
        self.on_infer()
        return 7

    def cancel(self, ticket: int) -> bool:
        self.cancelled.append(ticket)
        return True

    def hold(self, held: ExitStack) -> Any:
        if self.closed:
            return None
        self.holds += 1
        held.callback(self._release)
        return self.infer

    def _release(self) -> None:
        self.holds -= 1


def ensemble_of(config: str, *members: Member) -> Ensemble:
    """An ensemble that finds ``members`` one after the other, and the last one ever after."""
    left = list(members)

    def resolve(name: str, version: int) -> Any:
        return left.pop(0) if len(left) > 1 else left[0]

    return Ensemble(text_format.Parse(config, model_config_pb2.ModelConfig()), resolve)


@pytest.mark.parametrize("while_starting", [True, False])
def test_a_cancelled_request_takes_its_steps_back(while_starting: bool) -> None:
    member = Member()
    ensemble = ensemble_of(CONFIG, member)
    if while_starting:
        member.on_infer = lambda: ensemble.cancel(0)
    replies: list[InferenceReply] = []
    ticket = ensemble.submit(InferenceRequest(1, {"X": ROW}, replies.append))
    assert member.holds == (0 if while_starting else 1)
    assert while_starting or ensemble.cancel(ticket)
    assert member.cancelled == [7]
    assert member.holds == 0
    member.on_done(InferenceReply({"y": ROW}))  # it was too late to take it back
    assert not ensemble.cancel(ticket)
    assert not replies
    details = ensemble.details()
    assert (details.cancelled_count, details.server.success_count) == (1, 0)
    assert details.server.fail_count == 1 and details.fail_ns > 0


@pytest.mark.parametrize(
    ("reply", "kind", "message"),
    [
        ({"y": ROW.astype(np.complex64)}, "internal", "KeyError"),  # no type of Triton's
        ({"z": ROW}, "internal", "KeyError: 'y'"),
        (Fault("unavailable", "full"), "unavailable", "full"),
    ],
)
def test_a_step_that_cannot_go_on_is_an_answer(
    reply: Any, kind: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exception ended on the member's thread, and the request never."""
    member = Member()
    ensemble = ensemble_of(TWICE, member)
    replies: list[InferenceReply] = []
    ensemble.submit(InferenceRequest(1, {"X": ROW}, replies.append))
    assert member.holds == 2
    failed = isinstance(reply, Fault)
    member.on_done(InferenceReply(None, reply) if failed else InferenceReply(reply))
    (answer,) = replies
    assert answer.fault is not None and answer.fault.kind == kind
    assert answer.fault.message.startswith(f"in ensemble 'e', {message}")
    assert ensemble.details().server.fail_count == 1
    said = capsys.readouterr().err  # the log: nobody else is told where it happened
    assert ("Traceback" in said and message in said) if not failed else not said
    assert member.holds == 0
    ensemble.close(timeout_s=None)  # nothing is under way


def test_an_output_that_is_not_there_is_no_success() -> None:
    """It was counted as one before the answer failed."""
    config = CONFIG.replace("dims: [2] }]", "dims: [2] optional: true }]", 1)
    config = config.replace("output [", 'output [{ name: "X" data_type: TYPE_FP32 dims: [2] }, ')
    member = Member()
    ensemble = ensemble_of(config, member)
    replies: list[InferenceReply] = []
    ensemble.submit(InferenceRequest(1, {}, replies.append))
    member.on_done(InferenceReply({"y": ROW}))
    (answer,) = replies
    assert answer.fault is not None and answer.fault.kind == "invalid"
    assert "unexpected deadlock" in answer.fault.message
    server = ensemble.details().server
    assert (server.success_count, server.fail_count) == (0, 1)


def test_a_fault_of_the_front_end_costs_the_member_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    member = Member()
    ensemble = ensemble_of(CONFIG, member)

    def fail(reply: InferenceReply) -> None:
        raise ValueError("no client")

    ensemble.submit(InferenceRequest(1, {"X": ROW}, fail))
    member.on_done(InferenceReply({"y": ROW}))
    assert "no client" in capsys.readouterr().err
    assert member.holds == 0


def test_a_member_that_was_replaced_in_between_is_looked_up_again() -> None:
    closed, successor = Member(closed=True), Member()
    ensemble = ensemble_of(CONFIG, closed, successor)
    replies: list[InferenceReply] = []
    ensemble.submit(InferenceRequest(1, {"X": ROW}, replies.append))
    successor.on_done(InferenceReply({"y": ROW}))
    assert [reply.fault for reply in replies] == [None]
    assert (closed.holds, successor.holds) == (0, 0)


def test_a_request_whose_member_is_not_there_is_a_failure() -> None:
    """It was refused, and counted nowhere."""
    found, absent = Member(), Fault("not_found", "m is not found")

    def resolve(name: str, version: int) -> Any:
        if found.holds:
            raise absent
        return found

    ensemble = Ensemble(text_format.Parse(TWICE, model_config_pb2.ModelConfig()), resolve)
    replies: list[InferenceReply] = []
    ensemble.submit(InferenceRequest(1, {"X": ROW}, replies.append))
    (answer,) = replies
    assert answer.fault is not None and answer.fault.kind == "internal"
    assert answer.fault.message == "in ensemble 'e', m is not found"
    assert ensemble.details().server.fail_count == 1
    assert found.holds == 0
    ensemble.close(timeout_s=None)


def test_closing_waits_for_what_is_under_way() -> None:
    member = Member()
    ensemble = ensemble_of(CONFIG, member)
    replies: list[InferenceReply] = []
    ensemble.submit(InferenceRequest(1, {"X": ROW}, replies.append))
    closing = threading.Thread(target=ensemble.close, kwargs={"timeout_s": None})
    closing.start()
    ensemble.close(timeout_s=0.0)  # the end of the server has no time
    assert closing.is_alive()
    with pytest.raises(Fault, match="is stopping"):
        ensemble.submit(InferenceRequest(1, {"X": ROW}, replies.append))
    assert member.holds == 1
    member.on_done(InferenceReply({"y": ROW}))
    closing.join(60)
    assert not closing.is_alive()


def test_steps_that_outputs_come_from() -> None:
    def step(inputs: str, outputs: str) -> Step:
        pairs = [tuple((name, name) for name in names) for names in (inputs, outputs)]
        return Step(model="m", version=-1, inputs=pairs[0], outputs=pairs[1])

    steps = (step("c", "d"), step("x", "b"), step("bx", "ce"), step("x", "f"))
    assert needed_steps(steps, "df") == [0, 1, 2, 3]
    assert needed_steps(steps, "d") == [0, 1, 2]
    assert needed_steps(steps, "e") == [1, 2]
    assert needed_steps(steps, "f") == [3]
    assert needed_steps(steps, "x") == []

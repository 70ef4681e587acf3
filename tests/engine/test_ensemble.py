"""Ensembles: what the tests of the repository cannot bring about."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from analyzer.engine.ensemble import Ensemble
from analyzer.engine.requests import InferenceReply, InferenceRequest

CONFIG = """
name: "e" platform: "ensemble" max_batch_size: 8
input [{ name: "X" data_type: TYPE_FP32 dims: [2] }]
output [{ name: "Y" data_type: TYPE_FP32 dims: [2] }]
ensemble_scheduling { step [{ model_name: "m" model_version: -1
  input_map { key: "x" value: "X" } output_map { key: "y" value: "Y" } }] }
"""


class Member:
    """A model that answers when it is told to."""

    def __init__(self) -> None:
        self.on_done: Any = None
        self.cancelled: list[int] = []

    def infer(self, call: Any, on_done: Any) -> int:
        self.on_done = on_done
        return 7

    def cancel(self, ticket: int) -> bool:
        self.cancelled.append(ticket)
        return True


@pytest.mark.parametrize("while_starting", [True, False])
def test_a_cancelled_request_takes_its_steps_back(while_starting: bool) -> None:
    member = Member()

    def resolve(name: str, version: int) -> Any:
        if while_starting:
            assert ensemble.cancel(0)
        return member

    config = text_format.Parse(CONFIG, model_config_pb2.ModelConfig())
    ensemble = Ensemble(config, resolve)
    replies: list[InferenceReply] = []
    inputs = {"X": np.zeros((1, 2), np.float32)}
    ticket = ensemble.submit(InferenceRequest(1, inputs, replies.append))
    assert while_starting or ensemble.cancel(ticket)
    assert member.cancelled == [7]
    member.on_done(InferenceReply({"y": inputs["X"]}))  # it was too late to take it back
    assert not ensemble.cancel(ticket)
    assert not replies
    details = ensemble.details()
    assert (details.cancelled_count, details.server.success_count) == (1, 0)
    assert details.server.fail_count == 1 and details.fail_ns > 0

"""What an embedded server is told: which model, which configuration, which inputs."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from analyzer.domain.configuration import Configuration


@dataclass(frozen=True, slots=True, kw_only=True)
class FileModel:
    """A model's file; what runs it is the backend of the configuration.

    Args:
        accelerator_options: Parameters of the configuration's accelerator under Triton's names.
    """

    path: str
    accelerator_options: dict[str, str] = field(default_factory=dict)
    kind: Literal["file"] = "file"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedModel:
    """A made-up model that takes a given time.

    Args:
        points: (batch size, milliseconds), ascending; straight lines between them.
        distribution: ``deterministic`` or ``exponential`` around that time.
        interference: How much longer it takes for each further instance that is busy, as a
            fraction; None for not at all.
        seed: Seed of the random times.
        fault: What happens from execution number ``fault_after`` on (counted over all instances):
            ``error`` (the execution fails), ``memory`` (out of memory), ``crash`` (the process
            ends), ``hang`` (it never returns); None for nothing.
    """

    points: tuple[tuple[int, float], ...]
    distribution: Literal["deterministic", "exponential"] = "deterministic"
    interference: float | None = None
    seed: int = 0
    fault: Literal["error", "memory", "crash", "hang"] | None = None
    fault_after: int = 0
    kind: Literal["scripted"] = "scripted"


@dataclass(frozen=True, slots=True, kw_only=True)
class NullModel:
    """A model that takes no time: what is left is the server's own cost."""

    kind: Literal["null"] = "null"


ServedModelSpec = FileModel | ScriptedModel | NullModel

_KINDS: dict[str, type[Any]] = {
    "file": FileModel,
    "scripted": ScriptedModel,
    "null": NullModel,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedSpec:
    """One embedded server.

    Args:
        name: The model's name.
        model: What runs the batches.
        configuration: How it is deployed.
        batchable: Whether the model's tensors carry a batch axis.
        inputs_path: What :func:`~analyzer.engine.tensor_file.write_tensors` made of an array per
            input. Its first axis counts rows: single inferences where the model is batchable, else
            whole inputs. Requests take their rows from it in turn. None where the model needs no
            inputs.
        warmup_batch_sizes: What every instance runs before the server is ready; empty for the
            sizes that follow from the configuration.
        memory_limit_bytes: Resident memory beyond which the server ends itself as out of memory;
            None for no limit.
    """

    name: str
    model: ServedModelSpec
    configuration: Configuration
    batchable: bool
    inputs_path: str | None = None
    warmup_batch_sizes: tuple[int, ...] = field(default=())
    memory_limit_bytes: int | None = None

    def to_json(self) -> str:
        """The specification as JSON."""
        return json.dumps(asdict(self) | {"configuration": self.configuration.to_dict()})

    @classmethod
    def from_json(cls, text: str) -> EmbeddedSpec:
        """The specification that :meth:`to_json` wrote."""
        values = json.loads(text)
        model = values.pop("model")
        if model["kind"] == "scripted":
            model["points"] = tuple((int(size), float(ms)) for size, ms in model["points"])
        values["model"] = _KINDS[model["kind"]](**model)
        values["configuration"] = Configuration.from_dict(values["configuration"])
        values["warmup_batch_sizes"] = tuple(values["warmup_batch_sizes"])
        return cls(**values)

    def warmup_sizes(self) -> tuple[int, ...]:
        """The batch sizes to warm up, largest first so that memory is claimed once.

        On a CPU the extremes and the preferred sizes; on a GPU, where kernels are chosen and memory
        is claimed for each new shape, every size up to 64.
        """
        if self.warmup_batch_sizes:
            return self.warmup_batch_sizes
        sizes = self.configuration.warmup_batch_sizes
        return tuple(sorted(sizes, reverse=True)) if self.batchable else (1,)

"""Search spaces from YAML; every error names the file and the key."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analyzer.domain.configuration import PRECISIONS, Backend, DeviceKind
from analyzer.domain.space import Choice, ListedConfiguration, Parameter, SearchSpace
from analyzer.errors import SpaceError
from analyzer.paths import barred, is_file
from analyzer.resources import search_spaces_dir
from analyzer.spaces.space_file import PER_CORE, SpaceFile
from analyzer.spaces.yaml_file import read_table

# The file spells the delay with its unit; the parameter carries microseconds.
_PARAMETER_OF = {"max_queue_delay": "max_queue_delay_us"}
# From which on TensorRT has the precision (its support matrix, hardware and precision).
_CAPABILITIES = {"bf16": (8, 0), "fp8": (8, 9)}
_BACKEND_ABSENT = (
    "the backend tensorrt needs an NVIDIA GPU and TensorRT, which is not here (extra gpu)."
)
_ACCELERATOR_ABSENT = {
    "openvino": "the accelerator openvino needs a CPU and ONNX Runtime's OpenVINO provider, which "
    "is not here (extra openvino).",
    "tensorrt": "the accelerator tensorrt needs an NVIDIA GPU and ONNX Runtime's TensorRT "
    "provider, which is not here (extra gpu).",
}
# Batches in the place of a file's that hold no request, in requests.
_REQUESTS_OF_A_BATCH = (1, 2, 4)
# Each takes up to 0.2 ms, several times in a search; the shipped spaces have some 5,000.
_COMBINATIONS_MAX = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceContext:
    """What a space file cannot know: the machine and the model it is resolved for.

    Args:
        device: Where the instances run.
        cores: Usable CPU cores of one worker.
        batchable: Whether the model can be batched.
        request_batch_size: Inferences in each request.
        precisions: The precisions that ``--precisions`` allows.
        tensorrt: Whether engines can be built here.
        accelerators: ONNX Runtime's execution accelerators that can be measured.
        accelerator_absent: Why one that ONNX Runtime lists cannot be; empty where none is such.
        compute_capability: Of the GPU; None where it is not known.
        cuda_graphs: Whether the server under test captures CUDA graphs.
        int8_best: The int8 variant that stands where a file says ``quantization: best``.
        onnx_backend: What runs ONNX graphs on the server under test.
    """

    device: DeviceKind
    cores: int
    batchable: bool = True
    request_batch_size: int = 1
    precisions: tuple[str, ...] = PRECISIONS
    tensorrt: bool = False
    accelerators: tuple[str, ...] = ()
    accelerator_absent: str = ""
    compute_capability: tuple[int, int] | None = None
    cuda_graphs: bool = False
    int8_best: str = "dynamic"
    onnx_backend: Backend = "onnxruntime"


def space_names() -> list[str]:
    """The names of the shipped spaces."""
    return sorted(path.stem for path in search_spaces_dir().glob("*.yaml"))


def load_space(name_or_path: str, context: SpaceContext) -> SearchSpace:
    """The space of a shipped name or of a YAML file, resolved for ``context``.

    Raises:
        SpaceError: It cannot be read, a key is unknown or a value is unusable.
    """
    path = search_spaces_dir() / f"{name_or_path}.yaml"
    if not is_file(path):
        path = Path(name_or_path)
    if not is_file(path) and not barred(path):
        near = difflib.get_close_matches(name_or_path, space_names(), n=1)
        raise SpaceError(
            f"There is no search space {name_or_path!r}, neither shipped nor as a file.",
            hint=(f"Did you mean {near[0]}? " if near else "")
            + f"Shipped: {', '.join(space_names())}.",
        )
    hint = (
        "Give --space a YAML file in UTF-8 like search_spaces/cpu.yaml, or the name of a shipped "
        f"space: {', '.join(space_names())}."
    )
    written = read_table(path, SpaceFile, SpaceError, hint)
    return _Resolver(str(path), context).space(written, default_name=path.stem)


def combinations(parameters: Sequence[Parameter], enough: int) -> int:
    """How many assignments the parameters have, counted without making them.

    Args:
        enough: Counting ends with the first parameter that brings more than that.
    """
    asked = {name for parameter in parameters for name, _ in parameter.when}
    # How many assignments share the values that conditions ask for.
    found: Counter[tuple[tuple[str, Choice], ...]] = Counter({(): 1})
    for parameter in parameters:
        grown: Counter[tuple[tuple[str, Choice], ...]] = Counter()
        for values, count in found.items():
            if not parameter.active(dict(values)):
                grown[values] += count
            elif parameter.name in asked:
                grown.update({(*values, (parameter.name, own)): count for own in parameter.choices})
            else:
                grown[values] += count * len(parameter.choices)
        found = grown
        if found.total() > enough:
            break
    return found.total()


class _Resolver:
    """Resolves a file for a machine and a model; knows the file for messages."""

    def __init__(self, file: str, context: SpaceContext) -> None:
        self._file = file
        self._context = context
        self._left_out: dict[str, None] = {}

    def _fail(self, where: str, what: str, hint: str) -> SpaceError:
        return SpaceError(f"{self._file}, {where}: {what}", hint=hint)

    def space(self, written: SpaceFile, *, default_name: str) -> SearchSpace:
        context = self._context
        if written.device not in ("auto", context.device):
            raise self._fail(
                "device",
                f"the space is for a {written.device}, but the search runs on a {context.device}.",
                f"Choose another --space, or --device {written.device}.",
            )
        per_core = written.threads_per_core if context.device == "cpu" else None
        space = SearchSpace(
            name=str(written.name if written.name is not None else default_name),
            device=context.device,
            parameters=self._parameters(written),
            listed=self._listed(written),
            threads_max=None if per_core is None else max(1, int(per_core * context.cores)),
            request_batch_size=context.request_batch_size,
            batchable=context.batchable,
            onnx_backend=context.onnx_backend,
            left_out=tuple(self._left_out),
        )
        if combinations(space.parameters, _COMBINATIONS_MAX) > _COMBINATIONS_MAX:
            sizes = ", ".join(f"{p.name} {len(p.choices)}" for p in space.parameters)
            raise self._fail(
                "parameters",
                f"the choices have more than {_COMBINATIONS_MAX:,} combinations ({sizes}).",
                "Give fewer choices, like powers of two.",
            )
        if not space.candidates():
            raise self._fail(
                "top level",
                "no configuration is possible for this model, machine and --precisions.",
                "Widen the choices (precisions, threads, batches at least the request's).",
            )
        return space

    def _parameters(self, written: SpaceFile) -> tuple[Parameter, ...]:
        bodies = dict(written.parameters.items()) if written.parameters is not None else {}
        self._check_batching("parameters", {key: body.choices for key, body in bodies.items()})
        found: list[Parameter] = []
        before: list[str] = []
        for key, body in bodies.items():
            conditions = body.when.model_dump(exclude_unset=True)
            for name in conditions:
                if name not in before:
                    raise self._fail(
                        f"parameters.{key}.when",
                        f"unknown key {name!r}: the parameter does not stand before {key}.",
                        f"Known: {', '.join(before) or 'none here'}.",
                    )
            before.append(key)
            choices = self._available(key, body.choices)
            when = tuple(
                (_PARAMETER_OF.get(name, name), tuple(self._choice(value) for value in values))
                for name, values in conditions.items()
            )
            if key == "max_batch_size" and "dynamic_batching" not in bodies:
                found.append(Parameter(name="dynamic_batching", choices=(True,), when=when))
            found.append(Parameter(name=_PARAMETER_OF.get(key, key), choices=choices, when=when))
        return tuple(found)

    def _check_batching(self, where: str, given: Mapping[str, Sequence[Any]]) -> None:
        """Raises SpaceError where a setting of batches cannot have an effect.

        A ``max_batch_size`` alone means dynamic batching, as Triton completes it.

        Args:
            where: Of the settings, in the file.
            given: Settings by their keys, each with its choices.
        """
        sized = "max_batch_size" in given
        batching = True in given.get("dynamic_batching", [sized])
        if batching and not sized:
            raise self._fail(
                f"{where}.dynamic_batching",
                "batches have no largest size.",
                "Add max_batch_size, the most inferences of a batch.",
            )
        for key in ("max_batch_size", "preferred_batch_size", "max_queue_delay"):
            if key in given and not batching:
                raise self._fail(
                    f"{where}.{key}",
                    "it has no effect without dynamic batching.",
                    f"Give max_batch_size without dynamic_batching: false, or leave {key} out.",
                )

    def _available(self, key: str, values: Sequence[Any]) -> tuple[Choice, ...]:
        """The choices that this machine and ``--precisions`` leave, each once."""
        found = dict.fromkeys(self._choice(value) for value in values)
        if key == "precision":
            allowed = self._context.precisions
            found = {choice: None for choice in found if choice in allowed}
            if not found:
                raise self._fail(
                    "parameters.precision",
                    "--precisions leaves none of its choices.",
                    f"It allows {', '.join(allowed)} and the file lists "
                    f"{', '.join(map(str, values))}: widen one of them.",
                )
        request = self._context.request_batch_size
        if key == "max_batch_size" and all(0 < int(choice) < request for choice in found):
            # No batch holds a request: those that hold one to four of them do.
            found = {request * requests: None for requests in _REQUESTS_OF_A_BATCH}
        refused = {choice: self._refusal(key, choice) for choice in found}
        if all(refused.values()):
            sentence = next(iter(refused.values()))
            raise self._fail(f"parameters.{key}", sentence, "Add a choice that can be measured.")
        self._left_out |= dict.fromkeys(filter(None, refused.values()))
        return tuple(choice for choice, sentence in refused.items() if not sentence)

    def _refusal(self, key: str, choice: Choice) -> str:
        """Why a choice cannot be measured here; empty if it can be."""
        if key == "precision" and choice in _CAPABILITIES:
            needs = _CAPABILITIES[str(choice)]
            has = self._context.compute_capability
            if self._context.device == "cpu" or (has is not None and has < needs):
                return (
                    f"the precision {choice} needs TensorRT and a GPU of compute capability "
                    f"{needs[0]}.{needs[1]} or more."
                )
        if key == "backend" and choice == "tensorrt" and not self._context.tensorrt:
            return _BACKEND_ABSENT
        if key == "accelerator" and choice not in ("none", *self._context.accelerators):
            return self._context.accelerator_absent or _ACCELERATOR_ABSENT[str(choice)]
        if key == "cuda_graphs" and choice is True and not self._context.cuda_graphs:
            return (
                "cuda_graphs: true is for Triton's TensorRT backend alone; this program's own "
                "server runs engines without CUDA graphs."
            )
        return ""

    def _choice(self, value: Any) -> Choice:
        """A value of the file as Optuna stores it."""
        if isinstance(value, list):
            return ",".join(map(str, sorted(value)))
        if value in PER_CORE:
            return max(1, self._context.cores // (2 if value == "cores/2" else 1))
        choice: Choice = self._context.int8_best if value == "best" else value
        return choice

    def _listed(self, written: SpaceFile) -> tuple[ListedConfiguration, ...]:
        found = []
        for number, item in enumerate(written.configurations or (), start=1):
            values = item.model_dump(exclude_unset=True)
            label = str(values.pop("label", number))
            accelerated = values.pop("accelerated", False)
            given = {key: [value] for key, value in values.items()}
            self._check_batching(f"configurations[{number - 1}]", given)
            params = {
                _PARAMETER_OF.get(key, key): self._choice(value) for key, value in values.items()
            }
            if "max_batch_size" in params:
                params["dynamic_batching"] = True
            if accelerated:
                params.update(self._accelerated())
                if not self._context.tensorrt:
                    instead = "-".join(map(str, self._accelerated().values()))
                    label += f" ({instead} stands where TensorRT stands)"
            refused = [self._refusal(key, choice) for key, choice in params.items()]
            if any(refused):
                self._left_out |= dict.fromkeys(filter(None, refused))
                continue
            if params.get("precision", "fp32") in self._context.precisions:
                found.append(ListedConfiguration(label=label, params=tuple(params.items())))
        if written.configurations and not found:
            raise self._fail(
                "configurations",
                next(iter(self._left_out), "--precisions leaves none of them."),
                "Add a configuration that can be measured.",
            )
        return tuple(found)

    def _accelerated(self) -> dict[str, Choice]:
        """What stands for a compiled engine: TensorRT, or without it the fastest ONNX Runtime has.

        That is int8 on a CPU; its CUDA provider has no int8, so there it is fp16.
        """
        if self._context.tensorrt:
            return {"precision": "fp16", "backend": "tensorrt"}
        if self._context.device == "gpu":
            return {"precision": "fp16"}
        return {"precision": "int8", "quantization": self._context.int8_best}

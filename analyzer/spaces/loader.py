"""Search spaces from YAML; every error names the file and the key."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from analyzer.domain.configuration import Backend, DeviceKind
from analyzer.domain.space import PARAMETER_NAMES, Choice, Fixed, Parameter, SearchSpace
from analyzer.domain.units import parse_duration_s
from analyzer.errors import SpaceError, UsageError
from analyzer.resources import search_spaces_dir

_TOP_KEYS = ("name", "description", "device", "threads_per_core", "parameters", "configurations")
_PARAMETER_KEYS = ("choices", "when")
_PRECISIONS = ("fp32", "fp16", "int8")
_WORDS = {
    "precision": _PRECISIONS,
    "quantization": ("static", "dynamic"),
    "backend": ("onnxruntime", "tensorrt"),
}
_PER_CORE = ("instance_count", "intra_op_threads")
# The file spells the delay with its unit; the parameter carries microseconds.
_FILE_NAMES = {"max_queue_delay": "max_queue_delay_us"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a space file cannot know: the machine and the model it is resolved for.

    Args:
        device: Where the instances run.
        cores: Usable CPU cores of one worker.
        batchable: Whether the model can be batched.
        request_batch_size: Inferences in each request.
        precisions: The precisions that ``--precisions`` allows.
        tensorrt: Whether engines can be built here.
        int8_best: The int8 variant that stands where a file says ``quantization: best``.
        onnx_backend: What runs ONNX graphs on the server under test.
    """

    device: DeviceKind
    cores: int
    batchable: bool = True
    request_batch_size: int = 1
    precisions: tuple[str, ...] = _PRECISIONS
    tensorrt: bool = False
    int8_best: str = "dynamic"
    onnx_backend: Backend = "onnxruntime"


def space_names() -> list[str]:
    """The names of the shipped spaces."""
    return sorted(path.stem for path in search_spaces_dir().glob("*.yaml"))


def load_space(name_or_path: str, around: Surroundings) -> SearchSpace:
    """The space of a shipped name or of a YAML file, resolved for ``around``.

    Raises:
        SpaceError: It cannot be read, a key is unknown or a value is unusable.
    """
    path = search_spaces_dir() / f"{name_or_path}.yaml"
    if not path.is_file():
        path = Path(name_or_path)
    if not path.is_file():
        near = difflib.get_close_matches(name_or_path, space_names(), n=1)
        raise SpaceError(
            f"There is no search space {name_or_path!r}, neither shipped nor as a file.",
            hint=(f"Did you mean {near[0]}? " if near else "")
            + f"Shipped: {', '.join(space_names())}.",
        )
    try:
        document = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise SpaceError(
            f"{path} cannot be read: {error}.",
            hint="Give --space a YAML file in UTF-8 that you may read, or the name of a shipped "
            f"space: {', '.join(space_names())}.",
        ) from error
    except yaml.YAMLError as error:
        raise SpaceError(
            f"{path} is no YAML: {error}.", hint="See search_spaces/cpu.yaml."
        ) from error
    return _Reader(str(path), around).space(document, default_name=path.stem)


def _nearest(word: object, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(str(word), known, n=1)
    return f"Did you mean {near[0]!r}? " if near else ""


class _Reader:
    """Reads one document; knows its file for messages."""

    def __init__(self, file: str, around: Surroundings) -> None:
        self._file = file
        self._around = around

    def _fail(self, where: str, what: str, hint: str) -> SpaceError:
        return SpaceError(f"{self._file}, {where}: {what}", hint=hint)

    def _keys(self, where: str, value: Any, known: Sequence[str]) -> Mapping[str, Any]:
        if not isinstance(value, dict):
            raise self._fail(
                where,
                f"expected a mapping, found {type(value).__name__}.",
                f"Write 'key: value' lines; known keys: {', '.join(known) or 'none here'}.",
            )
        for key in value:
            if key not in known:
                raise self._fail(
                    where,
                    f"unknown key {key!r}.",
                    _nearest(key, known) + f"Known: {', '.join(known) or 'none here'}.",
                )
        return value

    def space(self, document: Any, *, default_name: str) -> SearchSpace:
        top = self._keys("top level", document, _TOP_KEYS)
        device = top.get("device", self._around.device)
        if device not in ("cpu", "gpu", "auto"):
            raise self._fail(
                "device",
                f"{device!r} is none of cpu, gpu, auto.",
                "Write device: cpu, or leave the key out: the space then serves for both.",
            )
        if device not in ("auto", self._around.device):
            raise self._fail(
                "device",
                f"the space is for a {device}, but the search runs on a {self._around.device}.",
                f"Choose another --space, or --device {device}.",
            )
        per_core = top.get("threads_per_core")
        if per_core is not None and (not isinstance(per_core, int | float) or per_core <= 0):
            raise self._fail(
                "threads_per_core",
                f"{per_core!r} is no number above 0.",
                "It bounds instances × threads by a multiple of the cores: threads_per_core: 1.",
            )
        if ("parameters" in top) == ("configurations" in top):
            raise self._fail(
                "top level",
                "exactly one of parameters and configurations is needed.",
                "parameters: combines the choices of each key; configurations: lists them one by "
                "one. See search_spaces/cpu.yaml and search_spaces/ablation.yaml.",
            )
        space = SearchSpace(
            name=str(top.get("name", default_name)),
            device=self._around.device,
            parameters=self._parameters(top["parameters"]) if "parameters" in top else (),
            listed=self._listed(top["configurations"]) if "configurations" in top else (),
            threads_max=None
            if per_core is None or self._around.device != "cpu"
            else max(1, int(per_core * self._around.cores)),
            request_batch_size=self._around.request_batch_size,
            batchable=self._around.batchable,
            onnx_backend=self._around.onnx_backend,
        )
        if not space.candidates():
            raise self._fail(
                "top level",
                "no configuration is possible for this model, machine and --precisions.",
                "Widen the choices (precisions, threads, batches at least the request's).",
            )
        return space

    def _parameters(self, value: Any) -> tuple[Parameter, ...]:
        names = [n for n in (*PARAMETER_NAMES, *_FILE_NAMES) if n not in _FILE_NAMES.values()]
        table = self._keys("parameters", value, names)
        found: list[Parameter] = []
        for key, raw in table.items():
            where = f"parameters.{key}"
            body = (
                self._keys(where, raw, _PARAMETER_KEYS)
                if isinstance(raw, dict)
                else {"choices": raw}
            )
            choices = self._choices(where, key, body.get("choices"))
            when = self._when(where, body.get("when", {}), [p.name for p in found])
            if choices:
                found.append(Parameter(name=_FILE_NAMES.get(key, key), choices=choices, when=when))
        return tuple(found)

    def _when(
        self, where: str, value: Any, before: list[str]
    ) -> tuple[tuple[str, tuple[Choice, ...]], ...]:
        conditions = self._keys(f"{where}.when", value, before)
        return tuple(
            (name, self._choices(f"{where}.when.{name}", name, wanted, resolve=False))
            for name, wanted in conditions.items()
        )

    def _choices(
        self, where: str, key: str, value: Any, *, resolve: bool = True
    ) -> tuple[Choice, ...]:
        values = value if isinstance(value, list) else [value]
        if not values or value is None:
            raise self._fail(where, "no choices.", "Give a list, like [1, 2, 4].")
        found: list[Choice] = []
        for item in values:
            choice = self._choice(where, key, item)
            if resolve and key == "precision" and choice not in self._around.precisions:
                continue
            if resolve and key == "backend" and choice == "tensorrt" and not self._around.tensorrt:
                continue
            if choice not in found:
                found.append(choice)
        if not found and key == "precision":
            raise self._fail(
                where,
                "--precisions leaves none of its choices.",
                f"It allows {', '.join(self._around.precisions)} and the file lists "
                f"{', '.join(map(str, values))}: widen one of them.",
            )
        return tuple(found)

    def _choice(self, where: str, key: str, item: Any) -> Choice:
        if key in _WORDS:
            if item == "best" and key == "quantization":
                return self._around.int8_best
            if item not in _WORDS[key]:
                raise self._fail(
                    where,
                    f"{item!r} is none of {', '.join(_WORDS[key])}.",
                    _nearest(item, _WORDS[key]) + f"Write a list of them, like [{_WORDS[key][0]}].",
                )
            return str(item)
        if key == "dynamic_batching":
            if not isinstance(item, bool):
                raise self._fail(
                    where,
                    f"{item!r} is neither true nor false.",
                    "Write [true, false], without quotation marks.",
                )
            return item
        if key == "preferred_batch_size":
            sizes = item if isinstance(item, list) else [item]
            if not all(isinstance(s, int) and not isinstance(s, bool) and s >= 1 for s in sizes):
                raise self._fail(
                    where, f"{item!r} is no list of batch sizes.", "Write [] or [4, 8]."
                )
            return ",".join(str(s) for s in sorted(sizes))
        if key == "max_queue_delay":
            return self._delay_us(where, item)
        if item in ("cores", "cores/2") and key in _PER_CORE:
            return max(1, self._around.cores // (2 if item == "cores/2" else 1))
        smallest = 0 if key == "intra_op_threads" else 1
        if not isinstance(item, int) or isinstance(item, bool) or item < smallest:
            cores = " 'cores' and 'cores/2' stand for what the machine has."
            raise self._fail(
                where,
                f"{item!r} is no integer of at least {smallest}.",
                "Write whole numbers without quotation marks, like [1, 2, 4]."
                + (cores if key in _PER_CORE else ""),
            )
        return item

    def _delay_us(self, where: str, item: Any) -> int:
        if item == 0 and not isinstance(item, bool):
            return 0
        try:
            return round(parse_duration_s(str(item)) * 1e6)
        except UsageError as error:
            raise self._fail(where, error.message, error.hint) from error

    def _listed(self, value: Any) -> tuple[Fixed, ...]:
        if not isinstance(value, list) or not value:
            raise self._fail(
                "configurations",
                "expected a list of configurations.",
                "Write each as a list item, like '- {precision: fp32, instance_count: 1}'.",
            )
        names = [n for n in (*PARAMETER_NAMES, *_FILE_NAMES) if n not in _FILE_NAMES.values()]
        found = []
        for index, raw in enumerate(value):
            where = f"configurations[{index}]"
            body = self._keys(where, raw, [*names, "label", "accelerated"])
            params: dict[str, Choice] = {}
            label = str(body.get("label", f"{index + 1}"))
            for key, item in body.items():
                if key in names:
                    choice = self._choice(f"{where}.{key}", key, item)
                    params[_FILE_NAMES.get(key, key)] = choice
            if body.get("accelerated"):
                params.update(self._accelerated())
                if not self._around.tensorrt:
                    label += f" (int8-{self._around.int8_best} stands where TensorRT stands)"
            if params.get("precision", "fp32") in self._around.precisions:
                found.append(Fixed(label=label, params=tuple(params.items())))
        return tuple(found)

    def _accelerated(self) -> dict[str, Choice]:
        """What stands for a compiled engine: TensorRT, or the best int8 variant without it."""
        if self._around.tensorrt:
            return {"precision": "fp16", "backend": "tensorrt"}
        return {"precision": "int8", "quantization": self._around.int8_best}

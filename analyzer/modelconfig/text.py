"""``config.pbtxt`` and configuration JSON to Triton's protobuf and back.

``ModelConfig`` is ``tritonclient.grpc.model_config_pb2.ModelConfig``, Triton's own message; this
module and its neighbours are the only ones that touch it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from google.protobuf import json_format, text_format
from google.protobuf.descriptor import FieldDescriptor
from tritonclient.grpc import model_config_pb2

from analyzer.errors import RepositoryError

ModelConfig = model_config_pb2.ModelConfig
CONFIG_NAME = "config.pbtxt"
# A configuration is a few kilobytes; what is larger is no configuration.
CONFIG_BYTES_MAX = 16 << 20
_INT64 = (
    FieldDescriptor.CPPTYPE_INT64,
    FieldDescriptor.CPPTYPE_UINT64,
)
# Triton turns 64-bit integers into JSON numbers except in these two places.
_INT64_LEFT_AS_TEXT = {
    "inference.ModelOptimizationPolicy.Cuda.GraphSpec.Shape.dim",
    "inference.ModelInstanceGroup.SecondaryDevice.device_id",
}


def parse_config(text: str, *, where: str = CONFIG_NAME) -> Any:
    """The ``ModelConfig`` that ``text`` (protobuf text format) spells.

    Args:
        text: Contents of a ``config.pbtxt``.
        where: What the error calls the text, usually its path.

    Raises:
        RepositoryError: A syntax error, an unknown field or a wrong type; names line and column.
    """
    try:
        return text_format.Parse(text, ModelConfig())
    except text_format.ParseError as error:
        line, column = error.GetLine(), error.GetColumn()
        place = f"{where}, line {line}, column {column}" if line else where
        # The library's message begins with the same "line:column : ".
        message = str(error).split(" : ", 1)[-1] if line else str(error)
        raise RepositoryError(
            f"{place}: {message}",
            hint="The fields are those of Triton's model_config.proto, in protobuf text format.",
        ) from error


def read_config(path: Path) -> Any:
    """The ``ModelConfig`` in the file ``path``.

    Raises:
        RepositoryError: It cannot be read or parsed.
    """
    try:
        if path.stat().st_size > CONFIG_BYTES_MAX:
            raise RepositoryError(f"{path} is too large for a configuration.")
        return parse_config(path.read_text(encoding="utf-8-sig"), where=str(path))
    except OSError as error:
        raise RepositoryError(
            f"{path} cannot be read: {error.strerror}.",
            hint="A model directory holds config.pbtxt and a folder per version.",
        ) from error
    except UnicodeDecodeError as error:
        raise RepositoryError(f"{path} is not text in UTF-8.") from error


def config_from_json(text: str | dict[str, Any], *, where: str = "config") -> Any:
    """The ``ModelConfig`` that a load request's ``config`` (JSON, proto field names) spells.

    Raises:
        RepositoryError: It is no JSON, has an unknown field or a value of a wrong type.
    """
    try:
        values = json.loads(text) if isinstance(text, str) else text
        if not isinstance(values, dict):
            raise ValueError("it is no JSON object")
        return json_format.ParseDict(_upper_enums(values, ModelConfig.DESCRIPTOR), ModelConfig())
    except (json_format.ParseError, ValueError, RecursionError) as error:
        raise RepositoryError(
            f"{where}: {error}", hint="Field names are those of config.pbtxt (input, not inputs)."
        ) from error


def _upper_enums(values: Any, descriptor: Any) -> Any:
    """``values`` with enumeration names in capitals: Triton takes them in any case."""
    if not isinstance(values, dict):
        return values
    fixed = {}
    for key, value in values.items():
        field = descriptor.fields_by_name.get(key)
        if field is None:
            fixed[key] = value
        elif field.enum_type is not None:
            fixed[key] = value.upper() if isinstance(value, str) else value
        elif field.message_type is None or field.message_type.GetOptions().map_entry:
            fixed[key] = value
        elif isinstance(value, list):
            fixed[key] = [_upper_enums(item, field.message_type) for item in value]
        else:
            fixed[key] = _upper_enums(value, field.message_type)
    return fixed


def config_to_json(proto: Any) -> dict[str, Any]:
    """``proto`` as Triton's ``/v2/models/M/config`` prints it.

    Proto field names; every primitive of each message that is present, defaults included; repeated
    fields and maps also when empty; absent messages and unset members of a ``oneof`` left out;
    64-bit integers as numbers; enumerations by name.
    """
    return _message(proto)


def _message(message: Any) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        entry = field.message_type
        if entry is not None and entry.GetOptions().map_entry:
            value_field = entry.fields_by_name["value"]
            pairs = getattr(message, field.name)
            values[field.name] = {str(k): _value(value_field, pairs[k]) for k in sorted(pairs)}
        elif field.is_repeated:
            values[field.name] = [_value(field, item) for item in getattr(message, field.name)]
        elif not field.has_presence or message.HasField(field.name):
            values[field.name] = _value(field, getattr(message, field.name))
    return values


def _value(field: Any, value: Any) -> Any:
    if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        return _message(value)
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known is not None else value
    if field.cpp_type in _INT64 and field.full_name in _INT64_LEFT_AS_TEXT:
        return str(value)
    return value

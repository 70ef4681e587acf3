"""Reading config.pbtxt and repositories: errors name the place."""

from __future__ import annotations

from pathlib import Path

import pytest

from analyzer.errors import RepositoryError
from analyzer.modelconfig.repository import (
    list_models,
    list_versions,
    load_config,
    model_directory,
    version_files,
)
from analyzer.modelconfig.text import parse_config, read_config


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ('name: "a"\nmax_batch: 4', 2, "max_batch"),
        ('name: "a"\n\nmax_batch_size: "four"', 3, "four"),
        ("dynamic_batching {", 1, ""),
        ("dynamic_batching {}\nsequence_batching {}", 2, "scheduling_choice"),
    ],
)
def test_a_wrong_field_is_named_with_its_line(text: str, line: int, said: str) -> None:
    with pytest.raises(RepositoryError) as caught:
        parse_config(text, where="repo/m/config.pbtxt")
    assert f"repo/m/config.pbtxt, line {line}" in caught.value.message
    assert said in caught.value.message


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(RepositoryError, match="cannot be read"):
        read_config(tmp_path / "config.pbtxt")
    (tmp_path / "config.pbtxt").write_bytes(b"\xff\xfe")
    with pytest.raises(RepositoryError, match="UTF-8"):
        read_config(tmp_path / "config.pbtxt")


def test_versions_are_numbers_without_leading_zeros(tmp_path: Path) -> None:
    model = tmp_path / "m"
    for name in ("1", "10", "2", "03", "0", "-4", "1.5", "warmup"):
        (model / name).mkdir(parents=True)
    (model / "7").write_text("a file")
    (model / "10" / "model.onnx").touch()
    assert list_versions(model) == [1, 2, 10]
    assert version_files(model) == ["model.onnx"]
    assert load_config(model).name == ""
    (tmp_path / ".hidden").mkdir()
    assert list_models(tmp_path) == ["m"]


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../m", "m/1", "/etc", "a\\b", ".m", "a\x00b", "m" * 300]
)
def test_a_name_cannot_leave_the_repository(tmp_path: Path, name: str) -> None:
    (tmp_path / "m").mkdir()
    with pytest.raises(RepositoryError, match="not a model's name"):
        model_directory(tmp_path, name)


def test_an_absent_model_lists_those_that_are_there(tmp_path: Path) -> None:
    (tmp_path / "resnet").mkdir()
    with pytest.raises(RepositoryError) as caught:
        model_directory(tmp_path, "resent")
    assert "resnet" in caught.value.hint


def test_an_alternative_configuration_is_used_where_it_exists(tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "config.pbtxt").write_text("max_batch_size: 1")
    (tmp_path / "configs" / "big.pbtxt").write_text("max_batch_size: 64")
    assert load_config(tmp_path, config_name="big").max_batch_size == 64
    assert load_config(tmp_path, config_name="small").max_batch_size == 1
    with pytest.raises(RepositoryError):
        load_config(tmp_path, config_name="../../etc")

"""Tensors come back from a file, whatever they are called."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from analyzer.engine.tensor_file import read_tensors, write_tensors


def test_no_name_is_in_the_way(tmp_path: Path) -> None:
    """An input called "file" was the file itself to numpy's function, which raised TypeError."""
    names = ["file", "allow_pickle", "names", "arr_0", "1", "0", "a/b", "x.npy", "x", "größe"]
    tensors = {name: np.full((2, 3), index) for index, name in enumerate(names)}
    path = tmp_path / "rows"
    write_tensors(path, tensors)
    found = read_tensors(path)
    assert list(found) == names
    for name, array in tensors.items():
        np.testing.assert_array_equal(found[name], array)
    assert [entry.name for entry in tmp_path.iterdir()] == ["rows"]

"""The objects that tests store."""

from __future__ import annotations

from types import ModuleType

import pytest
import store_objects


@pytest.fixture
def make() -> ModuleType:
    """The module with the objects, by ``make.make_measurement()`` and so on."""
    return store_objects

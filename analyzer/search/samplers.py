"""The names that ``--sampler`` knows, and what each of them needs."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Literal, get_args

from analyzer.errors import MissingPartError

SamplerName = Literal["twin", "tpe", "nsga2", "gp", "random", "grid"]
SAMPLERS: tuple[SamplerName, ...] = get_args(SamplerName)


def require_sampler(name: SamplerName) -> None:
    """Raises MissingPartError where the sampler's library is not installed."""
    if name == "gp" and find_spec("torch") is None:
        raise MissingPartError(
            "--sampler gp needs PyTorch, which is not installed.",
            hint="Install the extra: pip install 'tritune[gp]'; or use --sampler twin.",
        )

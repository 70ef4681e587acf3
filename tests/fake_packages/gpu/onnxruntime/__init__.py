"""ONNX Runtime with a CUDA provider that is the CPU's, and that can fail as CUDA's does."""

import sys
from typing import Any

from made_up_machine import OPTIONS, behind

_real = behind(__name__)
_values = OPTIONS.get("onnxruntime", {})
_CUDA = "CUDAExecutionProvider"
_Session = _real.InferenceSession


class InferenceSession(_Session):  # type: ignore[misc, valid-type]
    """Runs on the CPU and says that it runs on the GPU."""

    def __init__(self, path: Any, sess_options: Any = None, providers: Any = None) -> None:
        names = [each if isinstance(each, str) else each[0] for each in providers or ()]
        self._on_gpu = _CUDA in names
        self._runs_left = _values.get("run_error", {}).get("after", 0)
        if self._on_gpu and "load_error" in _values:
            raise RuntimeError(_values["load_error"])
        super().__init__(path, sess_options, providers=["CPUExecutionProvider"])

    def get_providers(self) -> list[str]:
        """CUDA first, where it was asked for and starts."""
        return [_CUDA] * (self._on_gpu and not _values.get("falls_back")) + super().get_providers()

    def run(self, *arguments: Any, **options: Any) -> Any:
        """Runs, until it fails."""
        if self._on_gpu and "run_error" in _values:
            if self._runs_left <= 0:
                raise RuntimeError(_values["run_error"]["said"])
            self._runs_left -= 1
        return super().run(*arguments, **options)


_real.InferenceSession = InferenceSession
_providers = [_CUDA] * _values.get("cuda", True) + ["CPUExecutionProvider"]
_real.get_available_providers = lambda: list(_providers)
_real.preload_dlls = lambda **_: None
_real.cuda_version = _values.get("cuda_version", "13.0")
sys.modules[__name__] = _real

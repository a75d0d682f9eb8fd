"""By what the operator knows a Prometheus, and by what a Prometheus knows the operator: a CA file and a bearer token.

Both come from files and are read again as soon as the files change, since the kubelet replaces a projected token every hour and a
cluster's CA now and then, and nobody restarts an operator for that. The operator has no right to read Secrets: what it may know is
mounted into its pod by whoever installs it.

The token is for servers that the operator's own configuration names for it, and for no other: a job may choose among the allowed
servers, and must not get the operator to show its token to one that was allowed without it.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

MOST_BYTES = 1 << 20
"""Largest size of a file with a token or certificates, in bytes: a path that leads to something else must not fill the memory."""


class CredentialsError(Exception):
    """A file that is missing, or holds no token or no certificate; the message names it and never shows what is in it."""


@dataclass(frozen=True)
class Access:
    """What a request to one server carries."""

    ssl: ssl.SSLContext | bool
    """Whom to trust; True stands for the system's own authorities."""
    headers: Mapping[str, str]
    """Headers that the server, and no other, may see."""


class Credentials:
    """The operator's credentials for Prometheus servers."""

    def __init__(
        self, ca_file: Path | None = None, token_file: Path | None = None, token_urls: Iterable[str] = ()
    ) -> None:
        """Trust the authorities in ``ca_file`` (None: those of the system); show the token in ``token_file`` to ``token_urls`` alone."""
        self._ca = None if ca_file is None else _Followed(ca_file)
        self._token = None if token_file is None else _Followed(token_file)
        self._token_urls = frozenset(url.rstrip("/") for url in token_urls)
        self._context: tuple[bytes, ssl.SSLContext] | None = None

    def access(self, url: str) -> Access:
        """What a request to the server under ``url`` carries, by the files as they are now; raises CredentialsError."""
        headers = {}
        if self._token is not None and url.rstrip("/") in self._token_urls:
            headers["Authorization"] = f"Bearer {_token(self._token)}"
        return Access(self._trusted(), headers)

    def _trusted(self) -> ssl.SSLContext | bool:
        if self._ca is None:
            return True
        pem = self._ca.read()
        # The same context as long as the file is the same: connections are kept by it.
        if self._context is None or self._context[0] != pem:
            try:
                self._context = (pem, ssl.create_default_context(cadata=pem.decode("ascii")))
            except (ssl.SSLError, ValueError) as error:
                raise CredentialsError(
                    f"the CA file {self._ca.path} holds no certificate in PEM format: put the authority's certificate there"
                ) from error
        return self._context[1]


class _Followed:
    """A file whose content is read again when it is another one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._mark: tuple[int, int, int] | None = None
        self._content = b""

    def read(self) -> bytes:
        """The content; raises CredentialsError if there is none."""
        try:
            with self.path.open("rb") as file:
                # Of the open file and not of the path, which may lead to another a moment later.
                found = os.fstat(file.fileno())
                mark = (found.st_ino, found.st_size, found.st_mtime_ns)
                if mark != self._mark:
                    self._content, self._mark = file.read(MOST_BYTES + 1), mark
        except OSError as error:
            raise CredentialsError(
                f"the file {self.path} can't be read ({error.strerror or error}): check the volume that brings it into the operator's pod"
            ) from error
        if len(self._content) > MOST_BYTES:
            raise CredentialsError(
                f"the file {self.path} is larger than {MOST_BYTES} bytes: check that it is the one meant"
            )
        return self._content


def _token(file: _Followed) -> str:
    """The token in a file; one that could be more than a token would end up in a header, and is refused."""
    text = file.read().decode("ascii", errors="replace").strip()
    if not text or not text.isascii() or any(character.isspace() or not character.isprintable() for character in text):
        raise CredentialsError(f"the file {file.path} holds no bearer token: put one word there, without spaces")
    return text

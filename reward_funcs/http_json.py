"""One JSON question to an address that the user named, and its JSON answer, within bounds that hold for any server.

No redirects, no proxies, a largest size, one deadline for a whole try, new tries after what may pass. Leaves out what
the JSON means.
"""

from __future__ import annotations

import ipaddress
import json
import os
import socket
from typing import Any
from urllib.parse import urlsplit

from reward_funcs.errors import RewardError

PAUSE = 0.5  # seconds before the first new try; doubles


class _Again(Exception):
    """A try that failed in a way that may pass."""


def check_url(url: str, token_name: str) -> None:
    """Raise RewardError for what is no http(s) address, holds a password, or is the metadata address of a cloud."""
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        port = -1
    if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
        raise RewardError(f"{short(url)} is no address; write http://HOST:PORT")
    if parts.username or parts.password:
        raise RewardError(f"a password in the address of {parts.hostname} would be logged; set {token_name} instead")
    try:
        found = socket.getaddrinfo(parts.hostname, port or 80, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return  # it may not be up yet; asking it will say so
    for address in {ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in found}:
        if address.is_link_local or address.is_multicast or address.is_unspecified:
            raise RewardError(f"{parts.hostname} is {address}, an address where no such server is; it is not asked")


async def post(url: str, question: Any, *, token_name: str, timeout: float, retries: int, largest: int) -> Any:
    """What `url` answers to a question; raises RewardError. timeout: seconds for one try; largest: bytes of an answer.

    token_name: the environment variable with the bearer token, sent when it is set.
    """
    import anyio  # comes with httpx

    token = os.environ.get(token_name, "").strip()
    said = ""
    for attempt in range(retries + 1):
        if attempt:
            await anyio.sleep(PAUSE * 2 ** (attempt - 1))
        try:
            with anyio.fail_after(timeout):  # asyncio.timeout came with Python 3.11
                return _json(*await _try(url, question, token, timeout, largest), token_name)
        except _Again as error:
            said = str(error)
        except TimeoutError:
            said = f"no answer within {timeout:g} s"
        except RewardError as error:
            said = str(error)
            break
    said = " ".join(said.split())[:200]
    raise RewardError(f"{url} gave no answer: {said.replace(token, '***') if token else said}")


async def _try(url: str, question: Any, token: str, timeout: float, largest: int) -> tuple[int, bytes]:
    import httpx

    headers = {"Authorization": f"Bearer {token}"} if token else {}
    body = bytearray()
    try:
        async with httpx.AsyncClient(follow_redirects=False, trust_env=False, timeout=timeout) as client:
            async with client.stream("POST", url, json=question, headers=headers) as reply:
                async for chunk in reply.aiter_raw():  # raw: what is compressed may be of any size
                    body += chunk
                    if len(body) > largest:
                        raise RewardError(f"more than {largest:,} bytes")
    except httpx.HTTPError as error:
        raise _Again(f"{type(error).__name__}: {error}".rstrip(": ")) from None
    return reply.status_code, bytes(body)


def _json(status: int, body: bytes, token_name: str) -> Any:
    is_json = body.lstrip().startswith(b"{")
    if status >= 500 and not is_json:
        raise _Again(f"status {status}")
    if 300 <= status < 500:
        raise RewardError(f"status {status}" + (f"; set {token_name}" if status in (401, 403) else ""))
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise RewardError(f"no JSON, but {short(body[:60].decode('utf-8', 'replace'))}") from None


def short(value: Any) -> str:
    """A value from outside, for a message."""
    return " ".join(repr(value)[:80].split())

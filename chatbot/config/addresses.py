"""Addresses to listen at."""

import contextlib
import ipaddress

from chatbot.errors import UserError


def address_of(flag: str, text: str) -> tuple[str, int]:
    """Return the host and the port of HOST:PORT; an IPv6 host is in brackets. Raises UserError for another text."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    with contextlib.suppress(ValueError):
        if ":" in host:
            ipaddress.ip_address(host)
        if host and port.isascii() and port.isdecimal() and int(port) <= 65535:
            return host, int(port)
    raise UserError(f"{flag} {text}: expected HOST:PORT, such as 127.0.0.1:8000 or [::1]:8000")

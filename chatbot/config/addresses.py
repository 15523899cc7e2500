"""Addresses to listen at."""

import ipaddress

from chatbot.errors import UserError


def address_of(flag: str, text: str) -> tuple[str, int]:
    """Return the host and the port of HOST:PORT; an IPv6 host is in brackets. Raises UserError for another text."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    is_port = port.isascii() and port.isdecimal() and int(port) <= 65535
    if not host or not is_port or (":" in host and not _is_ip(host)):
        raise UserError(f"{flag} {text}: expected HOST:PORT, such as 127.0.0.1:8000 or [::1]:8000")
    return host, int(port)


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True

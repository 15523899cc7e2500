"""The socket of a service."""

import socket

from chatbot.errors import UserError


def listening_socket(flag: str, host: str, port: int) -> socket.socket:
    """Return a socket that is bound to an address; uvicorn makes it listen. Raises UserError, which names the flag."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
        except OSError:
            listener.close()
            raise
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{flag} {host}:{port}: {reason}; give an address of this machine and a free port") from None
    return listener

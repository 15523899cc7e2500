"""The keys of --api-key-file, and who has one."""

import hashlib
import hmac
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

from chatbot.chat.server.errors import ApiError, too_many
from chatbot.chat.service import MOST_CLIENTS, RateLimit
from chatbot.errors import UserError

WRONG_KEYS = 10  # that an address may try at once, and in each minute after


class Keys:
    """The keys of a server. They are compared in constant time, and few wrong ones are compared for an address.

    Beyond that, only keys are compared that were right from this address before, so that whoever guesses neither
    learns anything nor keeps others out of an address that they share.
    """

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._keys = keys
        self._wrong = RateLimit(WRONG_KEYS)
        self._known: OrderedDict[tuple[str, str], None] = OrderedDict()  # addresses and keys that were right

    def client(self, authorization: str, address: str) -> str:
        """Return a name for who sends an Authorization header: that of a key, or of the address if none is needed.

        Raises ApiError: 401 without one of the keys, and 429 after too many wrong ones from the address.
        """
        if not self._keys:
            return f"address {address}"
        scheme, _, given = authorization.partition(" ")
        given = given.strip()
        if scheme.lower() != "bearer" or not given:
            lacks = not authorization or scheme.lower() == "bearer"
            beginning = "A key is needed" if lacks else "The Authorization header must begin with Bearer"
            raise _unauthorized(f"{beginning}: Authorization: Bearer KEY")
        known = address, given
        if known not in self._known and (wait := self._wrong.seconds_until(address)):
            raise too_many("wrong keys from this address", wait)
        found = [hmac.compare_digest(given.encode(), key) for key in self._keys]
        if not any(found):
            self._wrong.wait(address)
            raise _unauthorized("This key is not valid")
        self._known[known] = None
        self._known.move_to_end(known)
        if len(self._known) > MOST_CLIENTS:
            self._known.popitem(last=False)
        return f"key {hashlib.sha256(given.encode()).hexdigest()[:16]}"


def _unauthorized(message: str) -> ApiError:
    return ApiError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


def read_keys(path: Path) -> list[bytes]:
    """Return the keys in a file, one per line; empty lines are ignored.

    Raises UserError for a file that cannot be read, or has no keys, or one that no header can hold.
    """
    try:
        keys = [line.strip() for line in path.read_bytes().splitlines() if line.strip()]
    except OSError as error:
        raise UserError(f"--api-key-file {path}: {error.strerror}; give a file with a key in each line") from None
    if not keys:
        raise UserError(f"--api-key-file {path}: the file has no keys; write one in each line")
    for number, key in enumerate(keys, 1):
        if not all(0x21 <= byte <= 0x7E for byte in key):
            raise UserError(f"--api-key-file {path}: key {number} has other characters than ASCII without spaces")
    return keys

"""Cached files end with a checksum of what is before it: a damaged one counts as missing, and is made again.

The checksum is against accidents. Compiled code is trusted, and whoever may write to the cache may run code here.
"""

import hashlib
from pathlib import Path

SIZE = hashlib.sha256().digest_size


def seal(content: bytes) -> bytes:
    """The content of a file with its checksum."""
    return content + hashlib.sha256(content).digest()


def read_sealed(path: str | Path) -> bytes | None:
    """What `seal` got, or None if the file is missing, damaged or cannot be read."""
    try:
        data = Path(path).read_bytes()
    except OSError:
        return None
    content = data[:-SIZE]
    return content if seal(content) == data else None

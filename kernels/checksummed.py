"""Files of a cache, which end with a checksum of their content. A damaged file counts as missing, and is made again.

The checksum protects from accidents only. Compiled code is trusted: anyone who may write to the cache may run code
here.
"""

import hashlib
from pathlib import Path

from pytagi_ddp.files import read_file

SIZE = hashlib.sha256().digest_size


def with_checksum(content: bytes) -> bytes:
    """The bytes of a file: `content`, followed by its checksum."""
    return content + hashlib.sha256(content).digest()


def read_checksummed(path: str | Path) -> bytes | None:
    """The content of a file made by `with_checksum`; None if the file is missing, damaged or cannot be read."""
    try:
        data = read_file(path)
    except OSError:
        return None
    content = data[:-SIZE]
    return content if with_checksum(content) == data else None

"""Cache files that end with a checksum of their content. A damaged file counts as missing, and is made again.

The checksum only detects accidental damage. Compiled code is executed, so a file that another user (except root) may
have written also counts as missing.
"""

import hashlib
from pathlib import Path

from pytagi_ddp.files import read_private

SIZE = hashlib.sha256().digest_size


def with_checksum(content: bytes) -> bytes:
    """The bytes of a file: `content`, followed by its checksum."""
    return content + hashlib.sha256(content).digest()


def read_checksummed(path: str | Path) -> bytes | None:
    """The content of a file made by `with_checksum`; None if it is missing, damaged or not trusted."""
    try:
        data = read_private(path)
    except OSError:
        return None
    content = data[:-SIZE]
    return content if with_checksum(content) == data else None

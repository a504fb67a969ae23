"""Files of networks with other headers, as an old version, another program or an attacker may write them."""

import json
from collections.abc import Callable

from pytagi_ddp.nn.files import file_format


def with_header(data: bytes, change: Callable[[dict], object]) -> bytes:
    """A file of this library after `change` of its header, with the checksum that belongs to it."""
    header, values = file_format.split(data)
    change(header)
    if "__metadata__" in header:
        return file_format.with_checksum(header.pop("__metadata__"), header, values)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + values

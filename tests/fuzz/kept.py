"""Files that once broke something, made as small as possible: (format, file name, content)."""

import io
import zipfile


def npz(header: bytes) -> bytes:
    """An archive of arrays, of which the first has this header."""
    memory, values = io.BytesIO(), {"x": 11 * 2 * 8, "y": 11 * 8, "test": 3 * 2}
    with zipfile.ZipFile(memory, "w") as archive:
        for name, size in values.items():
            start = b"\x93NUMPY\x01\x00\x76\x00" + header.ljust(117) + b"\n"
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), start + bytes(size))
    return memory.getvalue()


STATE = b'{"Linear.0": %s, "BatchNorm2d.1": [[1,1,1],[1,1,1],[0,0,0],[1,1,1]], "Linear.2": [[1,1,1],[1,1,1],[0],[1]]}'

KEPT = [
    # The name of a file elsewhere, which was deleted.
    ("manifest", "manifest.json", b'{"format": "pytagi_ddp checkpoints 1", "checkpoints": [%s]}' % entry)
    for entry in (
        b'{"file":"../victim","bytes":1,"sha256":"0","epoch":0,"batch":0,"step":0,"world_size":1}',
        b'{"file":"victim","bytes":1,"sha256":"0","epoch":0,"batch":0,"step":0,"world_size":1}',
        b'{"file":1,"bytes":1,"sha256":"0","epoch":0,"batch":0,"step":0,"world_size":1}',
        # A name longer than the system allows: removing it failed, and so did saving any further checkpoint.
        b'{"file":"step-%s-00000000.safetensors","bytes":1,"sha256":"0","epoch":0,"batch":0,"step":0,"world_size":1}'
        % (b"0" * 300),
    )
]
KEPT += [
    # Nested so deeply that Python's JSON reader raises a RecursionError, which is not a ValueError.
    ("manifest", "manifest.json", b"[" * 100_000),
    # Metadata that are null, or lack the checksum.
    ("safetensors", "net", b"\x16" + b"\0" * 7 + b'{"__metadata__": null}'),
    (
        "earlier safetensors",
        "format_1.safetensors",
        b"\x2a" + b"\0" * 7 + b'{"__metadata__":{"format":"pytagi_ddp 1"}}',
    ),
    # Rows of unequal length, and values that are not arrays: the error did not name the layer.
    ("state dict", "state.json", STATE % b"[[0,[1]],[],[],[]]"),
    ("state dict", "state.json", STATE % b"4"),
    ("state dict", "state.json", STATE % b"null"),
    ("position", "position.json", b'{"epoch": "1", "batch": 0, "num_samples": 50, "global_batch": 4, "seed": 5}'),
    ("position", "position.json", b'{"epoch": 1}'),
    # Half a line, and a line that is nested too deeply.
    ("log", "log.jsonl", b'{"event": "epoch", "epoch": 1, "train_err'),
    ("log", "log.jsonl", b"[" * 60_000),
    # A pickle that stores a value at a high index of its memo, for which Python takes 4 GB.
    ("cifar10 python", "test_batch", b"\x80\x02Nr\0\0\0\x10."),
    # Damaged files of compiled code stopped every start.
    ("cache", "loop.code", b""),
    ("cache", "loop.code", b"nonsense"),
    # Headers that are no Python: errors of its parser, without the file's name.
    ("uci npz", "yacht.npz", npz(b"{'descr': (")),
    ("uci npz", "yacht.npz", npz(b"  {\n {")),
    ("uci npz", "yacht.npz", npz(b"{'descr': '<f8', 'fortran_order': False, 'shape': (11, 2" + b")" * 30)),
]

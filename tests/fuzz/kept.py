"""Files that once broke something, and how small they are: (format, file, content)."""

STATE = b'{"Linear.0": %s, "BatchNorm2d.1": [[1,1,1],[1,1,1],[0,0,0],[1,1,1]], "Linear.2": [[1,1,1],[1,1,1],[0],[1]]}'

KEPT = [
    # A name that leads elsewhere: what it named was deleted.
    ("manifest", "manifest.json", b'{"format": "pytagi_ddp checkpoints 1", "checkpoints": [%s]}' % entry)
    for entry in (
        b'{"file":"../victim","bytes":1,"sha256":"0","epoch":0,"batch":0,"step":0,"world_size":1}',
        b'{"file":"victim","bytes":1,"sha256":"0","epoch":0,"batch":0,"step":0,"world_size":1}',
        b'{"file":1,"bytes":1,"sha256":"0","epoch":0,"batch":0,"step":0,"world_size":1}',
        # Longer than a name can be: it could not be removed, and no checkpoint could be written any more.
        b'{"file":"step-%s-00000000.safetensors","bytes":1,"sha256":"0","epoch":0,"batch":0,"step":0,"world_size":1}'
        % (b"0" * 300),
    )
]
KEPT += [
    # Python's own limit of depth, which is no ValueError.
    ("manifest", "manifest.json", b"[" * 100_000),
    # Metadata that are null, or without the checksum that belongs to them.
    ("safetensors", "net", b"\x16" + b"\0" * 7 + b'{"__metadata__": null}'),
    (
        "earlier safetensors",
        "format_1.safetensors",
        b"\x2a" + b"\0" * 7 + b'{"__metadata__":{"format":"pytagi_ddp 1"}}',
    ),
    # Errors that named nothing: rows of unequal length, no arrays.
    ("state dict", "state.json", STATE % b"[[0,[1]],[],[],[]]"),
    ("state dict", "state.json", STATE % b"4"),
    ("state dict", "state.json", STATE % b"null"),
    ("position", "position.json", b'{"epoch": "1", "batch": 0, "num_samples": 50, "global_batch": 4, "seed": 5}'),
    ("position", "position.json", b'{"epoch": 1}'),
    # Half a line, and one that is nested too deeply.
    ("log", "log.jsonl", b'{"event": "epoch", "epoch": 1, "train_err'),
    ("log", "log.jsonl", b"[" * 60_000),
    # Python's machine for pickles: a place far away in its memo took 4 GB.
    ("cifar10 python", "test_batch", b"\x80\x02Nr\0\0\0\x10."),
    # Damaged indexes of compiled code stopped every start.
    ("cache", "loop.nbi", b""),
    ("cache", "loop.nbi", b"nonsense"),
]

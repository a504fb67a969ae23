"""Pickles as Python 2 wrote them, which the official files of CIFAR-10 are."""

import io
import pickle


class Python2Pickler(pickle._Pickler):
    """Writes bytes and text as the `str` of Python 2."""

    def save_str(self, value):
        data = value if isinstance(value, bytes) else value.encode()
        code, size = (pickle.SHORT_BINSTRING, 1) if len(data) < 256 else (pickle.BINSTRING, 4)
        self.write(code + len(data).to_bytes(size, "little") + data)
        self.memoize(value)

    dispatch = pickle._Pickler.dispatch | {bytes: save_str, str: save_str}


def python2_pickle(content):
    stream = io.BytesIO()
    Python2Pickler(stream, protocol=2).dump(content)
    return stream.getvalue().replace(b"numpy._core.", b"numpy.core.")


def cifar10_batch(labels, pixels):
    """A file of `cifar-10-batches-py`."""
    return python2_pickle(
        {b"batch_label": b"batch", b"labels": labels.tolist(), b"data": pixels, b"filenames": [b"a.png"]}
    )

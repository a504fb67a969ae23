"""Recorded results ("golden" files) that tests compare with.

`*.npz` have all numbers of some training steps of pytagi 0.2.1, for each layer. `pytagi_files` has networks that pytagi
trained, saved and evaluated, and `pytagi_ddp_files` a network in the file format of an earlier version of this library.

    cd tests/golden
    sha256sum --check SHA256SUMS                    # that nobody has changed them
    sha256sum *.npz *_files/* > SHA256SUMS          # after a file was added
"""

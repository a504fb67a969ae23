"""Hooks that Ctrl-C does not prevent. Compiled, because Python answers Ctrl-C inside Python functions only."""

cdef enum:
    TRIES = 100


def insistent(hook):
    """A hook that starts again if Ctrl-C interrupts it before it ignores further ones."""

    def run(*arguments):
        for _ in range(TRIES):
            try:
                return hook(*arguments)
            except KeyboardInterrupt:
                pass

    return run

"""Checks of the arrays that a product is given."""


def expect(shape: tuple[int, ...], **arrays) -> None:
    """Every array has this shape (None passes).

    Raises:
        ValueError: naming the first that has not.
    """
    for name, array in arrays.items():
        if array is not None and array.shape != shape:
            raise ValueError(f"{name} has shape {array.shape}, the other arrays ask for {shape}")

"""Checks of the arrays that a product is given."""


def expect(product: str, shape: tuple[int, ...], **arrays) -> None:
    """Checks that every array has this shape; None passes.

    Raises:
        ValueError: an array has another shape; the message names the product and the first such array.
    """
    for name, array in arrays.items():
        if array is not None and array.shape != shape:
            raise ValueError(f"{product}: {name} has shape {array.shape}, the other arrays ask for {shape}")

"""Ready-made networks."""

from pytagi_ddp.models.resnet import resnet8_cifar10, resnet18_cifar10

__all__ = ["resnet8_cifar10", "resnet18_cifar10"]

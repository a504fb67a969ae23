"""Ready-made networks."""

from pytagi_ddp.models.imagenet import resnet18_imagenet, resnet50_imagenet
from pytagi_ddp.models.resnet import resnet8_cifar10, resnet18_cifar10
from pytagi_ddp.models.transformer import transformer

__all__ = ["resnet8_cifar10", "resnet18_cifar10", "resnet18_imagenet", "resnet50_imagenet", "transformer"]

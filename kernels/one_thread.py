"""What notices several threads in one network, whatever its device."""

from pytagi_ddp.kernels.cpu.extension import load

OneThread = load("_one_thread").OneThread

"""Launches and copies of a training step on a GPU, and the host's time for it, without one.

`python -m benchmarks.gpu` starts this where there is no GPU. Networks run on the stand-in of `tests/cuda/ptx`, where
kernels and copies on the device do nothing; a GPU adds the time of CuPy and the driver. Walked: every layer runs as
Python. Replayed: the recorded calls are made again (`pytagi_ddp.cuda.replay_launches`). Both include what a step does
anew each time: checks and copies of the input and the observations, and the copies of the results.
"""

from benchmarks.training_step import Workload
from benchmarks.worker import times_of
from pytagi_ddp import cuda

CHOSEN = ("mlp-128-b32", "mlp-4096-b256", "mnist-cnn-b128", "resnet18-b16")
STEPS, SECONDS = 5, 0.5  # at least, of each measurement


def main() -> None:
    from tests.cuda.ptx.emulator import missing, stand_in  # here, as it compiles C

    if reason := missing():
        raise SystemExit(reason)
    stand_in(running=False)
    from pytagi_ddp.kernels.cuda.runtime.recorder import recording  # here, as the stand-in has to come first

    print(f"{'network':16}{'launches':>10}{'copies':>8}{'host, walked':>16}{'replayed':>12}")
    for name in CHOSEN:
        step = Workload(name, "cuda").step
        step()
        with recording() as work:
            step()
        launches = sum(hasattr(function, "prepare") for function, _ in work)
        times = []
        for cuda.replay_launches in (False, True):
            times.append(1e6 * min(times_of(step, SECONDS, STEPS)))
        print(f"{name:16}{launches:10}{len(work) - launches:8}{times[0]:13.0f} us{times[1]:9.0f} us")


if __name__ == "__main__":
    main()

"""Launches and copies of a training step on a GPU, and the host's time for it, without one.

With `--predict CARD`: how long the step takes on a card at best, kernel by kernel, and what bounds each: see
`benchmarks.roofline`. `--counts` shows the counts behind that: see `benchmarks.step_counts`.

Without (`python -m benchmarks.gpu` starts this): the networks run on the stand-in of `tests/cuda/ptx`, where kernels
and copies on the device do nothing; a GPU adds the time of CuPy and the driver. Walked: every layer runs as Python.
Replayed: the recorded calls are made again (`pytagi_ddp.cuda.replay_launches`). Both include what a step does anew each
time: checks and copies of the input and the observations, and the copies of the results.
"""

import argparse
import json
from pathlib import Path

from benchmarks import roofline, step_counts
from benchmarks.training_step import Workload
from benchmarks.worker import times_of
from benchmarks.workloads import find
from pytagi_ddp import cuda

CHOSEN = ("mlp-128-b32", "mlp-4096-b256", "mnist-cnn-b128", "resnet18-b16")
STEPS, SECONDS = 5, 0.5  # at least, of each measurement


def host_times() -> None:
    from tests.cuda.ptx.emulator import missing, stand_in  # here, as a prediction needs no emulator in this process

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--predict", choices=roofline.CARDS, help="the bound for a step on this card")
    parser.add_argument("--counts", action="store_true", help="launches, multiplications and bytes of a step")
    parser.add_argument("--workload", default="resnet18-b128", help="a name of benchmarks.workloads, any batch")
    parser.add_argument("--tf32", action="store_true", help="products on tensor cores")
    parser.add_argument("--json", type=Path, help="file for what is predicted, or counted")
    args = parser.parse_args()
    if not (args.predict or args.counts):
        host_times()
        return
    try:
        find(args.workload)
        result = counts = roofline.counted(args.workload, args.tf32)
        if args.counts:
            step_counts.show(counts)
        if args.predict:
            result = roofline.predict(args.predict, counts=counts)
            roofline.show(result)
    except (RuntimeError, ValueError) as error:
        parser.error(str(error))
    if args.json:
        args.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()

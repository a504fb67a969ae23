"""Federated training of many clients, beside central training: `python -m benchmarks.federated --data-dir DIR`.

The training images of MNIST are divided over clients. In each round the server asks some of them; a part drops out, and
a part is hostile. A pass asks every client once. Test error after each pass, beside that of one process that goes
through all images as often. Each run is a line of JSON; runs that are done are not made again. One thread.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

import pytagi_ddp
from benchmarks.merging import Digits, evaluate, learn, load
from benchmarks.quality.done import Runs, of, parser_of
from benchmarks.report import table
from benchmarks.workloads import mlp
from pytagi_ddp import nn
from pytagi_ddp.data import BatchLoader
from pytagi_ddp.distributed import FederatedPosterior, PosteriorUpdate, federated
from pytagi_ddp.kernels.cpu.runtime.threads import set_threads

STEP = 16  # images of a step of a client, and of central training
# What hostile clients send: NaN; precisions 10^4 times too large; their change 10 times, in the wrong direction; their
# change in the wrong direction; what they learnt from wrong labels; what they sent before; what another network learnt.
HOSTILE = ("nan", "precise", "flipped x10", "flipped", "labels", "replayed", "other network")
KIND = ("shares", "clients", "cohort", "evidence", "drop_out", "hostile", "defence", "seed", "images", "passes")
SHARES = ("equal", "two labels")


def shares_of(labels: np.ndarray, kind: str, clients: int, seed: int) -> list[np.ndarray]:
    """The rows of each client; with "two labels" those of about two digits (of one or three, at the borders)."""
    rows = np.random.default_rng(seed).permutation(len(labels))
    if kind == "equal":
        return np.array_split(rows, clients)
    shards = np.array_split(rows[np.argsort(labels[rows], kind="stable")], 2 * clients)
    order = np.random.default_rng(seed + 1).permutation(2 * clients)
    return [np.concatenate([shards[k] for k in pair]) for pair in order.reshape(-1, 2)]


def train(net: nn.Sequential, x: np.ndarray, labels: np.ndarray, rows: np.ndarray) -> None:
    for begin in range(0, len(rows), STEP):
        learn(net, x[rows[begin : begin + STEP]], labels[rows[begin : begin + STEP]], 0.3)
        net.step()


class Clients:
    """All clients, which take turns with one network.

    Args:
        x, labels: training images. args: the options of the program.
    """

    def __init__(self, x: np.ndarray, labels: np.ndarray, args: argparse.Namespace):
        self.x, self.labels, self.args = x, labels, args
        self.shares = shares_of(labels, args.shares, args.clients, args.seed)
        self.rng = np.random.default_rng([args.seed, 7])
        self.net, self.other = mlp(nn, 784, 128, 128, 11), mlp(nn, 784, 64, 64, 11)
        hostile = self.rng.choice(args.clients, round(args.hostile * args.clients), replace=False)
        self.hostile = {int(client): HOSTILE[k % len(HOSTILE)] for k, client in enumerate(hostile)}
        self.sent: dict[int, PosteriorUpdate] = {}

    def answers(self, message: bytes, asked: np.ndarray) -> Iterator[bytes]:
        """The messages of clients that are asked, of those that do not drop out."""
        for client in map(int, asked):
            if self.rng.random() >= self.args.drop_out:
                yield self.answer(message, client).to_bytes()

    def answer(self, message: bytes, client: int) -> PosteriorUpdate:
        attack, rows = self.hostile.get(client), self.rng.permutation(self.shares[client])
        if attack == "replayed" and client in self.sent:
            return self.sent[client]
        FederatedPosterior.receive(self.net, message)
        labels = self.labels if attack != "labels" else (self.labels + 1) % 10
        train(self.net, self.x, labels, rows)
        update = PosteriorUpdate.of(self.net, message, len(rows), f"client {client}")
        change = update.change.copy()
        if attack == "nan":
            change[0, 1000] = np.nan
        elif attack == "precise":
            change[1] *= 1e4
        elif attack in ("flipped", "flipped x10"):
            start = self.net.arena.theta[0] * change[1]  # what moves the precision and leaves the mean
            change[0] = start - (10 if attack == "flipped x10" else 1) * (change[0] - start)
        elif attack == "other network":
            change, architecture = change[:, :60_000], "{}"
            update = dataclasses.replace(update, architecture=architecture)
        update = dataclasses.replace(update, change=change)
        self.sent[client] = update
        return update


def run(data: Digits, x: np.ndarray, args: argparse.Namespace) -> dict[str, Any]:
    """One training; `evidence` 0 is a central one."""
    pytagi_ddp.manual_seed(args.seed)
    net = mlp(nn, 784, 128, 128, 11)
    labels = data.train.labels[: len(x)]
    one: dict[str, Any] = {name: getattr(args, name) for name in KIND if name != "images"} | {"images": len(x)}
    errors, reasons, clipped, begin = [], Counter[str](), Counter[str](), time.perf_counter()
    clients = Clients(x, labels, args)
    server = FederatedPosterior(net, args.evidence or 1.0)
    for number in range(args.passes):
        if args.evidence:
            order = clients.rng.permutation(args.clients)
            for asked in np.array_split(order, -(-args.clients // args.cohort)):
                result = server.merge(clients.answers(server.broadcast(), asked))
                kinds = {f"client {client}": kind for client, kind in clients.hostile.items()}
                reasons.update(kinds.get(name, "honest") for name in result.left_out)
                clipped.update(kinds.get(name, "honest") for name in result.clipped)
        else:
            train(net, x, labels, np.random.default_rng([args.seed, number]).permutation(len(x)))
        errors.append(evaluate(net, data.x_test, data.labels_test))
        seconds = time.perf_counter() - begin
        print(f"pass {number + 1}: error {errors[-1][0]:.2%}, NLL {errors[-1][1]:.3f}, {seconds:.0f} s", flush=True)
    one |= {"errors": [error for error, _ in errors], "nll": errors[-1][1], "rounds": server.round}
    return one | {"left_out": dict(reasons), "clipped": dict(clipped)}


def report(done: Sequence[dict[str, Any]]) -> str:
    rows = []
    for one in done:
        how = f"{one['clients']} clients, {one['cohort']} asked" if one["evidence"] else "central"
        defence = "" if one["defence"] else ", no defence"
        what = f"{one['shares']}, {one['drop_out']:.0%} drop out, {one['hostile']:.0%} hostile{defence}"
        numbers = (f"{one['evidence']:g}", one["seed"], one["passes"], f"{100 * one['errors'][-1]:.2f}")
        rows.append([how, what if one["evidence"] else "", *map(str, numbers), f"{one['nll']:.3f}"])
    return table(("training", "shares", "evidence", "seed", "passes", "test error, %", "NLL"), rows)


def main(argv: Sequence[str] | None = None) -> None:
    parser = parser_of("federated", __doc__)
    parser.add_argument("--data-dir", help="where MNIST is ($PYTAGI_DATA, ./data/mnist)")
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--cohort", type=int, default=10, help="clients that are asked in a round (10)")
    parser.add_argument("--evidence", type=float, default=2.5, help="of `FederatedPosterior`; 0: central training")
    parser.add_argument("--passes", type=int, default=15)
    parser.add_argument("--shares", choices=SHARES, default="equal")
    parser.add_argument("--drop-out", type=float, default=0.1, help="share of the clients asked that do not answer")
    parser.add_argument("--hostile", type=float, default=0.01, help="share of the clients")
    parser.add_argument("--no-defence", dest="defence", action="store_false", help="change of any size is merged")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit-train", type=int, metavar="N", help="use the first N training images")
    args = parser.parse_args(argv)
    done = Runs(args.results)
    if not args.report:
        set_threads(1)
        data = load(args.data_dir, args.limit_train)
        everything = BatchLoader(data.train, len(data.train), evaluation=True, prefetch=0, mean=data.mean, std=data.std)
        x, _ = next(iter(everything))
        wanted = vars(args) | {"images": len(x)}
        if there := of(done, **{name: wanted[name] for name in KIND}):
            sys.exit(f"{args.results} has this run: error {there[0]['errors'][-1]:.2%}")
        if not args.defence:
            federated.CLIP = federated.ABSURD = 1e30
        done.add(run(data, x, args))
    print(report(done))


if __name__ == "__main__":
    main()

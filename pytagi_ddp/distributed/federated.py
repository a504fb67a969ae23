"""Federated training: clients send their posteriors to a server as messages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from pytagi_ddp.kernels.tensors import Delta, Tensor
from pytagi_ddp.nn.core.alone import alone
from pytagi_ddp.nn.files import persistence, state_dicts
from pytagi_ddp.nn.files.architecture import architecture, sizes
from pytagi_ddp.nn.files.file_format import DIGITS, packed, read
from pytagi_ddp.nn.sequential import Sequential
from pytagi_ddp.validate import as_integers, as_numbers, check_finite

FORMAT = "1"  # of the messages of clients
MAX_BYTES = 1 << 30  # limit of a message, if the network is not known
LONGEST_NAME = 200  # characters
CLIP = 3.0  # times the median of the clients: larger changes are scaled down
ABSURD = 100.0  # times the median of the clients: a client with larger changes is left out
LARGEST = 1e30  # number in an update, so that sums stay finite
MORE_SAMPLES = 10.0  # times the median of the clients: limit of the number of samples


@dataclass(frozen=True, eq=False)
class PosteriorUpdate:
    """The update of a client in a round: the change of the natural parameters of its posterior N(m, s).

        change = (m/s - m0/s0, 1/s - 1/s0)    for each parameter, from N(m0, s0), where the client started

    `of` computes it, and `to_bytes` makes the message for the server.

    Attributes:
        client: its name, of at most 200 characters. The server does not verify it: check who sends a message.
        round: the round that the client started from. start: the checksum of its message of
            `FederatedPosterior.broadcast`.
        samples: number of samples that the client has learnt from, at least 1.
        architecture: the layers of the network and their settings, as in files.
        change: (2, P) float32, as above. running: (S,) running statistics, such as those of BatchNorm2d.

    Raises:
        ValueError: an invalid name, round or number. TypeError: a round or number that is not an integer.
    """

    client: str
    round: int
    start: str
    samples: int
    architecture: str
    change: np.ndarray
    running: np.ndarray

    def __post_init__(self) -> None:
        if not (isinstance(self.client, str) and 0 < len(self.client) <= LONGEST_NAME and self.client.isprintable()):
            raise ValueError(f"client is a text of 1 to {LONGEST_NAME} printable characters, got {self.client!r:.300}")
        for name, least in (("round", 0), ("samples", 1)):
            as_integers(f"client {self.client!r}", least, (1 << 53) - 1, **{name: getattr(self, name)})

    @classmethod
    def of(cls, net: Sequential, start: bytes, samples: int, client: str) -> PosteriorUpdate:
        """The update of a client.

        Args:
            net: the client's network, after training.
            start: the message of the server that the training began with.
            samples: number of samples that the client has learnt from. client: its name.

        Raises:
            ValueError: `start` is damaged or of another network, or the posterior is not valid.
        """
        contents = read(start, "the message of the server")
        prior = net.kernels.array.to_host(net.arena.theta)
        for spec, values in persistence.check(net, contents):
            if spec.kind == "learned":
                prior[int(spec.variance), spec.begin : spec.end] = values
        state_dicts.savable(net)  # raises ValueError
        array = net.kernels.array
        own = array.empty(prior.shape)
        net.kernels.merge.contribute(Tensor(*net.arena.theta), Tensor(*array.place(prior)), Delta(*own), True)
        change = array.to_host(own)
        change[0] += prior[0] * change[1]  # (m - m0)/s + m0 (1/s - 1/s0)
        check_finite(change, "the change of the posterior")
        statistics = array.to_host(net.arena.statistics)
        number = _number(contents.metadata.get("round"), "round", contents.what)
        return cls(client, number, start[DIGITS].decode(), samples, architecture(net), change, statistics)

    def to_bytes(self) -> bytes:
        """The message for the server, with a checksum; its size is about 8 P + 4 S bytes."""
        tensors = {"change": self.change} | ({"running": self.running} if self.running.size else {})
        fields = {name: str(getattr(self, name)) for name in ("client", "round", "start", "samples", "architecture")}
        return packed(tensors, {"update": FORMAT, **fields})

    @classmethod
    def from_bytes(cls, message: bytes, what: str = "the update", max_bytes: int = MAX_BYTES) -> PosteriorUpdate:
        """The update in a message of `to_bytes`.

        Args:
            message: the message of a client; it may be damaged or manipulated. what: its name in errors. max_bytes: its
                largest size.

        Raises:
            ValueError: the message is too long, damaged, of a later version, or not an update; the error says which.
        """
        if len(message) > max_bytes:
            raise ValueError(f"{what} has {len(message)} bytes, more than the {max_bytes} that it may have")
        _, meta, tensors = read(message, what)
        if meta.get("update") != FORMAT:
            raise ValueError(f"{what} is not an update of version {FORMAT}, but {meta.get('update')!r:.50}")
        change, running = tensors.pop("change", np.zeros(0)), tensors.pop("running", np.zeros(0, np.float32))
        if tensors or change.ndim != 2 or len(change) != 2 or running.ndim != 1:
            raise ValueError(f"{what} must hold change (2, P) and running (S,), got {change.shape} and {running.shape}")
        numbers = [_number(meta.get(name), name, what) for name in ("round", "samples")]
        try:
            texts = [meta[name] for name in ("client", "start", "architecture")]
            return cls(texts[0], numbers[0], texts[1], numbers[1], texts[2], change, running)
        except KeyError as error:
            raise ValueError(f"{what} lacks {error}") from None
        except ValueError as error:
            raise ValueError(f"{what}: {error}") from None


def _number(text: str | None, name: str, what: str) -> int:
    if text is None or not (text.isascii() and text.isdecimal() and len(text) <= 16):
        raise ValueError(f"{what}: {name} is not a number but {text!r:.50}")
    return int(text)


class MergedRound(NamedTuple):
    """The result of `FederatedPosterior.merge`.

    Attributes:
        round: number of the round that now begins. merged: the clients whose posteriors are in it.
        clipped: those of them whose change was scaled down.
        left_out: reasons by client; a message without a readable name is "message 3", counted from 0.
    """

    round: int
    merged: tuple[str, ...]
    clipped: tuple[str, ...]
    left_out: dict[str, str]


class FederatedPosterior:
    """The posterior that a server and its clients learn together.

    In each round the server sends its posterior N(m0, s0) to some clients. Each client trains with its own samples, for
    any number of steps, and sends a `PosteriorUpdate`. `merge` multiplies the posteriors N(m_r, s_r) of the clients,
    and divides by their common prior. Each client's evidence is raised to the power d:

        1/s = 1/s0 + d sum (1/s_r - 1/s0)
        m   = m0 + d s sum (m_r - m0)/s_r        d = min(1, evidence / number of clients)

    With d = 1 this is the posterior of all samples, if it is Gaussian. In networks, clients that all correct the same
    error overshoot together, so a round adds the evidence of only `evidence` average clients. Use about ten clients in
    a round. Running statistics change by the mean of the clients, weighted by their samples.

        server = FederatedPosterior(net)
        message = server.broadcast()                     # the server's bytes, for every client of the round

        FederatedPosterior.receive(own, message)         # a client, with a network of the same layers
        Trainer(own, likelihood, epochs=1, evidence=None).fit(batches)
        answer = PosteriorUpdate.of(own, message, samples=len(x), client="hospital 7").to_bytes()

        result = server.merge(answers)                   # the server again; result.left_out says who and why

    **Invalid updates.** A client is left out, and named, if its message is damaged, comes from another network,
    contains NaN, would make a precision negative, was merged before, or started more than `max_staleness` rounds ago;
    or if it changes a tensor, per sample, by more than 100 times the median of the clients. Above 3 times the median,
    its change is scaled down to that (samples above 10 times the median do not count). So a dishonest client changes
    the posterior at most as much as three honest clients. This needs at least three clients in a round, most of them
    honest.

    Messages are neither encrypted nor signed: send them over a secure connection. An update contains information about
    the samples of its client.

    Args:
        net: the network, whose parameters are the first prior; `merge` changes it. Between rounds it may be evaluated,
            saved, or changed (`forget_evidence`).
        evidence: the evidence that a round adds, in average clients.
        max_staleness: the number of rounds that an update may be late.
        round: number of the first round. If a server is restarted, pass the number of its last round.

    Attributes:
        net, evidence, max_staleness, round: as above; `round` counts on.

    Raises:
        TypeError: not a Sequential, or not numbers. ValueError: negative numbers, or evidence that is not above 0.

    Source: Ashman et al. (2022), "Partitioned variational inference", arXiv:2202.12275, for damped products;
    Karimireddy et al. (2021), "Learning from history for Byzantine robust optimization", ICML, for clipping.
    """

    def __init__(self, net: Sequential, evidence: float = 2.5, max_staleness: int = 0, round: int = 0):
        if not isinstance(net, Sequential):
            raise TypeError(f"FederatedPosterior takes a Sequential, got {type(net).__name__}")
        as_numbers("FederatedPosterior", "(0, inf]", evidence=evidence)
        as_integers("FederatedPosterior", 0, max_staleness=max_staleness, round=round)
        self.net, self.evidence, self.max_staleness, self.round = net, evidence, max_staleness, round
        self._starts: dict[str, int] = {}  # rounds of the messages that updates may start from, by checksum
        self._last: dict[str, int] = {}  # the last round of each client whose update could be replayed

    @property
    def _one_thread(self) -> Any:
        return self.net.passes.one_thread

    @alone
    def broadcast(self) -> bytes:
        """The posterior of this round as a message for clients; `Sequential.load` can also read it as a file.

        Raises:
            ValueError: a network that cannot be saved.
        """
        message = persistence.to_bytes(self.net, {"round": str(self.round)})
        self._starts[message[DIGITS].decode()] = self.round
        return message

    @staticmethod
    def receive(net: Sequential, message: bytes) -> None:
        """Loads the posterior of a message of `broadcast` into a client's network.

        Raises:
            ValueError: the message is damaged, or of another network; the network does not change.
        """
        state_dicts.put(net, persistence.check(net, read(message, "the message of the server")))

    @alone
    def merge(self, updates: Iterable[PosteriorUpdate | bytes]) -> MergedRound:
        """Merges the posteriors of clients into that of the network, and begins the next round.

        If no update is valid, nothing changes, and the round continues.

        Args:
            updates: updates of clients, or their messages, that started in this round or at most `max_staleness` rounds
                before.
        """
        net, array = self.net, self.net.kernels.array
        prior, statistics = array.to_host(net.arena.theta), array.to_host(net.arena.statistics)
        good, left_out = self._good(updates, prior)
        if not good:
            return MergedRound(self.round, (), (), left_out)
        tensors = [spec for spec in net.arena.tensors if spec.kind != "carried" and len(spec)]
        rows = [2 if spec.kind == "running" else int(spec.variance) for spec in tensors]
        begins = [row * prior.shape[1] + spec.begin for row, spec in zip(rows, tensors, strict=True)]
        places = [slice(begin, begin + len(spec)) for begin, spec in zip(begins, tensors, strict=True)]
        moved = [_moved(update, prior, statistics) for update in good]
        # The change of each tensor by each client: means in standard deviations of the prior, precisions in its
        # precision.
        units = np.concatenate([np.sqrt(prior[1]), prior[1], np.ones_like(statistics)])
        lengths = np.array(
            [[np.linalg.norm(values[at].astype(float) * units[at]) for at in places] for values in moved]
        )
        samples = np.array([update.samples for update in good], float)
        samples = np.minimum(samples, MORE_SAMPLES * np.median(samples))
        ratios = _over_median(lengths / samples[:, None])
        absurd = ((ratios > ABSURD) & np.isfinite(ratios)).any(1)
        for k in np.flatnonzero(absurd):
            worst = int(ratios[k].argmax())
            left_out[good[k].client] = (
                f"it moves {tensors[worst].name} {ratios[k, worst]:.3g} times as far as the median client, per sample, "
                f"more than {good[k].samples} samples explain"
            )
        kept = np.flatnonzero(~absurd)
        if not len(kept):
            return MergedRound(self.round, (), (), left_out)
        factors = np.minimum(1, CLIP / np.maximum(ratios, CLIP))
        own = [(spec.kind, spec.begin) for spec in tensors]
        for place in set(own):  # means and variances of a tensor have one factor, a power of its evidence
            same = [k for k, other in enumerate(own) if other == place]
            factors[:, same] = factors[:, same].min(1, keepdims=True)
        total, power = np.zeros_like(units), min(1, self.evidence / len(kept))
        for k in kept:
            weights = {"learned": power, "running": samples[k] / samples[kept].sum()}
            for spec, at, factor in zip(tensors, places, factors[k], strict=True):
                total[at] += np.float32(factor * weights[spec.kind]) * moved[k][at]
        self._take(prior, total[: prior.size].reshape(prior.shape), statistics + total[prior.size :])
        merged = {good[k].client: good[k].round for k in kept}
        self.round += 1
        oldest = self.round - self.max_staleness
        self._starts = {start: number for start, number in self._starts.items() if number >= oldest}
        self._last = {client: number for client, number in (self._last | merged).items() if number >= oldest}
        clipped = tuple(good[k].client for k in kept if (factors[k] < 1).any())
        return MergedRound(self.round, tuple(merged), clipped, left_out)

    def _take(self, prior: np.ndarray, sums: np.ndarray, statistics: np.ndarray) -> None:
        """Sets the posterior that follows from the prior and the summed evidence."""
        net, array = self.net, self.net.kernels.array
        net.drop_deltas()
        with np.errstate(divide="ignore"):
            np.maximum(sums[1], -0.5 / prior[1], out=sums[1])  # a round halves a precision at most
        counters = array.place(np.array([0, 1, 0], np.float32))  # one posterior: the sums are not divided
        both = Tensor(*net.arena.theta), Tensor(*array.place(prior))
        net.kernels.merge.merge_sums(*both, Delta(*array.place(sums)), counters, True)
        array.copy(statistics, net.arena.statistics)
        net.parameters_changed()

    def _good(
        self, updates: Iterable[PosteriorUpdate | bytes], prior: np.ndarray
    ) -> tuple[list[PosteriorUpdate], dict[str, str]]:
        """The valid updates, and the reasons against the others."""
        own = architecture(self.net)
        most = self.net.arena.theta.nbytes + self.net.arena.statistics.nbytes + 2 * len(own) + 10_000
        good: dict[str, PosteriorUpdate] = {}
        left_out: dict[str, str] = {}
        for number, message in enumerate(updates):
            name = f"message {number}"
            try:
                update = message
                if not isinstance(update, PosteriorUpdate):
                    update = PosteriorUpdate.from_bytes(update, name, most)
                name = update.client
                if name in good or update.round <= self._last.get(name, -1):
                    raise ValueError(f"replayed: an update of this client from round {update.round} was merged before")
                self._check(update, prior)
            except ValueError as error:
                left_out[name] = str(error)
            else:
                good[name] = update
        return list(good.values()), left_out

    def _check(self, update: PosteriorUpdate, prior: np.ndarray) -> None:
        """Raises ValueError if an update cannot be merged."""
        net = self.net
        if update.round < self.round - self.max_staleness:
            raise ValueError(
                f"stale: it started from round {update.round}, and this is round {self.round} "
                f"(max_staleness {self.max_staleness})"
            )
        if self._starts.get(update.start) != update.round:
            raise ValueError(f"it started from a posterior that this server has not sent in round {update.round}")
        meta = {"architecture": update.architecture}
        persistence.check_architecture(architecture(net), sizes(net), meta, "the update")
        for name, own in (("change", prior), ("running", net.arena.statistics)):
            if (found := getattr(update, name)).shape != own.shape:
                raise ValueError(f"its {name} has shape {found.shape}, and the network needs {own.shape}")
        for spec in net.arena.tensors:
            if spec.kind == "learned":
                check_finite(update.change[int(spec.variance), spec.begin : spec.end], f"the change of {spec.name}")
            elif spec.kind == "running":
                spec.check(update.running[spec.begin : spec.end], spec.name)
        if max(np.abs(update.change).max(initial=0), np.abs(update.running).max(initial=0)) > LARGEST:
            raise ValueError(f"it holds numbers above {LARGEST:g}, which no samples explain")
        if (negative := update.change[1] * prior[1] <= -1).any():
            where = int(negative.argmax())
            raise ValueError(f"{net.arena.leaf_at(where)} would have a negative precision at parameter {where}")


def _moved(update: PosteriorUpdate, prior: np.ndarray, statistics: np.ndarray) -> np.ndarray:
    """Summands of the formula `contribution`, for a prior that may be of a later round; changes of statistics.

    A parameter whose prior has variance 0 is not learnt.
    """
    change = update.change * (prior[1] > 0)
    change[0] -= prior[0] * change[1]
    return np.concatenate([*change, update.running - statistics])


def _over_median(values: np.ndarray) -> np.ndarray:
    """Each column divided by the median of its rows; if that is 0, infinity for values above 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = values / np.median(values, axis=0)
    return np.where(np.isnan(ratios), 1.0, ratios)

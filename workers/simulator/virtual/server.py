"""One server on virtual time: its clock stands at the end of its last step."""

from __future__ import annotations

from typing import NamedTuple

from workers.simulator.faults import DeviceOutOfMemory, EngineFailed
from workers.simulator.model.settings import ServingConfig
from workers.simulator.serving.batching import Batcher, Sequence
from workers.simulator.serving.runs import MOST_STEPS, Runs


class Progress(NamedTuple):
    """Consecutive outputs of one sequence: `events` of them with `tokens` together, in s on the virtual clock.

    `ended`: its last token is among them.
    """

    sequence: Sequence
    tokens: int
    events: int
    first_s: float
    last_s: float
    ended: bool


class ServerDied(Exception):
    """A server ends under load. `name` is its own."""

    def __init__(self, name: str, failure: EngineFailed) -> None:
        super().__init__(f"{name}: {failure}")
        self.name = name
        self.failure = failure


class VirtualServer:
    """The engine of a server process without its process.

    After `freeze_after_steps` it hangs: requests are taken, and nothing comes any more.
    """

    def __init__(self, name: str, batcher: Batcher, freeze_after_steps: int | None = None) -> None:
        self.name = name
        self.config: ServingConfig = batcher.cost.config
        self._batcher = batcher
        self._runs = Runs(batcher)
        self._steps_left = freeze_after_steps
        self._transferred: list[Sequence] = []  # whose first token, computed elsewhere, is not handed out yet
        self._now_s = 0.0

    @property
    def now_s(self) -> float:
        return self._now_s

    @property
    def idle(self) -> bool:
        """Whether nothing is left to do."""
        return not (self._batcher.running or self._batcher.waiting or self._transferred)

    def reset_prefix_cache(self) -> None:
        """Forget all prefixes; refused while a sequence holds blocks."""
        self._batcher.reset_prefix_cache()

    def submit(self, sequence: Sequence, at_s: float) -> None:
        """A request arrives. Arrivals come in the order of time."""
        if self.idle:
            self._now_s = max(self._now_s, at_s)
        sequence.arrived_s = at_s
        if sequence.transferred:
            self._transferred.append(sequence)
        self._batcher.add(sequence)

    def drop(self, sequence: Sequence) -> None:
        """The client has gone, or another server has taken over; nothing happens when it is unknown."""
        self._batcher.remove(sequence)
        if sequence in self._transferred:
            self._transferred.remove(sequence)

    def advance(self, until_s: float) -> list[Progress]:
        """At least one step, and on to the first one that ends at `until_s` or later, or ends a sequence.

        Where nothing can run, time passes until then. Raises ServerDied.
        """
        most = MOST_STEPS if self._steps_left is None else self._steps_left
        begun_s = self._now_s
        try:
            run = self._runs.plan((until_s - begun_s) * 1e3, most) if most > 0 else None
        except DeviceOutOfMemory as error:
            raise ServerDied(self.name, error) from error
        found = self._first_tokens() if self._transferred else []
        if run is None:
            if not found:
                self._now_s = max(begun_s, until_s)
            return found
        if self._steps_left is not None:
            self._steps_left -= run.steps
        first_s, last_s = begun_s + float(run.ends_ms[0]) / 1e3, begun_s + float(run.ends_ms[-1]) / 1e3
        self._now_s = last_s
        found += [
            Progress(output.sequence, output.tokens, run.steps, first_s, last_s, output.sequence.finished)
            for output in self._runs.finish(run)
        ]
        return found

    def _first_tokens(self) -> list[Progress]:
        """A first token that another server computed is there as soon as its sequence runs."""
        here = [sequence for sequence in self._transferred if sequence.generated]
        self._transferred = [sequence for sequence in self._transferred if not sequence.generated]
        return [Progress(sequence, 1, 1, self._now_s, self._now_s, sequence.finished) for sequence in here]

"""How an attempt ends without a measurement, in the same words whether its servers are processes or simulated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from autotune.domain.early_abort import LEAST_OBJECTIVE, HopelessAbove
from autotune.domain.effective import EffectiveConfig
from autotune.domain.failure import Failure, FailureClass, FailureValue, Phase, RetryPolicy
from autotune.domain.knobs import SERVER
from autotune.domain.measurement import Measurement
from autotune.domain.workload import Workload
from autotune.errors import InvalidCandidate, InvalidTemplate, NotFound
from workers.conclusions import BrokenLevel, not_applied
from workers.failures.classify import Finding, classify, describe_exit
from workers.failures.signatures import catalogue
from workers.load.spec import LoadTally
from workers.redaction import redact

CANCELLED = "cancelled"


class Ended(Exception):
    """The attempt cannot go on."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.summary)
        self.failure = failure


class AttemptFailures:
    """Makes the failures of one attempt.

    Its owner keeps `phase`, `engine` and `secrets` current; `told_role` is the role that failed, where one did.
    """

    def __init__(self) -> None:
        self.phase = Phase.PLACE
        self.engine = ""
        self.secrets: tuple[str, ...] = ()
        self.told_role: str | None = None

    def attempted(
        self, measure: Callable[[], Measurement], faults: Mapping[type[Exception], FailureClass]
    ) -> tuple[Measurement | None, Failure | None]:
        """What the attempt comes to. `faults` are exceptions of its own kind, with the class of each."""
        try:
            return measure(), None
        except Ended as ended:
            return None, ended.failure
        except InvalidCandidate as error:
            reasons = "; ".join(map(str, error.problems))
            return None, self.failure(FailureClass.INVALID_CONFIG, error.message, reasons)
        except InvalidTemplate as error:
            words = "; ".join([error.message, *map(str, error.problems)])
            return None, self.failure(FailureClass.INFRASTRUCTURE, words)
        except NotFound as error:
            return None, self.failure(FailureClass.INFRASTRUCTURE, error.message)
        except tuple(faults) as error:
            failure_class = next(faults[kind] for kind in faults if isinstance(error, kind))
            return None, self.failure(failure_class, str(error))

    def classify(
        self,
        exit_code: int | None,
        logs: Mapping[str, str],
        device_log: str = "",
        oom_kills: int | None = None,
        silence_s: float | None = None,
    ) -> Finding:
        """What the logs of the roles say.

        Where several roles fail at once, the log of the one that failed speaks for it, if it tells a cause.
        """
        first = self.told_role or SERVER
        ordered = sorted(logs, key=lambda role: role != first)
        texts = [logs[role] for role in ordered]

        def of(some: Sequence[str]) -> Finding:
            read = [*some, device_log] if device_log else list(some)
            return classify(self.phase, exit_code, read, self.engine, oom_kills=oom_kills, silence_s=silence_s)

        if texts[1:] and (own := of(texts[:1])).tells_cause:
            return own
        return of(texts)

    def died(self, role: str, code: int, finding: Finding) -> Ended:
        """A server has ended."""
        return self.found(finding, f"{role} ended with {describe_exit(code)} in phase {self.phase}", code)

    def late(self, limit_s: float, finding: Finding) -> Ended:
        """Warm-up or load took too long."""
        return self.found(finding, f"the {self.phase.replace('_', '-')} did not end within {limit_s:g} s")

    def stalled(self, limit_s: float, finding: Finding) -> Ended:
        """No word came on any open request."""
        return self.found(finding, f"no token for {limit_s:g} s")

    def refused(self, broken: BrokenLevel, finding: Finding) -> Ended:
        """Requests failed: what the server's log says about it comes first."""
        if finding.signature is not None:
            return self.found(finding, f"{broken.summary}: {broken.commonest}")
        return Ended(self.failure(FailureClass.REQUEST_ERRORS, broken.summary, broken.commonest))

    def check_hopeless(
        self, above: HopelessAbove | None, workload: Workload, level: str | None, tally: LoadTally
    ) -> None:
        """Raises when the running level shows that the trial is far worse than the best one of its study."""
        one = next((each for each in workload.levels if each.name == level), None)
        if above is None or one is None:
            return
        waves = one.requests // min(one.concurrency, one.requests)
        if (least := above.cut(level, tally.waves_ms, waves)) is None:
            return
        summary = (
            f"{level}: at least {least:.4g} ms a token after {tally.ended} of {one.requests} requests; more than "
            f"{above.limits_ms[one.name]:.4g} ms is hopeless against trial {above.trial}"
        )
        value = FailureValue(name=LEAST_OBJECTIVE, value=above.objective_ms, unit="ms")
        raise Ended(self.failure(FailureClass.HOPELESS, summary, values=(value,)))

    def check_applied(self, effective: Mapping[str, EffectiveConfig]) -> None:
        """Raises when a server did not read a setting: what would be measured is another configuration."""
        if (ignored := not_applied(effective)) is not None:
            raise Ended(self.failure(FailureClass.CONFIG_NOT_APPLIED, ignored.summary, ignored.line))

    def found(self, finding: Finding, summary: str, exit_code: int | None = None) -> Ended:
        """What the log told, with the numbers in it."""
        told = self.failure(finding.failure_class, summary, finding.line, exit_code)
        more = {"values": finding.values, "signature": finding.signature, "retry": finding.retry}
        return Ended(told.model_copy(update=more))

    def failure(
        self,
        failure_class: FailureClass,
        summary: str,
        line: str | None = None,
        exit_code: int | None = None,
        values: tuple[FailureValue, ...] = (),
    ) -> Failure:
        """A failure that no log told of."""
        return Failure(
            phase=self.phase,
            failure_class=failure_class,
            summary=redact(summary, self.secrets),
            decisive_line=redact(line, self.secrets) if line is not None else None,
            exit_code=exit_code,
            values=values,
            retry=catalogue().classes[failure_class].retry,
        )


def unblamed(failure: Failure | None, write_problem: str | None) -> Failure | None:
    """A candidate is not to blame where its host could not even have kept its log."""
    if failure is None or write_problem is None or not failure.blames_candidate:
        return failure
    words = {
        "failure_class": FailureClass.INFRASTRUCTURE,
        "summary": f"{write_problem}; {failure.summary}",
        "retry": RetryPolicy.ELSEWHERE,
    }
    return failure.model_copy(update=words)

"""How the load generator's own host fared while it measured: nothing of it is the server's doing."""

from __future__ import annotations

from autotune.domain.value import Value


class HostLoad(Value):
    """Over all levels of a launch; None where it is not known.

    `load_average`: runnable processes of the host over one minute, the larger one of before and after. `cpu_share`: of
    one core, by the busiest load process. `switches_per_s`: involuntary context switches. `steal_share`: of the host's
    processor time, taken by other guests. `clock_step_us`: by how much wall clock and monotonic clock moved apart.
    """

    load_average: float | None = None
    cpu_share: float | None = None
    cpu_ms_per_token: float | None = None
    switches_per_s: float | None = None
    steal_share: float | None = None
    clock_step_us: float | None = None
    window_s: float | None = None
    loop_lag_max_ms: float | None = None

"""One run of the load process, waited for."""

from __future__ import annotations

import os
import time
from pathlib import Path

from workers.load.process import LoadProcess
from workers.load.spec import LoadResult, LoadSpec
from workers.measure.progress import Progress

POLL_S = 0.1
_NEEDED = ("PATH", "LANG", "LC_ALL", "SSL_CERT_FILE", "SSL_CERT_DIR", "PYTHONPATH")
_WORDS = {"warm_up": "warm-up", "load": "load"}


def run_load(spec: LoadSpec, folder: Path, progress: Progress) -> LoadResult:
    """Run the spec in `folder` and give its result. On KeyboardInterrupt nothing of it stays behind.

    Raises LoadFailed where the load itself can't be run.
    """
    names = _NEEDED if spec.api_key_env is None else (*_NEEDED, spec.api_key_env)
    env = {name: os.environ[name] for name in names if name in os.environ}
    process = LoadProcess.start(spec, folder, env)
    seen: tuple[str, str | None] | None = None
    try:
        while True:
            ended = process.ended
            phase = process.poll()
            if phase.phase in _WORDS:
                step = (phase.phase, phase.level)
                if step != seen:
                    progress.say(phase.level or _WORDS[phase.phase])
                seen = step
                told = process.tally(phase.phase)
                if told is not None and told[0] == phase.level:
                    progress.tally(phase.level or _WORDS[phase.phase], told[1])
            if ended:
                return process.result()
            time.sleep(POLL_S)
    finally:
        progress.end()
        process.stop()

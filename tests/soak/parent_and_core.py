"""A simulated server as engines really are: a parent that answers, and a core process in a session of its own.

Run as `python parent_and_core.py serve SYSTEM_FILE [flags]` in the attempt's folder. Three processes are below it:

* `core` called setsid, and has neither the parent's environment nor its folder; with it the parent ends;
* `helper` called setsid and is deaf to SIGTERM;
* `stray` is as `core`, and its own parent has ended: it was given to whoever adopts orphans.

`pids.json` names them all. Until it starts to load, the parent waits a moment without a word.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

SILENT_S = 0.4
SLEEP = ("/bin/sleep", "600")


def stray() -> int:
    """A process whose parent has ended."""
    script = "import subprocess; print(subprocess.Popen(['/bin/sleep', '600'], env={}, cwd='/', stdout=-3, "
    script += "start_new_session=True).pid)"
    return int(subprocess.run([sys.executable, "-S", "-c", script], check=True, stdout=subprocess.PIPE).stdout)


def follow(core: subprocess.Popen[bytes]) -> None:
    """As vLLM's API server does: no core, no server."""
    code = core.wait()
    sys.stderr.write(f"(APIServer pid={os.getpid()}) ERROR core process {core.pid} ended with {code}, shutting down\n")
    sys.stderr.flush()
    os._exit(1)


def main() -> None:
    core = subprocess.Popen(SLEEP, env={}, cwd="/", start_new_session=True)
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    helper = subprocess.Popen([sys.executable, "-S", "-c", deaf], start_new_session=True)
    pids = {"parent": os.getpid(), "core": core.pid, "helper": helper.pid, "stray": stray()}
    draft = Path("pids.json.draft")
    draft.write_text(json.dumps(pids))
    draft.rename("pids.json")
    threading.Thread(target=follow, args=(core,), daemon=True).start()
    time.sleep(SILENT_S)
    from workers.simulator.http.server import run  # after the others are there: it takes a second

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    sys.exit(run())


if __name__ == "__main__":
    main()

"""`python -m workers.simulator serve SYSTEM_FILE [vLLM flags]`."""

import sys

from workers.simulator.http.server import run

if __name__ == "__main__":
    sys.exit(run())

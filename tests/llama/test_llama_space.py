"""Space, template and study of llama.cpp fit each other and the launcher's command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import xllamacpp
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.documents import read_study
from autotune.domain.deployment import facts
from autotune.domain.knobs import ChoiceKind, Knob, KnobValue
from autotune.domain.launch_plan import render
from autotune.domain.study import StudySpec
from autotune.domain.template import fill
from search_spaces.catalog import SpaceCatalog
from workers.engines.llama_server import AUTO, parameters, parser
from workers.host_templates import HostTemplates

SPACE = SpaceCatalog().space("llama-cpp-cpu")
TEMPLATE = HostTemplates().template("llama-cpp")
STUDY_FILE = Path(__file__).parents[2] / "deploy" / "demo" / "llama-cpp.yaml"


def study() -> StudySpec:
    return read_study(STUDY_FILE.read_text(encoding="utf-8"), str(STUDY_FILE))


FACTS = facts(study().deployment, study().workload)


def argv(values: dict[str, KnobValue]) -> list[str]:
    """What the launcher is given for these values, all the way through template and plan."""
    candidate = SPACE.settle(SPACE.complete(values), FACTS).candidate
    places = {"host": "127.0.0.1", "port": "8123", "model": "m", "model_path": "m.gguf", "python": "python3"}
    template = [fill(word, places) for word in TEMPLATE.roles["server"].argv]
    assert template[:3] == ["python3", "-m", "workers.engines.llama_server"]
    return [*template[3:], *render(SPACE, candidate, FACTS).roles["server"].argv]


def engine_parameters(values: dict[str, KnobValue]) -> Any:
    return parameters(parser().parse_args(argv(values)), xllamacpp)


def values_of(knob: Knob) -> st.SearchStrategy[KnobValue]:
    options: list[KnobValue] = list(knob.type.values) if isinstance(knob.type, ChoiceKind) else [True, False]
    return st.sampled_from([None, *options] if knob.unset else options)


CANDIDATES = st.fixed_dictionaries({knob.name: values_of(knob) for knob in SPACE.knobs})


def test_the_study_names_what_is_there() -> None:
    spec = study()
    assert spec.space == SPACE.name
    assert spec.deployment.template == TEMPLATE.name
    assert spec.deployment.model in TEMPLATE.models
    assert TEMPLATE.engine == SPACE.engine
    assert not TEMPLATE.simulated


def test_the_baseline_is_what_the_library_starts_with() -> None:
    assert argv({})[-4:] == ["--alias", "m", "--parallel", "1"]
    plain, ours = xllamacpp.CommonParams(), engine_parameters({})
    names = ("n_batch", "n_ubatch", "n_parallel", "n_ctx", "flash_attn_type", "cache_type_k", "cache_type_v")
    for name in (*names, "kv_unified"):
        assert getattr(ours, name) == getattr(plain, name), name
    assert ours.cpuparams.n_threads == plain.cpuparams.n_threads
    assert ours.cpuparams.poll == plain.cpuparams.poll
    assert engine_parameters({"parallel": None}).n_parallel == AUTO  # llama-server's own default: four slots
    assert (ours.model.path, ours.port, ours.hostnames, ours.model_alias) == ("m.gguf", 8123, ["127.0.0.1"], {"m"})
    assert ours.endpoint_metrics


@pytest.mark.parametrize("name", [recipe.name for recipe in SPACE.recipes])
def test_recipes_settle_without_repair(name: str) -> None:
    recipe = next(r for r in SPACE.recipes if r.name == name)
    settled = SPACE.settle(SPACE.complete(recipe.values), FACTS)
    assert settled.repairs == ()
    assert bool(settled.warnings) == (name == "small-cache-plain-attention")
    assert engine_parameters(recipe.values).n_parallel == 8


def test_values_reach_the_engine() -> None:
    values: dict[str, KnobValue] = {
        "threads": 1,
        "threads_batch": 2,
        "poll": 0,
        "batch_size": 256,
        "ubatch_size": 32,
        "parallel": 4,
        "kv_unified": True,
        "ctx_size": 4096,
        "flash_attn": "on",
        "cache_type_k": "q8_0",
        "cache_type_v": "q4_0",
        "spec_type": "ngram-simple",
        "ngram_match": 2,
        "ngram_draft": 8,
    }
    assert values.keys() == SPACE.by_name.keys()
    params = engine_parameters(values)
    assert (params.cpuparams.n_threads, params.cpuparams_batch.n_threads) == (1, 2)
    assert (params.cpuparams.poll, params.cpuparams_batch.poll) == (0, 0)
    assert (params.n_batch, params.n_ubatch, params.n_parallel, params.n_ctx) == (256, 32, 4, 4096)
    assert params.kv_unified
    assert params.flash_attn_type == xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED
    assert params.cache_type_k == xllamacpp.ggml_type.GGML_TYPE_Q8_0
    assert params.cache_type_v == xllamacpp.ggml_type.GGML_TYPE_Q4_0
    assert params.speculative.types == [xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
    assert (params.speculative.ngram_simple.size_n, params.speculative.ngram_simple.size_m) == (2, 8)


@settings(max_examples=150, deadline=None)
@given(CANDIDATES)
def test_every_candidate_is_a_command_line(values: dict[str, KnobValue]) -> None:
    params = engine_parameters(values)
    slots = 4 if params.n_parallel == AUTO else params.n_parallel
    request = study().workload.prompt_tokens + study().workload.output_tokens
    assert params.n_ctx == 0 or params.n_ctx > slots * request


def test_a_context_too_small_for_its_slots_is_left_to_the_engine() -> None:
    settled = SPACE.settle(SPACE.complete({"ctx_size": 2048, "parallel": 64}), FACTS)
    assert settled.repairs == ("context-holds-every-request",)
    assert "ctx_size" not in settled.candidate.values


@pytest.mark.parametrize(
    ("values", "rule"),
    [
        ({"cache_type_v": "q8_0", "flash_attn": "off"}, "quantised-values-need-flash-attention"),
        ({"batch_size": 8, "parallel": 16}, "batch-holds-every-slot"),
        ({"batch_size": 8, "parallel": 8, "spec_type": "ngram-simple"}, "batch-holds-every-draft"),
    ],
)
def test_what_will_crash_is_said_but_not_refused(values: dict[str, KnobValue], rule: str) -> None:
    warnings = SPACE.settle(SPACE.complete(values), FACTS).warnings
    assert any(warning.startswith(f"{rule}:") for warning in warnings)

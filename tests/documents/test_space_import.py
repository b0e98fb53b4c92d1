"""Files of other tools as spaces."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.cli.choices import SpaceForm
from autotune.documents.space_import import Form, Imported, import_space
from autotune.domain.candidate import Candidate
from autotune.domain.draws import draw
from autotune.domain.knobs import BooleanKind, ChoiceKind, EnvVar, Flag, IntegerKind, JsonPath, Switch
from autotune.domain.launch_plan import render
from autotune.errors import InvalidRequest

SWEEP = [
    {"max_num_seqs": 32, "max-num-batched-tokens": 1024, "enable_prefix_caching": True, "port": 8000},
    {
        "_benchmark_name": "Big one",
        "max-num-seqs": 64,
        "max_num_batched_tokens": 1024,
        "enable_prefix_caching": False,
        "compilation_config": {"cudagraph_mode": "PIECEWISE", "pass_config": {"fuse": True}},
        "async_scheduling": True,
    },
    {"max_num_seqs": 64, "compilation_config.cudagraph_mode": "NONE", "cuda_graph_sizes": [1, 2], "dtype": "on"},
]
OPTIX = r'''
n_particles = 8
[vllm.command]
host = "127.0.0.1"
port = "8000"
others = """--tensor-parallel-size 2 $COMPILATION --gpu-memory-utilization $GPU_MEMORY_UTILIZATION --port 9 \
  --no-enable-prefix-caching --additional-config '{\"a\": {\"b\": \"$AB\"}, \"c\": true}' \
  --max-model-len=$MAX_MODEL_LEN --sizes 1 2"""
[[vllm.target_field]]
name = "MAX_NUM_BATCHED_TOKENS"
config_position = "env"
min = 8192
max = 65536
dtype = "int"
value = 16384
[[vllm.target_field]]
name = "MAX_NUM_SEQS"
config_position = "env"
min = 10
max = 95
dtype = "range"
dtype_param = 10
value = 64
[[vllm.target_field]]
name = "GPU_MEMORY_UTILIZATION"
config_position = "env"
dtype = "enum"
dtype_param = [0.9, 0.91, 0.92]
value = 0.91
[[vllm.target_field]]
name = "COMPILATION"
config_position = "env"
dtype = "enum"
dtype_param = ["", "--compilation-config '{\"cudagraph_mode\": \"FULL\"}' --async-scheduling"]
value = ""
[[vllm.target_field]]
name = "AB"
config_position = "env"
dtype = "bool"
value = true
[[vllm.target_field]]
name = "VLLM_WORKER_MULTIPROC_METHOD"
config_position = "env"
dtype = "enum"
dtype_param = ["fork", "spawn", ""]
value = "spawn"
[[vllm.target_field]]
name = "HCCL_BUFFSIZE"
config_position = "env"
min = 512
max = 512
dtype = "int"
value = 512
[[vllm.target_field]]
name = "MAX_MODEL_LEN"
config_position = "env"
min = 0
max = 0
dtype = "times"
dtype_param = {target_name = "MAX_NUM_SEQS", product = 128, dtype = "int", max_value = 8192}
[[vllm.target_field]]
name = "SOME_RATIO"
config_position = "env"
min = 0.1
max = 0.7
dtype = "ratio"
dtype_param = "MAX_NUM_SEQS"
[[vllm.target_field]]
name = "CONCURRENCY"
config_position = "env"
min = 1
max = 1000
dtype = "int"
value = 100
[[vllm.target_field]]
name = "LD_PRELOAD"
config_position = "env"
dtype = "enum"
dtype_param = ["a.so", "b.so"]
'''
GRID = """
max_num_seqs: [16, 32]
parallel: [1, 10]
HCCL_BUFFSIZE: [200, 512, null]
env: {TASK_QUEUE_ENABLE: [1, 0]}
additional_config: {ascend_compilation_config: {enable_static_kernel: [false, true]}}
gpu_memory_utilization: 0.9
enable_chunked_prefill: [true, null]
"""


def imported(text: str, form: Form, file: str = "My_File.x") -> Imported:
    found = import_space(text, form, Path(file))
    space = found.space
    assert space.settle(dict(space.baseline), {}).candidate == Candidate(values=space.baseline)
    render(space, Candidate(values=space.complete(draw(space, {}, Random(1)))), {})
    return found


def test_the_command_line_names_these_formats() -> None:
    assert [f.value for f in SpaceForm] == [f.value for f in Form]


# --- vllm bench sweep -----------------------------------------------------------------------


def test_a_sweep_becomes_choices() -> None:
    found = imported(json.dumps(SWEEP), Form.VLLM_BENCH_SWEEP)
    space = found.space
    knobs = space.by_name
    assert space.name == "my-file"
    assert space.engine == "vllm"
    assert knobs["max_num_seqs"].type == ChoiceKind(values=(32, 64))
    assert knobs["max_num_seqs"].lands == Flag(flag="--max-num-seqs")
    assert not knobs["max_num_seqs"].unset
    assert knobs["max_num_batched_tokens"].unset
    assert knobs["enable_prefix_caching"].type == BooleanKind()
    assert knobs["enable_prefix_caching"].lands == Switch(
        on="--enable-prefix-caching", off="--no-enable-prefix-caching"
    )
    assert knobs["async_scheduling"].lands == Switch(on="--async-scheduling")
    assert knobs["compilation_config_cudagraph_mode"].type == ChoiceKind(values=("PIECEWISE", "NONE"))
    assert knobs["compilation_config_pass_config_fuse"].lands == JsonPath(
        flag="--compilation-config", path="pass_config.fuse"
    )
    assert knobs["cuda_graph_sizes"].type == ChoiceKind(values=((1, 2),))
    assert knobs["dtype"].type == ChoiceKind(values=("on",))
    assert space.baseline == {"max_num_seqs": 32, "max_num_batched_tokens": 1024, "enable_prefix_caching": True}
    (recipe,) = space.recipes
    assert recipe.name == "big-one"
    assert {n: v for n, v in recipe.values.items() if v is not None} == {
        "max_num_seqs": 64,
        "max_num_batched_tokens": 1024,
        "enable_prefix_caching": False,
        "compilation_config_cudagraph_mode": "PIECEWISE",
        "compilation_config_pass_config_fuse": True,
        "async_scheduling": True,
    }
    assert found.left_out == ("port, which the launch template of the host sets",)
    assert "# Left out: port" in found.text


def test_a_sweep_may_name_its_combinations() -> None:
    found = imported('{"a": {"x": 1}, "b c": {"x": 2}, "b-c": {"x": 1}}', Form.VLLM_BENCH_SWEEP)
    assert [r.name for r in found.space.recipes] == ["b-c", "b-c-again"]


@pytest.mark.parametrize(
    ("text", "key", "message"),
    [
        ("[{", "json", "is not JSON"),
        ('[{"a": NaN}]', "json", "NaN is no JSON number"),
        ("[]", "file", "must be a list of objects"),
        ("[1]", "file", "must be a list of objects"),
        ("3", "file", "must be a list of objects"),
        ('[{"a": 1}]', "file", "varies nothing"),
        ('[{"a": 1}, {"a b": 1}]', "[1].a b", "is no parameter"),
        ('[{"a": [[1]]}, {}]', "[0].a", "can't hold lists of lists"),
        ('[{"a": {"b.c": 1}}, {}]', "[0].a.b.c", "can't be told from a path"),
        ('[{"a": "{x"}, {}]', "[0].a", "is no JSON"),
        ('[{"a": true}, {"a": 3}]', "--a", "is a switch here and takes a value there"),
        ('[{"a.b": true}, {"a": 3}]', "--a", "takes JSON here and takes a value there"),
        ('[{"a.b+": 1}, {}]', "[0].a.b+", "is no parameter"),
    ],
)
def test_what_a_sweep_can_not_say(text: str, key: str, message: str) -> None:
    _refused(text, Form.VLLM_BENCH_SWEEP, key, message)


def _refused(text: str, form: Form, key: str, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        import_space(text, form, Path("f.x"))
    problem = caught.value.problems[0]
    assert problem.key == key
    assert message in problem.message
    assert problem.file == "f.x"


def test_everything_wrong_is_told_at_once() -> None:
    with pytest.raises(InvalidRequest) as caught:
        import_space('[{"a b": 1, "c d": 2}, {"e": [[1]]}]', Form.VLLM_BENCH_SWEEP, Path("f.json"))
    assert [p.key for p in caught.value.problems] == ["[0].a b", "[0].c d", "[1].e"]


values = st.one_of(
    st.booleans(),
    st.integers(-(10**6), 10**6),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Cn", "Co")), max_size=12).filter(
        lambda text: not text.lstrip().startswith("{")
    ),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(values, min_size=2, max_size=5, unique_by=json.dumps))
def test_any_value_comes_through_the_text_unchanged(items: list[bool | int | float | str]) -> None:
    records = [{"some_config.key": value} for value in items]
    space = import_space(json.dumps(records), Form.VLLM_BENCH_SWEEP, Path("f.json")).space
    kind = space.by_name["some_config_key"].type
    found = kind.values if isinstance(kind, ChoiceKind) else (False, True)
    assert {json.dumps(v) for v in found} == {json.dumps(v) for v in items}


# --- OptiX ----------------------------------------------------------------------------------


def test_target_fields_land_where_the_command_names_them() -> None:
    found = imported(OPTIX, Form.OPTIX)
    space = found.space
    knobs = space.by_name
    assert {name: knob.lands for name, knob in knobs.items()} == {
        "max_num_batched_tokens": Flag(flag="--max-num-batched-tokens"),
        "max_num_seqs": Flag(flag="--max-num-seqs"),
        "gpu_memory_utilization": Flag(flag="--gpu-memory-utilization"),
        "compilation_config_cudagraph_mode": JsonPath(flag="--compilation-config", path="cudagraph_mode"),
        "async_scheduling": Switch(on="--async-scheduling"),
        "additional_config_a_b": JsonPath(flag="--additional-config", path="a.b"),
        "vllm_worker_multiproc_method": EnvVar(name="VLLM_WORKER_MULTIPROC_METHOD"),
    }
    assert knobs["max_num_seqs"].type == IntegerKind(low=10, high=90, step=10)
    assert knobs["additional_config_a_b"].type == BooleanKind()
    assert knobs["vllm_worker_multiproc_method"].unset
    assert knobs["compilation_config_cudagraph_mode"].group == knobs["async_scheduling"].group == "compilation"
    assert space.baseline == {
        "max_num_batched_tokens": 16384,
        "max_num_seqs": 60,
        "gpu_memory_utilization": 0.91,
        "additional_config_a_b": True,
        "vllm_worker_multiproc_method": "spawn",
    }


def test_fixed_and_derived_fields_stay_so() -> None:
    found = imported(OPTIX, Form.OPTIX)
    plan = render(found.space, Candidate(values=found.space.baseline), {}).roles["server"]
    words = " ".join(plan.argv)
    assert plan.env["HCCL_BUFFSIZE"] == "512"
    for part in ("--tensor-parallel-size 2", "--no-enable-prefix-caching", "--max-model-len 7680", "--sizes 1 2"):
        assert part in words
    assert '{"a":{"b":true},"c":true}' in words
    assert "--port" not in words
    at_most = render(found.space, Candidate(values={**found.space.baseline, "max_num_seqs": 90}), {})
    assert "--max-model-len 8192" in " ".join(at_most.roles["server"].argv)
    assert [note.split(",")[0] for note in found.left_out] == [
        "value 64 of MAX_NUM_SEQS",
        "CONCURRENCY",
        "LD_PRELOAD",
        "SOME_RATIO",
    ]


def _field(**entries: object) -> str:
    lines = [f"{key} = {json.dumps(value)}" for key, value in entries.items()]
    return "\n".join(["[[vllm.target_field]]", *lines, ""])


AB = _field(name="A", dtype="enum", dtype_param=[1, 2, 4]) + _field(name="B", dtype="int", min=1, max=8, value=2)


@pytest.mark.parametrize(
    ("dtype", "parameters", "expected"),
    [
        ("factories", '{target_name = "A", product = 16, dtype = "int"}', "16 / (knobs.a)"),
        ("ternary_factories", '{target_names = ["A", "B"], product = 16}', "16 / (knobs.a * knobs.b)"),
        ("ternary_times", '{target_names = ["A", "B"], product = 2}', "2 * knobs.a * knobs.b"),
        ("share", '"B"', "9 - knobs.b"),
        ("share", '"A"', None),
        ("times", '{target_name = "A", product = 1.5}', None),
        ("times", '{target_name = "NONE", product = 2}', None),
    ],
)
def test_derived_dtypes(dtype: str, parameters: str, expected: str | None) -> None:
    text = f'{AB}[[vllm.target_field]]\nname = "C"\ndtype = "{dtype}"\nmin = 0\nmax = 0\ndtype_param = {parameters}\n'
    found = imported(text, Form.OPTIX)
    assert [d.value for d in found.space.derived] == ([] if expected is None else [expected])
    assert len(found.left_out) == (expected is None)


@pytest.mark.parametrize(
    ("text", "key", "message"),
    [
        ("a = ", "toml", "is not TOML"),
        ("[other]\n", "vllm.target_field", "is missing"),
        ('[[mindie.target_field]]\nname = "x"\n', "vllm.target_field", "is missing"),
        (_field(dtype="int"), "vllm.target_field[0]", "needs a name"),
        (_field(name="A", dtype="int", min=3, max=1), "vllm.target_field[0]", "no range"),
        (_field(name="A", dtype="enum"), "vllm.target_field[0]", "no range"),
        (_field(name="A", dtype="int", min=True, max=2), "vllm.target_field[0]", "no range"),
        (_field(name="A", dtype="range", min=1, max=2, dtype_param=0), "vllm.target_field[0]", "no range"),
        (_field(name="A", dtype="str"), "vllm.target_field[0].dtype", "'str' is not known here"),
        (f'[vllm.command]\nothers = "\'"\n{AB}', "vllm.command.others", "can't be parted"),
        (f'[vllm.command]\nothers = "--x a$A"\n{AB}', "vllm.command.others", "within other text"),
        (
            _field(name="A", dtype="enum", dtype_param=["--x '{'", ""]),
            "vllm.target_field[0].dtype_param",
            "is no JSON",
        ),
    ],
)
def test_what_optix_can_not_say(text: str, key: str, message: str) -> None:
    _refused(text, Form.OPTIX, key, message)


# --- grids ----------------------------------------------------------------------------------


def test_a_grid_becomes_choices() -> None:
    found = imported(GRID, Form.EVALSCOPE_GRID)
    knobs = found.space.by_name
    assert {name: knob.lands.place for name, knob in knobs.items()} == {
        "max_num_seqs": "flag",
        "hccl_buffsize": "env",
        "task_queue_enable": "env",
        "additional_config_ascend_compilation_config_enable_static_kernel": "json",
        "enable_chunked_prefill": "switch",
    }
    assert knobs["hccl_buffsize"].unset
    assert found.space.baseline["task_queue_enable"] == 1
    assert [(f.lands, f.value) for f in found.space.fixed] == [(Flag(flag="--gpu-memory-utilization"), 0.9)]
    assert found.left_out == ("parallel, which the study's workload sets",)


def test_a_grid_may_be_json_and_names_stay_apart() -> None:
    found = imported('{"tp": [1, 2], "TP": [3, 4]}', Form.EVALSCOPE_GRID, "1.json")
    assert set(found.space.by_name) == {"tp", "tp_env"}
    assert found.space.name == "1"


@pytest.mark.parametrize(
    ("text", "key", "message"),
    [
        ("- 1", "file", "must be a mapping"),
        ("a: [1", "yaml", "is not YAML"),
        ("a: 1", "file", "varies nothing"),
        ("env: {1x: [1, 2]}", "env.1x", "is no name of a variable"),
        ("SIZES: [[1], [2]]", "SIZES", "takes no lists"),
        ("a b: [1, 2]", "a b", "is no parameter"),
    ],
)
def test_what_a_grid_can_not_say(text: str, key: str, message: str) -> None:
    _refused(text, Form.EVALSCOPE_GRID, key, message)


def test_a_problem_of_a_grid_has_its_line() -> None:
    with pytest.raises(InvalidRequest) as caught:
        import_space("a: [1, 2]\nb c: [1]\n", Form.EVALSCOPE_GRID, Path("f.yaml"))
    assert [p.line for p in caught.value.problems] == [2]

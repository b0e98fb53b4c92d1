"""Constants of modules, set by the import hook in real Python processes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.domain.failure import FailureClass, Phase
from autotune.domain.job import TrialJob
from autotune.domain.knobs import Constant, IntegerKind, Knob, KnobValue
from autotune.domain.launch_plan import LaunchPlan, RolePlan, render
from autotune.domain.template import LaunchTemplate
from autotune.errors import InvalidCandidate
from tests import builders
from tests.workers.launching import job, run, template, wait_for
from workers.attempt_files import AttemptFiles
from workers.constants.hook import FOLDER, LONGEST, unproven, with_constants
from workers.constants.site import sitecustomize
from workers.environment import base_environment
from workers.free_port import free_port
from workers.role_command import role_commands
from workers.server_tree import ServerTree

ROOT = Path(__file__).parents[2]
THRESHOLD = "tests.workers.tiny_engine.tuning:TOKEN_THRESHOLD"
SIZES = "tests.workers.tiny_engine.tuning:SIZES"
OLD = {"by_name": 96, "by_module": 96, "inside": 96, "doubled": 192, "sizes": [1, 2, 4]}


def engine_template(python_path: str = str(ROOT)) -> LaunchTemplate:
    argv = ("{python}", "-m", "tests.workers.tiny_engine", "--host", "{host}", "--port", "{port}", "--model", "{model}")
    return template(argv, env={"PYTHONPATH": python_path})


def engine_job(constants: Mapping[str, KnobValue], *argv: str) -> TrialJob:
    plan = LaunchPlan(roles={"server": RolePlan(constants=dict(constants), argv=argv)})
    return job().model_copy(update={"plan": plan})


@contextmanager
def served(root: Path, constants: Mapping[str, KnobValue]) -> Iterator[tuple[httpx.Client, AttemptFiles]]:
    """A running tiny engine, launched as an attempt launches it."""
    files = AttemptFiles(root, "a1")
    files.create()
    port = free_port()
    commands = role_commands(engine_job(constants), engine_template(), files, "127.0.0.1", {"server": port})
    servers = ServerTree(files, commands, (), 2.0)
    try:
        servers.wait_started(1, lambda: None)
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=60) as client:

            def answers() -> bool:
                assert not servers.poll(), files.log_text("server")
                try:
                    return client.get("/health").is_success
                except httpx.TransportError:
                    return False

            wait_for(answers)
            yield client, files
    finally:
        servers.stop()


# --- on a served engine ---------------------------------------------------------------------


def test_a_constant_is_set_by_name_and_by_module_and_in_child_processes(tmp_path: Path) -> None:
    with served(tmp_path, {THRESHOLD: 1, SIZES: (8, 16)}) as (client, files):
        expected = {**OLD, "by_name": 1, "by_module": 1, "inside": 1, "sizes": [8, 16]}
        assert client.get("/constants").json() == expected
        assert client.get("/constants/child").json() == expected
        log = files.log_text("server")
    # One line for each process that imports the module: the server and its child.
    assert log.count(f"autotune: set {THRESHOLD} from 96 to 1\n") == 2
    assert log.count(f"autotune: set {SIZES} from (1, 2, 4) to (8, 16)\n") == 2
    assert unproven({THRESHOLD: 1, SIZES: (8, 16), "tests.other:NAME": 1}, log) == ("tests.other:NAME",)


def test_unset_leaves_nothing_behind(tmp_path: Path) -> None:
    with served(tmp_path / "set", {THRESHOLD: 1}):
        pass
    with served(tmp_path / "unset", {}) as (client, files):
        assert client.get("/constants").json() == OLD
        assert client.get("/constants/child").json() == OLD
        assert "autotune" not in files.log_text("server")


def test_a_knob_of_a_space_is_measured_and_its_command_can_be_run_again(tmp_path: Path) -> None:
    knob = Knob(
        name="token_threshold",
        about="x",
        type=IntegerKind(low=1, high=96),
        unset=True,
        lands=Constant(target=THRESHOLD),
    )
    space = builders.space(knobs=(knob,), rules=(), baseline={}, recipes=())
    plan = render(space, builders.candidate(token_threshold=1), {})
    assert plan.roles["server"].constants == {THRESHOLD: 1}
    assert render(space, builders.candidate(token_threshold=None), {}).roles["server"] == RolePlan()

    outcome = run(tmp_path, job().model_copy(update={"plan": plan}), engine_template())

    assert outcome.failure is None
    assert f"autotune: set {THRESHOLD} from 96 to 1\n" in AttemptFiles(tmp_path, outcome.uid).log_text("server")
    assert outcome.provenance is not None
    env = outcome.provenance.roles["server"].env
    assert env == {"PYTHONPATH": f"{FOLDER}:{ROOT}", "AUTOTUNE_CONSTANTS": json.dumps({THRESHOLD: 1}).replace(" ", "")}


@pytest.mark.parametrize(
    ("target", "value", "words"),
    [
        ("tests.workers.tiny_engine.tuning:NO_SUCH", 1, "does not exist"),
        ("tests.workers.tiny_engine.no_such:THRESHOLD", 1, "does not exist"),
        ("tests.workers.tiny_engine.no.such:THRESHOLD", 1, "does not exist"),
        (THRESHOLD, "much", "is an int, not a str ('much')"),
    ],
)
def test_what_cannot_be_set_fails_the_launch_with_its_name(
    tmp_path: Path, target: str, value: KnobValue, words: str
) -> None:
    outcome = run(tmp_path, engine_job({target: value}), engine_template())
    assert outcome.failure is not None
    assert outcome.failure.failure_class is FailureClass.INVALID_CONFIG
    assert outcome.failure.phase is Phase.READY
    assert outcome.failure.decisive_line == f"autotune: constant {target} {words}"


# --- what a plan may name -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("constants", "words"),
    [
        ({"engine.tuning": 1}, "is not of the form package.module:NAME"),
        ({"engine..tuning:A": 1}, "is not of the form package.module:NAME"),
        ({"subprocess:PIPE": 1}, "belongs to Python itself"),
        ({"os.path:sep": "x"}, "belongs to Python itself"),
        ({"engine:TEXT": "x" * LONGEST}, f"longer than {LONGEST} bytes"),
    ],
)
def test_what_is_no_constant_of_an_engine_is_refused(
    tmp_path: Path, constants: dict[str, KnobValue], words: str
) -> None:
    with pytest.raises(InvalidCandidate) as caught:
        role_commands(engine_job(constants), engine_template(), AttemptFiles(tmp_path, "a"), "127.0.0.1", {"server": 1})
    (problem,) = caught.value.problems
    assert problem.key.startswith("constants")
    assert words in problem.message


def test_a_space_may_not_set_the_variables_of_the_hook_itself(tmp_path: Path) -> None:
    env = {"AUTOTUNE_CONSTANTS": "{}", "PYTHONPATH": "/tmp"}
    with pytest.raises(InvalidCandidate) as caught:
        role_commands(job(env=env), engine_template(), AttemptFiles(tmp_path, "a"), "127.0.0.1", {"server": 1})
    assert {problem.key for problem in caught.value.problems} == {f"env.{name}" for name in env}


def test_the_environment_without_constants_is_as_it_was() -> None:
    assert with_constants({"PYTHONPATH": "/a"}, {}) == {"PYTHONPATH": "/a"}
    assert with_constants({}, {"m:A": None}) == {}
    assert with_constants({"PYTHONPATH": ""}, {"m:A": 1, "m:B": None}) == {
        "PYTHONPATH": str(FOLDER),
        "AUTOTUNE_CONSTANTS": '{"m:A":1}',
    }


TEXTS = st.text(st.characters(codec="utf-8")) | st.just("{port}")
SCALARS = st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.just("m:A") | st.just("m:B"), SCALARS | st.lists(SCALARS, max_size=3).map(tuple), min_size=1))
def test_any_value_comes_out_as_it_went_in_and_looks_like_no_placeholder(constants: dict[str, KnobValue]) -> None:
    text = with_constants({}, constants)["AUTOTUNE_CONSTANTS"]
    assert "{port}" not in text
    assert "\0" not in text
    read = json.loads(text)
    assert read == {name: list(v) if isinstance(v, tuple) else v for name, v in constants.items()}
    for name, value in constants.items():
        assert type(read[name]) is (list if isinstance(value, tuple) else type(value))


# --- the hook alone -------------------------------------------------------------------------


def python(
    folder: Path, code: str, constants: Mapping[str, KnobValue] | str, *, interpreter: str = sys.executable
) -> subprocess.CompletedProcess[str]:
    """Runs the code with `folder` on the path, as a server would be started."""
    env = with_constants({**base_environment(AttemptFiles(folder, "a1")), "PYTHONPATH": str(folder)}, {"m:A": 1})
    env["AUTOTUNE_CONSTANTS"] = constants if isinstance(constants, str) else json.dumps(constants)
    return subprocess.run([interpreter, "-c", code], env=env, capture_output=True, text=True, check=False)


def write(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


def interpreters() -> Iterator[str]:
    """Those on this host that run: a server's Python is not ours."""
    for version in ("3.9", "3.10", "3.11", "3.12", "3.13", "3.14"):
        path = shutil.which(f"python{version}")
        if path and subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0:
            yield path


@pytest.mark.parametrize("interpreter", [sys.executable, *interpreters()])
def test_the_hook_runs_on_other_pythons(tmp_path: Path, interpreter: str) -> None:
    write(tmp_path, {"engine/tuning.py": "LIMIT = 96\nSIZES = [1]\n", "user.py": "from engine.tuning import LIMIT\n"})
    write(tmp_path, {"sitecustomize.py": "import sys\nsys.chained = __name__\n"})
    code = (
        "import sys, user, engine.tuning as t, importlib, inspect\n"
        "print(user.LIMIT, t.LIMIT, t.SIZES, sys.chained)\n"
        "print(type(t.__loader__).__name__, t.__spec__.loader is t.__loader__, repr(inspect.getsource(t)))\n"
        "print(importlib.reload(t).LIMIT)\n"
    )
    done = python(tmp_path, code, {"engine.tuning:LIMIT": 1, "engine.tuning:SIZES": (2, 3)}, interpreter=interpreter)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "1 1 [2, 3] sitecustomize",
        r"SourceFileLoader True 'LIMIT = 96\nSIZES = [1]\n'",
        "1",
    ]
    lines = [
        "autotune: set engine.tuning:LIMIT from 96 to 1",
        "autotune: set engine.tuning:SIZES from [1] to [2, 3]",
    ]
    assert done.stderr.splitlines() == lines * 2
    missing = python(tmp_path, "import engine.tuning", {"engine.tuning:NO": 1}, interpreter=interpreter)
    assert missing.returncode == 1
    assert "ImportError: autotune: constant engine.tuning:NO does not exist" in missing.stderr


@pytest.mark.parametrize(
    ("old", "value", "new"),
    [
        (96, 1, 1),
        (0.5, 2, 2.0),
        (0.5, 0.25, 0.25),
        (True, False, False),
        ("a", "b", "b"),
        (None, "b", "b"),
        (None, [1], (1,)),
        ([1, 2], [3], [3]),
        ((1, 2), [3], (3,)),
        ((), [3], (3,)),
        ((0.5,), [1], (1.0,)),
        ((1, "a"), ["b", 2], ("b", 2)),
        ({1}, [3], {3}),
    ],
)
def test_a_value_becomes_one_of_the_old_ones_type(old: Any, value: Any, new: Any) -> None:
    made = sitecustomize._like(old, value)
    assert made == new
    assert type(made) is type(new)


@pytest.mark.parametrize(
    ("old", "value", "words"),
    [
        (96, "x", r"is an int, not a str \('x'\)"),
        (96, True, "is an int, not a bool"),
        (96, 1.5, "is an int, not a float"),
        (True, 1, "is a bool, not an int"),
        ("a", 1, "is a str, not an int"),
        ("a", ["b"], "is a str, not a list"),
        ([1], 1, "is a list, not an int"),
        ([1], ["a"], "holds what is an int, not a str"),
        ({"a": 1}, 1, "is a dict, not an int"),
        (Path("a"), "a", r"is a \w*Path, not a str"),
    ],
)
def test_another_type_is_refused(old: Any, value: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        sitecustomize._like(old, value)


def test_a_swallowed_import_error_still_leaves_its_line(tmp_path: Path) -> None:
    write(tmp_path, {"engine.py": "LIMIT = 96"})
    code = "try:\n    import engine\nexcept ImportError:\n    print('went on')"
    done = python(tmp_path, code, {"engine:NO": 1})
    assert done.stdout == "went on\n"
    assert done.stderr == "autotune: constant engine:NO does not exist\n"


def test_an_absent_module_is_noticed_as_its_package_is_imported(tmp_path: Path) -> None:
    write(tmp_path, {"engine/__init__.py": "", "engine/a.py": "", "plain.py": ""})
    assert (
        python(tmp_path, "import engine.a", {"engine.b.c:LIMIT": 1}).stderr.count("constant engine.b.c:LIMIT does") == 2
    )
    assert python(tmp_path, "import plain", {"plain.inner:LIMIT": 1}).returncode == 1
    (tmp_path / "bare").mkdir()
    assert python(tmp_path, "import bare", {"bare:LIMIT": 1}).returncode == 1
    # A process that has nothing to do with the package is left alone.
    assert python(tmp_path, "import json", {"engine.b.c:LIMIT": 1}).stderr == ""
    # Neither does a package that is not installed become another error than it is.
    absent = python(tmp_path, "import nowhere.tuning", {"nowhere.tuning:LIMIT": 1})
    assert absent.stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'nowhere'"


def test_a_module_made_by_its_package_is_no_absent_one(tmp_path: Path) -> None:
    text = "import sys, types\nsys.modules['engine.made'] = types.ModuleType('engine.made')"
    write(tmp_path, {"engine/__init__.py": text})
    assert python(tmp_path, "import engine", {"engine.made:LIMIT": 1}).returncode == 0


def test_folders_without_init_may_lead_to_the_module(tmp_path: Path) -> None:
    write(tmp_path, {"space/engine.py": "LIMIT = 96"})
    done = python(tmp_path, "from space.engine import LIMIT; print(LIMIT)", {"space.engine:LIMIT": 1})
    assert (done.stdout, done.returncode) == ("1\n", 0)


def test_an_error_of_the_module_itself_stays_what_it_is(tmp_path: Path) -> None:
    write(tmp_path, {"engine.py": "LIMIT = 1 / 0"})
    done = python(tmp_path, "import engine", {"engine:LIMIT": 1})
    assert done.stderr.splitlines()[-1] == "ZeroDivisionError: division by zero"


def test_a_chained_sitecustomize_that_fails_is_reported_as_ever(tmp_path: Path) -> None:
    write(tmp_path, {"engine.py": "LIMIT = 96", "sitecustomize.py": "raise ValueError('broken')"})
    done = python(tmp_path, "import engine; print(engine.LIMIT)", {"engine:LIMIT": 1})
    assert done.stdout == "1\n"
    assert "Error in sitecustomize" in done.stderr
    assert "ValueError: broken" in done.stderr


def test_the_chained_sitecustomize_gets_the_new_values_too(tmp_path: Path) -> None:
    write(tmp_path, {"engine.py": "LIMIT = 96", "sitecustomize.py": "from engine import LIMIT\nprint(LIMIT)"})
    assert python(tmp_path, "", {"engine:LIMIT": 1}).stdout == "1\n"


@pytest.mark.parametrize("text", ["{", "[]", "3"])
def test_constants_that_cannot_be_read_end_the_process(tmp_path: Path, text: str) -> None:
    done = python(tmp_path, "print('went on')", text)
    assert (done.stdout, done.returncode) == ("", 1)
    assert done.stderr == f"autotune: constants cannot be read: AUTOTUNE_CONSTANTS='{text}'\n"


def test_a_module_that_is_there_before_the_hook_ends_the_process(tmp_path: Path) -> None:
    done = python(tmp_path, "print('went on')", {"importlib.machinery:LIMIT": 1})
    assert (done.stdout, done.returncode) == ("", 1)
    assert done.stderr.startswith("autotune: constant importlib.machinery:LIMIT cannot be set: its module is imported")


def test_a_long_value_is_cut_in_the_log(tmp_path: Path) -> None:
    write(tmp_path, {"engine.py": "TEXT = 'a'"})
    done = python(tmp_path, "import engine; print(len(engine.TEXT))", {"engine:TEXT": "b\n" * 500})
    assert done.stdout == "1000\n"
    assert len(done.stderr.splitlines()) == 1
    assert len(done.stderr) < 150


def test_nothing_but_the_hook_lies_in_the_folder() -> None:
    """It is first on a foreign path: any other module in it would hide one of the server's."""
    assert {p.name for p in FOLDER.iterdir()} - {"__pycache__"} == {"sitecustomize.py"}
    assert os.pathsep not in str(FOLDER)

"""Scripts and YAML that launch servers, read as text: nothing in them runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.documents.bash_launches import Launches, read_script
from autotune.documents.launch_script import read_launches
from autotune.domain.launch_plan import RolePlan
from autotune.errors import InvalidRequest


def server(script: str) -> RolePlan:
    launches = read_script(script)
    assert list(launches.roles) == ["server"]
    return launches.roles["server"]


def found(launches: Launches) -> list[tuple[str, str]]:
    return [(finding.rule, finding.message) for finding in launches.findings]


SERVE = "vllm serve /m --a 1"
ARGV = ("vllm", "serve", "/m", "--a", "1")


@pytest.mark.parametrize(
    ("script", "env"),
    [
        (f"export A=b\n{SERVE}", {"A": "b"}),
        (f"export A='x y' B=\"z\" # c\n{SERVE}", {"A": "x y", "B": "z"}),
        (f"A=b {SERVE}", {"A": "b"}),
        (f"A=b\n{SERVE}", {}),
        (f"A=b\nexport A\n{SERVE}", {"A": "b"}),
        (f"set -a\nA=b\n{SERVE}", {"A": "b"}),
        (f"declare -x A=b\n{SERVE}", {"A": "b"}),
        (f"env A=b C=$D {SERVE}", {"A": "b", "C": "$D"}),
        (f"export A=b B=c\nenv -u A {SERVE}", {"B": "c"}),
        (f"export A=b\nenv -i C=d {SERVE}", {"C": "d"}),
        (f"export A=b\nunset A\n{SERVE}", {}),
        (f"export P=/x:$PYTHONPATH\n{SERVE}", {"P": "/x:$PYTHONPATH"}),
        (f"export A=1\nexport B=${{A}}2 C=${{X:-3}} D=${{A:-4}} E=${{X}}\n{SERVE}", {
            "A": "1", "B": "12", "C": "3", "D": "1", "E": "${X}",
        }),
        (f"export A=\"a'b\" B='$A' C=\\$x\n{SERVE}", {"A": "a'b", "B": "$A", "C": "$x"}),
        (f"export A=$(hostname) B=`id`\n{SERVE}", {"A": "$(hostname)", "B": "`id`"}),
        (f"export A=1; export A=2; {SERVE}", {"A": "2"}),
        (f"export A=1\r\n{SERVE}\r\n", {"A": "1"}),
    ],
)  # fmt: skip
def test_every_way_to_set_a_variable(script: str, env: dict[str, str]) -> None:
    plan = server(script)
    assert plan.env == env
    assert plan.argv == ARGV


@pytest.mark.parametrize(
    "script",
    [
        f"exec {SERVE}",
        f"nohup {SERVE} > log.txt 2>&1 &",
        f"nohup setsid nice -n 5 {SERVE} &>> log &",
        f"{SERVE} 2>&1 | tee log",
        "vllm serve /m \\\n  --a \\\n  1",
        "M=/m\nvllm serve $M --a ${N:-1}",
        'ARGS="--a 1"\nvllm serve /m $ARGS',
        'ARGS=(/m\n  --a  # why\n  1)\nvllm serve "${ARGS[@]}"',
        'ARGS=(/m)\nARGS+=(--a 1)\nvllm serve "${ARGS[@]}"',
        "vllm serve /m \\\n  --a 1 >/dev/null </dev/null &\nPID=$!\nwait $PID",
        "cd /tmp && vllm serve /m --a 1 || exit 1",
        "run() {\n  vllm serve /m --a 1\n}\nrun",
        "function run {\n  vllm serve /m --a 1\n}\nrun",
        'if [ "$1" = "x" ]; then\n  vllm serve /m --a 1\nfi',
        "for i in 1 2; do\n  vllm serve /m --a 1\ndone",
        "bash -c 'vllm serve /m --a 1'",
        "timeout -k 5 100 vllm serve /m --a 1",
        "cat > x <<EOF\n'unclosed\nEOF\nvllm serve /m --a 1",
        "echo $((1 + 2)); (( x = 3 )); vllm serve /m --a 1",
        "vllm bench serve --a 2\nvllm serve /m --a 1\ncurl http://x/vllm",
    ],
)
def test_every_way_to_start_a_server(script: str) -> None:
    assert server(script).argv == ARGV


@pytest.mark.parametrize(
    ("command", "role"),
    [
        ("python3 -m vllm.entrypoints.openai.api_server --model /m", "server"),
        ("python -m sglang.launch_server --disaggregation-mode prefill", "prefill"),
        ("python -m sglang.launch_server --disaggregation_mode=decode", "decode"),
        ("sglang serve /m", "server"),
        ("python -m sglang_router.launch_router --pd-disaggregation", "router"),
        ("python3 load_balance_proxy_server_example.py --port 1", "router"),
        ("""vllm serve /m --kv-transfer-config '{"kv_role": "kv_producer"}'""", "prefill"),
        ("""vllm serve /m --kv_transfer_config '{"kv_role":\n "kv_consumer"}'""", "decode"),
        ("""vllm serve /m --kv-transfer-config '{"kv_role": "kv_both"}'""", "server"),
        ("vllm serve /m --kv-transfer-config.kv_role kv_consumer", "decode"),
        ("llama-server -m /m", "server"),
    ],
)
def test_roles(command: str, role: str) -> None:
    assert list(read_script(command).roles) == [role]


def test_json_over_several_lines_stays_one_argument() -> None:
    script = 'vllm serve /m --c \'{"a":\n  1}\' --d "{\\"b\\": 2}"'
    assert server(script).argv[3:] == ("--c", '{"a":\n  1}', "--d", '{"b": 2}')


def test_several_servers_have_the_environment_of_their_line() -> None:
    script = (
        "export A=1 B=1\npython -m sglang.launch_server --disaggregation-mode prefill &\n"
        "export B=2\nC=3 python -m sglang.launch_server --disaggregation-mode decode &\n"
        "python -m sglang_router.launch_router &\n"
    )
    launches = read_script(script)
    assert {name: role.env for name, role in launches.roles.items()} == {
        "prefill": {"A": "1", "B": "1"},
        "decode": {"A": "1", "B": "2", "C": "3"},
        "router": {"A": "1", "B": "2"},
    }
    assert launches.lines == {"prefill": 2, "decode": 4, "router": 5}


@pytest.mark.parametrize(
    "script",
    [
        "if [ $R = p ]; then\n export P=1\n {p}\nelse\n export D=1\n {d}\nfi",
        "if [ $R = p ]; then\n export P=1\n {p}\nelif [ $R = d ]; then\n export D=1\n {d}\nfi",
        "case $R in\n p)\n export P=1\n {p}\n ;;\n d) export D=1; {d};;\nesac",
        "p() {{\n export P=1\n {p}\n}}\nd() {{\n export D=1\n {d}\n}}\n$R",
        "( export P=1; {p} ) &\n( export D=1; {d} ) &",
        "for i in 0 1; do\n if [ $i = 0 ]; then\n  export P=1\n  {p}\n  exit 1\n fi\ndone\nexport D=1\n{d}",
    ],
)
def test_a_branch_that_launches_leaves_nothing_to_the_next(script: str) -> None:
    command = "python -m sglang.launch_server --disaggregation-mode "
    both = script.format(p=f"{command}prefill", d=f"{command}decode")
    launches = read_script(f"export A=1\n{both}\n")
    assert launches.roles["prefill"].env == {"A": "1", "P": "1"}
    assert launches.roles["decode"].env == {"A": "1", "D": "1"}


def test_a_branch_that_only_prepares_is_taken() -> None:
    script = f"if [ -z $A ]; then\n  export A=1\nelse\n  exit 1\nfi\nsetup() {{\n  export B=2\n}}\n{SERVE}"
    assert server(script).env == {"A": "1", "B": "2"}


# --- what is reported -----------------------------------------------------------------------


def test_binding_is_dropped_and_reported() -> None:
    launches = read_script(f"\nnumactl -C 0-31 --membind=0 taskset -c 0-3 {SERVE}")
    assert launches.roles["server"].argv == ARGV
    text = "line 2: `numactl -C 0-31 --membind=0 taskset -c 0-3` binds the server's cores or memory; left out"
    assert found(launches) == [("prefix-dropped", text)]


def test_two_launches_of_one_role_are_told_and_equal_ones_are_not() -> None:
    assert read_script(f"{SERVE}\n{SERVE}").findings == ()
    launches = read_script(f"{SERVE}\n{SERVE} --b 2")
    assert launches.roles["server"].argv == ARGV
    text = "line 2: another launch of role server; only the one of line 1 is read"
    assert found(launches) == [("several-launches", text)]


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (f"{SERVE} \\\n  # --b 2 \\\n  --c 3", "line 3: --c stands alone: no backslash joins it to the command above"),
        (f"docker run -e A=1 image {SERVE}", "line 1: a launch inside `docker` is not read"),
        (f"{SERVE} \\  \n --b 2", "line 1: blanks after the backslash end the command here"),
        (f"{SERVE} 'open", "line 1: a quote is not closed"),
        (f'{SERVE} "open', "line 1: a quote is not closed"),
        ("cat > run.sh <<EOF\nvllm serve /m\nEOF", "line 2: the text of a here-document is not read"),
        (f"bash -c 'docker run {SERVE}'", "line 1, inside -c: line 1: a launch inside `docker` is not read"),
    ],
)
def test_what_is_not_understood_is_told_with_its_line(script: str, message: str) -> None:
    ((rule, text),) = found(read_script(script))
    assert rule == "not-understood"
    assert text.startswith(message)


def test_arguments_that_only_the_shell_knows_are_left_out() -> None:
    launches = read_script(f'{SERVE} --b $B "$@" $MORE')
    assert launches.roles["server"].argv == (*ARGV, "--b", "$B")
    assert [rule for rule, _ in found(launches)] == ["unresolved", "unresolved"]


def test_nothing_runs(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    script = f"touch {mark}\nexport A=$(touch {mark}) B=`touch {mark}`\n: ${{C:=$(touch {mark})}}\n{SERVE}"
    assert server(script).env["A"] == f"$(touch {mark})"
    assert not mark.exists()


def test_a_long_script_is_read_quickly_enough() -> None:
    lines = "\n".join(f"export A{n}='{n}' # {'x' * 40}" for n in range(5000))
    assert len(server(f"{lines}\n{SERVE}").env) == 5000


def test_a_script_that_launches_nothing_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"run\.sh launches nothing") as error:
        read_launches("export A=1\ndocker run image vllm serve /m", "run.sh")
    assert [problem.key for problem in error.value.problems] == ["file", "not-understood"]


# --- YAML -----------------------------------------------------------------------------------


def test_yaml_of_one_server() -> None:
    text = (
        "env: {A: 1, B: true, C: x}\nargv: [--a, 1, --b, 0.5]\npreload: [jemalloc]\nconstants: {'p:N': 2}\nstack: new\n"
    )
    launches = read_launches(text, "run.yaml")
    assert launches.roles == {
        "server": RolePlan(
            env={"A": "1", "B": "true", "C": "x"},
            argv=("--a", "1", "--b", "0.5"),
            preload=("jemalloc",),
            constants={"p:N": 2},
            stack="new",
        )
    }


def test_yaml_of_roles_and_argv_as_one_text() -> None:
    text = "roles:\n  prefill: {env: {A: 1}}\n  decode:\n    argv: >-\n      --a '{\"x\": 1}'\n      --b\n"
    launches = read_launches(text, "run.yml")
    assert launches.roles["prefill"].env == {"A": "1"}
    assert launches.roles["decode"].argv == ("--a", '{"x": 1}', "--b")
    assert launches.lines == {"prefill": 2, "decode": 3}


@pytest.mark.parametrize(
    ("text", "line", "key"),
    [
        ("- a", 1, "file"),
        ("{}", 1, "file"),
        ("roles: {}", 1, "file"),
        ("roles: {a: {env: {}}}\nenv: {}", 1, "file"),
        ("roles:\n  a:\n    envs: {}", 2, "roles.a"),
        ("env: [1]", 1, "env"),
        ("env: {A: [1]}", 1, "env"),
        ("argv: {a: 1}", 1, "argv"),
        ('env: {}\nargv: "--a \'x"', 2, "argv"),
        ("preload: {a: 1}\nstack: [1]", 1, "file"),
    ],
)
def test_yaml_that_is_no_launch_is_refused_with_the_line(text: str, line: int, key: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        read_launches(text, "run.yaml")
    assert [(problem.key, problem.line) for problem in error.value.problems] == [(key, line)]

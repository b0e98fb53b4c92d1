"""A recipe as files: JSON with the evidence, the env alone, a script that starts the server.

The recorded command keeps `{host}`, `{port}`, the ports of other roles and `{trial_dir}` open; the script fills
them from HOST, PORT and RUN_DIR. Everything else is quoted, so that it reaches the server byte for byte.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from typing import Any

from autotune.domain.job import LaunchedRole
from autotune.domain.knobs import SERVER
from autotune.domain.launcher import environment_words
from autotune.domain.recipe import Comparison, Evidence, Interval, Recipe
from autotune.domain.template import CONSTANTS_VARIABLE

MASKED = "***"  # the worker host records secrets so
SYSTEM_PATH = "/bin:/usr/bin"
MADE_BY_US = frozenset({"AUTOTUNE_ATTEMPT"})  # marks the processes of an attempt; means nothing elsewhere
_OPEN = re.compile(r"\{(host|(?:[A-Za-z0-9._-]+_)?port|trial_dir)\}")
_SHELL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


def to_json(recipe: Recipe) -> str:
    """What is recommended, against what, with which evidence. Times in ms, gains in percent of the baseline."""
    chosen = proof_of_best(recipe)
    content = {
        "study_id": recipe.study_id,
        "study_name": recipe.study_name,
        "confirmed": recipe.confirmed,
        "finding": recipe.finding,
        "simulated": recipe.simulated,
        "space": recipe.space,
        "engine": recipe.engine,
        "chip": recipe.chip,
        "workload": recipe.workload.model_dump(mode="json"),
        "objective": recipe.objective.model_dump(mode="json"),
        "sla": [str(limit) for limit in recipe.sla],
        "confidence": recipe.confidence,
        "gain_pct": {} if chosen is None else _intervals(chosen.gain_pct_by_level),
        "objective_gain_pct": None if chosen is None else _interval(chosen.gain_pct),
        "changes": {knob: {"from": old, "to": new} for knob, (old, new) in sorted(recipe.changes.items())},
        "best": _configuration(recipe.best, recipe.roles),
        "baseline": _configuration(recipe.baseline, recipe.baseline_roles),
        "contenders": [
            {
                **_evidence(contender.evidence),
                "proven": contender.proven,
                "reason": contender.reason,
                "gain_pct": _intervals(contender.gain_pct_by_level),
                "objective_gain_pct": _interval(contender.gain_pct),
            }
            for contender in recipe.contenders
        ],
        "seed": recipe.seed,
        "versions": {"autotune": recipe.version},
        "created_at": recipe.created_at.isoformat(),
    }
    return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def to_env(recipe: Recipe, *, baseline: bool = False) -> str:
    """`NAME=value` lines for `set -a; . FILE` or an EnvironmentFile, quoted where needed.

    What holds only for one launch (a folder, a port), or is secret, is kept as a comment.
    """
    lines = _header(recipe, baseline, "env")
    roles = recipe.baseline_roles if baseline else recipe.roles
    for name, role in roles.items():
        lines += ["", *_comment(f"role {name}")] if len(roles) > 1 else []
        for variable, value in _env(role).items():
            if _OPEN.search(value) or value == MASKED or not _SHELL_NAME.fullmatch(variable):
                lines += _comment(f"{variable}={value}")
            else:
                lines.append(f"{variable}={shlex.quote(value)}")
    return "\n".join(lines) + "\n"


def to_sh(recipe: Recipe, *, baseline: bool = False) -> str:
    """A bash script that starts exactly what was measured, in an environment made from scratch.

    HOST, PORT and RUN_DIR may be set from outside. One role replaces the script; several run beside each
    other, the n-th on PORT + n - 1, and all end with the first that ends. Secrets, which are not recorded,
    must be in the environment of the script. A server that was measured in a container is started in one.
    """
    roles = recipe.baseline_roles if baseline else recipe.roles
    attached = [f"{name} runs already, at {role.url}: nothing is started" for name, role in roles.items() if role.url]
    if attached:
        told = [line for words in attached for line in _comment(words)]
        return "\n".join(["#!/usr/bin/env bash", *_header(recipe, baseline, "sh"), *told, ""])
    parts = [
        "#!/usr/bin/env bash",
        *_header(recipe, baseline, "sh"),
        "# shellcheck disable=SC2016  # a dollar sign within a setting is meant for the server",
        "set -euo pipefail",
        "",
        'HOST="${HOST:-127.0.0.1}"',
        'PORT="${PORT:-8000}"',
        'RUN_DIR="${RUN_DIR:-./autotune-run}"',
        "",
        "# The server writes below RUN_DIR: its home, its temporary files, what it leaves in its working directory.",
        'mkdir -p -- "$RUN_DIR"',
        "CDPATH='' cd -- \"$RUN_DIR\"",
        'RUN_DIR="$PWD"',
        "mkdir -p home tmp",
        *_required_secrets(roles),
        "",
    ]
    if len(roles) == 1:
        ((name, role),) = roles.items()
        return "\n".join([*parts, f"exec {_command(role, 'PORT', {name: 'PORT'})}", ""])
    ports = {name: f"PORT_{index}" for index, name in enumerate(roles)}
    commands = {name: _command(role, ports[name], ports) for name, role in roles.items()}
    for index, (name, port) in enumerate(ports.items()):
        told = [role for role, command in commands.items() if f'"${port}"' in command]
        parts += [*_comment(f"port of {name}"), f'{port}="$((PORT + {index}))"'] if told else []
    parts += [
        "pids=()",
        "stop() {",
        "  trap - EXIT",
        '  kill "${pids[@]}" 2>/dev/null || true',
        "  wait || true",
        "}",
        "trap stop EXIT",
        "trap 'exit 143' TERM",
        "trap 'exit 130' INT",
        "",
    ]
    for name, command in commands.items():
        parts += [*_comment(f"role {name}"), f"{command} &", 'pids+=("$!")', ""]
    return "\n".join([*parts, "wait -n", ""])


def proof_of_best(recipe: Recipe) -> Comparison | None:
    """The comparison behind `best`; None where the baseline stays."""
    if not recipe.confirmed:
        return None
    return next((c for c in recipe.contenders if c.evidence == recipe.best), None)


# --- json -----------------------------------------------------------------------------------


def _configuration(evidence: Evidence, roles: Mapping[str, LaunchedRole]) -> dict[str, Any]:
    """`env` and `argv` are those of the one server; `roles` holds them all."""
    first = roles.get(SERVER) or next(iter(roles.values()), None)
    return {
        **_evidence(evidence),
        "env": {} if first is None else _env(first),
        "argv": [] if first is None else list(first.argv),
        "roles": {name: _launch(role) for name, role in roles.items()},
    }


def _launch(role: LaunchedRole) -> dict[str, Any]:
    """In a container, `env` and `argv` are those within; a role that ran already has its `url`."""
    found: dict[str, Any] = {"env": _env(role), "argv": list(role.argv)}
    if role.run:
        found |= {"run": list(role.run), "image": role.image}
    return found if role.url is None else found | {"url": role.url}


def _evidence(evidence: Evidence) -> dict[str, Any]:
    return {
        "label": evidence.label,
        "trial": evidence.trials[0] if evidence.trials else None,
        "trials": list(evidence.trials),
        "failed_trials": list(evidence.failed_trials),
        "infeasible_trials": list(evidence.infeasible_trials),
        "candidate": dict(sorted(evidence.candidate.values.items())),
        "objective": _interval(evidence.objective),
        "tpot_ms": _means(evidence.tpot_ms),
        "ttft_ms": _means(evidence.ttft_ms),
        "output_tok_s": _means(evidence.output_tok_s),
        "intervals": {
            "tpot_ms": _intervals(evidence.tpot_ms),
            "ttft_ms": _intervals(evidence.ttft_ms),
            "output_tok_s": _intervals(evidence.output_tok_s),
        },
    }


def _means(intervals: Mapping[str, Interval]) -> dict[str, float]:
    return {level: interval.mean for level, interval in intervals.items()}


def _intervals(intervals: Mapping[str, Interval]) -> dict[str, dict[str, Any]]:
    return {level: interval.model_dump() for level, interval in intervals.items()}


def _interval(interval: Interval | None) -> dict[str, Any] | None:
    return None if interval is None else interval.model_dump()


# --- shell ----------------------------------------------------------------------------------


def _header(recipe: Recipe, baseline: bool, form: str) -> list[str]:
    what = "the baseline" if baseline else "the best configuration" if recipe.confirmed else "the baseline, which stays"
    chip = f" on {recipe.chip}" if recipe.chip else ""
    option = " --baseline" if baseline else ""
    lines = _comment(f"Study {recipe.study_id} ({recipe.study_name}), {recipe.engine}{chip}: {what}.")
    if recipe.simulated:
        lines += _comment("SIMULATED: measured on a simulated server, these are no figures of a real device.")
    lines += _comment(claim_in_words(recipe))
    gains = proof_of_best(recipe)
    for level, gain in (gains.gain_pct_by_level if gains else {}).items():
        what = f"gain in {recipe.objective.metric} at {level}: {gain_in_words(gain)}"
        lines += _comment(f"  {what}, {recipe.confidence:.0%} confidence")
    for knob, (old, new) in sorted(recipe.changes.items()) if not baseline else ():
        lines += _comment(f"  {knob}: {setting_in_words(old)} -> {setting_in_words(new)}")
    lines += _comment(f"Versions: autotune {recipe.version}. Space {recipe.space}, seed {recipe.seed}.")
    load = ", ".join(f"{level.name} {level.extent}" for level in recipe.workload.levels)
    tokens = f"{recipe.workload.prompt_tokens} prompt and {recipe.workload.output_tokens} output tokens"
    lines += _comment(f"Load: {tokens}; {load}. Limits: {', '.join(map(str, recipe.sla)) or 'none'}.")
    lines += _hook_in_words(recipe.baseline_roles if baseline else recipe.roles)
    lines += _comment(f"To write this file again: autotune export {recipe.study_id} --format {form}{option}")
    return lines


def _hook_in_words(roles: Mapping[str, LaunchedRole]) -> list[str]:
    """Where the import hook lies, if a constant of the engine was set: without autotune there is none."""
    paths = {role.env.get("PYTHONPATH", "").split(":")[0] for role in roles.values() if CONSTANTS_VARIABLE in role.env}
    words = f"{CONSTANTS_VARIABLE} sets constants of the engine's modules through a hook that comes with autotune:"
    return [line for path in sorted(paths) for line in _comment(f"{words} {path}")]


def claim_in_words(recipe: Recipe) -> str:
    """`CONFIRMED: ...` or `NOT PROVEN: ...`, whether or not the finding says so itself."""
    word = "CONFIRMED" if recipe.confirmed else "NOT PROVEN"
    finding = recipe.finding
    if finding.upper().startswith(word):
        finding = finding[len(word) :].lstrip(":;, ")
    return f"{word}: {finding}" if finding else word


def gain_in_words(gain: Interval) -> str:
    """`24.1 % [22.0, 26.3], 3 launches`."""
    return f"{gain.mean:.1f} % [{gain.low:.1f}, {gain.high:.1f}], {gain.n} launches"


def setting_in_words(value: Any) -> str:
    """A knob's value for a reader; `unset` where it leaves no trace."""
    return "unset" if value is None else json.dumps(value, ensure_ascii=False)


def _comment(text: str) -> list[str]:
    """One line whatever the text holds: a finding must not become a command."""
    return ["# " + _CONTROL.sub(" ", text)]


def _env(role: LaunchedRole) -> dict[str, str]:
    return {name: value for name, value in sorted(role.env.items()) if name not in MADE_BY_US}


def _required_secrets(roles: Mapping[str, LaunchedRole]) -> list[str]:
    every = [pair for role in roles.values() for pair in (*_env(role).items(), *role.client_env.items())]
    masked = {name for name, value in every if _is_masked(name, value)}
    return [f': "${{{name}:?is a secret that was not recorded; set it}}"' for name in sorted(masked)]


def _is_masked(name: str, value: str) -> bool:
    return value == MASKED and _SHELL_NAME.fullmatch(name) is not None


def _command(role: LaunchedRole, port: str, ports: Mapping[str, str]) -> str:
    """The role's own variables lie over what the worker host gives to every server.

    `port` is the script's variable for the role's own port, `ports` are those of all roles.
    """
    variables = {"host": "HOST", "port": port, "trial_dir": "RUN_DIR"}
    variables |= {f"{name}_port": variable for name, variable in ports.items()}
    if role.run:
        return _contained(role, variables)
    folder, _, _ = role.argv[0].rpartition("/")
    own_path = SYSTEM_PATH if not folder or folder in SYSTEM_PATH.split(":") else f"{folder}:{SYSTEM_PATH}"
    every = {"PATH": own_path, "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"}
    every |= {"HOME": "{trial_dir}/home", "TMPDIR": "{trial_dir}/tmp"}
    words = ["env -i"]
    for name, value in {**every, **_env(role)}.items():
        words.append(
            f'{name}="${name}"' if _is_masked(name, value) else f"{shlex.quote(name)}={_word(value, variables)}"
        )
    # env would take a program with "=" in its path for one more variable; nice runs it and changes nothing.
    words += ["nice -n 0"] if "=" in role.argv[0] else []
    words += [_word(word, variables) for word in role.argv]
    return " \\\n  ".join(words)


def _contained(role: LaunchedRole, variables: Mapping[str, str]) -> str:
    """The engine's client has an environment of its own; what the server gets is written as its options."""
    folder, _, _ = role.run[0].rpartition("/")
    places = {"HOME": "{trial_dir}/home", "TMPDIR": "{trial_dir}/tmp"}
    client = {"PATH": f"{folder}:{SYSTEM_PATH}" if folder else SYSTEM_PATH, **places, **role.client_env}
    env = {"LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", **places, **_env(role)}
    masked = frozenset(name for name, value in env.items() if _is_masked(name, value))
    words = ["env -i", *(f"{shlex.quote(n)}={_word(v, variables)}" for n, v in client.items() if not _is_masked(n, v))]
    words += [f'{name}="${name}"' for name in sorted(masked | {n for n, v in client.items() if _is_masked(n, v)})]
    inside = (*role.run, *environment_words(env, masked), role.image or "", *role.argv)
    return " \\\n  ".join([*words, *(_word(word, variables) for word in inside)])


def _word(text: str, variables: Mapping[str, str]) -> str:
    """One word of the shell, quoted, with the open places taken from the script's variables."""
    parts = _OPEN.split(text)  # text, name, text, name, ..., text
    words = [
        f'"${variables[part]}"' if i % 2 and part in variables else _quoted(part, open_place=i % 2 == 1)
        for i, part in enumerate(parts)
    ]
    return "".join(words) or "''"


def _quoted(text: str, *, open_place: bool) -> str:
    """A place that no role of the recipe fills stays as it was written."""
    whole = "{" + text + "}" if open_place else text
    return shlex.quote(whole) if whole else ""

"""A space with a knob for every landing place and kind, and the facts of a small study."""

from __future__ import annotations

from typing import Any

from autotune.domain.deployment import Deployment, facts
from autotune.domain.knobs import (
    BooleanKind,
    ChoiceKind,
    Constant,
    EnvFragment,
    EnvVar,
    Flag,
    FloatKind,
    IntegerKind,
    JsonPath,
    Knob,
    ListKind,
    Preload,
    StackChoice,
    Switch,
)
from autotune.domain.space import (
    DeadSetting,
    DerivedSetting,
    FixedSetting,
    Rename,
    Rule,
    SearchSpace,
    Severity,
    UnitRange,
)
from autotune.domain.stack import Needs, StackVersions
from search_spaces.catalog import SpaceCatalog
from tests import builders

DIGIT = IntegerKind(low=0, high=9)
SIZES = ListKind(items=(1, 2, 4, 8, 16))


def knob(name: str, kind: Any, lands: Any, **more: Any) -> Knob:
    return Knob(**{"name": name, "about": name, "type": kind, "unset": True, "lands": lands, **more})


SPACE = SearchSpace(
    name="all-places",
    engine="vllm-ascend",
    about="A knob for every landing place and kind.",
    knobs=(
        knob("env", DIGIT, EnvVar(name="ENV")),
        knob("on", BooleanKind(), EnvVar(name="ON")),
        knob("word", ChoiceKind(values=("a b", "it's", "true")), EnvVar(name="WORD")),
        knob("part_a", BooleanKind(), EnvFragment(name="CONF", key="a")),
        knob("part_b", FloatKind(low=0, high=1), EnvFragment(name="CONF", key="b")),
        knob("lib", ChoiceKind(values=("jemalloc", "tcmalloc")), Preload()),
        knob("flag", FloatKind(low=-1, high=9), Flag(flag="--flag")),
        knob("yes", ChoiceKind(values=(True,)), Flag(flag="--yes")),
        knob("sizes", SIZES, Flag(flag="--sizes")),
        knob("pair", BooleanKind(), Switch(on="--pair", off="--no-pair")),
        knob("one_side", BooleanKind(), Switch(on="--one-side"), unset=False),
        knob("deep", DIGIT, JsonPath(flag="--conf", path="outer.deep_key")),
        knob("list", SIZES, JsonPath(flag="--conf", path="list")),
        knob("truth", BooleanKind(), JsonPath(flag="--conf", path="truth")),
        knob("constant", DIGIT, Constant(target="pkg.mod:NAME")),
        knob("stack", ChoiceKind(values=("old", "new")), StackChoice()),
        knob("tensor_parallel", ChoiceKind(values=(1, 2, 4)), Flag(flag="--tensor-parallel-size")),
        knob("late", DIGIT, EnvVar(name="LATE"), when="facts.tensor_parallel > 1"),
        knob("rare", DIGIT, EnvVar(name="RARE"), tier=3),
        knob("never", DIGIT, EnvVar(name="NEVER"), tier=4),
        knob("newer", DIGIT, EnvVar(name="NEWER"), needs=Needs(engine=">=2")),
    ),
    fixed=(FixedSetting(lands=Flag(flag="--port-range"), value=7),),
    derived=(
        DerivedSetting(name="double", lands=EnvVar(name="DOUBLE"), value="knobs.env * 2", when="knobs.env != null"),
        DerivedSetting(
            name="ranks",
            lands=Flag(flag="--tensor-parallel-size"),
            value="facts.tensor_parallel",
            when="knobs.tensor_parallel == null",
        ),
    ),
    rules=(
        Rule(name="small", severity=Severity.WARN, require="knobs.env == null || knobs.env < 5", why="w", mend="m"),
        Rule(name="never-nine", severity=Severity.REFUSE, require="knobs.env != 9", why="nine", mend="take 8"),
    ),
    renames=(
        Rename(old="--old-flag", new="--flag", needs=Needs(engine=">=1"), about="renamed in 1"),
        Rename(old="--conf before", new="--conf outer"),
    ),
    dead=(
        DeadSetting(key="--gone", why="went in 1", mend="drop it", needs=Needs(engine=">=1")),
        DeadSetting(key="--conf attic", why="never read"),
        DeadSetting(key="env CONF:old", why="no such option"),
    ),
    units=(UnitRange(key="env TIMEOUT_MS", low=1000, high=100_000, unit="ms", why="counts ms, not s"),),
    baseline={"one_side": False, "env": 1},
    stack=StackVersions(engine="1.0"),
)
LOAD = builders.workload()
FACTS = facts(Deployment(template="t", model="m", devices=16, tensor_parallel=2, max_model_len=8192), LOAD)
MODEL_FACTS = {"experts": 64, "shared_experts": 1, "hidden_size": 4096, "mla": True, "topk": 8}
CATALOG = SpaceCatalog()

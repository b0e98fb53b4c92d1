"""What becomes of the words of the `vllm-cpu` template, without the engine itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from autotune.documents import read_study
from autotune.domain.deployment import facts
from autotune.domain.launch_plan import render
from search_spaces.catalog import SpaceCatalog
from tests.vllm_cpu.tiny_model import write_tiny_model
from workers.engines import vllm_cpu
from workers.host_templates import HostTemplates

STUDY_FILE = Path(__file__).parents[2] / "deploy" / "demo" / "vllm-cpu.yaml"


def environment(tmp_path: Path) -> Path:
    """One with a Python that only says what it is given, and one model."""
    folder = tmp_path / "vllm-cpu"
    (folder / "bin").mkdir(parents=True)
    python = folder / "bin" / "python"
    python.write_text('#!/bin/sh\nfor word in "$@"; do echo "$word"; done\n')
    python.chmod(0o755)
    write_tiny_model(folder / "models" / "tiny-llama")
    return folder


def test_a_model_of_the_environment_is_found_by_its_name(tmp_path: Path) -> None:
    folder = environment(tmp_path)
    found = vllm_cpu.command(["--model", "tiny-llama", "--served-model-name", "tiny-llama"], folder)
    assert found[:3] == [str(folder / "bin" / "python"), "-m", vllm_cpu.MODULE]
    assert found[3:] == ["--model", str(folder / "models" / "tiny-llama"), "--served-model-name", "tiny-llama"]


@pytest.mark.parametrize("model", ["/models/m", "org/name", "another", "../tiny-llama", ".", ".."])
def test_any_other_model_is_left_to_the_engine(model: str, tmp_path: Path) -> None:
    assert vllm_cpu.command(["--model", model, "--port", "1"], environment(tmp_path))[3:] == [
        *("--model", model, "--port", "1")
    ]


def test_the_process_becomes_the_server(tmp_path: Path) -> None:
    folder = environment(tmp_path)
    script = "from pathlib import Path; from workers.engines.vllm_cpu import main; "
    script += f"main(['--model', 'm', '--port', '7'], Path({str(folder)!r}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["-m", vllm_cpu.MODULE, "--model", "m", "--port", "7"]


def test_without_the_environment_it_names_the_target(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        vllm_cpu.main(["--model", "m"], tmp_path / "nowhere")
    assert ended.value.code == 1
    assert "make setup-vllm-cpu" in capfd.readouterr().err


def test_space_template_and_study_fit_each_other() -> None:
    study = read_study(STUDY_FILE.read_text(encoding="utf-8"), str(STUDY_FILE))
    space = SpaceCatalog().space(study.space)
    template = HostTemplates().template(study.deployment.template)
    assert study.deployment.model in template.models
    assert (template.engine, template.versions.engine) == (space.engine, "0.32.0")
    given = facts(study.deployment, study.workload)
    role = render(space, space.settle(space.complete(study.baseline), given).candidate, given).roles["server"]
    assert "--enforce-eager" in role.argv
    assert role.argv[role.argv.index("--max-model-len") + 1] == "1024"


def test_the_model_is_the_same_each_time(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_tiny_model(tmp_path / name)
    read = [{p.name: p.read_bytes() for p in (tmp_path / name).iterdir()} for name in ("a", "b")]
    assert read[0] == read[1]

"""What runs while processes are killed: short trials of a candidate that never fails by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

TEMPLATE = """
name: parent-and-core
engine: vllm-ascend
about: A simulated 910C card whose server is made of several processes, as real ones are.
simulated: true
versions: {chip: 910C}
roles:
  server:
    argv:
      ["{python}", SCRIPT, serve, "{model_path}", --host, "{host}", --port, "{port}", --served-model-name, "{model}"]
    env: {AUTOTUNE_SIM_START_S: "0.8", AUTOTUNE_SIM_FAULT_RATE: "0"}
models:
  Qwen3.5-35B-A3B: package:workers/simulator/systems/qwen3.5-35b-a3b-910c.yaml
health_path: /health
deadlines: {ready_s: 240, stall_s: 120, warm_up_s: 240, load_s: 600, stop_s: 3}
"""

SPACE = """
name: kill-matrix
engine: vllm-ascend
chip: 910C
about: One knob with many values, none of which fails.
knobs:
  - name: max_num_seqs
    about: Requests in one step.
    type: {kind: integer, low: 8, high: 256}
    lands: {place: flag, flag: --max-num-seqs}
derived:
  - name: tensor_parallel_size
    about: Ranks of the deployment.
    lands: {place: flag, flag: --tensor-parallel-size}
    value: facts.tensor_parallel
  - name: max_model_len
    about: The context that the deployment must offer.
    lands: {place: flag, flag: --max-model-len}
    when: facts.max_model_len != null
    value: facts.max_model_len
baseline: {max_num_seqs: 16}
"""

STUDY: dict[str, Any] = {
    "name": "kill-matrix",
    "space": "kill-matrix",
    "deployment": {
        "template": "parent-and-core",
        "model": "Qwen3.5-35B-A3B",
        "devices": 2,
        "tensor_parallel": 2,
        "max_model_len": 4096,
    },
    "workload": {
        "prompt_tokens": 16,
        "output_tokens": 24,
        "levels": [{"concurrency": 2, "requests": 4}],
        "warmup_requests": 3,
        "request_timeout_s": 60,
    },
    "sla": ["error_rate == 0"],
    "budget": {"trials": 2000, "wall_time_s": 6 * 3600},
    "parallel_trials": 1,
    "gate_launches": 2,
    "confirmation": {"finalists": 1, "rounds": 2},
}


def prepare(data: Path) -> None:
    """A data directory that knows the template, the space and simulated devices."""
    script = Path(__file__).with_name("parent_and_core.py").resolve()
    for name, text in {
        "host.yaml": "devices: simulated\n",
        "templates/parent-and-core.yaml": TEMPLATE.replace("SCRIPT", f'"{script}"'),
        "spaces/kill_matrix.yaml": SPACE,
    }.items():
        path = data / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

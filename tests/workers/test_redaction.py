"""What a log tells of keys and passwords that nobody told us."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.capped_log import CappedLog
from workers.redaction import redact_told

VALUE = "Ab3defgh12345678ijkl"


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        (f"HF_TOKEN={VALUE}", "HF_TOKEN=***"),
        (f"{{'api_key': '{VALUE}', 'port': 8000}}", "{'api_key': '***', 'port': 8000}"),
        (f"Authorization: Bearer {VALUE}", "Authorization: Bearer ***"),
        ("connect to http://user:hunter2@host:80/x", "connect to http://user:***@host:80/x"),
        (f"loaded with hf_{VALUE}", "loaded with ***"),
        (f"MY_PASSWORD = {VALUE}!", "MY_PASSWORD = ***!"),
    ],
)
def test_what_is_named_a_secret_is_masked(told: str, shown: str) -> None:
    assert redact_told(f"before\n{told}\nafter\n".encode()) == f"before\n{shown}\nafter\n".encode()


@pytest.mark.parametrize(
    "line",
    [
        "eos_token='<|im_end|>', pad_token=None, bos_token_id: 151643",
        "max_num_batched_tokens=8192 tokens_per_second: 1234.5678901234567890",
        "Uvicorn running on http://127.0.0.1:8000 (Press CTRL+C to quit)",
        "tokenizer='/models/Qwen3.5-35B-A3B-with-a-long-name', tokenizer_revision=None",
        "kernel key=conv2d_1234567890123456 compiled",
        "init_method=tcp://10.0.0.1:29500 rank=0",
        "task=ask-me-whatever-you-want-2-know",
    ],
)
def test_settings_are_left_as_they_are(line: str) -> None:
    assert redact_told(line.encode()) == line.encode()


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_are_taken(data: bytes) -> None:
    redact_told(data)
    redact_told(b"api_key=" + data)


def test_a_log_masks_it_however_the_line_comes(tmp_path: Path) -> None:
    log = CappedLog(tmp_path / "x.log")
    for byte in f"start\nAuthorization: Bearer {VALUE}\n  10%|#  |\r  20%|## |\rapi_key={VALUE}".encode():
        log.write(bytes([byte]))
    assert (tmp_path / "x.log").read_bytes().endswith(b"Bearer ***\n  10%|#  |\r  20%|## |\r")
    log.close()
    assert (tmp_path / "x.log").read_bytes().endswith(b"\rapi_key=***")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_costs_what_is_written_and_nothing_else() -> None:
    log = CappedLog(Path("/dev/full"))
    for _ in range(3):
        log.write(b"word\n")
    log.close()
    assert log.dropped == 15

"""`autotune hosts` and `autotune hosts release`."""

from __future__ import annotations

from typing import Any

from tests.cli.conftest import CommandLine
from tests.cli.fake_api import FakeApi

SINCE = "2030-01-01T00:00:00Z"


def device(index: int, **more: Any) -> dict[str, Any]:
    return {"index": index, "card": index // 2, "memory_mb": 65536, "chip": "910C", "health": "OK", **more}


def test_every_device_and_who_has_it(api: FakeApi, autotune: CommandLine) -> None:
    hosts = [
        {
            "host": "node-a",
            "source": "npu-smi",
            "devices": [
                device(0, lease={"attempt": "s1-0-1", "since": SINCE, "ended_at": None}),
                device(1, lease={"attempt": "s1-1-1", "since": SINCE, "ended_at": SINCE}),
                device(2, quarantine={"reason": "40000 MB\x1b in use", "since": SINCE}),
                device(3),
                device(4, health="Alarm", free=False),
                device(5, held=True, free=False),
            ],
        },
        {"host": "node-b", "source": "npu-smi", "problem": "npu-smi has not answered within 30 s", "devices": []},
    ]
    api.says("GET /hosts", hosts)
    done = autotune("hosts")
    assert done.code == 0
    assert done.out.splitlines() == [
        "host    device  card  chip  memory GB  health  state",
        "node-a       0     0  910C         64  OK      s1-0-1",
        "node-a       1     0  910C         64  OK      s1-1-1, over: waits for its memory",
        "node-a       2     1  910C         64  OK      quarantine: 40000 MB  in use",
        "node-a       3     1  910C         64  OK      free",
        "node-a       4     2  910C         64  Alarm   -",
        "node-a       5     2  910C         64  OK      in use by others",
        "node-b takes no trials now, it cannot be asked: npu-smi has not answered within 30 s",
    ]
    assert autotune("hosts", "--json").json == hosts


def test_no_devices(api: FakeApi, autotune: CommandLine) -> None:
    api.says("GET /hosts", [])
    assert autotune("hosts").out == "no devices are known\n"


def test_a_quarantine_is_lifted(api: FakeApi, autotune: CommandLine) -> None:
    lifted = {"host": "node-a", "device": 2, "reason": "40000 MB in use", "since": SINCE}
    api.says("POST /hosts/node-a/devices/2/release", lifted)
    done = autotune("hosts", "release", "node-a", "2")
    assert done.out == "device 2 of node-a may be leased again; it was in quarantine: 40000 MB in use\n"
    assert autotune("hosts", "release", "node-a", "2", "--json").json == lifted


def test_all_quarantines_of_a_host_are_lifted(api: FakeApi, autotune: CommandLine) -> None:
    aside = {"reason": "the host was lost", "since": SINCE}
    lines = [device(0, quarantine=aside), device(1), device(2, quarantine=aside)]
    api.says("GET /hosts", [{"host": name, "source": "npu-smi", "devices": lines} for name in ("node-a", "node-b")])
    for number in (0, 2):
        api.says(f"POST /hosts/node-b/devices/{number}/release", aside)
    done = autotune("hosts", "release", "node-b")
    assert done.out.splitlines() == [
        "device 0 of node-b may be leased again; it was in quarantine: the host was lost",
        "device 2 of node-b may be leased again; it was in quarantine: the host was lost",
    ]
    assert autotune("hosts", "release", "node-b", "--json").json == [aside, aside]
    assert autotune("hosts", "release", "node-c").out == "no device of node-c is in quarantine\n"


def test_a_quarantine_that_is_not_there(api: FakeApi, autotune: CommandLine) -> None:
    api.refuses("POST /hosts/node-a/devices/3/release", 404, "NotFound", "device 3 of host node-a is not in quarantine")
    done = autotune("hosts", "release", "node-a", "3")
    assert done.code != 0
    assert "device 3 of host node-a is not in quarantine" in done.err

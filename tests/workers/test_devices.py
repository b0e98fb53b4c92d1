"""The devices of this host: what npu-smi prints, what the simulation says, what `host.yaml` chooses."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.domain.device import SETTLE_S, Device, DeviceUse, HostReading, choose
from autotune.errors import InvalidRequest, Unavailable
from workers.devices.held_memory import held_gib, hold
from workers.devices.npu_smi import NpuSmi, devices_of, find_program, read_chips, read_held, read_numbers
from workers.devices.simulated import IDLE_MB, registry
from workers.devices.this_host import ThisHost, read_host

RECORDED = Path(__file__).with_name("npu_smi")


def program(folder: Path, info: str, numbers: str, code: int = 0) -> Path:
    """A program that prints what npu-smi printed on some host."""
    path = folder / "npu-smi"
    info_file, map_file = RECORDED / info, RECORDED / numbers
    path.write_text(f'#!/bin/sh\nif [ "$2" = -m ]; then cat "{map_file}"; else cat "{info_file}"; fi\nexit {code}\n')
    path.chmod(0o755)
    return path


def text(name: str) -> str:
    return (RECORDED / name).read_text()


def test_a_host_of_910c(tmp_path: Path) -> None:
    devices, use = NpuSmi(program(tmp_path, "info-910c.txt", "map-910c.txt")).read()
    assert [d.index for d in devices] == list(range(16))
    assert [d.card for d in devices] == [i // 2 for i in range(16)]
    assert {(d.chip, d.memory_mb) for d in devices} == {("910C", 65536)}
    assert [d.index for d in devices if d.health != "OK"] == [7]
    assert devices[7].health == "Alarm"
    assert use[0] == DeviceUse(used_mb=3122, held_mb=0)
    assert use[2] == DeviceUse(used_mb=60112, held_mb=57012)
    assert use[3] == DeviceUse(used_mb=59871, held_mb=56990), "the process has no name"


def test_a_host_of_910b(tmp_path: Path) -> None:
    devices, use = NpuSmi(program(tmp_path, "info-910b.txt", "map-910b.txt")).read()
    assert [(d.index, d.card) for d in devices] == [(i, i) for i in range(8)]
    assert {d.chip for d in devices} == {"910B3"}
    assert [d.index for d in devices if d.health != "OK"] == [6]
    assert use[2] == DeviceUse(used_mb=30711, held_mb=27312)
    assert use[7] == DeviceUse(used_mb=3383)


def test_one_card_in_a_container(tmp_path: Path) -> None:
    devices, use = NpuSmi(program(tmp_path, "info-910c-container.txt", "map-910c-container.txt")).read()
    assert devices == (
        Device(index=0, card=2, memory_mb=65536, chip="910C"),
        Device(index=1, card=2, memory_mb=65536, chip="910C"),
    )
    assert use == {0: DeviceUse(used_mb=59807, held_mb=56920), 1: DeviceUse(used_mb=59536)}


def test_a_wider_table_with_a_chip_that_does_not_answer(tmp_path: Path) -> None:
    devices, use = NpuSmi(program(tmp_path, "info-910c-wide.txt", "map-910c-wide.txt")).read()
    assert [(d.index, d.card, d.chip, d.memory_mb) for d in devices] == [(i, i // 2, "910C", 65536) for i in range(4)]
    assert [d.health for d in devices] == ["OK", "OK", "OK", "UNKNOWN"]
    assert use == {
        0: DeviceUse(used_mb=50233, held_mb=46931),
        1: DeviceUse(used_mb=50120, held_mb=46790),
        2: DeviceUse(used_mb=3130),
    }


def test_a_healthy_chip_without_memory_is_ill(tmp_path: Path) -> None:
    (tmp_path / "info.txt").write_text(text("info-910c-wide.txt").replace("UNKNOWN", "OK     "))
    devices, use = NpuSmi(program(tmp_path, str(tmp_path / "info.txt"), "map-910c-wide.txt")).read()
    assert devices[3].health == "shows no memory"
    assert 3 not in use


def test_chips_without_hbm(tmp_path: Path) -> None:
    (tmp_path / "none.txt").touch()
    devices, use = NpuSmi(program(tmp_path, "info-310p.txt", str(tmp_path / "none.txt"))).read()
    assert [(d.index, d.card, d.chip, d.memory_mb) for d in devices] == [
        (0, 1, "310P3", 44280),
        (1, 1, "310P3", 44280),
        (2, 2, "310P3", 44280),
        (3, 2, "310P3", 44280),
    ]
    assert use[2] == DeviceUse(used_mb=21877, held_mb=20350)
    assert use[3] == DeviceUse(used_mb=1502)


def test_a_container_sees_memory_in_use_but_not_by_whom(tmp_path: Path) -> None:
    devices, use = NpuSmi(program(tmp_path, "info-910b-container.txt", "map-910b-container.txt")).read()
    assert devices == (Device(index=0, card=5, memory_mb=65536, chip="910B2C"),)
    assert use == {0: DeviceUse(used_mb=41822)}


def test_half_a_910c_is_one(tmp_path: Path) -> None:
    lines = text("info-910c-container.txt").splitlines()
    (tmp_path / "info.txt").write_text("\n".join(lines[:8] + lines[11:]))
    (tmp_path / "map.txt").write_text("\n".join(text("map-910c-container.txt").splitlines()[:2]))
    devices, _ = NpuSmi(program(tmp_path, str(tmp_path / "info.txt"), str(tmp_path / "map.txt"))).read()
    assert [(d.index, d.chip) for d in devices] == [(0, "910C")]


def test_numbers_come_from_the_table_where_there_is_no_map(tmp_path: Path) -> None:
    (tmp_path / "none.txt").touch()
    silent = program(tmp_path, "info-910c.txt", str(tmp_path / "none.txt"))
    assert [d.index for d in NpuSmi(silent).read()[0]] == list(range(16))


def test_chips_that_compute_nothing_have_no_number() -> None:
    assert len(read_numbers(text("map-910c.txt"))) == 16
    assert read_numbers(text("map-910b.txt"))[5, 0] == (5, "Ascend 910B3")
    assert read_numbers("") == {}


def test_the_table_of_processes_holds_no_chip() -> None:
    assert sorted(read_chips(text("info-910b.txt"))) == [(npu, 0) for npu in range(8)]
    assert read_held(text("info-910b.txt")) == {(2, 0): 27312}


@pytest.mark.parametrize(
    "said", ["", "dcmi module initialize failed. ret is -8005\n", "|||\n| a | b |\n| 0 | OK | x |\n"]
)
def test_a_text_that_is_something_else(said: str) -> None:
    assert read_chips(said) == {}
    assert read_held(said) == {}


def test_a_driver_that_fails_says_what_it_said(tmp_path: Path) -> None:
    (tmp_path / "broken.txt").write_text("dcmi module initialize failed. ret is -8005\n")
    failing = program(tmp_path, str(tmp_path / "broken.txt"), str(tmp_path / "broken.txt"), code=255)
    with pytest.raises(Unavailable, match=r"255: dcmi module initialize failed"):
        NpuSmi(failing).read()
    mute = program(tmp_path, str(tmp_path / "broken.txt"), str(tmp_path / "broken.txt"))
    with pytest.raises(Unavailable, match="shows no device: dcmi module"):
        NpuSmi(mute).read()
    with pytest.raises(Unavailable, match="cannot be asked"):
        NpuSmi(tmp_path / "absent").read()


def test_a_driver_that_hangs_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "npu-smi"
    path.write_text("#!/bin/sh\nexec sleep 600\n")
    path.chmod(0o755)
    with pytest.raises(Unavailable, match=r"has not answered within 0\.2 s"):
        NpuSmi(path, timeout_s=0.2).read()


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_a_damaged_table_is_read_or_refused(data: st.DataObject) -> None:
    whole = text(data.draw(st.sampled_from(sorted(path.name for path in RECORDED.glob("info-*.txt")))))
    begin = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(begin, len(whole)))
    damaged = whole[:begin] + data.draw(st.text("|+- /0123456789NAOK\n", max_size=20)) + whole[end:]
    chips = read_chips(damaged)
    for device in devices_of(chips, {}).values():
        assert device.health
    assert all(mb >= 0 for mb in read_held(damaged).values())


@pytest.mark.skipif(find_program() is not None, reason="this host has real devices")
def test_simulated_devices_where_there_is_no_driver(tmp_path: Path) -> None:
    reading = ThisHost(tmp_path, tmp_path / "attempts").reading()
    inventory = reading.inventory
    assert (inventory.host, inventory.source) == (socket.gethostname(), "simulated")
    assert len(inventory.devices) == 16
    assert choose(inventory, 2, {0}) == (2, 3)
    assert inventory.settle_s == SETTLE_S
    assert reading.use is not None
    assert reading.use[15] == DeviceUse(used_mb=IDLE_MB)


def test_simulated_memory_is_that_of_living_processes(tmp_path: Path) -> None:
    folder = registry(tmp_path / "attempts")
    (tmp_path / "host.yaml").write_text("devices: simulated\n")
    host = ThisHost(tmp_path, tmp_path / "attempts")
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        hold(folder, [2, 3], 40.0, sleeper.pid)
        use = host.reading().use
        assert use is not None
        assert use[2] == DeviceUse(used_mb=IDLE_MB + 40960, held_mb=40960)
        assert use[4].held_mb == 0
    finally:
        sleeper.kill()
        sleeper.wait()
    assert held_gib(folder, 2) == 0
    assert held_gib(tmp_path / "absent", 2) == 0


def test_the_driver_where_there_is_one(tmp_path: Path) -> None:
    reading = ThisHost(tmp_path, tmp_path / "attempts", program(tmp_path, "info-910b.txt", "map-910b.txt")).reading()
    assert (reading.inventory.source, len(reading.inventory.devices)) == ("npu-smi", 8)
    assert reading.use is not None
    assert reading.use[2].used_mb == 30711


def test_what_the_host_file_says(tmp_path: Path) -> None:
    found = program(tmp_path, "info-910b.txt", "map-910b.txt")
    (tmp_path / "host.yaml").write_text("devices: simulated\ncount: 4\ndies_per_card: 1\nchip: 910B\nsettle_s: 5\n")
    inventory = ThisHost(tmp_path, tmp_path / "attempts", found).reading().inventory
    assert inventory.settle_s == 5
    assert [(d.index, d.card, d.chip) for d in inventory.devices] == [(i, i, "910B") for i in range(4)]
    (tmp_path / "host.yaml").write_text("devices: none\n")
    reading = HostReading.model_validate_json(read_host(tmp_path, tmp_path / "attempts"))
    assert (reading.inventory.devices, reading.inventory.source) == ((), "none")
    assert reading.use is None


def test_a_host_file_that_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "host.yaml").write_text("devices: gpu\ncount: 0\nsettle_s: 0\n")
    with pytest.raises(InvalidRequest) as caught:
        ThisHost(tmp_path, tmp_path / "attempts")
    assert [problem.key for problem in caught.value.problems] == ["devices", "count", "settle_s"]


@pytest.mark.skipif(find_program() is not None, reason="this host has real devices")
def test_a_driver_that_is_asked_for_and_absent(tmp_path: Path) -> None:
    (tmp_path / "host.yaml").write_text("devices: npu-smi\n")
    with pytest.raises(InvalidRequest, match="there is none on this host"):
        ThisHost(tmp_path, tmp_path / "attempts")

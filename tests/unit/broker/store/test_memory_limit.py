"""The memory of a container is its limit, whatever the machine has."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from reput_broker.store.base.options import memory_limit_bytes

MACHINE = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
LIMIT = 256 << 20
V2 = "30 23 0:26 {root} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup rw"
V1 = "35 31 0:32 {root} /sys/fs/cgroup/memory rw,nosuid master:9 - cgroup cgroup rw,memory"


def system(root: Path, groups: str, mount: str, limits: dict[str, str]) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups)
    (root / "proc/self/mountinfo").write_text("22 27 0:21 / /proc rw - proc proc rw\n" + mount + "\n")
    for name, text in limits.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


@pytest.mark.parametrize(
    ("groups", "mounted", "limits"),
    [
        pytest.param("0::/\n", "/", {"memory.max": f"{LIMIT}"}, id="v2-own-namespace"),
        pytest.param(
            "0::/system.slice/reput.service\n",
            "/",
            {"system.slice/reput.service/memory.max": "max", "system.slice/memory.max": f"{LIMIT}"},
            id="v2-limit-of-a-parent",
        ),
        pytest.param("0::/unit\n", "/", {"unit/memory.max": "max", "unit/memory.high": f"{LIMIT}"}, id="v2-high"),
        pytest.param(
            "0::/../../kubepods/pod1/c1\n", "/../../kubepods/pod1/c1", {"memory.max": f"{LIMIT}"}, id="v2-host-path"
        ),
        pytest.param(
            "9:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n0::/\n",
            "/docker/abc",
            {"memory/memory.limit_in_bytes": f"{LIMIT}"},
            id="v1-container",
        ),
        pytest.param(
            "4:memory:/docker/abc\n", "/", {"memory/docker/abc/memory.limit_in_bytes": f"{LIMIT}"}, id="v1-host"
        ),
    ],
)
def test_a_limit_of_the_control_group_counts(tmp_path: Path, groups: str, mounted: str, limits: dict[str, str]) -> None:
    mount = (V1 if "memory" in groups else V2).format(root=mounted)
    assert memory_limit_bytes(system(tmp_path, groups, mount, limits)) == LIMIT


@pytest.mark.parametrize("text", ["max", "9223372036854771712", "", "no number"])
def test_no_limit_is_the_machine(tmp_path: Path, text: str) -> None:
    root = system(tmp_path, "0::/\n", V2.format(root="/"), {"memory.max": text})
    assert memory_limit_bytes(root) == MACHINE


def test_without_control_groups_it_is_the_machine(tmp_path: Path) -> None:
    assert memory_limit_bytes(tmp_path) == MACHINE

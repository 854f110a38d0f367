# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""smartio_preflight against the stub, and its judgement of CPUs."""

from __future__ import annotations

import os
from typing import Any, Dict, List

import pytest
from ansible_collections.iofabric.sharing.plugins.module_utils._smartio.preflight import Cpu, read_cpu
from ansible_collections.iofabric.sharing.tests.unit.plugins.modules.harness import Result, bad, good
from ansible_collections.iofabric.sharing.tests.unit.plugins.modules.stub import fakefs
from ansible_collections.iofabric.sharing.tests.unit.plugins.modules.stub.node import Fabric, Node, nvme

MODULE = "smartio_preflight"
ICE_LAKE = "Intel(R) Xeon(R) Gold 6338 CPU @ 2.00GHz"


@pytest.fixture(name="node")
def _node(fabric: Fabric) -> Node:
    return fabric.node(4, [nvme("0000:81:00.0", 0)])


def machine(node: Node, iommu: bool = True, cpu: str = "AMD EPYC 9354", vendor: str = "AuthenticAMD") -> None:
    """Make the stub's sysfs and proc those of a whole machine."""
    (node.sysfs / "devices/system/cpu").mkdir(parents=True)
    (node.sysfs / "class/iommu").mkdir(parents=True)
    if iommu:
        (node.sysfs / "class/iommu/dmar0").mkdir()
    lines = ["processor\t: 0", f"vendor_id\t: {vendor}", "cpu family\t: 6", "model\t\t: 106", f"model name\t: {cpu}"]
    (node.proc / "cpuinfo").write_text("\n".join(lines) + "\n\nprocessor\t: 1\nmodel name\t: another\n")


def names(result: Result) -> List[str]:
    return [problem["name"] for problem in result["problems"]]


def only(result: Result, name: str, fatal: bool = True) -> str:
    """The sentence of the one problem."""
    assert names(result) == [name], result.text
    assert result["problems"][0]["fatal"] is fatal
    assert not result.changed
    sentence: str = result["problems"][0]["msg"]
    return sentence


def test_a_node_without_problems(node: Node) -> None:
    machine(node)
    fakefs.write(str(node.sysfs / "module/dis_smartio/version"), "5.24.0\n")
    for check in (False, True):
        result = good(node, MODULE, check=check, side="lender", node_id=4)
        assert result["problems"] == []
        assert "warnings" not in result
        assert result["facts"] == {
            "tool": str(node.tool),
            "module": "dis_smartio",
            "version": "5.24.0",
            "node_ids": {"0": 4},
            "iommu": True,
            "cpu": "AMD EPYC 9354 (family 6, model 106)",
            "kernel": os.uname().release,
        }
    assert node.changing() == []


def test_a_software_node_says_nothing_of_the_machine(node: Node) -> None:
    """Its sysfs has neither CPUs nor IOMMU, and it lends nothing of the machine."""
    (node.proc / "cpuinfo").write_text(f"vendor_id: GenuineIntel\ncpu family: 6\nmodel: 106\nmodel name: {ICE_LAKE}\n")
    result = good(node, MODULE, side="lender", node_id=4)
    assert result["problems"] == []
    assert (result["facts"]["iommu"], result["facts"]["version"]) == (None, None)


def test_without_the_tool(node: Node) -> None:
    node.tool.unlink()
    result = good(node, MODULE, side="lender")
    assert "install the SmartIO software" in only(result, "tool")
    assert result["facts"]["tool"] is None


def test_pending_on_a_bare_host(node: Node) -> None:
    node.tool.unlink()
    node.unload_module()
    result = good(node, MODULE, check=True, side="lender", node_id=12)
    assert result["pending"]
    assert (result["problems"], result.changed) == ([], False)
    assert result["facts"]["tool"] is None


def test_a_tool_that_cannot_be_run(node: Node) -> None:
    node.tool.chmod(0o644)
    assert "chmod" in only(good(node, MODULE, side="borrower"), "tool")
    node.tool.write_text("#!/no/such/interpreter\n")
    node.tool.chmod(0o755)
    assert "cannot be run" in only(good(node, MODULE, side="borrower"), "tool")


def test_without_the_kernel_module(node: Node) -> None:
    node.unload_module()
    result = good(node, MODULE, side="borrower")
    assert "dis_services start" in only(result, "module")
    assert result["facts"]["module"] is None


def test_the_other_name_of_the_kernel_module(node: Node) -> None:
    node.unload_module()
    fakefs.write(str(node.sysfs / "module/dis_sio/version"), "\n")
    result = good(node, MODULE, side="borrower")
    assert result["problems"] == []
    assert (result["facts"]["module"], result["facts"]["version"]) == ("dis_sio", None)


@pytest.mark.parametrize("how", ["fails", "missing", "nothing"])
def test_without_an_adapter(node: Node, how: str) -> None:
    dis_config = node.tool.parent / "dis_config"
    if how == "fails":
        node.knobs(dis_config="broken")
    elif how == "missing":
        dis_config.unlink()
    else:
        dis_config.write_text("#!/bin/sh\necho no cards\n")
    result = good(node, MODULE, side="borrower", node_id=8)
    assert "dis_config" in only(result, "adapter")
    assert "dis_diag" in result["problems"][0]["msg"]
    assert result["facts"]["node_ids"] == {}


def test_a_pool_that_cannot_be_listed(node: Node) -> None:
    node.rule("list", "exit", exit=5)
    sentence = only(good(node, MODULE, side="borrower"), "pool")
    assert "EIO" in sentence
    assert "link" in sentence


def test_another_node_id(node: Node) -> None:
    sentence = only(good(node, MODULE, side="lender", node_id=8), "node_id")
    assert "is 4 (adapter 0)" in sentence
    assert "not 8 as the inventory says" in sentence
    assert "smartio_node_id" in sentence


def test_no_iommu_is_a_warning(node: Node) -> None:
    machine(node, iommu=False)
    result = good(node, MODULE, side="borrower")
    assert "intel_iommu=on" in only(result, "iommu", fatal=False)
    assert len(result["warnings"]) == 1
    (node.sysfs / "kernel/iommu_groups/0").mkdir(parents=True)
    assert good(node, MODULE, side="borrower")["problems"] == []


def test_a_cpu_that_cannot_lend(node: Node) -> None:
    """Fatal for a lender, unless that is ignored; no problem of a borrower."""
    machine(node, cpu=ICE_LAKE, vendor="GenuineIntel")
    sentence = only(good(node, MODULE, side="lender"), "cpu")
    assert f"{ICE_LAKE} (family 6, model 106)" in sentence
    ignored = good(node, MODULE, side="lender", ignore=["cpu", "module"])
    only(ignored, "cpu", fatal=False)
    assert len(ignored["warnings"]) == 1
    assert good(node, MODULE, side="borrower")["problems"] == []


def test_all_at_once(node: Node) -> None:
    machine(node, iommu=False, cpu=ICE_LAKE, vendor="GenuineIntel")
    node.unload_module()
    node.rule("list", "exit", exit=19)
    result = good(node, MODULE, side="lender", node_id=12)
    assert names(result) == ["module", "pool", "node_id", "iommu", "cpu"]


@pytest.mark.parametrize(
    ("name", "family", "model", "can_lend"),
    [
        ("Intel(R) Xeon(R) Platinum 8180 CPU @ 2.50GHz", 6, 85, True),
        ("Intel(R) Xeon(R) CPU E5-2690 v4 @ 2.60GHz", 6, 79, True),
        ("Intel(R) Xeon(R) E-2288G CPU @ 3.70GHz", 6, 158, True),
        ("Intel(R) Xeon(TM) CPU 3.60GHz", 15, 4, True),
        (ICE_LAKE, 6, 106, False),
        ("Intel(R) Xeon(R) D-2796NT CPU @ 2.00GHz", 6, 108, False),
        ("Intel(R) Xeon(R) E-2388G CPU @ 3.20GHz", 6, 167, False),
        ("Intel(R) Xeon(R) Platinum 8480+", 6, 143, False),
        ("Intel(R) Xeon(R) 6980P", 6, 173, False),
        ("Intel(R) Xeon(R) of the future", 19, 1, False),
        ("11th Gen Intel(R) Core(TM) i7-11700K @ 3.60GHz", 6, 167, True),
        ("12th Gen Intel(R) Core(TM) i9-12900K", 6, 151, True),
    ],
)
def test_which_intel_cpus_can_lend(name: str, family: int, model: int, can_lend: bool) -> None:
    assert Cpu(name, "GenuineIntel", family, model).can_lend is can_lend


@pytest.mark.parametrize("text", ["", "processor\t: 0\nCPU implementer\t: 0x41\n", "model name"])
def test_a_cpu_without_a_name(node: Node, text: str) -> None:
    (node.proc / "cpuinfo").write_text(text)
    assert read_cpu(str(node.proc)) is None


@pytest.mark.parametrize("wanted", [{}, {"side": "both"}, {"side": "lender", "ignore": ["rain"]}])
def test_refused_arguments(node: Node, wanted: Dict[str, Any]) -> None:
    assert not bad(node, MODULE, **wanted).changed

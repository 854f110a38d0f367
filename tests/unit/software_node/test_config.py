# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The configuration of a node: defaults, and what is refused with which words."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict

import pytest
from software_node.config import device_from_json, device_to_json, load_json, read_config, read_device
from software_node.errors import ConfigError

DEVICE: Dict[str, Any] = {"bdf": "06:00.0", "vendor_id": "8086", "device_id": "0xf1a5", "class": "0x0108"}
NODE: Dict[str, Any] = {"name": "one", "node_id": 8}


def test_defaults_of_a_device() -> None:
    device = read_device(DEVICE, "one")
    assert (device.kind, device.driver, device.class_code) == ("nvme", "nvme", 0x010800)
    assert device.name == "Intel Corporation Device f1a5"
    assert (device.subsystem_vendor_id, device.subsystem_device_id) == (0x8086, 0xF1A5)


def test_the_default_uuid_is_stable_and_different_for_each_device() -> None:
    first = read_device(DEVICE, "one").uuid
    assert first == read_device(DEVICE, "one").uuid
    others = [read_device(DEVICE, "two"), read_device(dict(DEVICE, bdf="07:00.0"), "one")]
    others.append(read_device(dict(DEVICE, serial="S1"), "one"))
    assert len({first} | {other.uuid for other in others}) == 4


def test_defaults_of_a_node() -> None:
    config = read_config(NODE)
    assert (config.node_id, config.host, config.generation, config.borrowed_word) == (
        8,
        "127.0.0.1",
        "current",
        "available",
    )


def test_an_id_for_each_adapter_and_named_peers() -> None:
    peers = {"4": "10.0.0.1:4711", "12": {"address": "[::1]:99", "name": "three"}}
    config = read_config(dict(NODE, node_id=[8, 16], peers=peers))
    assert config.node_ids == (8, 16)
    assert {(peer.node_id, peer.host, peer.port, peer.name) for peer in config.peers} == {
        (4, "10.0.0.1", 4711, ""),
        (12, "::1", 99, "three"),
    }


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"host": "0.0.0.0"}, "set a token"),  # noqa: S104 - that it is refused is the point
        ({"host": "10.1.2.3"}, "set a token"),
        ({"node_id": True}, "node_id"),
        ({"node_id": [8, 8]}, "twice"),
        ({"node_id": []}, "node_id"),
        ({"name": "a/b"}, "host name"),
        ({"peers": {"8": "127.0.0.1:1"}}, "own id"),
        ({"peers": {"x": "127.0.0.1:1"}}, "host:port"),
        ({"peers": {"4": "nowhere"}}, "host:port"),
        ({"generation": "2019"}, "2018, id-prefix, current"),
        ({"strict": "yes"}, "true or false"),
        ({"devices": [DEVICE, DEVICE]}, "twice"),
        ({"devices": [dict(DEVICE, physfn="07:00.0")]}, "physfn"),
        ({"devices": [DEVICE, dict(DEVICE, bdf="06:00.1", physfn="06:00.0")]}, "totalvfs"),
        ({"devices": ["06:00.0"]}, "object"),
        ({"devices": [dict(DEVICE, bdf=4860)]}, "bdf"),
        ({"devices": [dict(DEVICE, vendor_id=8086)]}, "hexadecimal"),
        ({"devices": [dict(DEVICE, driver="../x")]}, "driver"),
        ({"devices": [dict(DEVICE, uuid="x")]}, "uuid"),
        ({"devices": [dict(DEVICE, kind="toaster")]}, "nvme, gpu, net, other"),
        ({"devices": [dict(DEVICE, colour="red")]}, "colour"),
        ({"virtual_bus": "4"}, "virtual_bus"),
        ({"tokens": "x"}, "tokens"),
        ({"faults": ["slow"]}, "faults"),
    ],
)
def test_what_is_refused(change: Dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_config(dict(NODE, **change))


def test_a_token_opens_other_addresses_and_is_not_shown() -> None:
    config = read_config(dict(NODE, host="10.1.2.3", token="secret-of-the-cluster"))  # noqa: S106 - a test's
    assert config.host == "10.1.2.3"
    assert "secret-of-the-cluster" not in repr(config)


def test_a_device_survives_the_way_to_another_node() -> None:
    device = read_device(dict(DEVICE, serial="S1", slot="4"), "one")
    assert device_from_json(device_to_json(device)) == device


@pytest.mark.parametrize(
    "change", [{"driver": "../../x"}, {"driver": ".."}, {"kind": "x"}, {"name": "a\nb"}, {"size": "1"}, {"more": 1}]
)
def test_what_a_peer_must_not_send(change: Dict[str, Any]) -> None:
    data = device_to_json(read_device(DEVICE, "one"))
    with pytest.raises((ValueError, TypeError)):
        device_from_json(dict(data, **change))


def test_files_that_are_no_configuration(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load_json(str(tmp_path / "none"))
    for bad in ("{", "[" * 100000):
        (tmp_path / "bad").write_text(bad)
        with pytest.raises(ConfigError, match="not JSON"):
            load_json(str(tmp_path / "bad"))

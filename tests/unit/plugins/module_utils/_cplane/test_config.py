# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The configuration of controllers, and the addresses they are served under."""

from __future__ import annotations

import re

import pytest
from ansible_collections.iofabric.sharing.plugins.module_utils._cplane import config
from ansible_collections.iofabric.sharing.plugins.module_utils._cplane.config import EmulatedConfig, PciConfig
from ansible_collections.iofabric.sharing.plugins.module_utils._cplane.errors import ConfigError
from hypothesis import given, settings
from hypothesis import strategies as st


def test_all_options() -> None:
    """Sizes in bytes, times in seconds."""
    text = "emu:disk-1.a?size=2G&path=/var/lib/disk&lba=4096&queues=8&latency=150us&format_time=2.5s&timeout=100ms"
    found = config.parse_controller(text)
    assert found == EmulatedConfig("disk-1.a", 2 << 30, "/var/lib/disk", 4096, 8, pytest.approx(150e-6), 2.5, 0.1)
    assert config.parse_controller("emu:a") == EmulatedConfig("a", size=64 << 20)
    assert config.parse_controller("emu:a?format_time=5") == EmulatedConfig("a", size=64 << 20, format_time=5.0)
    assert config.parse_controller("emu:a?path=/x") == EmulatedConfig("a", path="/x")
    assert config.parse_controller("0000:81:00.0") == PciConfig("0000:81:00.0")
    assert config.parse_controller("10000:e1:00.0") == PciConfig("10000:e1:00.0")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "neither"),
        ("81:00.0", "neither"),
        ("0000:81:20.0", "neither"),
        ("emu", "neither"),
        ("emu:", "the name ''"),
        ("emu:a b", "the name 'a b'"),
        ("emu:" + "a" * 65, "the name"),
        ("emu:\u00e4", "the name"),
        ("emu:a?", "unknown option ''"),
        ("emu:a?size", "size needs a value"),
        ("emu:a?size=", "size=: not a size"),
        ("emu:a?size=64m", "size=64m: not a size"),
        ("emu:a?size=0", "size=0: must be a multiple"),
        ("emu:a?size=1000", "size=1000: must be a multiple"),
        ("emu:a?size=-1M", "size=-1M: not a size"),
        ("emu:a?size=\u0664M", "not a size"),
        ("emu:a?size=2048T", "below 1 PiB"),
        ("emu:a?size=1M&size=2M", "size is given twice"),
        ("emu:a?sise=1M", "unknown option 'sise'"),
        ("emu:a?path=disk", "absolute path"),
        ("emu:a?lba=520", "512 or 4096"),
        ("emu:a?queues=0", "1 to 1024"),
        ("emu:a?queues=1025", "1 to 1024"),
        ("emu:a?latency=fast", "not a time"),
        ("emu:a?latency=-1", "not a time"),
        ("emu:a?timeout=0", "1ms to"),
        ("emu:a?size=1M&&lba=512", "unknown option ''"),
    ],
)
def test_errors_name_the_part(text: str, words: str) -> None:
    """And the text it is in."""
    with pytest.raises(ConfigError) as caught:
        config.parse_controller(text)
    assert words in caught.value.message


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ([], "1 to 64"),
        ([f"emu:a{number}" for number in range(65)], "1 to 64"),
        (["emu:a", "emu:a?size=1M"], "emu:a is named twice"),
        (["0000:01:00.0", "0000:01:00.0"], "named twice"),
        (["emu:a?path=/x", "emu:b?path=/x"], "/x is named twice"),
    ],
)
def test_sets_that_cannot_be(texts: list[str], words: str) -> None:
    """Each controller once, and as many as clients can list."""
    with pytest.raises(ConfigError) as caught:
        config.parse_controllers(texts)
    assert words in caught.value.message


@given(st.lists(st.from_regex(r"\A[a-z0-9]{1,8}\Z"), min_size=1, max_size=12, unique=True))
@settings(deadline=None)
def test_addresses_are_apart_and_stable(names: list[str]) -> None:
    """A BDF of domain ffff for each; the order in which they are written has no part in it."""
    uris = config.served_uris([EmulatedConfig(name) for name in names])
    assert len(set(uris)) == len(names)
    assert all(re.fullmatch(r"ffff:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]", uri) for uri in uris)
    again = config.served_uris([EmulatedConfig(name) for name in reversed(names)])
    assert again == list(reversed(uris))


def test_an_address_follows_from_the_name() -> None:
    """Alone, beside others and beside real controllers it is the same."""
    alone = config.served_uris([EmulatedConfig("a")])
    assert alone == ["ffff:be:08.3"]
    assert config.served_uris([PciConfig("0000:01:00.0"), EmulatedConfig("b"), EmulatedConfig("a")])[::2] == [
        "0000:01:00.0",
        *alone,
    ]


def test_names_that_meet_are_moved_apart() -> None:
    """Two names whose checksums end alike."""
    seen: dict[str, str] = {}
    for number in range(5000):
        name = f"n{number}"
        uri = config.served_uris([EmulatedConfig(name)])[0]
        if uri in seen:
            both = config.served_uris([EmulatedConfig(name), EmulatedConfig(seen[uri])])
            assert len(set(both)) == 2
            assert uri in both
            return
        seen[uri] = name
    raise AssertionError("no two names met")

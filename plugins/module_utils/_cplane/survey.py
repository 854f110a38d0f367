# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What serves on a node: every server that is found, or the named ones. Changes nothing."""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence

from .._pci.address import check_written
from .._plan import Deadline, Report, Resource
from .client import discover
from .config import parse_controllers, served_uris
from .errors import CplaneError
from .have import Have, describe, observe
from .managers import Registry, default_state_dir
from .wanted import check_id, check_seconds, uri_of

_EMULATED = "emu:"


def survey(
    cplane_ids: Optional[Sequence[int]], looked_for: Sequence[str], socket_dir: str, registry: Registry, timeout: float
) -> Report:
    """Ask every server in turn. One that hangs has only its share of the time, and is reported like the others."""
    deadline = Deadline(timeout)
    everywhere = cplane_ids is None or bool(looked_for)
    ids = sorted({*(cplane_ids or ()), *(discover(socket_dir) if everywhere else ())})
    found: Dict[int, Dict[str, Any]] = {}
    for position, cplane_id in enumerate(ids):
        share = deadline.left() / (len(ids) - position)
        found[cplane_id] = describe(cplane_id, _look(cplane_id, socket_dir, registry, share))
    listed = ids if cplane_ids is None else dict.fromkeys(cplane_ids)
    return Report(
        {
            "servers": [found[cplane_id] for cplane_id in listed],
            "controllers": [_controller(text, found.values()) for text in looked_for],
        }
    )


def _look(cplane_id: int, socket_dir: str, registry: Registry, seconds: float) -> Have:
    """One server; a registry that cannot be read, or that others can write, says nothing."""
    try:
        return observe(cplane_id, socket_dir, registry if registry.is_trusted() else None, seconds)
    except CplaneError:
        return observe(cplane_id, socket_dir, None, seconds)


def _controller(text: str, servers: Iterable[Mapping[str, Any]]) -> Dict[str, Any]:
    """The controller of the first server that holds it."""
    uri = served_uris(parse_controllers([text]))[0] if text.startswith(_EMULATED) else text
    for server in servers:
        for controller in server["controllers"]:
            if _is_meant(text, uri, controller):
                return {"cplane_id": server["cplane_id"], "alive": True, **controller}
    return {"uri": uri, "cplane_id": None, "alive": False}


def _is_meant(text: str, uri: str, controller: Mapping[str, Any]) -> bool:
    """By the address; an emulated one by its name where that is known, since names can meet at one address."""
    if text.startswith(_EMULATED) and controller["name"].startswith(_EMULATED):
        return bool(_without_options(controller["name"]) == _without_options(text))
    return bool(controller["uri"] == uri)


def _without_options(text: str) -> str:
    return text.partition("?")[0]


def _written(value: object) -> str:
    """A controller as servers list it, or as it was configured; raises for what is neither."""
    text = check_written(value, "controllers")
    if not text.startswith(_EMULATED):
        return uri_of(text)
    parse_controllers([text])
    return text


def resource(params: Mapping[str, Any]) -> Resource:
    """The resource of xnvme_cplane_info for a module's parameters."""
    ids: Optional[List[int]] = params["cplane_ids"]
    for cplane_id in ids or ():
        check_id(cplane_id)
    looked_for = [_written(value) for value in params["controllers"] or ()]
    registry = Registry(params["state_dir"] or default_state_dir())
    timeout = check_seconds(params["timeout"], "timeout")
    return Resource("servers", lambda _check: survey(ids, looked_for, params["socket_dir"], registry, timeout))

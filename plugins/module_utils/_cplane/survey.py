# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What serves on a node: every server that is found, or the named ones. Changes nothing."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Sequence

from .._plan import Deadline, Report, Resource
from .client import discover
from .config import parse_controllers, served_uris
from .managers import Registry, default_state_dir
from .serving import describe, observe
from .wanted import check_id, uri_of


def survey(
    cplane_ids: Optional[Sequence[int]], uris: Sequence[str], socket_dir: str, registry: Registry, timeout: float
) -> Report:
    """Ask every server in turn. One that hangs has only its share of the time, and is reported like the others."""
    deadline = Deadline(timeout)
    everywhere = cplane_ids is None or bool(uris)
    ids = sorted({*(cplane_ids or ()), *(discover(socket_dir) if everywhere else ())})
    found: Dict[int, Dict[str, Any]] = {}
    for position, cplane_id in enumerate(ids):
        share = deadline.left() / (len(ids) - position)
        found[cplane_id] = describe(cplane_id, observe(cplane_id, socket_dir, registry, share))
    listed = list(found) if cplane_ids is None else list(dict.fromkeys(cplane_ids))
    return Report(
        {
            "servers": [found[cplane_id] for cplane_id in listed],
            "controllers": [_controller(uri, found.values()) for uri in uris],
        }
    )


def _controller(uri: str, servers: Sequence[Mapping[str, Any]] | Any) -> Dict[str, Any]:
    for server in servers:
        for controller in server["controllers"]:
            if controller["uri"] == uri:
                return {"cplane_id": server["cplane_id"], "alive": True, **controller}
    return {"uri": uri, "cplane_id": None, "alive": False}


def _uri(value: object) -> str:
    """The address that a controller is served under; an emulated one may be given by its configuration."""
    if isinstance(value, str) and value.startswith("emu:"):
        return served_uris(parse_controllers([value]))[0]
    return uri_of(value)


def resource(params: Mapping[str, Any]) -> Resource:
    """The resource of xnvme_cplane_info for a module's parameters."""
    ids: Optional[List[int]] = params["cplane_ids"]
    for cplane_id in ids or ():
        check_id(cplane_id)
    uris = [_uri(value) for value in params["controllers"] or ()]
    registry = Registry(params["state_dir"] or default_state_dir())
    return Resource("servers", lambda _check: survey(ids, uris, params["socket_dir"], registry, params["timeout"]))

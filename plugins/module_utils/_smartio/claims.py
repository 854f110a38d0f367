# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a borrower claims, which pool devices can fill it, and which of those are borrowed here; pure.

Borrowed here means that ``get-vdev`` exits 0 and prints a BDF; ``Local users`` is only a hint for whom to ask first.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Dict, FrozenSet, List, Mapping, Optional, Pattern, Sequence, Set, Tuple

from .._pci.address import SlotPattern, check_written, parse_slot, printable
from .._plan import SharingError
from .model import AVAILABLE, UNAVAILABLE, FabricDevice, PoolEntry, normalise_fdid
from .wishes import check_select, hex_id, pattern, written

# More than any pool holds: a mistyped number is refused instead of waited for.
_MOST = 4096

SELECT_ARGUMENTS: Dict[str, Dict[str, str]] = {
    "node_id": {"type": "int"},
    "bdf": {"type": "raw"},
    "uuid": {"type": "str"},
    "serial": {"type": "str"},
    "vendor_id": {"type": "str"},
    "device_id": {"type": "str"},
    "name_regex": {"type": "str"},
}
"""The suboptions of ``select``, for argument specifications."""


_SHOW_KEYS = {
    "node_id": "NodeId",
    "bdf": "Remote BDF",
    "uuid": "UUID",
    "serial": "Serial Number",
    "vendor_id": "Vendor ID",
    "device_id": "Device ID",
}


@dataclass(frozen=True)
class FabricSelect:
    """What a pool device must be like; None is anything."""

    node_id: Optional[int] = None
    bdf: Optional[SlotPattern] = None
    uuid: Optional[str] = None
    serial: Optional[str] = None
    vendor_id: Optional[str] = None
    device_id: Optional[str] = None
    name: Optional[Pattern[str]] = None

    def untold(self, device: FabricDevice) -> List[str]:
        """What is asked for and ``show`` does not tell of a device that is not ruled out by the rest."""
        missing = [name for name in _SHOW_KEYS if getattr(self, name) is not None and getattr(device, name) is None]
        without = replace(self, **dict.fromkeys(missing))
        return [_SHOW_KEYS[name] for name in missing] if without.matches(device, device.name or "") else []

    def matches(self, device: FabricDevice, listed_name: str) -> bool:
        """Whether ``show`` (and the name in ``list``) says all that is asked for; what is not told does not match."""
        return (
            (self.node_id is None or self.node_id == device.node_id)
            and (self.bdf is None or (device.bdf is not None and self.bdf.matches(device.bdf)))
            and (self.uuid is None or self.uuid.lower() == (device.uuid or "").lower())
            and (self.serial is None or self.serial == device.serial)
            and (self.vendor_id is None or self.vendor_id == device.vendor_id)
            and (self.device_id is None or self.device_id == device.device_id)
            and (self.name is None or any(self.name.search(name) for name in (device.name, listed_name) if name))
        )


@dataclass(frozen=True)
class Claim:
    """One element of what is wanted: devices by fdid, by selection, or (to return) by label alone.

    ``count`` None stands for all that match.
    """

    written: str
    fdid: Optional[str] = None
    select: Optional[FabricSelect] = None
    label: Optional[str] = None
    count: Optional[int] = 1
    dma_window: Optional[str] = None

    def window(self, _fdid: str) -> Optional[str]:
        """The size of the DMA window that a device is borrowed with."""
        return self.dma_window


def claim_from(element: Mapping[str, Any]) -> Claim:
    """A claim from a module call's element."""
    select, fdid, window = element.get("select"), element.get("fdid"), element.get("dma_window")
    count = 1 if element.get("count") is None else element["count"]
    if not 1 <= count <= _MOST:
        raise SharingError(f"count: {count} is not a number of devices from 1 to {_MOST}; correct it")
    if not (window is None or re.fullmatch(r"[0-9]+[A-Za-z]*", str(window))):
        raise SharingError(f"dma_window: {window!a} is not a size; give a number, with a unit if the tool knows one")
    if fdid is not None and (count != 1 or element.get("all")):
        raise SharingError("fdid names one device: count and all go with select")
    return Claim(
        written=_written(element),
        fdid=None if fdid is None else normalise_fdid(fdid),
        select=None if select is None else fabric_select(select),
        label=element.get("label") or None,
        count=None if element.get("all") else count,
        dma_window=None if window is None else str(window),
    )


def _written(element: Mapping[str, Any]) -> str:
    """How a claim names itself in messages: by its label, which tells claims with one selection apart."""
    what = written(element, ("fdid", "select"))
    label = printable(element.get("label") or "")
    if not label:
        return what
    return f"{label} ({what})" if element.get("fdid") or element.get("select") else f"label {label}"


def fabric_select(select: Mapping[str, Any]) -> FabricSelect:
    """A selection from a module's option."""
    check_select(select)
    bdf = select["bdf"]
    return FabricSelect(
        node_id=select["node_id"],
        bdf=None if bdf is None else parse_slot(check_written(bdf, "select.bdf")),
        uuid=select["uuid"],
        serial=select["serial"],
        vendor_id=hex_id(select["vendor_id"], "vendor_id"),
        device_id=hex_id(select["device_id"], "device_id"),
        name=pattern(select["name_regex"], "name_regex"),
    )


@dataclass(frozen=True)
class Fabric:
    """What a borrower knows of the pool.

    ``vdevs`` holds who was asked: fdid -> virtual BDF, or None for not here. ``remembered`` is the ledger's
    fdid -> label of what was borrowed; for a device that is not here any more it does not count. ``unanswered`` are
    the errors of those of which nobody could say whether they are borrowed here, since their owner is out of reach.
    """

    entries: Mapping[str, PoolEntry]
    shown: Mapping[str, FabricDevice]
    failed: Mapping[str, SharingError]
    vdevs: Dict[str, Optional[str]]
    remembered: Mapping[str, Optional[str]] = field(default_factory=dict)
    unanswered: Mapping[str, SharingError] = field(default_factory=dict)

    def here(self, fdid: str) -> bool:
        """Whether the device is known to be borrowed here."""
        return bool(self.vdevs.get(fdid))

    def out_of_reach(self, fdid: str) -> bool:
        """Whether the device was borrowed here, and neither ``get-vdev`` nor ``show`` can tell whether it still is."""
        return fdid in self.remembered and fdid in self.unanswered and fdid not in self.shown

    def held(self, fdid: str) -> bool:
        """Whether the device is borrowed here, or was and ``get-vdev`` cannot tell whether it still is."""
        return self.here(fdid) or (fdid in self.remembered and fdid in self.unanswered)

    def borrowed_as(self, fdid: str, label: Optional[str]) -> bool:
        """Whether the device was borrowed under a label, still here or not."""
        return label is not None and self.remembered.get(fdid) == label

    def label_of(self, fdid: str) -> Optional[str]:
        """The label that a device is borrowed under, if any."""
        return self.remembered.get(fdid) if self.held(fdid) else None

    def labelled(self, label: Optional[str]) -> List[str]:
        """The devices that are borrowed here (or may be) under a label, in a stable order."""
        return [] if label is None else sorted(fdid for fdid in self.remembered if self.label_of(fdid) == label)

    def word(self, fdid: str) -> str:
        """The state word of ``list``, in lower case; empty where the device is not in the pool."""
        return self.entries[fdid].word.lower() if fdid in self.entries else ""


@dataclass
class Share:
    """What a claim gets: devices that are borrowed already, candidates in the order they are tried, and how many
    are missing (None: every candidate).
    """

    claim: Claim
    kept: List[str] = field(default_factory=list)
    candidates: List[str] = field(default_factory=list)
    missing: Optional[int] = 0
    unknown: List[str] = field(default_factory=list)
    """Matching devices of which nobody has asked yet whether they are borrowed here, the likely ones first."""
    shared: bool = False
    """Whether other claims of the same run have devices that match: an ``all`` claim may be left with none."""
    misfits: List[str] = field(default_factory=list)
    """Devices that are borrowed under the claim's label and are not what it selects any more."""
    waiting: List[str] = field(default_factory=list)
    """Devices that were borrowed for the claim and are out of reach: no other one takes their place."""

    @property
    def predicted(self) -> List[str]:
        """The candidates that are borrowed if nobody else takes one."""
        return self.candidates if self.missing is None else self.candidates[: self.missing]

    @property
    def lacking(self) -> int:
        """How many devices the claim lacks even if every candidate can be borrowed."""
        if self.missing is None:
            return len(self.waiting) or (0 if self.kept or self.candidates or self.shared else 1)
        return len(self.waiting) + max(0, self.missing - len(self.candidates))

    @property
    def filled(self) -> bool:
        """Whether the claim has all that it asks for (checked after borrowing)."""
        if self.waiting:
            return False
        if self.missing is None:
            return (bool(self.kept) or self.shared) and set(self.candidates) <= set(self.kept)
        return self.missing <= 0


def matching(claim: Claim, fabric: Fabric) -> List[str]:
    """The pool's devices that a claim is about, in a stable order: by owning node, address, id."""
    if claim.fdid is not None:
        return [claim.fdid]
    if claim.select is None:
        return fabric.labelled(claim.label)
    found = [
        fdid
        for fdid, device in fabric.shown.items()
        if fdid in fabric.entries and claim.select.matches(device, fabric.entries[fdid].name)
    ]
    return sorted(found, key=lambda fdid: _order(fabric.shown[fdid]))


def meant(claim: Claim, fabric: Fabric) -> List[str]:
    """The devices that a claim is about when it is given up: of a selection with a label, only those of the label."""
    fdids = matching(claim, fabric)
    if claim.label is None or claim.fdid:
        return fdids
    return [fdid for fdid in fdids if fabric.label_of(fdid) == claim.label]


def _order(device: FabricDevice) -> Tuple[int, str, int]:
    return device.node_id or 0, device.bdf or "", int(device.fdid, 16)


def share_out(claims: Sequence[Claim], fabric: Fabric, force: bool) -> List[Share]:
    """What each claim keeps and may borrow; every device goes to one claim at most.

    Claims that name their devices come first, by fdid and by label, so that a looser selection does not take theirs;
    those for all devices come last. Where there are enough devices for all claims, each gets its own, in whatever order
    they are; where there are not, the first ones do.
    """
    shares = [Share(claim) for claim in claims]
    taken: Dict[str, Share] = {}
    for share in shares:
        _keep_own(share, fabric, taken)
    reserved = frozenset(claim.fdid for claim in claims if claim.fdid and not is_anothers(claim, fabric))
    in_turn = sorted(shares, key=lambda share: share.claim.count is None)
    keeping = _Keeping(fabric, taken, reserved)
    for share in in_turn:
        _keep_labelled(share, shares, keeping)
    for share in in_turn:
        _keep_others(share, keeping)
    choice = _Choice(keeping, force)
    for share in in_turn:
        choice.fill(share)
    for share in shares:
        choice.tell(share)
    return shares


def _keep_own(share: Share, fabric: Fabric, taken: Dict[str, Share]) -> None:
    """The device that a claim names by fdid, and what was borrowed for it and is out of reach."""
    fdid = share.claim.fdid
    if fdid is not None and fdid not in taken and not is_anothers(share.claim, fabric):
        _take(share, fdid, fabric, taken)
    for fdid in _own_out_of_reach(share.claim, fabric):
        if _room(share):
            share.waiting.append(fdid)


def is_anothers(claim: Claim, fabric: Fabric) -> bool:
    """Whether what a claim names by fdid is borrowed under another label: it stays there, whoever names it."""
    named = claim.fdid is not None and claim.label is not None
    return named and fabric.label_of(str(claim.fdid)) not in (None, claim.label)


def _keep_labelled(share: Share, shares: Sequence[Share], keeping: _Keeping) -> None:
    """Devices that are borrowed under the claim's label; those that no claim with this label is about are misfits."""
    label, fabric = share.claim.label, keeping.fabric
    siblings = [other.claim for other in shares if other.claim.label == label]
    # One without a count of its own: another claim with this label names it by fdid.
    held = [fdid for fdid in fabric.labelled(label) if fdid == share.claim.fdid or fdid not in keeping.reserved]
    share.misfits += [fdid for fdid in held if not any(_fits(claim, fdid, fabric) for claim in siblings)]
    while _room(share) and keeping.another(share, keeping.labelled, set()):
        pass


def _fits(claim: Claim, fdid: str, fabric: Fabric) -> bool:
    """Whether a device of its label is what a claim is about; one that cannot be looked at was chosen by it once."""
    return fdid in matching(claim, fabric) or (claim.fdid is None and fdid not in fabric.shown)


def _own_out_of_reach(claim: Claim, fabric: Fabric) -> List[str]:
    """What was borrowed for a claim, and cannot be asked now."""
    own = [fdid for fdid in fabric.remembered if fdid == claim.fdid or fabric.borrowed_as(fdid, claim.label)]
    return [fdid for fdid in own if fabric.out_of_reach(fdid)]


def _keep_others(share: Share, keeping: _Keeping) -> None:
    if share.misfits:
        return  # it gets nothing in this run, so it takes nothing from others
    while _room(share) and keeping.another(share, keeping.options, set()):
        pass
    if _room(share):
        free, vdevs = keeping.free(share), keeping.fabric.vdevs
        share.unknown += [fdid for fdid in free if fdid not in vdevs and fdid not in share.unknown]


@dataclass(frozen=True)
class _Keeping:
    """Who keeps what. ``taken`` says which claim has a device, ``reserved`` are those that claims name by fdid."""

    fabric: Fabric
    taken: Dict[str, Share]
    reserved: FrozenSet[str]

    def labelled(self, share: Share) -> List[str]:
        """What is borrowed under the claim's label and no claim names."""
        held = [fdid for fdid in self.fabric.labelled(share.claim.label) if fdid not in self.reserved]
        return [fdid for fdid in held if _fits(share.claim, fdid, self.fabric)]

    def free(self, share: Share) -> List[str]:
        """What the claim is about, has no label, and no claim names; the likely ones first."""
        named = [fdid for fdid in matching(share.claim, self.fabric) if fdid not in self.reserved]
        return _hinted_first([fdid for fdid in named if self.fabric.label_of(fdid) is None], self.fabric)

    def options(self, share: Share) -> List[str]:
        """All that the claim may keep, beside what it names."""
        return self.labelled(share) + self.free(share)

    def another(self, share: Share, options: Callable[[Share], List[str]], asked: Set[str]) -> bool:
        """Keep one more device that is borrowed here.

        A claim that has it already gives way where another one will do for it (Kuhn's augmenting paths): else a wide
        claim could turn out a narrow one in the next run, which would borrow again.
        """
        for fdid in sorted(options(share), key=lambda fdid: fdid in self.taken):
            holder = self.taken.get(fdid)
            if not self.fabric.here(fdid) or fdid in asked or holder is share:
                continue
            asked.add(fdid)
            if holder is not None:
                if None in (share.claim.count, holder.claim.count) or not self.another(holder, options, asked):
                    continue
                holder.kept.remove(fdid)
            share.kept.append(fdid)
            self.taken[fdid] = share
            return True
        return False


def _hinted_first(fdids: Sequence[str], fabric: Fabric) -> List[str]:
    """Whoever has users is likely borrowed by somebody here; only an order of asking, not of keeping."""

    def unlikely(fdid: str) -> Tuple[bool, bool]:
        here, device = fabric.here(fdid), fabric.shown.get(fdid)
        return not here, not here and not (device is not None and device.users)

    return sorted(fdids, key=unlikely)


def _take(share: Share, fdid: str, fabric: Fabric, taken: Dict[str, Share]) -> None:
    if fdid not in fabric.vdevs:
        share.unknown.append(fdid)
    elif fabric.here(fdid):
        share.kept.append(fdid)
        taken[fdid] = share


def _room(share: Share, chosen: Sequence[str] = ()) -> bool:
    return share.claim.count is None or len(share.kept) + len(share.waiting) + len(chosen) < share.claim.count


class _Choice:
    """Chooses what is borrowed, once it is settled what is kept."""

    def __init__(self, keeping: _Keeping, force: bool) -> None:
        self._keeping = keeping
        self._fabric = keeping.fabric
        self._taken = keeping.taken
        self._force = force

    def fill(self, share: Share) -> None:
        """Choose as many devices as the claim lacks, or as there are."""
        if share.misfits:
            return
        if share.claim.count is None:
            self._taken.update((fdid, share) for fdid in self._fitting(share) if fdid not in self._taken)
            return
        while _room(share, self._chosen(share)) and self._choose_another(share, set()):
            pass

    def tell(self, share: Share) -> None:
        """Put down what was chosen for a claim and, after it, what else could be tried."""
        count, chosen = share.claim.count, self._chosen(share)
        fitting = self._fitting(share)
        spare = [fdid for fdid in fitting if fdid not in self._taken]
        share.candidates = [fdid for fdid in fitting if fdid in chosen] + spare
        share.missing = None if count is None else count - len(share.kept) - len(share.waiting)
        share.shared = any(self._taken.get(fdid, share) is not share for fdid in matching(share.claim, self._fabric))

    def _chosen(self, share: Share) -> List[str]:
        return [fdid for fdid, holder in self._taken.items() if holder is share and fdid not in share.kept]

    def _fitting(self, share: Share) -> List[str]:
        """What may be borrowed for a claim, whoever else may get it; those that it had before come first."""
        claim, fabric = share.claim, self._fabric
        ordered = sorted(matching(claim, fabric), key=lambda fdid: not fabric.borrowed_as(fdid, claim.label))
        return [
            fdid
            for fdid in ordered
            if (fdid == claim.fdid or fdid not in self._keeping.reserved)
            and fabric.label_of(fdid) in (None, claim.label)
            and fdid not in share.waiting
            and not fabric.here(fdid)
            and can_be_tried(fdid, fabric, self._force)
        ]

    def _choose_another(self, share: Share, asked: Set[str]) -> bool:
        """Choose one more device; a claim that has it gives way where another one will do for it, as in _Keeping."""
        held = self._keeping.options(share)
        kept_by_others = [fdid for fdid in held if self._fabric.here(fdid) and fdid in self._taken]
        options = [fdid for fdid in self._fitting(share) + kept_by_others if self._taken.get(fdid) is not share]
        for fdid in sorted(options, key=lambda fdid: fdid in self._taken):
            holder = self._taken.get(fdid)
            if fdid in asked or (holder is not None and holder.claim.count is None):
                continue
            asked.add(fdid)
            if holder is not None and not self._choose_another(holder, asked):
                continue
            if self._fabric.here(fdid) and holder is not None:
                holder.kept.remove(fdid)
                share.kept.append(fdid)
            elif fdid not in self._fabric.vdevs and fdid not in share.unknown:
                share.unknown.append(fdid)
            self._taken[fdid] = share
            return True
        return False


def can_be_tried(fdid: str, fabric: Fabric, force: bool) -> bool:
    """Whether a borrow may be tried: available, or (by force) shown with a word that nobody here knows."""
    word = fabric.word(fdid)
    return word == AVAILABLE or (force and fdid in fabric.entries and word != UNAVAILABLE)


def why_not(fdid: str, fabric: Fabric) -> str:
    """Why a device cannot be borrowed now, in a few words."""
    if fdid not in fabric.entries:
        return f"{fdid} is not in the pool"
    if fabric.here(fdid):
        label = fabric.label_of(fdid)
        return f"{fdid} is borrowed here for another claim" + (f" (label {label}); return that first" if label else "")
    word = fabric.entries[fdid].word
    if word.lower() in (AVAILABLE, UNAVAILABLE):
        return f"{fdid} is {word.lower()}"
    return f"{fdid} is shown as [{word}], a word that nobody here knows"


def shortfall(claim: Claim, kept: Sequence[str], fabric: Fabric, tried: Mapping[str, str]) -> SharingError:
    """The error for a claim that could not be filled: how many it got, and why every other device was no use."""
    wanted = "all" if claim.count is None else str(claim.count)
    waiting = _own_out_of_reach(claim, fabric)
    others = [fdid for fdid in matching(claim, fabric) if fdid not in kept and fdid not in waiting]
    reasons = [f"{fdid}, which it had, is out of reach: {fabric.unanswered[fdid].message}" for fdid in waiting]
    reasons += [tried.get(fdid) or why_not(fdid, fabric) for fdid in others]
    reasons += [
        f"{fdid} could not be looked at: {error.message}" for fdid, error in fabric.failed.items() if claim.select
    ]
    reasons += _untold(claim, fabric)
    if not reasons:
        other = "no other device" if kept else "no device"
        reasons = [f"{other} in the pool matches; see that its lender lent it and connected to this node"]
    more = f"; and {len(reasons) - 8} more (see reasons)" if len(reasons) > 8 else ""
    named = "; ".join(reasons[:8]) + more
    return SharingError(f"{claim.written}: {len(kept)} of {wanted} devices could be borrowed; {named}", reasons=reasons)


def _untold(claim: Claim, fabric: Fabric) -> List[str]:
    """Devices that may be meant, were it told."""
    devices = {fdid: fabric.shown[fdid] for fdid in fabric.entries if claim.select and fdid in fabric.shown}
    keys = {fdid: claim.select.untold(device) for fdid, device in devices.items() if claim.select}
    return [f"'smartio_tool show {fdid}' does not tell its {', '.join(names)}" for fdid, names in keys.items() if names]


def told_of(claim: Claim, error: SharingError) -> Tuple[str, SharingError]:
    """A claim's error for a report: under the claim's name, with its label."""
    error.details["label"] = claim.label
    return claim.written, error


def misfit(share: Share) -> SharingError:
    """The error for a label that holds a device which is not what its claim selects."""
    label, fdids = share.claim.label, ", ".join(share.misfits)
    return SharingError(
        f"{share.claim.written}: label {label} holds {fdids}, which is not what is selected now; "
        f"return it first (label: {label}, state: returned)"
    )

# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Claims against a pool in memory. Nodes 4 and 8 own devices of vendor 144d (NVMe) and 10de (GPU)."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from typing import Dict, List, Optional, Sequence, Tuple

import pytest
from ansible_collections.iofabric.sharing.plugins.module_utils._pci.address import parse_slot
from ansible_collections.iofabric.sharing.plugins.module_utils._plan import SharingError
from ansible_collections.iofabric.sharing.plugins.module_utils._smartio.claims import (
    Claim,
    Fabric,
    FabricSelect,
    Share,
    can_be_tried,
    claim_from,
    matching,
    misfit,
    share_out,
    shortfall,
    why_not,
)
from ansible_collections.iofabric.sharing.plugins.module_utils._smartio.model import FabricDevice, PoolEntry
from hypothesis import given, settings
from hypothesis import strategies as st

NVME = FabricSelect(vendor_id="144d")
GPU = FabricSelect(vendor_id="10de")
ANY = FabricSelect(name=re.compile(""))
VDEV = "0000:04:00.0"


def device(fdid: str, vendor: str = "144d", **known: object) -> FabricDevice:
    node = int(fdid, 16) >> 16
    base = FabricDevice(fdid, name="x", node_id=node, bdf=f"0000:{int(fdid, 16) & 0xFF:02x}:00.0", vendor_id=vendor)
    return replace(base, **known)  # type: ignore[arg-type]


def fabric(
    devices: Sequence[FabricDevice],
    words: Optional[Dict[str, str]] = None,
    here: Sequence[str] = (),
    labels: Optional[Dict[str, Optional[str]]] = None,
    unasked: Sequence[str] = (),
) -> Fabric:
    """A pool of available devices, all of which were asked for; ``here`` are borrowed here."""
    words = words or {}
    entries = {one.fdid: PoolEntry(one.fdid, "listed", words.get(one.fdid, "available")) for one in devices}
    vdevs = {one.fdid: VDEV if one.fdid in here else None for one in devices if one.fdid not in unasked}
    return Fabric(entries, {one.fdid: one for one in devices}, {}, vdevs, labels or {})


FOUR = [device("40001"), device("40002"), device("80001"), device("80002", "10de")]


def claim(fdid: Optional[str] = None, select: Optional[FabricSelect] = None, **more: object) -> Claim:
    return Claim("claim", fdid, select, **more)  # type: ignore[arg-type]


def shares(claims: Sequence[Claim], pool: Fabric, force: bool = False) -> List[Tuple[List[str], List[str]]]:
    """(kept, predicted) of every claim."""
    return [(share.kept, share.predicted) for share in share_out(claims, pool, force)]


def test_claims_are_filled_in_a_stable_order() -> None:
    for order in (FOUR, list(reversed(FOUR))):
        assert shares([claim(select=NVME)], fabric(order)) == [([], ["40001"])]
        assert shares([claim(select=NVME, count=2)], fabric(order)) == [([], ["40001", "40002"])]
        assert shares([claim(select=NVME, count=None)], fabric(order)) == [([], ["40001", "40002", "80001"])]


def test_what_is_borrowed_already_is_kept() -> None:
    pool = fabric(FOUR, here=["80001"])
    assert shares([claim(select=NVME)], pool) == [(["80001"], [])]
    assert shares([claim(select=NVME, count=2)], pool) == [(["80001"], ["40001"])]
    assert shares([claim(select=NVME, count=None)], pool) == [(["80001"], ["40001", "40002"])]


def test_local_users_do_not_make_a_device_borrowed() -> None:
    assert shares([claim(select=NVME)], fabric([device("40001", users=3)])) == [([], ["40001"])]


def test_an_fdid_is_not_taken_by_a_selection() -> None:
    for claims in ([claim(select=NVME), claim("40001")], [claim("40001"), claim(select=NVME)]):
        result = dict(zip(["a", "b"], shares(claims, fabric(FOUR))))
        assert sorted(result.values()) == [([], ["40001"]), ([], ["40002"])]
    pool = fabric(FOUR, here=["40001"])
    assert shares([claim(select=NVME), claim("40001")], pool) == [([], ["40002"]), (["40001"], [])]
    assert shares([claim(select=NVME, count=None), claim("40001")], fabric(FOUR)) == [
        ([], ["40002", "80001"]),
        ([], ["40001"]),
    ]


def test_an_fdid_that_is_named_twice_goes_to_one_claim() -> None:
    first, second = share_out([claim("40001"), claim("40001")], fabric(FOUR), False)
    assert (first.predicted, second.predicted) == (["40001"], [])
    assert (first.lacking, second.lacking) == (0, 1)


def test_labels() -> None:
    labels: Dict[str, Optional[str]] = {"40001": "a", "80001": "b", "40002": "a"}
    pool = fabric(FOUR, here=["40001", "80001"], labels=labels)
    # Another claim's device is not taken; what is not here any more has no label.
    assert shares([claim(select=NVME)], pool) == [([], ["40002"])]
    assert shares([claim(select=NVME, label="b")], pool) == [(["80001"], [])]
    assert shares([claim(select=NVME, label="c")], pool) == [([], ["40002"])]
    assert shares([claim(select=NVME), claim(select=NVME, label="a")], pool) == [([], ["40002"]), (["40001"], [])]
    assert shares([claim(select=NVME, count=None)], pool) == [([], ["40002"])]


def test_a_label_claims_what_is_borrowed_without_one() -> None:
    pool = fabric(FOUR, here=["40001"], labels={"40001": None})
    assert shares([claim(select=NVME, label="a")], pool) == [(["40001"], [])]


def test_fewer_are_wanted_than_a_label_holds() -> None:
    pool = fabric(FOUR, here=["40001", "40002"], labels={"40001": "a", "40002": "a"})
    assert shares([claim(select=NVME, label="a")], pool) == [(["40001"], [])]


def test_a_label_whose_device_cannot_be_looked_at_now_is_kept() -> None:
    pool = fabric(FOUR, here=["40001"], labels={"40001": "a"})
    unseen = replace(pool, shown={fdid: one for fdid, one in pool.shown.items() if fdid != "40001"})
    assert shares([claim(select=NVME, label="a")], unseen) == [(["40001"], [])]


def test_a_label_that_holds_something_else() -> None:
    pool = fabric(FOUR, here=["40001"], labels={"40001": "a"})
    (share,) = share_out([claim(select=GPU, label="a")], pool, False)
    assert share.misfits == ["40001"]
    assert share.kept == []
    message = misfit(share).message
    assert "label a holds 40001, which is not what is selected now; return it first" in message


def test_a_label_alone() -> None:
    pool = fabric(FOUR, here=["40001", "80001"], labels={"40001": "a", "80001": "a", "80002": "a", "40002": "b"})
    assert matching(claim(label="a"), pool) == ["40001", "80001"]
    assert matching(claim(label="b"), pool) == []


@pytest.mark.parametrize(
    ("word", "free", "by_force"),
    [
        ("available", True, True),
        ("Available", True, True),
        ("unavailable", False, False),
        ("UNAVAILABLE", False, False),
        ("in use", False, True),
        ("", False, True),
    ],
)
def test_what_can_be_tried(word: str, free: bool, by_force: bool) -> None:
    pool = fabric(FOUR, {"40001": word})
    assert can_be_tried("40001", pool, False) is free
    assert can_be_tried("40001", pool, True) is by_force
    assert can_be_tried("99999", pool, True) is False
    assert shares([claim("40001")], pool) == [([], ["40001"] if free else [])]
    assert shares([claim("40001")], pool, force=True) == [([], ["40001"] if by_force else [])]


def test_what_nobody_was_asked_about() -> None:
    pool = fabric([device("40001"), device("40002", users=1), device("80001")], unasked=["40001", "40002", "80001"])
    (share,) = share_out([claim(select=NVME)], pool, False)
    assert share.unknown[0] == "40002"  # has users, so it is likely here
    assert sorted(share.unknown) == ["40001", "40002", "80001"]


def test_lacking_and_filled() -> None:
    (share,) = share_out([claim(select=NVME, count=5)], fabric(FOUR), False)
    assert (share.missing, share.lacking, share.filled) == (5, 2, False)
    (share,) = share_out([claim(select=NVME, count=2)], fabric(FOUR, here=["40001", "40002"]), False)
    assert (share.missing, share.lacking, share.filled) == (0, 0, True)
    (share,) = share_out([claim(select=FabricSelect(serial="x"), count=None)], fabric(FOUR), False)
    assert (share.missing, share.lacking, share.filled) == (None, 1, False)
    (share,) = share_out([claim(select=GPU, count=None)], fabric(FOUR, here=["80002"]), False)
    assert (share.missing, share.lacking, share.filled) == (None, 0, True)


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
def test_all_and_a_number_of_the_same_devices(order: List[int]) -> None:
    """Every device goes to one claim at most, also where one claim wants all of them."""
    claims = [claim(select=NVME, count=None), claim(select=NVME, count=1)]
    result = share_out([claims[place] for place in order], fabric(FOUR), False)
    assert sorted(fdid for share in result for fdid in share.predicted) == ["40001", "40002", "80001"]


def test_users_have_no_say_in_who_keeps_what() -> None:
    """The wide claim took the first device; that the second shows a user more must not turn it round."""
    pool = fabric([device("40001", serial="w"), device("40002", users=1)], here=["40001", "40002"])
    wide, narrow = claim(select=NVME), claim(select=FabricSelect(bdf=parse_slot("02:")))
    assert shares([wide, narrow], pool) == [(["40001"], []), (["40002"], [])]


def test_a_wide_claim_leaves_a_narrow_one_its_device() -> None:
    """Run 1: the wide claim keeps 80001, the narrow one borrows 40001. Run 2 has nothing to do."""
    wide, narrow = claim(select=NVME), claim(select=FabricSelect(vendor_id="144d", node_id=4))
    pool = fabric([device("40001"), device("80001")], here=["80001"])
    assert shares([wide, narrow], pool) == [(["80001"], []), ([], ["40001"])]
    again = fabric([device("40001"), device("80001")], here=["80001", "40001"])
    assert [share.missing for share in share_out([wide, narrow], again, False)] == [0, 0]


@pytest.mark.parametrize(
    ("select", "fdids"),
    [
        (FabricSelect(node_id=4), ["40001", "40002"]),
        (FabricSelect(bdf=parse_slot("0000:01:00.0")), ["40001", "80001"]),
        (FabricSelect(bdf=parse_slot("1:"), node_id=8), ["80001"]),
        (FabricSelect(uuid="AB-1"), ["40001"]),
        (FabricSelect(serial="s1"), ["40001"]),
        (FabricSelect(serial="S1"), []),
        (FabricSelect(vendor_id="10de"), ["80002"]),
        (FabricSelect(name=re.compile("^x$"), node_id=8), ["80001", "80002"]),
        (FabricSelect(name=re.compile("listed"), node_id=8), ["80001", "80002"]),
        (FabricSelect(name=re.compile("none")), []),
    ],
)
def test_matching(select: FabricSelect, fdids: List[str]) -> None:
    devices = [replace(FOUR[0], uuid="ab-1", serial="s1"), *FOUR[1:]]
    assert matching(claim(select=select), fabric(devices)) == fdids


def test_what_is_not_told_does_not_match() -> None:
    bare = fabric([FabricDevice("40001")])
    for select in (NVME, FabricSelect(node_id=4), FabricSelect(bdf=parse_slot("1:")), FabricSelect(serial="x")):
        assert matching(claim(select=select), bare) == []


def test_what_has_left_the_pool_does_not_match() -> None:
    pool = fabric(FOUR)
    gone = replace(pool, entries={fdid: entry for fdid, entry in pool.entries.items() if fdid != "40001"})
    assert matching(claim(select=NVME), gone) == ["40002", "80001"]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ({"40001": "unavailable"}, "40001 is unavailable"),
        ({"40001": "in use"}, "40001 is shown as [in use], a word that nobody here knows"),
    ],
)
def test_why_not(words: Dict[str, str], text: str) -> None:
    assert why_not("40001", fabric(FOUR, words)) == text
    assert why_not("99", fabric(FOUR)) == "99 is not in the pool"


def test_shortfall_names_every_reason() -> None:
    words = {"40001": "unavailable", "40002": "in use"}
    pool = replace(fabric(FOUR, words, here=["80001"]), failed={"c0001": SharingError("no answer")})
    error = shortfall(claim(select=NVME, count=3), ["80001"], pool, {"40002": "40002: EBUSY"})
    assert error.message.startswith("claim: 1 of 3 devices could be borrowed; ")
    assert error.details["reasons"] == [
        "40001 is unavailable",
        "40002: EBUSY",
        "c0001 could not be looked at: no answer",
    ]
    assert "1 of all devices" in shortfall(claim(select=NVME, count=None), ["80001"], pool, {}).message
    assert "no device in the pool matches" in shortfall(claim(select=GPU), [], fabric(FOUR[:1]), {}).message


def test_shortfall_of_many() -> None:
    many = [device(f"400{number:02x}") for number in range(1, 30)]
    pool = fabric(many, {one.fdid: "unavailable" for one in many})
    error = shortfall(claim(select=NVME), [], pool, {})
    assert error.message.endswith("; and 21 more (see reasons)")
    assert len(error.details["reasons"]) == 29  # type: ignore[arg-type]


def raw(**given_: object) -> Dict[str, object]:
    """An element as Ansible hands it on."""
    return {**dict.fromkeys(("fdid", "select", "label", "count", "all", "dma_window")), **given_}


def raw_select(**given_: object) -> Dict[str, object]:
    keys = ("node_id", "bdf", "uuid", "serial", "vendor_id", "device_id", "name_regex")
    return {**dict.fromkeys(keys), **given_}


@pytest.mark.parametrize(
    ("element", "expected"),
    [
        (raw(fdid="0x80C00"), Claim("0x80C00", "80c00")),
        (raw(fdid=80000, dma_window=512), Claim("80000", "80000", dma_window="512")),
        (raw(label="a"), Claim("label a", label="a")),
        (raw(fdid="80000", label=""), Claim("80000", "80000")),
        (
            raw(select=raw_select(vendor_id="0x144D", node_id=4), count=3, label="a"),
            Claim("a (select {node_id: 4, vendor_id: 0x144D})", None, FabricSelect(4, vendor_id="144d"), "a", 3),
        ),
        (
            raw(select=raw_select(bdf="81:00.0", device_id="1"), all=True),
            Claim(
                "select {bdf: 81:00.0, device_id: 1}",
                None,
                FabricSelect(bdf=parse_slot("81:00.0"), device_id="0001"),
                count=None,
            ),
        ),
    ],
)
def test_claim_from(element: Dict[str, object], expected: Claim) -> None:
    assert claim_from(element) == expected


@pytest.mark.parametrize(
    ("element", "message"),
    [
        (raw(fdid="xyz"), "'xyz' is not a fabric device id"),
        (raw(fdid="80000", count=2), "fdid names one device: count and all go with select"),
        (raw(fdid="80000", all=True), "fdid names one device"),
        (raw(select=raw_select(uuid="x"), count=0), "count: 0 is not a number of devices from 1 to 4096"),
        (raw(select=raw_select(uuid="x"), count=10**9), "count: 1000000000 is not a number of devices from 1 to 4096"),
        (raw(select=raw_select(uuid="x"), count=-1), "count: -1 is not"),
        (raw(select=raw_select()), "select is empty"),
        (raw(select=raw_select(bdf=4860.0)), "select.bdf: the number 4860.0 arrived"),
        (raw(select=raw_select(bdf="x")), "not a PCI address"),
        (raw(select=raw_select(vendor_id="intel")), "vendor_id: 'intel' is not a hexadecimal id"),
        (raw(select=raw_select(name_regex="(")), "name_regex: '\\('"),
    ],
)
def test_bad_claims(element: Dict[str, object], message: str) -> None:
    with pytest.raises(SharingError, match=message):
        claim_from(element)


# Properties. Devices are few and alike, so that claims compete for them.

FDIDS = [f"{node << 16 | number:x}" for node in (4, 8) for number in (1, 2, 3)]
# (vendor, users, word, borrowed here, remembered under a label) of a device; most are free, so that claims are filled.
KINDS = [
    (vendor, users, word, here, label)
    for vendor in ("144d", "144d", "10de")
    for users in (None, 0, 1)
    for word, here, label in (
        ("available", False, "-"),
        ("available", False, "-"),
        ("available", False, "a"),
        ("unavailable", False, "-"),
        ("odd", False, "-"),
        ("available", True, "-"),
        ("odd", True, "-"),
        ("odd", True, None),
        ("odd", True, "a"),
        ("odd", True, "b"),
    )
]
SELECTS = st.sampled_from([NVME, GPU, ANY, FabricSelect(node_id=4), FabricSelect(node_id=8, vendor_id="144d")])
CLAIMS = st.one_of(
    st.builds(claim, st.sampled_from(FDIDS), label=st.sampled_from([None, "a", "b"])),
    st.builds(
        claim,
        select=SELECTS,
        label=st.sampled_from([None, None, "a", "b", "c"]),
        count=st.sampled_from([1, 1, 2, 3, None]),
    ),
)


def situation(kinds: List[Optional[Tuple[str, Optional[int], str, bool, Optional[str]]]], unasked: int) -> Fabric:
    """A pool, and what of it is borrowed here under which label; ``unasked`` is a set of bits."""
    known = {fdid: kind for fdid, kind in zip(FDIDS, kinds) if kind is not None}
    return fabric(
        [device(fdid, kind[0], users=kind[1]) for fdid, kind in known.items()],
        {fdid: kind[2] for fdid, kind in known.items()},
        [fdid for fdid, kind in known.items() if kind[3]],
        {fdid: kind[4] for fdid, kind in known.items() if kind[4] != "-"},
        [fdid for place, fdid in enumerate(known) if unasked >> place & 1],
    )


def situations(all_asked: bool = True) -> st.SearchStrategy[Fabric]:
    kinds = st.lists(st.sampled_from([None, *KINDS]), min_size=6, max_size=6)
    return st.builds(situation, kinds, st.just(0) if all_asked else st.integers(0, 63))


def _distinct_labels(claims: List[Claim]) -> bool:
    labels = [one.label for one in claims if one.label]
    return len(labels) == len(set(labels))


CLAIM_LISTS = st.lists(CLAIMS, max_size=4).filter(_distinct_labels)


@given(claims=CLAIM_LISTS, pool=situations(), force=st.booleans())
@settings(max_examples=200)
def test_every_device_goes_to_one_claim_at_most(claims: List[Claim], pool: Fabric, force: bool) -> None:
    result = share_out(claims, pool, force)
    given_out = [fdid for share in result for fdid in [*share.kept, *share.predicted]]
    assert len(given_out) == len(set(given_out))
    assert [share.claim for share in result] == claims


@given(claims=CLAIM_LISTS, pool=situations(all_asked=False), force=st.booleans())
@settings(max_examples=200)
def test_what_a_claim_gets(claims: List[Claim], pool: Fabric, force: bool) -> None:
    result = share_out(claims, pool, force)
    kept = {fdid for share in result for fdid in share.kept}
    reserved = {one.fdid for one in claims if one.fdid}
    for share in result:
        assert all(pool.here(fdid) for fdid in share.kept)
        assert not kept & set(share.candidates)
        assert all(can_be_tried(fdid, pool, force) and not pool.here(fdid) for fdid in share.candidates)
        assert len(set(share.candidates)) == len(share.candidates)
        assert all(fdid not in pool.vdevs for fdid in share.unknown)
        _check_size(share)
        _check_labels(share, pool)
        if share.claim.fdid is None:
            assert not reserved & set(share.candidates)


def _check_size(share: Share) -> None:
    count = share.claim.count
    if count is None:
        assert share.missing is None
        return
    assert share.missing == count - len(share.kept)
    assert 0 <= share.missing <= count
    assert len(share.predicted) == share.missing - share.lacking


def _check_labels(share: Share, pool: Fabric) -> None:
    """Only an fdid that is named outweighs the label that a device is borrowed under."""
    for fdid in share.kept:
        assert pool.label_of(fdid) in (None, share.claim.label) or fdid == share.claim.fdid
    for fdid in [*share.kept, *share.candidates]:
        if share.claim.select is not None:
            assert fdid in matching(share.claim, pool) or pool.label_of(fdid) == share.claim.label


@given(claims=CLAIM_LISTS, pool=situations(all_asked=False), force=st.booleans(), seed=st.integers())
def test_the_order_of_the_pool_does_not_matter(claims: List[Claim], pool: Fabric, force: bool, seed: int) -> None:
    fdids = list(pool.entries)
    random.Random(seed).shuffle(fdids)  # noqa: S311
    other = Fabric(
        {fdid: pool.entries[fdid] for fdid in fdids},
        {fdid: pool.shown[fdid] for fdid in fdids},
        {},
        {fdid: pool.vdevs[fdid] for fdid in fdids if fdid in pool.vdevs},
        {fdid: pool.remembered[fdid] for fdid in fdids if fdid in pool.remembered},
    )
    assert share_out(claims, other, force) == share_out(claims, pool, force)


def _borrowed(result: Sequence[Share], pool: Fabric, word: str) -> Fabric:
    """The pool after every claim has borrowed what was predicted, remembered as the ledger would."""
    entries, vdevs, labels = dict(pool.entries), dict(pool.vdevs), dict(pool.remembered)
    shown = dict(pool.shown)
    for share in result:
        for fdid in share.predicted:
            vdevs[fdid] = VDEV
            entries[fdid] = replace(entries[fdid], word=word)
            shown[fdid] = replace(shown[fdid], users=1)
        for fdid in [*share.kept, *share.predicted]:
            labels[fdid] = share.claim.label or (pool.label_of(fdid))
    return Fabric(entries, shown, {}, vdevs, labels)


def _idempotent(claims: List[Claim], pool: Fabric, force: bool, word: str) -> None:
    result = share_out(claims, pool, force)
    if any(share.lacking or share.misfits for share in result):
        return
    again = share_out(claims, _borrowed(result, pool, word), force)
    assert [share.predicted for share in again] == [[] for _claim in claims]
    assert [share.filled for share in again] == [True] * len(claims)


LABELLED = st.lists(CLAIMS, max_size=4).map(
    lambda claims: [replace(one, label=f"label{place}") for place, one in enumerate(claims)]
)


@given(claims=LABELLED, pool=situations(), force=st.booleans(), word=st.sampled_from(["available", "odd"]))
@settings(max_examples=200)
def test_a_second_run_has_nothing_to_do_with_labels(claims: List[Claim], pool: Fabric, force: bool, word: str) -> None:
    _idempotent(claims, pool, force, word)


@given(
    claims=st.lists(CLAIMS.map(lambda one: replace(one, label=None)), max_size=4),
    pool=situations(),
    force=st.booleans(),
    word=st.sampled_from(["available", "odd"]),
)
@settings(max_examples=300)
def test_a_second_run_has_nothing_to_do_without_labels(
    claims: List[Claim], pool: Fabric, force: bool, word: str
) -> None:
    _idempotent(claims, pool, force, word)


def test_all_is_filled_where_other_claims_of_the_run_have_every_match() -> None:
    pool = fabric(FOUR[:1], here=[FOUR[0].fdid])
    one, everything = share_out([claim(select=NVME), claim(select=NVME, count=None)], pool, False)
    assert one.filled
    assert everything.filled
    assert everything.lacking == 0
    assert not share_out([claim(select=GPU, count=None)], pool, False)[0].filled

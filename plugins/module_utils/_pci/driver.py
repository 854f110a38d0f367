# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which driver a device has: give it to a driver by name, or back to whichever the kernel chooses.

Devices that move together (an IOMMU group, for VFIO) are one item of the plan: where one of them is refused or fails,
all of them stay, or go back, where they were.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Dict, FrozenSet, List, Mapping, Optional, Sequence, Set, Tuple

from .._plan import Action, Deadline, Item, Outcome, Plan, Report, Resource, SharingError
from . import bounded, lspci_filter, usage
from .address import DeviceNotFound, check_written, printable, resolve
from .sysfs import PciDevice, Sysfs

DEFAULT = "default"
REFUSE, INCLUDE = "refuse", "include"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")
_BRIDGES = "06"
# What a device may have while another one of its group is used through VFIO.
_HARMLESS = ("pci-stub", "pcieport")
# Seconds that a driver may take to let go of one device, or to take it; and until sysfs shows that after it is done.
_LIMIT = 30.0
_SETTLE = 2.0
_PROGRAM_FOLDERS = ("/usr/sbin", "/sbin", "/usr/bin", "/bin")


# What is wanted, what there is, and what leads from one to the other


@dataclass(frozen=True)
class Want:
    """What is wanted: ``driver`` is a driver's name or DEFAULT, for these devices (full BDFs, each once)."""

    bdfs: Tuple[str, ...]
    driver: str
    group: str = REFUSE
    force: bool = False
    has_options: bool = True
    """Whether who asks can be told to give ``force`` or ``group``: the module pci_driver has them, others have not."""

    @property
    def vfio(self) -> bool:
        """Whether the driver hands whole IOMMU groups to user space."""
        return _is_vfio(self.driver)


@dataclass(frozen=True)
class Choice:
    """What the kernel would choose from for a device: drivers that are loaded, and modules that are not."""

    drivers: FrozenSet[str] = frozenset()
    modules: Tuple[str, ...] = ()


@dataclass(frozen=True)
class Bound:
    """A device as it is. ``override`` is the text of its driver_override, None where it has none to set.

    ``choice`` is None where nobody knows what the kernel would choose from.
    """

    bdf: str
    driver: Optional[str] = None
    override: Optional[str] = ""
    group: Optional[str] = None
    bridge: bool = False
    choice: Optional[Choice] = Choice()
    used: usage.Usage = field(default_factory=usage.Usage)

    def __str__(self) -> str:
        return (self.driver or "no driver") + (f", override {self.override}" if self.override else "")


@dataclass(frozen=True)
class Have:
    """A node as it is: the wanted devices, and the others of their groups.

    ``loaded`` says whether the wanted driver is there; where it is not, ``unloadable`` may say why it cannot be loaded.
    """

    devices: Mapping[str, Bound]
    loaded: bool = True
    unloadable: Optional[SharingError] = None
    unsafe_vfio: bool = False  # VFIO is told to take devices without an IOMMU

    def others(self, device: Bound) -> List[Bound]:
        """The other devices of its IOMMU group, but for bridges, which stay where they are."""
        if device.group is None:
            return []
        same = [other for other in self.devices.values() if other.group == device.group and not other.bridge]
        return [other for other in same if other.bdf != device.bdf]


def _is_vfio(driver: Optional[str]) -> bool:
    return driver is not None and (driver.startswith("vfio") or "vfio" in re.split("[-_]", driver))


def steps(device: Bound, driver: str) -> Tuple[str, ...]:
    """The commands that lead a device to a driver, or to DEFAULT: whichever the kernel chooses, with no override."""
    if driver == DEFAULT:
        return _steps_to_default(device)
    if device.driver == driver:
        return ()
    unbind = ("unbind",) if device.driver else ()
    return (*unbind, "override", "probe") if device.override != driver else (*unbind, "probe")


def _steps_to_default(device: Bound) -> Tuple[str, ...]:
    clear = ("override",) if device.override else ()
    choice = device.choice
    probe = ("probe",) if choice is None or choice.drivers or choice.modules else ()
    if device.driver is None:
        return (*clear, *probe)
    if device.driver != device.override or (choice is not None and device.driver in choice.drivers):
        return clear  # the kernel has chosen it, or would
    return ("unbind", *clear, *probe)


def parties(want: Want, have: Have) -> List[List[Bound]]:
    """The devices that move together, each with those that are taken along; in the order given."""
    found: List[List[Bound]] = []
    seen: Set[str] = set()
    for bdf in want.bdfs:
        if bdf not in seen:
            device = have.devices[bdf]
            others = have.others(device) if want.vfio or want.group == INCLUDE else []
            party = [device] + [other for other in others if other.bdf in want.bdfs or want.group == INCLUDE]
            seen.update(member.bdf for member in party)
            found.append(party)
    return found


def refusal(party: Sequence[Bound], want: Want, have: Have) -> Optional[SharingError]:
    """Why the devices of a party must not be moved; None where they may, or where nothing is to be done."""
    moving = [device for device in party if steps(device, want.driver)]
    if not moving:
        return None
    for device in moving:
        error = _refusal_of(device, want, have)
        if error is not None and device is not party[0]:
            return SharingError(
                f"{party[0].bdf} moves together with others of its IOMMU group: {error.message}", **error.details
            )
        if error is not None:
            return error
    staying = [other for other in have.others(party[0]) if other not in party and not _harmless(other.driver)]
    if want.vfio and staying:
        named = ", ".join(f"{other.bdf} ({other.driver})" for other in staying)
        advice = "or give group: include" if want.has_options else "or bind the others with iofabric.sharing.pci_driver"
        return SharingError(
            f"{party[0].bdf} shares its IOMMU group {party[0].group} with {named}, and VFIO takes whole groups: "
            f"name all of them, {advice}",
            group=[other.bdf for other in staying],
        )
    return None if have.loaded else have.unloadable


def _harmless(driver: Optional[str]) -> bool:
    return driver is None or driver in _HARMLESS or _is_vfio(driver)


def _refusal_of(device: Bound, want: Want, have: Have) -> Optional[SharingError]:
    bdf, used = device.bdf, device.used
    if used.never:
        return usage.must_not_touch(bdf, used.never)
    if used.reasons and not want.force:
        return usage.in_use(bdf, used.reasons, want.has_options)
    if device.override is None:
        return SharingError(
            f"{bdf} has no driver_override in sysfs: it is gone, or this kernel is too old (Linux 3.16)"
        )
    if want.vfio and device.group is None and not have.unsafe_vfio:
        return SharingError(
            f"{bdf} is in no IOMMU group, so {want.driver} cannot take it: switch the IOMMU on, in the firmware and "
            "with intel_iommu=on or the like on the kernel's command line"
        )
    return None


def plan(want: Want, have: Have) -> Plan:
    """What is to be done, party by party; pure. The name of an item is that of its first device."""
    modules: Set[str] = set()  # that an earlier party loads
    items = []
    for party in parties(want, have):
        error = refusal(party, want, have)
        actions = () if error else _actions(party, want, have, modules)
        moved = any(action.command != "modprobe" for action in actions)
        after = [_after(device, want, moved) for device in party]
        items.append(Item(party[0].bdf, _joined(party), "; ".join(after), tuple(actions), error))
    return Plan(tuple(items))


def _joined(party: Sequence[Bound]) -> str:
    return "; ".join(str(device) for device in party)


def _after(device: Bound, want: Want, moved: bool) -> str:
    if not moved or not steps(device, want.driver):
        return str(device)
    return "default driver" if want.driver == DEFAULT else f"{want.driver}, override {want.driver}"


def _actions(party: Sequence[Bound], want: Want, have: Have, loaded: Set[str]) -> List[Action]:
    found: List[Action] = []
    for device in party:
        todo = steps(device, want.driver)
        needed = [name for name in _modules(device, want, have) if name not in loaded] if "probe" in todo else []
        if needed:
            found.append(Action("modprobe", (device.bdf, *needed), f"load {', '.join(needed)}"))
            loaded.update(needed)
        found += [_action(step, device, want.driver) for step in todo]
    return found


def _modules(device: Bound, want: Want, have: Have) -> Tuple[str, ...]:
    if want.driver != DEFAULT:
        return () if have.loaded else (want.driver,)
    return device.choice.modules if device.choice else ()


def _action(step: str, device: Bound, driver: str) -> Action:
    bdf = device.bdf
    if step == "unbind":
        return Action(step, (bdf,), f"unbind {device.driver} from {bdf}")
    if driver == DEFAULT:
        words = f"let any driver have {bdf}" if step == "override" else f"look for a driver for {bdf}"
        return Action(step, (bdf, ""), words)
    words = f"let only {driver} have {bdf}" if step == "override" else f"bind {driver} to {bdf}"
    return Action(step, (bdf, driver), words)


# Reading and changing a node


class Binding:
    """One run on one node."""

    def __init__(self, sysfs: Sysfs, proc: str, deadline: Deadline) -> None:
        self._sysfs = sysfs
        self._proc = proc
        self._deadline = deadline
        self._modprobe = _find_program("modprobe")
        self._stuck: Set[str] = set()  # devices in the hands of a process that was given up

    def run(self, want: Want, unresolved: Sequence[Tuple[str, SharingError]], check: bool) -> Report:
        """Observe, plan and, unless ``check``, apply, read back, and put back what failed."""
        have = self.observe(want)
        todo = plan(want, have)
        outcomes = todo.predict() if check else todo.apply(self._perform)
        for outcome in outcomes:
            if not check and outcome.error is not None and outcome.item.actions:
                self._put_back(outcome, have)
        return self._report(want, have, outcomes, unresolved, check)

    def observe(self, want: Want) -> Have:
        """The node as it is; nothing is changed. What uses a device is only looked for where it would be moved."""
        bdfs = dict.fromkeys(want.bdfs)
        for bdf in want.bdfs:
            bdfs.update(dict.fromkeys(self._sysfs.group_members(bdf)))
        devices = {bdf: self._bound(bdf, want.driver) for bdf in bdfs}
        have = Have(devices)
        moving = [device.bdf for party in parties(want, have) for device in party if steps(device, want.driver)]
        for bdf, used in usage.observe(moving, self._sysfs, self._proc).items():
            devices[bdf] = replace(devices[bdf], used=used)
        loaded = want.driver == DEFAULT or self._sysfs.has_driver(want.driver)
        return Have(
            devices,
            loaded=loaded,
            unloadable=None if loaded or not moving else self._unloadable(want.driver),
            unsafe_vfio=self._sysfs.parameter_of("vfio", "enable_unsafe_noiommu_mode") == "Y",
        )

    def _bound(self, bdf: str, wanted: str) -> Bound:
        device, override = self._sysfs.device(bdf), self._sysfs.driver_override(bdf)
        undecided = device.driver is None or device.driver == override
        return Bound(
            bdf=bdf,
            driver=device.driver,
            override=override,
            group=device.iommu_group,
            bridge=device.class_code.startswith(_BRIDGES),
            choice=self._choice(bdf) if wanted == DEFAULT and undecided else Choice(),
        )

    def _choice(self, bdf: str) -> Optional[Choice]:
        """The modules that say of themselves that they are for this device, by what they are called in sysfs."""
        alias = self._sysfs.modalias(bdf)
        if not alias or self._modprobe is None:
            return None
        try:
            found = bounded.run([self._modprobe, "-b", "-R", alias], _LIMIT)
        except bounded.GivenUp:
            return None
        if "option" in found.output:  # busybox's, which does not know -R
            return None
        names = found.output.split() if found.status == 0 else []
        drivers = {name: self._sysfs.drivers_of(name) for name in names}
        return Choice(
            drivers=frozenset(driver for loaded in drivers.values() for driver in loaded or ()),
            modules=tuple(name for name, loaded in drivers.items() if loaded is None),
        )

    def _unloadable(self, driver: str) -> Optional[SharingError]:
        """Why the module of a driver cannot be loaded, as far as can be told without trying."""
        if self._modprobe is None:
            return SharingError(
                f"the driver {driver} is not loaded, and modprobe, which could load it, is not installed: install kmod"
            )
        try:
            tried = bounded.run([self._modprobe, "-D", driver], _LIMIT)
        except bounded.GivenUp:
            return None
        return self._no_module(driver, tried) if tried.status else None

    def _no_module(self, name: str, tried: bounded.Ended) -> SharingError:
        said = tried.output.splitlines()[-1:] or [f"status {tried.status}"]
        return SharingError(
            f"the kernel module {name} cannot be loaded ({printable(said[0])}): correct the driver's name, or install "
            "the package that has it"
        )

    # Acting

    def _perform(self, action: Action) -> None:
        bdf = str(action.args[0])
        if action.command == "modprobe":
            self._load([str(name) for name in action.args[1:]])
        elif action.command == "unbind":
            self._unbind(bdf, action.words)
        elif action.command == "override":
            self._override(bdf, str(action.args[1]), action.words)
        else:
            self._probe(bdf, str(action.args[1]), action.words)

    def _load(self, names: Sequence[str]) -> None:
        for name in names:
            if self._modprobe is None:
                raise SharingError(f"modprobe, which could load {name}, is not installed: install kmod")
            try:
                ended = bounded.run([self._modprobe, name], self._seconds(f"load {name}"))
            except bounded.GivenUp as error:
                raise SharingError(
                    f"modprobe {name} (process {error.pid}) did not end in time and was given up; see the kernel log"
                ) from error
            if ended.status:
                raise self._no_module(name, ended)

    def _unbind(self, bdf: str, words: str) -> None:
        driver = self._sysfs.driver(bdf)
        if driver is None:
            return
        self._write(bdf, os.path.join(self._sysfs.folder(bdf), "driver/unbind"), bdf, words)
        if not _comes_true(lambda: self._sysfs.driver(bdf) is None):
            raise SharingError(f"{bdf}: {driver} was unbound, but sysfs still shows it; see the kernel log (dmesg)")

    def _override(self, bdf: str, driver: str, words: str) -> None:
        self._write(bdf, os.path.join(self._sysfs.folder(bdf), "driver_override"), driver + "\n", words)

    def _probe(self, bdf: str, driver: str, words: str) -> None:
        """Have the kernel bind a driver; whichever it likes where none is named."""
        if driver and not self._sysfs.has_driver(driver):
            raise SharingError(
                f"{bdf}: the kernel module {driver} brings no PCI driver of that name; name one that "
                f"{self._sysfs.root}/bus/pci/drivers shows"
            )
        self._write(bdf, os.path.join(self._sysfs.root, "bus/pci/drivers_probe"), bdf, words)
        if _comes_true(lambda: self._sysfs.driver(bdf) == driver if driver else bool(self._sysfs.driver(bdf))):
            return
        found = self._sysfs.driver(bdf)
        if found is None:
            raise SharingError(f"{bdf}: {driver or 'no driver'} {'did not take' if driver else 'took'} it; see dmesg")
        raise SharingError(f"{bdf}: {found} has it instead of {driver}; see what else binds drivers on this node")

    def _write(self, bdf: str, path: str, text: str, words: str) -> None:
        seconds = self._seconds(words)
        try:
            ended = bounded.write(path, text, seconds)
        except bounded.GivenUp as error:
            if error.stuck:
                self._stuck.add(bdf)
            left = "cannot be ended" if error.stuck else "was ended"
            raise SharingError(
                f"{bdf}: could not {words} within {seconds:.1f} seconds; process {error.pid} waits for it and {left}; "
                "see the kernel log (dmesg), and who has the device open"
            ) from error
        if ended.status:
            reason = "the driver failed badly" if ended.status == bounded.KILLED else os.strerror(ended.status)
            raise SharingError(f"{bdf}: could not {words}: {reason} ({printable(path)}){_advice(ended.status)}")

    def _seconds(self, words: str) -> float:
        left = self._deadline.left()
        if left <= 0:
            raise SharingError(f"no time is left to {words}; give a longer timeout than {self._deadline.seconds:g}")
        return min(_LIMIT, left)

    # Putting back

    def _put_back(self, outcome: Outcome, have: Have) -> None:
        """Give the devices of an item that failed back what they had, and say so in its error."""
        failed = outcome.error
        if failed is None:
            return
        touched = dict.fromkeys(str(action.args[0]) for action in outcome.item.actions)
        self._deadline = Deadline(_LIMIT)
        words = [self._restored(have.devices[bdf]) for bdf in reversed(list(touched))]
        message = "; ".join([failed.message, *(text for text in words if text)])
        outcome.error = SharingError(message, **failed.details)

    def _restored(self, before: Bound) -> str:
        """Give one device back the driver and the override that it had; what came of it, in words."""
        bdf = before.bdf
        if bdf in self._stuck:
            return f"{bdf} is left as it is"
        try:
            found = self._sysfs.driver(bdf)
            if found == before.driver and self._sysfs.driver_override(bdf) == before.override:
                return ""
            if found is not None and found != before.driver:
                self._unbind(bdf, f"unbind {found} from {bdf}")
            if before.driver is not None and found != before.driver:
                self._override(bdf, before.driver, f"let {before.driver} have {bdf} again")
                self._probe(bdf, before.driver, f"bind {before.driver} to {bdf} again")
            self._override(bdf, before.override or "", f"set the driver_override of {bdf} back")
        except SharingError as error:
            return f"{bdf} could not be put back as it was ({before}): {error.message}"
        return f"{bdf} was put back as it was ({before})"

    # Telling

    def _report(
        self,
        want: Want,
        have: Have,
        outcomes: Sequence[Outcome],
        unresolved: Sequence[Tuple[str, SharingError]],
        check: bool,
    ) -> Report:
        report = Report({}, errors=list(unresolved))
        rows: Dict[str, Dict[str, object]] = {}
        for party, outcome in zip(parties(want, have), outcomes):
            for device in party:
                done = [action.command for action in outcome.done if action.args[0] == device.bdf]
                moved = outcome.error is None and bool(outcome.item.actions)
                rows[device.bdf] = self._row(device, want, done, check)
                report.before.append(f"{device.bdf}: {device}")
                report.after.append(f"{device.bdf}: {_after(device, want, moved)}")
            report.changed = report.changed or bool(outcome.done)
            if outcome.error is not None:
                report.errors.append((outcome.item.name, outcome.error))
        named = [rows.pop(bdf) for bdf in want.bdfs]
        report.results["devices"] = [*named, *rows.values()]
        return report

    def _row(self, device: Bound, want: Want, done: Sequence[str], check: bool) -> Dict[str, object]:
        after = self._sysfs.driver(device.bdf)
        if check and done:
            after = None if want.driver == DEFAULT and "probe" in done else want.driver
        return {
            "bdf": device.bdf,
            "before": device.driver,
            "after": after,
            "iommu_group": device.group,
            "in_use": list(device.used.all),
            "action": ", ".join(done) or "none",
        }


def _comes_true(condition: Callable[[], bool]) -> bool:
    """Whether a condition is true, at once or soon: the kernel is done when a write returns, others are not."""
    return any(condition() for _last in Deadline(_SETTLE).pauses(first=0.001, most=0.05))


def _find_program(name: str) -> Optional[str]:
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), *_PROGRAM_FOLDERS]))


def _advice(status: int) -> str:
    if status in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "; run as root (become: true), where sysfs can be written"
    return "; see the kernel log (dmesg)"


# The resource


def check_name(value: object, other: str) -> str:
    """A driver's name, or the one ``other`` word that may stand in its place."""
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise SharingError(f"driver: {value!a} is no driver's name; give one such as vfio-pci, or {other}")
    return value


def resource(params: Mapping[str, Any]) -> Resource:
    """The drivers of devices, from the parameters of the module pci_driver."""
    driver = check_name(params["driver"], DEFAULT)
    if not params["timeout"] > 0 or params["timeout"] == float("inf"):
        raise SharingError(f"timeout: {params['timeout']!r} is not a number of seconds above 0")
    sysfs = Sysfs(params["sysfs"])

    def run(check: bool) -> Report:
        bdfs, errors = _resolved(params["devices"], sysfs)
        want = Want(tuple(bdfs), driver, params["group"], params["force"])
        return Binding(sysfs, params["proc"], Deadline(params["timeout"])).run(want, errors, check)

    return Resource("devices", run)


def _resolved(elements: Sequence[object], sysfs: Sysfs) -> Tuple[List[str], List[Tuple[str, SharingError]]]:
    """The devices that are meant, each once, and an error for every element that means none."""
    if not elements:
        raise SharingError("devices is empty: name a device by its PCI address, or devices by a filter")
    present = sysfs.devices()
    bdfs: Dict[str, None] = {}
    errors: List[Tuple[str, SharingError]] = []
    for element in elements:
        try:
            bdfs.update(dict.fromkeys(_meant(element, present)))
        except SharingError as error:
            errors.append((printable(str(element)), error))
    return list(bdfs), errors


def _meant(element: object, present: Mapping[str, PciDevice]) -> List[str]:
    text = check_written(element, "devices")
    if not text.lstrip().startswith("-"):
        return [resolve(text, present)]
    wanted = lspci_filter.parse(text)
    found = [bdf for bdf, device in present.items() if wanted.matches(device)]
    if not found:
        raise DeviceNotFound(f"the filter '{printable(text)}' matches no PCI device of this node; correct it")
    return found

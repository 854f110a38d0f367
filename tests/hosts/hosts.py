# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Real Debian hosts with systemd as process 1, on one machine, for as long as a command runs; see README.md.

A lab is a set of namespaces (processes, mounts, network) that holds the hosts, their file systems in memory and the
network between them. It lives as long as the process that runs it: when that ends, also by SIGKILL, the kernel ends
every process of the lab and with the last of them its mounts and its network are gone.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, TypeVar

import bases

# Outside of a lab: one lock a lab. Inside: a file system of its own that hides it, with all that the lab has.
RUN = Path("/run/iofabric-hosts")
SETTINGS = RUN / "lab.json"
HOSTS = RUN / "hosts"
NETWORK, GATEWAY, FIRST = "10.99.0", "10.99.0.1", 11
PROGRAMS = {
    "systemd-nspawn": "systemd-container",
    "mmdebstrap": "mmdebstrap",
    "ip": "iproute2",
    "ssh-keygen": "openssh-client",
    "unshare": "util-linux",
    "setpriv": "util-linux",
}
_READY_SECONDS = 60.0
_GONE_SECONDS = 10.0
# What systemd-nspawn exits with when the host reboots.
_REBOOTS = 133
# An address that no interface has: what is sent there is lost without a word.
_NOWHERE = "02:ff:00:00:00:00"
_SSH_CONFIG = """\
Host *
  User root
  IdentityFile {key}
  IdentitiesOnly yes
  StrictHostKeyChecking no
  UserKnownHostsFile /dev/null
  LogLevel ERROR
  # A connection that is kept open must notice that its host lost power.
  ServerAliveInterval 5
  ServerAliveCountMax 3
"""

_ACTIONS = """\
prepare [SUITE...]  make the bases of suites, or of all of them, and remove what ended labs left
run [COMMAND...]    run a command, or a shell, in a new lab that ends with it
enter COMMAND...    run a command in the lab that runs
clean               remove what ended labs left, and the bases

in a lab:
up NAME=SUITE...    power new hosts on and wait for ssh; NAME alone powers one on that is there
down [NAME...]      take hosts away with their disks, or all of them
crash NAME...       cut the power of hosts
cut NAME [NAME]     pull the cable of a host, or drop all that two hosts send each other
heal NAME [NAME]    undo cut
list                the hosts with address, suite, and whether they are up
ssh NAME COMMAND... run a command on a host (ssh's own options may stand in front)
"""

Result = TypeVar("Result")


class LabError(Exception):
    """What went wrong, in one sentence."""


class Host(NamedTuple):
    """A host of this lab."""

    name: str
    address: str
    suite: str

    @property
    def folder(self) -> Path:
        """What the host has on the machine that it runs on: its disk, its console's log."""
        return HOSTS / self.name

    @property
    def root(self) -> Path:
        """Its root file system, which can be looked at while it is down, too."""
        return self.folder / "root"

    @property
    def link(self) -> str:
        """The bridge's end of its cable."""
        return f"v-{self.name}"

    @property
    def hardware_address(self) -> str:
        """The same at every boot, as a real host's: others remember it."""
        return "02:00:" + ":".join(f"{int(number):02x}" for number in self.address.split("."))

    def cgroups(self) -> List[Path]:
        """Its control groups, the one of version 2 first."""
        return [root / self.name for root in lab_cgroups(_settings()["name"])]


# Small things


def _command(*words: str, text: str = "") -> str:
    done = subprocess.run(words, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr or done.stdout).strip()
        raise LabError(f"{' '.join(words)} failed with status {done.returncode}: {said}")
    return done.stdout


def _ip(lines: Sequence[str], namespace: str = "") -> None:
    """Runs several ip commands in the lab, or in the network namespace of a host."""
    _command("ip", *(["-n", namespace] if namespace else []), "-batch", "-", text="\n".join(lines) + "\n")


def _poll(condition: Callable[[], Optional[Result]], seconds: float) -> Optional[Result]:
    """What a condition returns as soon as that is true; None when it never was."""
    deadline = time.monotonic() + seconds
    while True:
        result = condition()
        if result or time.monotonic() > deadline:
            return result or None
        time.sleep(0.02)


def _read(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace")
    return ""


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds the lock of a file or folder."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _settings() -> Dict[str, str]:
    text = _read(SETTINGS)
    if not text:
        raise LabError("this works inside a lab only: hosts.py run COMMAND, or hosts.py run for a shell")
    settings: Dict[str, str] = json.loads(text)
    return settings


def need() -> None:
    """LabError unless this machine can run hosts."""
    if os.geteuid() != 0:
        raise LabError("test hosts need root (they are containers that boot systemd)")
    missing = sorted({package for program, package in PROGRAMS.items() if not shutil.which(program)})
    if missing:
        raise LabError(f"packages are missing: apt-get install --no-install-recommends {' '.join(missing)}")


# Control groups: the only thing that the kernel does not take away by itself


def lab_cgroups(lab: str) -> List[Path]:
    """The control groups of a lab, the one of version 2 first; systemd wants one of its own on a mixed machine."""
    top = Path("/sys/fs/cgroup")
    roots = [top / "unified", top / "systemd"] if (top / "unified").is_dir() else [top]
    return [root / f"iofabric-hosts-{lab}" for root in roots]


def _is_populated(cgroup: Path) -> bool:
    return "populated 1" in _read(cgroup / "cgroup.events")


def _kill_cgroup(cgroup: Path) -> None:
    """Ends all processes of a version 2 control group at once, as a power cut does."""
    with contextlib.suppress(FileNotFoundError):
        (cgroup / "cgroup.kill").write_text("1", encoding="ascii")
    if not _poll(lambda: not _is_populated(cgroup), _GONE_SECONDS):
        raise LabError(f"processes in {cgroup} do not end")


def _remove_cgroups(cgroups: Sequence[Path]) -> None:
    _kill_cgroup(cgroups[0])
    for cgroup in cgroups:
        for folder, _folders, _files in os.walk(cgroup, topdown=False):
            # A process that has just ended can hold its group for a moment.
            if not _poll(partial(_rmdir, folder), _GONE_SECONDS):
                raise LabError(f"{folder} cannot be removed")


def _rmdir(path: str) -> bool:
    try:
        os.rmdir(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


# The lab, from outside


def sweep() -> int:
    """Removes what labs left whose process is gone (call with RUN locked); the number of labs that run."""
    running = 0
    for path in RUN.glob("*.lock"):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove_cgroups(lab_cgroups(path.stem))
            path.unlink()
        except BlockingIOError:
            running += 1
        finally:
            os.close(descriptor)
    return running


def prepare(folder: Path, suites: Sequence[str]) -> None:
    """Makes the bases and the key of the hosts in a folder, as far as they are not there."""
    need()
    RUN.mkdir(exist_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda suite: bases.make(folder / "bases", suite), suites))
        if not (folder / "id_ed25519").exists():
            _command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(folder / "id_ed25519"))
        with _locked(RUN):
            if sweep() == 0:
                bases.remove_stale(folder / "bases")


def run(folder: Path, command: Sequence[str]) -> int:
    """Runs a command in a new lab; its exit status. The lab ends with it, and with this process."""
    need()
    if SETTINGS.exists():
        raise LabError("this is a lab already")
    if not (folder / "id_ed25519").exists():
        raise LabError("nothing is prepared yet: hosts.py prepare")
    RUN.mkdir(exist_ok=True)
    name = secrets.token_hex(4)
    path = RUN / f"{name}.lock"
    with _locked(RUN):
        sweep()
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _frame: sys.exit(128 + number))
    # Whichever of these two processes is killed, the next one is, too, and the last is process 1 of the lab.
    words = ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--net", "--pid", "--mount-proc", "--fork"]
    words += ["--kill-child", sys.executable, "-B", os.path.abspath(__file__), "--dir", str(folder), "first", name]
    process = subprocess.Popen(words + (list(command) or [os.environ.get("SHELL", "/bin/bash")]))
    try:
        os.write(lock, str(process.pid).encode())
        status = process.wait()
        return status if status >= 0 else 128 - status
    except KeyboardInterrupt:
        return 130
    finally:
        process.kill()
        process.wait()
        _remove_cgroups(lab_cgroups(name))
        path.unlink()


def enter(command: Sequence[str]) -> int:
    """Runs a command in the one lab that runs; its exit status."""
    labs = [int(text) for text in map(_read, RUN.glob("*.lock")) if text and Path("/proc", text).exists()]
    if len(labs) != 1:
        raise LabError(f"there must be one lab to enter, not {len(labs)}")
    first = _read(Path(f"/proc/{labs[0]}/task/{labs[0]}/children")).split()[0]
    return subprocess.run(["nsenter", "-t", first, "-m", "-n", "-p", "--", *command], check=False).returncode


# The lab, from inside


def first(folder: Path, name: str, command: Sequence[str]) -> int:
    """Process 1 of a lab: makes its places and its network, runs the command, ends what it leaves."""
    for place in (RUN, Path("/run/netns"), Path("/run/systemd/nspawn")):
        place.mkdir(parents=True, exist_ok=True)
        _command("mount", "-t", "tmpfs", "-o", "mode=0755", "hosts", str(place))
    HOSTS.mkdir()
    (RUN / "etc-hosts").write_text("127.0.0.1 localhost\n", encoding="utf-8")
    _command("mount", "--bind", str(RUN / "etc-hosts"), "/etc/hosts")
    # ssh insists that its key belongs to nobody but the user.
    shutil.copy(folder / "id_ed25519", RUN / "id_ed25519")
    (RUN / "id_ed25519").chmod(0o600)
    shutil.copy(folder / "id_ed25519.pub", RUN / "id_ed25519.pub")
    (RUN / "ssh_config").write_text(_SSH_CONFIG.format(key=RUN / "id_ed25519"), encoding="utf-8")
    _ip(["link set lo up", "link add br0 type bridge", f"addr add {GATEWAY}/24 dev br0", "link set br0 up"])
    SETTINGS.write_text(json.dumps({"name": name, "bases": str(folder / "bases")}), encoding="utf-8")
    child = os.fork()
    if child == 0:
        try:
            os.execvp(command[0], list(command))  # noqa: S606 - a command line that the caller gave
        except OSError as error:
            print(f"hosts: {command[0]}: {error.strerror}", file=sys.stderr)
            os._exit(127)
    while True:
        process, status = os.wait()
        if process == child:
            return os.waitstatus_to_exitcode(status) & 0xFF


def known() -> Dict[str, Host]:
    """The hosts of this lab, by name."""
    _settings()
    data = json.loads(_read(RUN / "hosts.json") or "[]")
    return {fields[0]: Host(*fields) for fields in data}


def _remember(hosts: Dict[str, Host]) -> None:
    (RUN / "hosts.json").write_text(json.dumps(list(hosts.values())), encoding="utf-8")
    lines = ["127.0.0.1 localhost", *(f"{host.address} {host.name}" for host in hosts.values())]
    text = "".join(f"{line}\n" for line in lines)
    for path in [RUN / "etc-hosts", *(host.root / "etc/hosts" for host in hosts.values())]:
        path.write_text(text, encoding="utf-8")


def up(wanted: Sequence[str]) -> None:
    """Powers hosts on, NAME=SUITE or NAME of one that is there, and waits until ssh answers."""
    with _locked(HOSTS):
        hosts = known()
        names = [_create(hosts, one) for one in wanted]
        _remember(hosts)
        started = [host for host in map(hosts.__getitem__, names) if not is_up(host)]
        for host in started:
            _plug_in(host)
            _power_on(host)
    for host in started:
        if not _poll(partial(_answers_or_died, host), _READY_SECONDS) or not is_up(host):
            tail = "\n".join(_read(host.folder / "console.log").splitlines()[-15:])
            raise LabError(f"{host.name} does not come up; its console says:\n{tail}")


def _create(hosts: Dict[str, Host], wanted: str) -> str:
    """Gives a new host its disk and its address; the name."""
    name, _equals, suite = wanted.partition("=")
    if name in hosts:
        return name
    if not re.match(r"^[a-z][a-z0-9-]{0,11}$", name) or suite not in bases.SUITES:
        raise LabError(f"{wanted}: must be NAME=SUITE, a name of up to 12 letters and one of {', '.join(bases.SUITES)}")
    base = bases.base(Path(_settings()["bases"]), suite)
    if not base.is_dir():
        raise LabError(f"the base of {suite} is not made yet: hosts.py prepare {suite} (outside of the lab)")
    used = {int(host.address.rpartition(".")[2]) for host in hosts.values()}
    number = next(number for number in range(FIRST, 250) if number not in used)
    host = hosts[name] = Host(name, f"{NETWORK}.{number}", suite)
    for folder in ("disk", "work", "root"):
        (host.folder / folder).mkdir(parents=True)
    layers = f"lowerdir={base},upperdir={host.folder}/disk,workdir={host.folder}/work"
    _command("mount", "-t", "overlay", "overlay", "-o", layers, str(host.root))
    (host.root / "etc/hostname").write_text(f"{name}\n", encoding="utf-8")
    (host.root / "etc/machine-id").write_text(f"{uuid.uuid4().hex}\n", encoding="utf-8")
    (host.root / "root/.ssh").mkdir(mode=0o700, exist_ok=True)
    shutil.copy(RUN / "id_ed25519.pub", host.root / "root/.ssh/authorized_keys")
    return name


def is_up(host: Host) -> bool:
    """Whether any process of a host is there."""
    return _is_populated(host.cgroups()[0])


def _answers(host: Host) -> bool:
    try:
        with socket.create_connection((host.address, 22), timeout=1) as link:
            return link.recv(4) == b"SSH-"
    except OSError:
        return False


def _answers_or_died(host: Host) -> bool:
    return _answers(host) or not is_up(host)


def _plug_in(host: Host) -> None:
    """A network of its own, without anything that an earlier boot left in the kernel."""
    _unplug(host)
    _command("ip", "netns", "add", host.name)
    peer = f"peer name host0 address {host.hardware_address} netns {host.name}"
    _ip([f"link add {host.link} type veth {peer}", f"link set {host.link} master br0 up"])
    address = f"addr add {host.address}/24 dev host0"
    _ip(["link set lo up", address, "link set host0 up", f"route add default via {GATEWAY}"], host.name)


def _unplug(host: Host) -> None:
    if Path("/run/netns", host.name).exists():
        # The cable first: a peer must not hear how the kernel closes the connections of what is killed.
        _ip([f"link del {host.link}"])
        _kill_cgroup(host.cgroups()[0])
        _command("ip", "netns", "del", host.name)


def _power_on(host: Host) -> None:
    for cgroup in host.cgroups():
        cgroup.mkdir(parents=True, exist_ok=True)
    reading, writing = os.pipe()
    if os.fork() == 0:
        try:
            _supervise(host)
        finally:
            os._exit(1)
    os.close(writing)
    os.read(reading, 1)  # ends when the child closes its end, and then it is in its control groups
    os.close(reading)


def _supervise(host: Host) -> None:
    """Boots a host, again whenever it reboots, until it is powered off from inside. Ends with the host's processes."""
    os.setsid()
    for cgroup in host.cgroups():
        (cgroup / "cgroup.procs").write_text("0", encoding="ascii")
    # Without the locks and the output of the command that started it.
    console = os.open(host.folder / "console.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(console, 1)
    os.dup2(console, 2)
    os.closerange(3, 4096)
    words = ["systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--boot", f"--directory={host.root}"]
    words += [f"--machine={host.name}", f"--network-namespace-path=/run/netns/{host.name}"]
    words += ["--capability=CAP_NET_ADMIN", "--resolv-conf=off", "--timezone=off", "--link-journal=no"]
    words += ["--console=pipe"]
    own = {"SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1", "SYSTEMD_NSPAWN_API_VFS_WRITABLE": "network"}
    environment = {"PATH": os.environ["PATH"], **own}
    while subprocess.run(words, env=environment, check=False).returncode == _REBOOTS:
        pass
    _ip([f"link set {host.link} down"])


def crash(names: Sequence[str]) -> None:
    """A power cut: nobody hears anything of it, and the disks stay as they are."""
    with _locked(HOSTS):
        for host in _find(known(), names):
            _unplug(host)


def down(names: Sequence[str]) -> None:
    """Takes hosts away, with their disks: those named, or all."""
    with _locked(HOSTS):
        hosts = known()
        for host in _find(hosts, names or list(hosts)):
            _unplug(host)
            _remove_cgroups(host.cgroups())
            _command("umount", str(host.root))
            shutil.rmtree(host.folder)
            del hosts[host.name]
        _remember(hosts)


def _find(hosts: Dict[str, Host], names: Sequence[str]) -> List[Host]:
    for name in names:
        if name not in hosts:
            raise LabError(f"there is no host {name}; there are: {', '.join(hosts) or 'none'}")
    return [hosts[name] for name in names]


def link(names: Sequence[str], whole: bool) -> None:
    """Cuts or heals the cable of one host, or the path between two while both can be reached from here."""
    hosts = _find(known(), names)
    if len(hosts) not in (1, 2):
        raise LabError("a cut is one of a host, or one between two hosts")
    if len(hosts) == 1:
        _ip([f"link set {hosts[0].link} {'up' if whole else 'down'}"])
        return
    for here, there in (hosts, hosts[::-1]):
        verb = f"neigh {'del' if whole else 'replace'} {there.address} dev host0"
        _ip([verb if whole else f"{verb} lladdr {_NOWHERE} nud permanent"], here.name)


# The command line


def _parser() -> argparse.ArgumentParser:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="hosts.py", description=__doc__, epilog=_ACTIONS, formatter_class=form)
    own = os.environ.get("HOSTS_DIR") or Path(__file__).resolve().parents[2] / ".build/hosts"
    where = "where bases and key are kept ($HOSTS_DIR, else .build/hosts)"
    parser.add_argument("--dir", type=Path, default=own, help=where)
    actions = "prepare run enter clean up down crash cut heal list ssh first".split()  # noqa: SIM905 - reads better
    parser.add_argument("action", choices=actions, metavar="ACTION")
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="WORD")
    return parser


def _clean(folder: Path) -> int:
    RUN.mkdir(exist_ok=True)
    with _locked(RUN):
        running = sweep()
    if running:
        raise LabError(f"{running} lab(s) still run, so the bases stay")
    shutil.rmtree(folder, ignore_errors=True)
    return 0


def _outside(arguments: argparse.Namespace) -> Optional[int]:
    folder: Path = arguments.dir.resolve()
    words: List[str] = arguments.words
    if arguments.action == "prepare":
        prepare(folder, words or bases.SUITES)
        return 0
    if arguments.action == "run":
        return run(folder, words)
    if arguments.action == "enter":
        return enter(words)
    if arguments.action == "first":
        return first(folder, words[0], words[1:])
    if arguments.action == "clean":
        return _clean(folder)
    return None


def _inside(action: str, words: Sequence[str]) -> int:
    _settings()
    if action == "list":
        for host in known().values():
            print(f"{host.name} {host.address} {host.suite} {'up' if is_up(host) else 'down'}")
    elif action == "up":
        up(words)
    elif action == "down":
        down(words)
    elif action == "crash":
        crash(words)
    elif action == "ssh":
        return subprocess.run(["ssh", "-F", str(RUN / "ssh_config"), *words], check=False).returncode
    else:
        link(words, action == "heal")
    return 0


def main() -> int:
    """Runs one command line; the exit status."""
    arguments = _parser().parse_args()
    try:
        status = _outside(arguments)
        return _inside(arguments.action, arguments.words) if status is None else status
    except (LabError, bases.BaseError) as error:
        print(f"hosts: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())

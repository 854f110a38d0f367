# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Debian root file systems that test hosts start from: one a suite, made once, never written to afterwards.

They come from the archive that this machine's own apt is set up with, so none is named here.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

SUITES = ("bookworm", "trixie")

_PACKAGES = (
    *("systemd", "systemd-sysv", "libpam-systemd", "dbus", "openssh-server", "python3", "python3-apt"),
    *("iproute2", "iputils-ping", "kmod", "pciutils", "procps"),
)
# Pages that nobody reads here.
_LEFT_OUT = ("/usr/share/man/*", "/usr/share/doc/*", "/usr/share/locale/*", "/usr/share/info/*")
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
# Runs outside the new root, whose path is the first argument.
_FINISH = r"""
set -e
root=$1
: > "$root/etc/machine-id"
: > "$root/etc/resolv.conf"
rm -f "$root"/etc/ssh/ssh_host_*
ssh-keygen -q -t ed25519 -N '' -C '' -f "$root/etc/ssh/ssh_host_ed25519_key"
printf 'UseDNS no\nMaxSessions 50\nMaxStartups 100:30:200\n' > "$root/etc/ssh/sshd_config.d/hosts.conf"
# What would do something by itself while a test looks.
for unit in apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer e2scrub_reap.service \
    fstrim.timer systemd-timesyncd.service; do
    ln -sf /dev/null "$root/etc/systemd/system/$unit"
done
"""
_SECONDS = 600


class BaseError(Exception):
    """A base that cannot be made: one sentence, then what was printed."""


def base(folder: Path, suite: str) -> Path:
    """Where the base of a suite lies, below ``folder``, whether it is there or not."""
    return folder / f"{suite}-{_recipe()}"


def make(folder: Path, suite: str) -> Path:
    """Makes the base of a suite unless it is there; BaseError tells why it could not be made."""
    wanted = base(folder, suite)
    if wanted.is_dir():
        return wanted
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{suite}.", dir=folder) as scratch:
        sources = Path(scratch, "debian.sources")
        sources.write_text(_sources(suite), encoding="utf-8")
        root = Path(scratch, "root")
        _bootstrap(suite, root, sources)
        root.rename(wanted)
    return wanted


def remove_stale(folder: Path) -> None:
    """Removes bases of recipes that are not this one, and what an interrupted run left."""
    current = {base(folder, suite) for suite in SUITES}
    for path in folder.iterdir() if folder.is_dir() else ():
        if path not in current:
            shutil.rmtree(path)


def _recipe() -> str:
    text = repr((_PACKAGES, _LEFT_OUT, _FINISH))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _sources(suite: str) -> str:
    """An apt source of one suite, from the first archive of Debian's main component that apt knows.

    Security and update pockets are left out: a root that is thrown away needs none.
    """
    found = subprocess.run(
        ["apt-get", "indextargets", "--no-release-info", "--format", "$(SITE)|$(RELEASE)|$(COMPONENT)"]
        + ["Created-By: Packages"],
        capture_output=True,
        text=True,
        check=False,
    )
    for line in found.stdout.splitlines():
        site, release, component = line.split("|")
        if component == "main" and "-" not in release:
            return f"Types: deb\nURIs: {site}\nSuites: {suite}\nComponents: main\nSigned-By: {_KEYRING}\n"
    raise BaseError(f"apt on this machine knows no Debian archive to make {suite} from\n{found.stderr}".rstrip())


def _bootstrap(suite: str, root: Path, sources: Path) -> None:
    command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(_PACKAGES)}"]
    command += [f"--dpkgopt=path-exclude={pattern}" for pattern in _LEFT_OUT]
    command += [f"--customize-hook={_FINISH}", suite, str(root), str(sources)]
    environment = {**os.environ, "TMPDIR": str(root.parent)}
    try:
        made = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            check=False,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        raise BaseError(f"mmdebstrap of {suite} was not done after {_SECONDS} s") from None
    if made.returncode:
        raise BaseError(f"mmdebstrap of {suite} failed with status {made.returncode}:\n{made.stdout.strip()}")

# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run every ansible-test sanity test over a copy of this collection, without an ignore file and without a home folder.

``make sanity`` calls it with an environment's Python; the ansible-core in that environment is the one that tests.

- ansible-test wants the path ansible_collections/NAMESPACE/NAME and takes its file list from git. So the files that git
  knows here, and those that it would add, are copied below .build/sanity, where they get a git folder of their own.
- ansible-test makes an environment for each test and wants to download a script that installs pip there. In its place
  lies a script of the same name that installs the very version of pip which ansible-test asks for, from a wheel that
  pip itself got from the package index. Both stay in .build/sanity/home, so a second run needs no network.
- ansible-test exits 0 when it skips a test whose program it did not find. Here that is a failure: the only tests that
  may be skipped are those for a Python that this machine does not have, and those that do not support the one at hand.
  They are listed at the end.
"""

from __future__ import annotations

import configparser
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / ".build" / "sanity"
HOME = WORK / "home"
COPY = WORK / "ansible_collections" / "iofabric" / "sharing"

GET_PIP = '''"""Install pip from a wheel on disk: takes the arguments of get-pip.py."""
import runpy
import sys

wheels = {wheels!r}
sys.path.insert(0, {wheel!r})
packages = [argument for argument in sys.argv[1:] if not argument.startswith("--no-")]
sys.argv[1:] = ["install", "--quiet", "--no-index", "--find-links", wheels] + packages
runpy.run_module("pip", run_name="__main__", alter_sys=True)
'''

# What ansible-test says of a test that it skips because of the Pythons on this machine; any other skip is a failure.
TOLERATED = re.compile(r'^Skipping sanity test ".*" on Python [0-9.]+ because it (could not be found|is unsupported)\.')
SKIPPED = re.compile(r"^WARNING: ((?:Skipping|Required program) .*)$")
RUNNING = re.compile(r'^Running sanity test "([^"]+)"')


class SanityError(Exception):
    """The tests could not be run; the message says why."""


@dataclass
class Report:
    """What ansible-test printed that matters for the verdict."""

    run: set[str] = field(default_factory=set)
    tolerated: set[str] = field(default_factory=set)
    skipped: set[str] = field(default_factory=set)

    def read(self, line: str) -> None:
        """Note the names of tests that run, and the reasons of those that do not."""
        plain = re.sub(r"\x1b\[[0-9;]*m", "", line).strip()
        if running := RUNNING.match(plain):
            self.run.add(running.group(1))
        if skipped := SKIPPED.match(plain):
            reason = skipped.group(1)
            (self.tolerated if TOLERATED.match(reason) else self.skipped).add(reason)


def export() -> None:
    """Copy the files that git tracks or would add to COPY, and make that a git work tree."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
    ).stdout.decode()
    shutil.rmtree(COPY, ignore_errors=True)
    for name in sorted(set(listing.split("\0")) - {""}):
        source = ROOT / name
        if not os.path.lexists(source):
            continue  # deleted here, not yet in the index
        target = COPY / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target, follow_symlinks=False)
    ignores = [path.name for path in (COPY / "tests" / "sanity").glob("ignore*.txt")]
    if ignores:
        raise SanityError(f"tests/sanity must hold no ignore file, but there is {', '.join(sorted(ignores))}.")
    subprocess.run(["git", "init", "--quiet", str(COPY)], check=True)


def pip_version() -> str:
    """Return the version of pip that this ansible-test asks for."""
    spec = importlib.util.find_spec("ansible_test")
    if spec is None or not spec.submodule_search_locations:
        raise SanityError(f"{sys.executable} has no ansible-test: run `make sanity`, which makes its own environment.")
    source = Path(spec.submodule_search_locations[0]) / "_internal" / "python_requirements.py"
    found = set(re.findall(r"pip='([0-9.]+)'", source.read_text()))
    if not found:
        raise SanityError(f"{source} names no version of pip any more: this script has to learn where it is now.")
    return str(max(found, key=lambda version: [int(part) for part in version.split(".")]))


def provide_pip() -> None:
    """Put the stand-in for the script that installs pip where ansible-test looks before it downloads one."""
    version = pip_version()
    wheels = HOME / "wheels"
    wheel = wheels / f"pip-{version}-py3-none-any.whl"
    if not wheel.exists():
        command = [sys.executable, "-m", "pip", "download", "-qq", "--disable-pip-version-check", "--no-input"]
        subprocess.run([*command, "--no-deps", "--only-binary=:all:", "-d", str(wheels), f"pip=={version}"], check=True)
    script = HOME / ".ansible" / "test" / "cache" / f"get_pip_{version.replace('.', '_')}.py"
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(GET_PIP.format(wheels=str(wheels), wheel=str(wheel)))


def provide_pip_settings() -> None:
    """Hand pip's settings on, since ansible-test passes on neither the real home nor PIP_* variables."""
    settings = configparser.RawConfigParser()
    settings.read(Path.home() / ".config" / "pip" / "pip.conf")
    if not settings.has_section("global"):
        settings.add_section("global")
    for name, value in os.environ.items():
        if name.startswith("PIP_") and name != "PIP_CONFIG_FILE":
            settings.set("global", name[len("PIP_") :].lower().replace("_", "-"), value)
    settings.set("global", "quiet", "2")
    target = HOME / ".config" / "pip" / "pip.conf"
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("w") as stream:
        settings.write(stream)


def pyenv_folders() -> list[str]:
    """Return the folders of the Pythons that pyenv keeps, newest last."""
    pyenv = shutil.which("pyenv")
    if pyenv is None:
        return []
    asked = subprocess.run([pyenv, "root"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    roots = {Path(asked), Path(pyenv).resolve().parents[1]}  # with another home folder, only the second is right
    return sorted(str(path.parent) for root in roots for path in root.glob("versions/3.*/bin/python3"))


def environment() -> dict[str, str]:
    """Return the environment of ansible-test: a home of its own, and every Python of this machine on PATH.

    A shim of pyenv answers for Pythons that are not activated, and then fails: the real folders take its place.
    """
    folders = [folder for folder in os.environ["PATH"].split(os.pathsep) if Path(folder).name != "shims"]
    env = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
    env["PATH"] = os.pathsep.join([str(Path(sys.prefix, "bin")), *folders, *pyenv_folders()])
    env["HOME"] = str(HOME)
    env["VIRTUAL_ENV"] = sys.prefix
    return env


def ansible_test(arguments: list[str]) -> list[str]:
    """Return the command line of ansible-test in this environment."""
    return [sys.executable, str(Path(sys.prefix, "bin", "ansible-test")), "sanity", "--color", "no", *arguments]


def run_tests(env: dict[str, str]) -> tuple[int, Report]:
    """Run all tests, pass their output on, and return the exit status and what was noted."""
    report = Report()
    with subprocess.Popen(
        ansible_test(["--local", "--allow-disabled"]),
        cwd=COPY,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            report.read(line)
    return process.returncode, report


def main() -> int:
    """Run the tests and return the exit status: 0 only if all ran and none complained."""
    export()
    provide_pip()
    provide_pip_settings()
    env = environment()
    listed = subprocess.run(
        ansible_test(["--list-tests", "--allow-disabled"]),
        cwd=COPY,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
        text=True,
    )
    status, report = run_tests(env)
    missing = sorted(set(listed.stdout.split()) - report.run)
    for reason in sorted(report.tolerated):
        print(f"sanity: cannot apply on this machine: {reason}")
    for reason in sorted(report.skipped):
        print(f"sanity: NOT RUN: {reason}")
    if missing and status == 0:
        print(f"sanity: NOT RUN, no reason given: {', '.join(missing)}")
    complete = not report.skipped and not missing
    passed = status == 0 and complete
    print(f"sanity: {len(report.run)} of {len(listed.stdout.split())} tests ran, {'passed' if passed else 'FAILED'}")
    return 0 if passed else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (SanityError, subprocess.CalledProcessError) as error:
        sys.exit(f"sanity: {error}")

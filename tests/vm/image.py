# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The kernel and the file system in memory that guests start from, made of Debian packages that are never installed.

They come from the archive that this machine's own apt is set up with, so none is named here. The suite is always the
same, whatever runs on this machine, so that guests are the same everywhere. Programs that are needed to finish the
image (depmod, Python) are those of the packages, run with the packages' own libraries. No step needs root.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Set

from . import cpio

SUITE = "bookworm"

_PACKAGES: Sequence[str] = (
    *(
        "linux-image-amd64",
        "busybox-static",
        "dash",
        "kmod",
        "pciutils",
        "nvme-cli",
        "python3",
        "util-linux",
        "iproute2",
    ),
    *("dmsetup", "lvm2", "mdadm", "e2fsprogs", "btrfs-progs"),
)
_MODULES: Sequence[str] = (
    *("virtio_pci", "virtio_console", "9p", "9pnet_virtio", "virtio_net", "e1000e"),
    *("nvme", "nvmet", "vfio", "vfio-pci", "vfio_iommu_type1", "uio_pci_generic"),
    *("dm-mod", "dm-snapshot", "md-mod", "raid1", "bcache", "loop", "ext4", "btrfs", "configfs"),
    *("bonding", "bridge", "8021q"),
    "crc32c_generic",  # btrfs asks for it by another name
)
# With the libraries that they need. What busybox has besides is there, too.
_PROGRAMS: Sequence[str] = (
    *("bin/busybox", "bin/dash", "bin/kmod", "bin/ip", "usr/bin/lspci", "usr/bin/python3", "usr/sbin/nvme"),
    *("sbin/dmsetup", "sbin/lvm", "sbin/mdadm", "sbin/mkfs.ext4", "sbin/mkfs.btrfs", "bin/btrfs"),
    *("usr/bin/setpriv", "usr/bin/unshare", "usr/bin/nsenter"),
)
_LINKS = {
    "bin/sh": "/bin/dash",  # a shell of busybox would prefer busybox's own programs
    **dict.fromkeys(("sbin/modprobe", "sbin/modinfo", "sbin/rmmod", "sbin/lsmod"), "/bin/kmod"),
    **dict.fromkeys(("sbin/pvcreate", "sbin/vgcreate", "sbin/lvcreate", "sbin/vgchange", "sbin/vgremove"), "/sbin/lvm"),
}
_PYTHON = "usr/lib/python3.11"
# Packages of Python's library that nothing in a guest imports.
_NOT_IMPORTED = ("config-*", "ensurepip", "idlelib", "lib2to3", "pydoc_data", "test", "turtledemo", "unittest")
_LIBRARIES = ("lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu")
_LOADER = "lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"
_MORE = (_LOADER, "etc/lvm", "etc/mke2fs.conf", "lib/modules", "lib64", "usr/share/misc/pci.ids")
_FOLDERS = ("dev", "mnt", "proc", "root", "run", "share", "sys", "tmp", "var", "var/tmp")
_FILES = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
    "etc/group": "root:x:0:\nnogroup:x:65534:\n",
    "etc/hosts": "127.0.0.1 localhost\n",
    # There is no udev in guests.
    "etc/lvm/lvmlocal.conf": "activation {\nudev_sync = 0\nudev_rules = 0\n}\n"
    'devices {\nobtain_device_list_from_udev = 0\nexternal_device_info_source = "none"\nuse_devicesfile = 0\n}\n',
}
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_XZ_MAGIC = b"\xfd7zXZ\0"
# A decompressor, not decompress(): something else follows in the kernel's file.
_XZ = "import lzma, sys; sys.stdout.buffer.write(lzma.LZMADecompressor().decompress(sys.stdin.buffer.read()))"
_SECONDS = 600


class ImageError(Exception):
    """An image that cannot be made: one sentence, then what was printed."""


class Image(NamedTuple):
    """The kernel, unpacked, since unpacking takes an emulated processor seconds; and the files, a cpio archive."""

    kernel: Path
    files: Path


def folder() -> Path:
    """Where images are kept: $VM_DIR, else .build/vm."""
    return Path(os.environ.get("VM_DIR") or Path(__file__).resolve().parents[2] / ".build/vm").absolute()


def image() -> Image:
    """Where the image of this recipe lies, whether it is there or not."""
    recipe = hashlib.sha256()
    for name in ("image.py", "cpio.py"):
        recipe.update(Path(__file__).with_name(name).read_bytes())
    place = folder() / recipe.hexdigest()[:12]
    return Image(place / "vmlinux", place / "files.cpio")


def make() -> None:
    """Makes the image unless it is there, and removes those of other recipes; ImageError tells why it could not."""
    wanted = image().kernel.parent
    wanted.parent.mkdir(parents=True, exist_ok=True)
    for path in wanted.parent.iterdir():
        if path != wanted:
            shutil.rmtree(path)
    if wanted.is_dir():
        return
    with tempfile.TemporaryDirectory(prefix="making.", dir=wanted.parent) as scratch:
        made = Path(scratch, "image")
        made.mkdir()
        _build(Path(scratch), made)
        made.rename(wanted)


def _build(scratch: Path, made: Path) -> None:
    root = scratch / "root"
    _extract(root, scratch / "debian.sources")
    version = next((root / "lib/modules").iterdir()).name
    kernel = (root / f"boot/vmlinuz-{version}").read_bytes()
    (made / "vmlinux").write_bytes(_python(root, "-c", _XZ, data=kernel[kernel.index(_XZ_MAGIC) :]))
    _choose_modules(root, version)
    _compile(root)
    for name, text in _FILES.items():
        (root / name).write_text(text, encoding="utf-8")
    with (made / "files.cpio").open("wb") as archive:
        for path in _with_parents(root, _chosen(root)):
            cpio.add_path(archive, str(path.relative_to(root)), path)
        for name in _FOLDERS:
            cpio.add(archive, name, cpio.FOLDER)
        for name, target in {**_applets(root), **_LINKS}.items():
            cpio.add(archive, name, cpio.LINK, target.encode())
        cpio.end(archive)


def _extract(root: Path, sources: Path) -> None:
    sources.write_text(_sources(), encoding="utf-8")
    command = ["mmdebstrap", "--quiet", "--variant=extract", "--mode=chrootless", f"--include={','.join(_PACKAGES)}"]
    _run([*command, SUITE, str(root), str(sources)], {**os.environ, "TMPDIR": str(root.parent)})


def _sources() -> str:
    """An apt source, from the first archive of Debian's main component that apt knows."""
    command = ["apt-get", "indextargets", "--no-release-info", "--format", "$(SITE)|$(RELEASE)|$(COMPONENT)"]
    for line in _run([*command, "Created-By: Packages"]).decode().splitlines():
        site, release, component = line.split("|")
        if component == "main" and "-" not in release:
            return f"Types: deb\nURIs: {site}\nSuites: {SUITE}\nComponents: main\nSigned-By: {_KEYRING}\n"
    raise ImageError("apt on this machine knows no Debian archive to make guests from")


def _choose_modules(root: Path, version: str) -> None:
    """Removes the modules that are neither wanted nor needed by a wanted one."""
    modules = root / "lib/modules" / version
    _depmod(root, version)
    needs: Dict[str, List[str]] = {}
    for line in (modules / "modules.dep").read_text(encoding="utf-8").splitlines():
        path, _colon, others = line.partition(":")
        needs[path] = others.split()
    paths = {_module(path): path for path in needs}
    built_in = {_module(path) for path in (modules / "modules.builtin").read_text(encoding="utf-8").splitlines()}
    wanted = {_module(name) for name in _MODULES} - built_in
    if not wanted <= paths.keys():
        raise ImageError(f"the kernel {version} has no module {', '.join(sorted(wanted - paths.keys()))}")
    kept = {path for name in wanted for path in (paths[name], *needs[paths[name]])}
    for path in needs.keys() - kept:
        (modules / path).unlink()
    _depmod(root, version)


def _module(path: str) -> str:
    """A module's name from its file's: kernel/drivers/vfio/pci/vfio-pci.ko holds vfio_pci."""
    return path.rpartition("/")[2].partition(".")[0].replace("-", "_")


def _depmod(root: Path, version: str) -> None:
    _of_root(root, "depmod", str(root / "bin/kmod"), "-b", str(root), version)


def _compile(root: Path) -> None:
    """Leaves Python's library as byte code only: reading and compiling it takes an emulated processor seconds."""
    library = root / _PYTHON
    for pattern in _NOT_IMPORTED:
        for folder in library.glob(pattern):
            shutil.rmtree(folder)
    _python(root, "-m", "compileall", "-qq", "-b", "--invalidation-mode=unchecked-hash", "-s", str(root), str(library))
    for source in library.rglob("*.py"):
        source.unlink()


def _applets(root: Path) -> Dict[str, str]:
    """Links for the programs that busybox stands in for."""
    there = {name.rpartition("/")[2] for name in (*_PROGRAMS, *_LINKS)}
    names = _run([str(root / "bin/busybox"), "--list"]).decode().split()
    return {f"bin/{name}": "/bin/busybox" for name in names if name not in there}


def _chosen(root: Path) -> Set[Path]:
    """The files and links that the image is made of."""
    missing = [name for name in _PROGRAMS if not (root / name).exists()]
    if missing:
        raise ImageError(f"the packages hold no {', '.join(missing)}")
    programs = [root / name for name in _PROGRAMS]
    extensions = list((root / _PYTHON / "lib-dynload").iterdir())
    chosen = {*programs, *(path for program in [*programs, *extensions] for path in _libraries(root, program))}
    for name in (*_MORE, *_FILES, _PYTHON):
        path = root / name
        chosen.update([path, *path.rglob("*")] if path.is_dir() else [path])
    # What links lead to, but for absolute ones, which are only right inside.
    return chosen | {path.resolve() for path in chosen if root in path.resolve().parents}


def _libraries(root: Path, program: Path) -> List[Path]:
    """The shared libraries that a program needs; none for a static one."""
    if program.name == "busybox":
        return []
    listed = _of_root(root, "ld.so", "--list", str(program)).decode()
    found = [word for line in listed.splitlines() for word in line.split() if word.startswith(str(root))]
    return [Path(word) for word in found]


def _with_parents(root: Path, paths: Iterable[Path]) -> List[Path]:
    """The paths with the folders that they are in, which come first."""
    folders = {folder for path in paths for folder in path.parents if root in folder.parents}
    return sorted({*paths, *folders})


def _python(root: Path, *words: str, data: bytes = b"") -> bytes:
    return _of_root(root, "python3", str(root / "usr/bin/python3"), *words, data=data)


def _of_root(root: Path, name: str, *words: str, data: bytes = b"") -> bytes:
    """Has the new root's loader run a program, by that name, with the libraries of that root; what it prints."""
    libraries = [str(root / folder) for folder in _LIBRARIES]
    command = [str(root / _LOADER), "--library-path", ":".join(libraries), "--argv0", name, *words]
    return _run(command, {"PYTHONHOME": str(root / "usr"), "LC_ALL": "C.UTF-8"}, data)


def _run(command: List[str], environment: Optional[Mapping[str, str]] = None, data: bytes = b"") -> bytes:
    name = Path(command[0]).name
    try:
        done = subprocess.run(command, input=data, capture_output=True, timeout=_SECONDS, check=False, env=environment)
    except FileNotFoundError:
        raise ImageError(f"{name} is not installed") from None
    except subprocess.TimeoutExpired:
        raise ImageError(f"{' '.join(command)} was not done after {_SECONDS} s") from None
    if done.returncode:
        said = (done.stderr + done.stdout)[-4000:].decode(errors="replace").strip()
        raise ImageError(f"{' '.join(command)} failed with status {done.returncode}:\n{said}")
    return done.stdout

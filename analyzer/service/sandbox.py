"""Isolation of a job's command, by what Linux gives to a process without further programs.

- files (Landlock, Linux 5.13 and newer, no rights needed): it reads the system's libraries and this
  program, and reads and writes its own folder, nothing else.
- network (a network namespace): it has a loopback of its own and no other interface.
- processes (namespaces of processes and IPC): it sees and signals its own processes only, and none
  of them outlives it.

The two kinds of namespaces need root, or user namespaces that ordinary users may make; in
containers they are often switched off. :func:`probe` says what this machine can. In each case the
command may gain no rights (``PR_SET_NO_NEW_PRIVS``) and root's capabilities are dropped.

System calls and structures are those of linux/landlock.h, linux/sched.h and linux/capability.h.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from analyzer.resources import PACKAGE_ROOT, search_spaces_dir, templates_dir

_LIBC = ctypes.CDLL(None, use_errno=True)

# The same numbers on every architecture: they are newer than the common table.
_LANDLOCK_CREATE_RULESET, _LANDLOCK_ADD_RULE, _LANDLOCK_RESTRICT_SELF = 444, 445, 446
_LANDLOCK_CREATE_RULESET_VERSION = 1
_LANDLOCK_RULE_PATH_BENEATH = 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _TRUNCATE = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 14
_MAKE_DIR = 1 << 7
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE
# Rights that each version of Landlock's interface knows; those of version 5 are about devices that
# cannot be opened here in the first place.
_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1}
# From version 6: signals and abstract Unix sockets stay inside.
_SCOPE_VERSION, _SCOPES = 6, 0b11

_PR_SET_NO_NEW_PRIVS, _PR_CAPBSET_DROP = 38, 24  # linux/prctl.h
_CAPABILITY_VERSION_3 = 0x20080522  # linux/capability.h
# linux/sched.h
_CLONE_NEWNS, _CLONE_NEWIPC, _CLONE_NEWUSER = 0x00020000, 0x08000000, 0x10000000
_CLONE_NEWPID, _CLONE_NEWNET = 0x20000000, 0x40000000  # linux/sched.h
_MS_REC, _MS_PRIVATE = 0x4000, 0x40000  # linux/mount.h
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 2, 4, 8  # linux/mount.h
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1  # linux/sockios.h, linux/if.h
_PROBE_TIMEOUT_S = 30.0  # a Python that starts on a busy machine

# What programs read of a system: libraries, and those files of /etc that the C library opens.
_SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/sbin", "/opt", "/sys", "/proc")
_ETC = (
    "ld.so.cache", "ld.so.preload", "passwd", "group", "nsswitch.conf", "hosts", "localtime",
    "timezone", "os-release", "host.conf", "gai.conf", "OpenCL", "alternatives", "mime.types",
)  # fmt: skip
#: Where Triton's python backend makes a folder for its environments when it is loaded, wherever
#: the one for temporary files is (``pb_env.cc``); the server ends where it cannot.
OF_TRITON = "/tmp"
_DEVICES = ("null", "zero", "full", "random", "urandom", "shm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolation:
    """What a command is kept from."""

    files: bool = False
    network: bool = False
    processes: bool = False

    def missing(self) -> str:
        """What is not kept from it, as the end of a sentence; empty if nothing is missing."""
        lacks = [
            what
            for has, what in (
                (self.files, "files outside its folder (no Landlock)"),
                (self.network, "the network (no network namespaces)"),
                (self.processes, "other processes (no process namespaces)"),
            )
            if not has
        ]
        return ", ".join(lacks)


def landlock_version() -> int:
    """Of the kernel's interface; 0 without Landlock."""
    found = _LIBC.syscall(_LANDLOCK_CREATE_RULESET, None, 0, _LANDLOCK_CREATE_RULESET_VERSION)
    return max(int(found), 0)


def probe() -> Isolation:
    """What this machine can, tried in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "analyzer.service.sandbox"],
        capture_output=True,
        text=True,
        timeout=_PROBE_TIMEOUT_S,
        check=False,
        env=os.environ | {"PYTHONPATH": str(PACKAGE_ROOT)},
    )
    try:
        return Isolation(**json.loads(done.stdout))
    except ValueError:
        return Isolation()


def readable() -> list[str]:
    """Where the command may read: the system, Python and this program."""
    own = [PACKAGE_ROOT / "analyzer", templates_dir(), search_spaces_dir(), PACKAGE_ROOT / ".tools"]
    python = [sys.prefix, sys.base_prefix, sys.exec_prefix]
    # Compiled packages of an editable installation may lie anywhere on the path.
    packages = [path for path in sys.path if path and Path(path) != PACKAGE_ROOT]
    etc = [f"/etc/{name}" for name in _ETC]
    return [str(path) for path in (*_SYSTEM, *etc, *own, *python, *packages)]


# --- files ---------------------------------------------------------------------------------------


def restrict_files(
    reading: Iterable[str], writing: Iterable[str], making: Iterable[str] = ()
) -> None:
    """Takes every file away but those beneath ``reading`` and ``writing``; those may not be there.

    Args:
        making: Where folders may be made, and no more.

    Raises:
        OSError: The kernel refuses.
    """
    version = landlock_version()
    rights = _RIGHTS[min(version, max(_RIGHTS))]
    scopes = _SCOPES if version >= _SCOPE_VERSION else 0
    attributes = struct.pack("=QQQ", rights, 0, scopes)
    size = 24 if version >= _SCOPE_VERSION else 8
    rules = _checked(_LIBC.syscall(_LANDLOCK_CREATE_RULESET, attributes, size, 0))
    look = _EXECUTE | _READ_FILE | _READ_DIR
    devices = [f"/dev/{name}" for name in _DEVICES]
    devices += map(str, (*Path("/dev").glob("nvidia*"), *Path("/dev").glob("dri")))
    for path in reading:
        _allow(rules, path, look & rights)
    # Python finds a package by listing the folder that it is in.
    _allow(rules, str(PACKAGE_ROOT), _READ_DIR)
    for path in (*writing, *devices):
        _allow(rules, path, rights)
    for path in making:
        _allow(rules, path, _MAKE_DIR)
    _checked(_LIBC.syscall(_LANDLOCK_RESTRICT_SELF, rules, 0))
    os.close(rules)


def _allow(rules: int, path: str, rights: int) -> None:
    try:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not os.path.isdir(f"/proc/self/fd/{handle}"):  # noqa: PTH112 - of the handle
            rights &= _OF_FILES
        rule = struct.pack("=Qi", rights, handle)
        _checked(_LIBC.syscall(_LANDLOCK_ADD_RULE, rules, _LANDLOCK_RULE_PATH_BENEATH, rule, 0))
    finally:
        os.close(handle)


def drop_rights() -> None:
    """No program that is started gains rights, and root has none beyond its files."""
    _checked(_LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    for capability in range(64):
        if _LIBC.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            break  # the first number that this kernel does not know, or no right to
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    _checked(_LIBC.capset(header, struct.pack("=6I", 0, 0, 0, 0, 0, 0)))


# --- namespaces ----------------------------------------------------------------------------------


def leave_namespaces(isolation: Isolation) -> None:
    """Makes what this process starts next live in namespaces of its own.

    Raises:
        OSError: This machine does not allow it.
    """
    flags = (_CLONE_NEWNET if isolation.network else 0) | (
        _CLONE_NEWPID | _CLONE_NEWIPC if isolation.processes else 0
    )
    if not flags:
        return
    user, group = os.getuid(), os.getgid()
    if os.geteuid() != 0:
        _checked(_LIBC.unshare(_CLONE_NEWUSER))
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    _checked(_LIBC.unshare(flags))
    if isolation.network:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            request = struct.pack("=16sh22x", b"lo", 0)
            answer = fcntl.ioctl(any_socket, _SIOCGIFFLAGS, request)
            (interface_flags,) = struct.unpack_from("=h", answer, 16)
            fcntl.ioctl(
                any_socket,
                _SIOCSIFFLAGS,
                struct.pack("=16sh22x", b"lo", interface_flags | _IFF_UP),
            )


def see_own_processes() -> None:
    """In the first process of a namespace: ``/proc`` and shared memory are of the namespace.

    Raises:
        OSError: This machine does not allow it.
    """
    _checked(_LIBC.unshare(_CLONE_NEWNS))
    _checked(_LIBC.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None))
    plain = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
    _checked(_LIBC.mount(b"proc", b"/proc", b"proc", plain, None))
    _checked(_LIBC.mount(b"tmpfs", b"/dev/shm", b"tmpfs", _MS_NOSUID | _MS_NODEV, None))


def be_init(command: int) -> int:
    """As the first process of a namespace: passes signals on, buries the dead; the exit code.

    Args:
        command: The process that is waited for; it leads a group.
    """

    def interrupt(signum: int, _: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(command, signum)

    def end(signum: int, _: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(command, signum)

    signal.signal(signal.SIGINT, interrupt)
    signal.signal(signal.SIGTERM, end)
    while True:
        ended, status = os.waitpid(-1, 0)
        if ended == command:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def _try_namespaces(isolation: Isolation) -> bool:
    """Whether a child can enter them, in every step."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1] == 0
    code = 1
    with contextlib.suppress(OSError):
        leave_namespaces(isolation)
        first = os.fork()
        if first == 0:
            with contextlib.suppress(OSError):
                if isolation.processes:
                    see_own_processes()
                code = 0
            os._exit(code)
        code = int(os.waitpid(first, 0)[1] != 0)
    os._exit(code)


def _probe_here() -> Isolation:
    files = landlock_version() > 0
    for network, processes in ((True, True), (True, False), (False, True)):
        if _try_namespaces(Isolation(network=network, processes=processes)):
            return Isolation(files=files, network=network, processes=processes)
    return Isolation(files=files)


def main() -> None:
    """Prints what this machine can, as JSON."""
    print(json.dumps(asdict(_probe_here())))


if __name__ == "__main__":
    main()

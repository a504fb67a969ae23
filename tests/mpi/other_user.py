"""Another user of the machine, who looks into jobs, takes the names that they may want, and plays their ranks.

``python other_user.py``, as root, becomes nobody, prints "here", and then what it could open of a job, until its end.
"""

import contextlib
import os
import socket
import time

NOBODY = 65534


def open_all(folder: str, names: list[str]) -> None:
    """Opens what has such a name, and prints what it was."""
    for name in names:
        for mode in (os.O_RDWR, os.O_RDONLY):
            with contextlib.suppress(OSError):
                os.close(os.open(os.path.join(folder, name), mode))
                print("opened", folder, name, flush=True)


def look_into_shared_memory() -> None:
    """What ranks share: their files in /dev/shm."""
    open_all("/dev/shm", [name for name in os.listdir("/dev/shm") if name.startswith(("pytagi_ddp", "mpich", "ucx"))])


def look_into_processes() -> None:
    """Files without a name, by way of the processes that have them open."""
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        folder = f"/proc/{pid}/fd"
        with contextlib.suppress(OSError):
            if os.stat(f"/proc/{pid}").st_uid != os.getuid():
                links = {name: os.readlink(f"{folder}/{name}") for name in os.listdir(folder)}
                open_all(folder, [name for name, target in links.items() if "pytagi_ddp" in target])


def call_sockets() -> None:
    """Sockets in the abstract name space, which has no permissions."""
    with open("/proc/net/unix") as table:
        names = [line.split()[-1] for line in table if "@pytagi_ddp" in line]
    for name in names:
        with socket.socket(socket.AF_UNIX) as caller, contextlib.suppress(OSError):
            caller.connect("\0" + name[1:])
            print("connected to", name, flush=True)


def take_names() -> list[socket.socket]:
    """The names in that space that jobs to come would have by their process ids alone."""
    taken = []
    for pid in range(os.getpid(), os.getpid() + 400):
        for rank in range(2):
            taken.append(socket.socket(socket.AF_UNIX))
            with contextlib.suppress(OSError):
                taken[-1].bind(f"\0pytagi_ddp-{pid}-{rank}")
    return taken


def main() -> None:
    with open("/proc/self/comm", "w") as name:
        name.write("pytagi_ddp 1")  # as a rank that is here
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    taken = take_names()
    print("here", flush=True)
    while taken:
        look_into_shared_memory()
        look_into_processes()
        call_sockets()
        time.sleep(0.002)


if __name__ == "__main__":
    main()

"""The program of TestHostile in Python: hostile_victim_test.go says what each behaviour is."""

import os
import re
import signal
import sys
import time

LIFETIME = 20  # seconds, of this process and of each child


def write(b, to=4):
    while b:
        b = b[os.write(to, b) :]


def read(n):
    got = bytearray()
    while len(got) < n:
        more = os.read(3, n - len(got))
        if not more:
            os._exit(0)
        got += more
    return bytes(got)


def hear():
    b = read(int.from_bytes(read(4), "big"))
    size = int.from_bytes(b[:4], "big")
    header = b[4 : 4 + size].decode()
    return {name: value for name, value in re.findall(r'"(file|id|phase|name)":"([^"]*)"', header)}, b[8 + size :]


def u32(n):
    return n.to_bytes(4, "big")


def frame(header, *segments):
    b = u32(len(header)) + header.encode() + b"".join(u32(len(s)) + s for s in segments)
    return u32(len(b)) + b


def result(r, body):
    return frame(
        '{"type":"result","id":"%s","phase":"handle","name":"%s","sends":[{"to":"out","body":0}],"tags":{"pid":"%d"}}'
        % (r["id"], r["name"], os.getpid()),
        body,
    )


def after(r):
    return dict(r, id=r["id"][:31] + "123456789abcdef0"[int(r["id"][31], 16)])


def child(work):
    """Runs work in a child with a session of its own; returns its pid."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(LIFETIME)
        os.setsid()
        work()
        os._exit(0)
    return pid


def linger():
    time.sleep(LIFETIME)


def grandchild():
    """One that was forked twice, has its own session, and holds all that this process has."""
    os.waitpid(child(lambda: child(linger)), 0)


def spin():
    end = time.monotonic() + LIFETIME
    while time.monotonic() < end:
        pass


def pour(size):
    line = b"x" * 1023 + b"\n"
    for _ in range(size // len(line)):
        write(line, 2)


def done():
    write(b"done\n", 2)


def drip(b, pause):
    for i in range(len(b)):
        write(b[i : i + 1])
        time.sleep(pause)


READY = frame('{"type":"ready","version":1,"sdk":"hostile","offers":[]}')


def boot(how):
    if how == "boot crash":
        os._exit(7)
    elif how == "boot for ever":
        grandchild()
        linger()
    elif how == "boot by signal":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "boot over the cap":
        write(b"\xff\xff\xff\xff")
        os._exit(0)


def act(r, body):
    right, name = result(r, body), r["name"]
    if name == "echo":
        write(right)
    elif name == "flood":
        write(right)
        done()
        write(bytes(64 << 20))
        linger()
    elif name == "read nothing more":
        write(right)
        linger()
    elif name == "read half":
        write(right)
        read(4 << 20)
        linger()
    elif name == "drip":
        drip(right, 0.001)
    elif name == "drip slowly":
        drip(right, 0.02)
    elif name == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif name == "answer late":
        time.sleep(0.7)
        write(right)
    elif name == "stage":
        write(right + result(after(r), b"staged"))
    elif name == "answer twice":
        os.waitpid(child(lambda: write(right)), 0)
        write(right)
        done()
    elif name == "close":
        os.close(3)
        os.close(4)
        linger()
    elif name == "leave":
        grandchild()
        write(right)
        os._exit(0)
    elif name == "print binary":
        write(right + b"\x00\x01\xff\xfe\x1b[2J\r\n", 1)
        write(right)
    elif name == "pour 64 MiB":
        pour(64 << 20)
        write(right)
    elif name == "pour 1 GiB":
        pour(1 << 30)
        write(right)
    elif name == "spin on":
        write(right)
        spin()
    elif name == "spin":
        spin()
    elif name == "spin together":
        for _ in range(3):
            child(spin)
        linger()
    elif name == "keep":
        kept = b"\x01" * (192 << 20)
        write(right)
        act(*hear())
        os._exit(kept[0])
    elif name == "over the cap":
        write(b"\xff\xff\xff\xff")
        linger()
    elif name == "over the cap and exit":
        write(b"\xff\xff\xff\xff")
        os._exit(0)
    elif name == "cut and exit":
        write(right[:20])
        os._exit(4)
    elif name == "wrong id":
        write(result(dict(r, id="a" * 32), body))
    elif name == "zero id":
        write(result(dict(r, id="0" * 32), body))
    elif name == "next id":
        write(result(after(r), body))
    elif name == "wrong name":
        write(result(dict(r, name="echo"), body))
    elif name == "wrong phase":
        write(frame('{"type":"result","id":"%s","phase":"route","name":"%s","handlers":[]}' % (r["id"], name)))
    elif name == "ready again":
        write(READY)
    elif name == "kill the parent":
        try:
            os.kill(os.getppid(), signal.SIGKILL)
        except PermissionError:
            pass
        write(right)
    elif name == "peek":
        try:
            os.close(os.open(body, os.O_RDONLY))
            write(result(r, b"opened"))
        except OSError:
            write(result(r, b"refused"))
    elif name == "burn":
        end = time.monotonic() + 0.1
        while time.monotonic() < end:
            pass
        write(right)
    elif name == "exit":
        os._exit(3)
    elif name == "signal":
        os.kill(os.getpid(), signal.SIGKILL)


signal.alarm(LIFETIME)
first, _ = hear()
if first["file"]:
    try:
        os.remove(first["file"])
    except FileNotFoundError:
        pass
    else:
        boot(os.path.basename(first["file"]))
write(READY)
while True:
    act(*hear())

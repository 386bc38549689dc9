"""What a handler does to its process never makes a wrong frame: the answer is right, or the worker ends."""

import os
import unittest

import engine

try:
    import ctypes
except ImportError:
    ctypes = None

SOURCE = '''
import os, subprocess, sys, threading
from coppice_worker import handler, Send, Drop

@handler
def fine(msg, ctx):
    return Drop("fine")

def ended(child):
    return Send("emr", str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))
'''

# Each is the body of a handler that has to answer b"ok", and after which the worker has to answer the next request.
ANSWERS = {
    "threads that print": '''
    ts = [threading.Thread(target=print, args=("x" * 1000,)) for _ in range(8)]
    [t.start() for t in ts], [t.join() for t in ts]''',
    "a thread that outlives the call": '''
    threading.Thread(target=lambda: [print("x") for _ in range(1000)], daemon=True).start()''',
    "a thread that exits": '''
    t = threading.Thread(target=sys.exit, args=(3,)); t.start(); t.join()''',
    "a thread that logs": '''
    ts = [threading.Thread(target=ctx.log.info, args=("logged",)) for _ in range(8)]
    [t.start() for t in ts], [t.join() for t in ts]''',
    "C-level writes": '''
    os.write(1, b"\\0\\0\\0\\4" * 100); os.write(2, b"{}\\n")''',
    "stdout and stderr closed below Python": '''
    os.close(1); os.close(2)''',
    "stdout made a file": '''
    os.dup2(os.open("out", os.O_CREAT | os.O_WRONLY), 1); print("x", flush=True)''',
    "a program": '''
    subprocess.run([sys.executable, "-c", "import os; os.write(1, b'printed')"], check=True)''',
    "recursion": '''
    def down(): return down()
    try: down()
    except RecursionError: pass''',
    "a signal handler": '''
    import signal
    got = []
    signal.signal(signal.SIGUSR1, lambda *a: got.append(a)); os.kill(os.getpid(), signal.SIGUSR1)
    assert got''',
    "a collector of children": '''
    import signal
    signal.signal(signal.SIGCHLD, signal.SIG_IGN); subprocess.Popen([sys.executable, "-c", ""]).wait()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)''',
    "multiprocessing, forked": '''
    import multiprocessing
    p = multiprocessing.get_context("fork").Process(target=print, args=("in the child",)); p.start(); p.join(20)
    assert p.exitcode == 0, p.exitcode''',
    "multiprocessing, spawned": '''
    import multiprocessing
    p = multiprocessing.get_context("spawn").Process(target=print, args=("in the child",)); p.start(); p.join(20)
    assert p.exitcode == 0, p.exitcode''',
    "a pool, forked": '''
    import multiprocessing
    with multiprocessing.get_context("fork").Pool(2) as pool: assert pool.map(abs, [-1, 2]) == [1, 2]''',
    "a folder that is gone": '''
    os.mkdir("gone"); os.chdir("gone"); os.rmdir("../gone"); os.environ.clear()''',
}

# Each is what a forked child does, with the status that its parent sees: never a word on the wire.
CHILDREN = {
    "os._exit": ("os._exit(3)", b"3"),
    "sys.exit": ("sys.exit(4)", b"4"),
    "SystemExit without a status": ("raise SystemExit", b"0"),
    "returns": ('return Send("emr", b"from the child")', b"1"),
    "raises": ('raise ValueError("from the child")', b"1"),
    "is interrupted": ("raise KeyboardInterrupt", None),
    "drops": ('return Drop("from the child")', b"1"),
    "returns a generator": ('return (Send("emr", b"from the child") for _ in "a")', b"1"),
    "forks again and returns": ("os.fork(); return None", b"1"),
}

# Each ends the worker before it has answered, or with what the engine has to refuse as cut.
ENDS = {
    "sys.exit": "sys.exit(5)",
    "SystemExit": "raise SystemExit('bye')",
    "KeyboardInterrupt": "raise KeyboardInterrupt",
    "its own SIGKILL": "os.kill(os.getpid(), 9)",
    "SIGINT": "import signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(20)",
    "os._exit": "os._exit(0)",
    "abort": "os.abort()",
    "the wire closed": "os.closerange(3, 64)",
    "the wire closed, and files in its place": "os.closerange(3, 64); sys.kept = [open(f'file{n}', 'w+b', 0) for n in range(64)]",
    "the wire closed, and sockets in its place":
        "import socket; os.closerange(3, 64); sys.kept = [socket.socketpair() for n in range(32)]",
}

LIBC_FORK = '''
    import ctypes
    child = ctypes.CDLL(None).fork()
'''


def function(body):
    return SOURCE + "\n@handler\ndef f(msg, ctx):\n" + body + "\n"


@unittest.skipIf(os.name == "nt", "missing: pass_fds, which Windows has not")
class Hostile(unittest.TestCase):
    def start(self, source):
        e = engine.Engine(source)
        self.addCleanup(e.output.close)
        self.addCleanup(e.close)
        self.assertEqual(e.booted["type"], "ready", e.booted)
        return e

    def next(self, e):
        """The worker answers the next request with its own answer: nothing else was on the wire."""
        self.assertEqual(e.ask("fine").get("drop"), "fine")
        e.hang_up()
        self.assertIsNone(e.receive())

    def test_answers(self):
        for name, body in ANSWERS.items():
            with self.subTest(name):
                e = self.start(function(body + "\n    return Send('emr', b'ok')"))
                got = e.ask("f")
                self.assertEqual(got.get("sends"), [{"to": "emr", "body": b"ok"}], (got, e.printed()))
                self.next(e)

    def test_children(self):
        """Red without register_at_fork and the look at the pid in Wire; with libc's fork red without the latter alone."""
        for name, (child, status) in CHILDREN.items():
            for fork in ("\n    child = os.fork()\n", LIBC_FORK):
                with self.subTest(name, fork=fork):
                    if fork is LIBC_FORK and ctypes is None:
                        self.skipTest("missing: ctypes")
                    e = self.start(function(f"{fork}    if child:\n        return ended(child)\n    {child}"))
                    got = e.ask("f")["sends"]
                    self.assertEqual([s["to"] for s in got], ["emr"])
                    if status is not None:
                        self.assertEqual(got[0]["body"], status, e.printed())
                    self.next(e)

    def test_a_child_of_a_thread(self):
        e = self.start(function('''
    def fork():
        child = os.fork()
        if child: os.waitpid(child, 0)
    t = threading.Thread(target=fork); t.start(); t.join()
    return Send("emr", b"ok")'''))  # fmt: skip
        self.assertEqual(e.ask("f")["sends"][0]["body"], b"ok")
        self.next(e)

    def test_recursion_without_end(self):
        """A function that never comes back from itself fails its message."""
        e = self.start(function("    return f(msg, ctx)"))
        self.assertEqual(e.ask("f")["error"]["type"], "RecursionError")
        self.next(e)

    def test_ends(self):
        """Red, for the wire closed, without the look at its identity in Wire: the answer goes to the user's file."""
        for name, body in ENDS.items():
            with self.subTest(name):
                e = self.start(function(f"    {body}\n    return Send('emr', b'late')"))
                self.assertIsNone(e.ask("f"))
                e.process.wait(engine.PATIENCE)
                for file in os.listdir(e.folder.name):
                    if file.startswith("file"):
                        self.assertEqual(os.path.getsize(os.path.join(e.folder.name, file)), 0, file)

    def test_a_signal_between_requests(self):
        """A handler of signals that raises while the worker waits ends it; it answers nothing."""
        e = self.start(function('''
    import signal
    def raising(*_): raise TimeoutError
    signal.signal(signal.SIGALRM, raising); signal.setitimer(signal.ITIMER_REAL, 0.2)
    return Send("emr", b"ok")'''))  # fmt: skip
        self.assertEqual(e.ask("f")["sends"][0]["body"], b"ok")
        self.assertIsNone(e.receive())
        self.assertNotEqual(e.process.wait(engine.PATIENCE), 0)


if __name__ == "__main__":
    unittest.main()

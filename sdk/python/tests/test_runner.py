"""A real worker process, spoken to over its descriptors."""

import os
import subprocess
import sys
import unittest

import engine
from coppice_worker.wire import encode, Caps

SOURCE = '''
import os, subprocess, sys
import neighbour
from coppice_worker import router, handler, Send, Drop

@router
def route(msg, ctx):
    return ["echo"] if msg.hl7["MSH-9.2"] == "A01" else []

@handler
def echo(msg, ctx):
    msg.tag(mrn=neighbour.MRN)
    return [Send("emr", msg.body), Send("archive", ctx.settings["facility"])]

@handler(name="drop it")
def drop(msg, ctx):
    return Drop("no MRN")

@handler
def printing(msg, ctx):
    print("printed \\udc80", end="")
    print("to stderr", file=sys.stderr)
    ctx.log.warning("logged")

@handler
def muted(msg, ctx):
    sys.stdout.close()
    sys.stderr = None

@handler
def raising(msg, ctx):
    raise LookupError("no such patient")

@handler
def nonsense(msg, ctx):
    return {"emr": msg.body}

@handler
def large(msg, ctx):
    return Send("emr", bytes(2_000_000))

@handler
def forking(msg, ctx):
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        return Send("emr", str(os.WEXITSTATUS(status)))
    return Send("emr", b"from the child")

@handler
def starting(msg, ctx):
    look = "import os, stat\\nfor n in range(3, 64):\\n    try: print(n, stat.S_ISFIFO(os.fstat(n).st_mode))\\n    except OSError: pass"
    held = subprocess.run([sys.executable, "-I", "-c", look], close_fds=False, stdout=subprocess.PIPE).stdout
    return Send("emr", held)

@handler
def environment(msg, ctx):
    return Send("emr", repr(("COPPICE_WIRE" in os.environ, os.environ.get("COPPICE_WIRE"))))

@handler
def exiting(msg, ctx):
    sys.exit(5)
'''


@unittest.skipIf(os.name == "nt", "missing: pass_fds, which Windows has not")
class Worker(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.engine = engine.Engine(
            SOURCE, [("handle", "echo"), ("route", "route")], {"facility": "MERCY"}, frame_cap=1_000_000,
            neighbours={"neighbour.py": "MRN = '12345'"},
        )  # fmt: skip

    @classmethod
    def tearDownClass(cls):
        cls.engine.close()
        cls.engine.output.close()

    def ask(self, name, **more):
        got = self.engine.ask(name, **more)
        self.assertEqual((got["id"], got["name"]), (engine.ID, name))
        return got

    def body(self, name):
        return self.ask(name)["sends"][0]["body"]

    def test_ready(self):
        self.assertEqual(self.engine.booted["type"], "ready")
        self.assertIn({"phase": "handle", "name": "drop it"}, self.engine.booted["offers"])

    def test_results(self):
        got = self.ask("echo", body=b"MSH|\x00\xff")
        self.assertEqual(got["sends"], [{"to": "emr", "body": b"MSH|\x00\xff"}, {"to": "archive", "body": b"MERCY"}])
        self.assertEqual(got["tags"], {"mrn": "12345"})
        self.assertEqual(self.ask("drop it")["drop"], "no MRN")
        a01 = b"MSH|^~\\&|||||||ADT^A01"
        self.assertEqual(self.ask("route", phase="route", body=a01)["handlers"], ["echo"])
        self.assertEqual(self.ask("route", phase="route")["handlers"], [])

    def test_print(self):
        """What is printed is there before the answer is. Red with _flush emptied, and without _text_streams."""
        self.assertEqual(self.ask("printing")["sends"], [])
        self.assertIn("printed \\udc80", self.engine.printed())
        self.assertIn("to stderr\nWARNING logged\n", self.engine.printed())

    def test_faults(self):
        error = self.ask("raising")["error"]
        self.assertEqual((error["type"], error["text"]), ("LookupError", "no such patient"))
        self.assertIn("in raising", error["traceback"])
        self.assertNotIn("coppice_worker", error["traceback"])
        self.assertEqual(self.ask("nonsense")["error"]["type"], "result")
        self.assertIn("too large", self.ask("large")["error"]["text"])
        self.assertEqual(self.ask("nobody")["type"], "fail")
        self.assertEqual(self.ask("echo")["type"], "result")

    def test_fork(self):
        """A forked child that comes back from the function ends, and answers nothing. Red without register_at_fork:
        the child's answer comes first, and the parent's is a second one."""
        self.assertEqual(self.body("forking"), b"1")
        self.assertEqual(self.ask("drop it")["drop"], "no MRN")

    def test_started_programs_hold_no_wire(self):
        """Red without os.set_inheritable."""
        self.assertEqual(self.body("starting"), b"")

    def test_environment(self):
        """Red with os.environ.get for os.environ.pop."""
        self.assertEqual(self.body("environment"), b"(False, None)")


@unittest.skipIf(os.name == "nt", "missing: pass_fds, which Windows has not")
class Ends(unittest.TestCase):
    def start(self, *args, **kwargs):
        e = engine.Engine(*args, **kwargs)
        self.addCleanup(e.output.close)
        return e

    def test_end_of_stream(self):
        self.assertEqual(self.start("").close(), 0)
        self.assertEqual(self.start("", boot=False).close(), 0)

    def test_closed_stdout(self):
        e = self.start(SOURCE, neighbours={"neighbour.py": ""})
        self.assertEqual(e.ask("muted")["sends"], [])
        self.assertEqual(e.ask("drop it")["drop"], "no MRN")
        e.close()

    def test_sys_exit(self):
        """Red with SystemExit not named in Caller.answer: a fail comes, and the worker lives."""
        e = self.start(SOURCE, neighbours={"neighbour.py": ""})
        self.assertIsNone(e.ask("exiting"))
        self.assertEqual(e.process.wait(engine.PATIENCE), 5)
        e.close()

    def test_violation(self):
        """Red with main not catching Violation."""
        e = self.start("")
        e.write(bytes.fromhex("00000003") + b"abc")
        self.assertEqual(e.process.wait(engine.PATIENCE), 70)
        self.assertIn("by the engine: protocol violation: frame-short", e.printed())
        self.assertEqual(len(e.printed().splitlines()), 1)
        e.close()

    def test_no_engine(self):
        for environment, want in [
            ({}, "coppice serve"), ({"COPPICE_WIRE": "3"}, "two numbers"), ({"COPPICE_WIRE": "900,901"}, "not open"),
        ]:  # fmt: skip
            run = subprocess.run(
                [sys.executable, "-I", "-B", engine.PROGRAM], env=environment, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=engine.PATIENCE,
            )  # fmt: skip
            self.assertEqual(run.returncode, 78)
            self.assertIn(want, run.stderr.decode())
            self.assertNotIn("Traceback", run.stderr.decode())


@unittest.skipIf(os.name == "nt", "missing: pass_fds, which Windows has not")
class BootFailures(unittest.TestCase):
    def fault(self, source, offers=(), **more):
        e = engine.Engine(source, offers, **more)
        self.addCleanup(e.output.close)
        self.assertEqual(e.booted["type"], "bootfail", e.booted)
        self.assertEqual(e.process.wait(engine.PATIENCE), 1)
        e.close()
        return e.booted["error"]

    def test_code_that_does_not_load(self):
        error = self.fault("def x(:\n")
        self.assertEqual(error["type"], "SyntaxError")
        self.assertIn("adt.py", error["traceback"])
        error = self.fault("\nimport no_such_module")
        self.assertEqual(error["type"], "ModuleNotFoundError")
        self.assertIn("line 2", error["traceback"])
        self.assertNotIn("loading.py", error["traceback"])
        self.assertNotIn("importlib", error["traceback"])
        self.assertEqual(self.fault("raise SystemExit(3)")["type"], "SystemExit")
        twice = "from coppice_worker import handler\n@handler\ndef a(m, c): pass\n@handler\ndef a(m, c): pass\n"
        self.assertIn('two @handler functions are named "a"', self.fault(twice)["text"])

    def test_offers(self):
        """Red with loading.missing returning None."""
        source = "from coppice_worker import handler, router\n@handler\ndef admit(m, c): pass\n@router\ndef route(m, c): pass\n"
        error = self.fault(source, [("handle", "admitt")])
        self.assertEqual(
            error["text"],
            'adt.py has no @handler "admitt"; did you mean "admit"?; it offers: @handler "admit", @router "route"',
        )
        self.assertIn('"route" is a @router', self.fault(source, [("handle", "route")])["text"])
        self.assertIn("it offers nothing", self.fault("", [("route", "a")])["text"])

    def test_a_module_of_that_name_is_there(self):
        source = "import json\nfrom coppice_worker import handler, Send\n@handler\ndef f(m, c): return Send('a', json.dumps(1))"
        for file in ("json.py", "has spaces and-dash", "coppice_worker.py"):
            e = engine.Engine(source, [("handle", "f")], file=file)
            self.addCleanup(e.output.close)
            self.assertEqual(e.booted["type"], "ready", e.booted)
            self.assertEqual(e.ask("f")["sends"][0]["body"], b"1")
            self.assertEqual(e.close(), 0)


class Alone(unittest.TestCase):
    def run_alone(self, *args, source=None):
        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "adt.py"), "w", encoding="utf-8") as f:
                f.write(source or SOURCE)
            with open(os.path.join(folder, "neighbour.py"), "w", encoding="utf-8") as f:
                f.write("MRN = '12345'")
            with open(os.path.join(folder, "a01.hl7"), "wb") as f:
                f.write(b"MSH|^~\\&|||||||ADT^A01|C1\rPID|1\r")
            return subprocess.run(
                [sys.executable, "-I", "-B", engine.PROGRAM, "run", *args], cwd=folder, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=engine.PATIENCE,
            )  # fmt: skip

    def test_alone(self):
        got = self.run_alone("adt.py:echo", "a01.hl7", "--set", "facility=MERCY")
        self.assertEqual((got.returncode, got.stderr), (0, b""))
        text = got.stdout.decode().replace("\r\n", "\n")
        self.assertIn("send to emr, 32 bytes:\nMSH|^~\\&|||||||ADT^A01|C1\nPID|1\nsend to archive, 5 bytes:\nMERCY", text)
        self.assertEqual(self.run_alone("adt.py:route", "a01.hl7").stdout.decode().strip(), "handlers: echo")
        failed = self.run_alone("adt.py:raising", "a01.hl7")
        self.assertEqual(failed.returncode, 1)
        self.assertIn("no such patient", failed.stderr.decode())
        missing = self.run_alone("adt.py:ech", "a01.hl7")
        self.assertEqual(missing.returncode, 1)
        self.assertIn('did you mean "echo"?', missing.stderr.decode())
        self.assertEqual(self.run_alone("adt.py", "a01.hl7").returncode, 2)

    def test_alone_ended(self):
        """A function that ends its process has failed, whatever status it gives. Red with SystemExit let through."""
        for status in ("", "0", "3", "'a text'"):
            source = f"import sys\nfrom coppice_worker import handler\n@handler\ndef f(msg, ctx):\n    sys.exit({status})\n"
            got = self.run_alone("adt.py:f", "a01.hl7", source=source)
            self.assertEqual(got.returncode, 1)
            self.assertIn("an engine takes that for a crash", got.stderr.decode())


if __name__ == "__main__":
    unittest.main()

"""What functions return and raise, and the answers that become of it; without a process."""

import unittest
from datetime import datetime, timezone

from coppice_worker import Context, Drop, Message, Send
from coppice_worker.calling import Caller
from coppice_worker.faults import TEXT_CAP
from coppice_worker.functions import Registry
from coppice_worker.hl7 import HL7

REQUEST = {
    "message": 7, "inbound": "adt", "msgtype": "ADT^A01", "control": "C1", "received": "2026-01-02T03:04:05.678901234Z",
    "attempt": 2, "body": b"MSH|^~\\&|A",
}  # fmt: skip


def answer(function, phase="handle"):
    caller = Caller()
    try:
        return caller.answer(phase, "f", function, Message(REQUEST), Context({"a": 1}, 0.0, "f"))
    finally:
        caller.close()


def returning(value, phase="handle"):
    return answer(lambda msg, ctx: value, phase)


class Results(unittest.TestCase):
    def sends(self, got):
        self.assertEqual(got["type"], "result", got)
        return [(s["to"], s["body"]) for s in got["sends"]]

    def test_nothing(self):
        for value in (None, [], ()):
            self.assertEqual(returning(value), {"type": "result", "sends": []})

    def test_sends(self):
        a, b = Send("a", b"1"), Send("b", b"2")
        self.assertEqual(self.sends(returning(a)), [("a", b"1")])
        for value in ([a, b], (a, b), (s for s in (a, b)), map(lambda s: s, [a, b])):
            self.assertEqual(self.sends(returning(value)), [("a", b"1"), ("b", b"2")])

    def test_bodies(self):
        h = HL7(b"MSH|^~\\&|\xff")
        changing = bytearray(b"abc")
        send = Send("a", changing)
        changing[0] = 0
        self.assertEqual(send.body, b"abc")
        for body, want in [
            (b"x", b"x"), (memoryview(b"xyz")[1:], b"yz"), ("é", b"\xc3\xa9"), ("\udcff", b"\xff"), (h, b"MSH|^~\\&|\xff"),
        ]:  # fmt: skip
            self.assertEqual(Send("a", body).body, want)
        for body in (None, 1, [b"x"], object()):
            with self.assertRaisesRegex(TypeError, "body is bytes, str or an HL7 message"):
                Send("a", body)
        for to in ("", None, 3):
            with self.assertRaisesRegex(TypeError, "name of an outbound"):
                Send(to, b"")

    def test_drop(self):
        self.assertEqual(returning(Drop("no MRN")), {"type": "result", "drop": "no MRN"})
        with self.assertRaises(TypeError):
            Drop(None)

    def test_async(self):
        async def one(msg, ctx):
            return Send("a", msg.body)

        async def many(msg, ctx):
            yield Send("a", b"1")
            yield Send("b", b"2")

        async def bad(msg, ctx):
            raise ValueError("late")

        self.assertEqual(self.sends(answer(one)), [("a", REQUEST["body"])])
        self.assertEqual(self.sends(answer(many)), [("a", b"1"), ("b", b"2")])
        self.assertEqual(answer(bad)["error"]["text"], "late")

    def test_nonsense(self):
        """Red with either check of a type taken out of calling._sends."""
        for value in (1, "emr", b"x", {}, {"a": 1}, True, object(), Send, {Send("a", b"")}):
            got = returning(value)
            self.assertEqual((got["type"], got["error"]["type"]), ("fail", "result"), value)
            self.assertIn('handler "f" returned a', got["error"]["text"])
        for value in ([1], [Send("a", b""), None], [[Send("a", b"")]], [Drop("x")]):
            got = returning(value)
            self.assertEqual((got["type"], got["error"]["type"]), ("fail", "result"), value)
            self.assertIn("list", got["error"]["text"])

    def test_routers(self):
        for value, want in [(None, []), ("a", ["a"]), (["a", "b"], ["a", "b"]), ((n for n in "ab"), ["a", "b"])]:
            self.assertEqual(returning(value, "route"), {"type": "result", "handlers": want})
        for value in (1, {"a": 1}, [1], [""], "", Send("a", b""), [None]):
            self.assertEqual(returning(value, "route")["type"], "fail", value)

    def test_message(self):
        def look(msg, ctx):
            self.assertEqual((msg.id, msg.inbound, msg.type, msg.control_id, msg.attempt), (7, "adt", "ADT^A01", "C1", 2))
            self.assertEqual(msg.received, datetime(2026, 1, 2, 3, 4, 5, 678901, timezone.utc))
            self.assertIs(msg.hl7, msg.hl7)
            self.assertEqual((ctx.settings, ctx.remaining()), ({"a": 1}, 0.0))
            msg.tag(mrn="1", visit=2)
            msg.tag(mrn="3", odd="\udc80")

        self.assertEqual(answer(look)["tags"], {"mrn": "3", "visit": "2", "odd": "\ufffd"})

    def test_tags_are_text(self):
        got = answer(lambda msg, ctx: msg.tag(mrn=None))
        self.assertEqual(got["error"]["type"], "TypeError")


class Raised(unittest.TestCase):
    def test_fault(self):
        def raises(msg, ctx):
            raise KeyError("mrn")

        error = answer(raises)["error"]
        self.assertEqual((error["type"], error["text"]), ("KeyError", "'mrn'"))
        self.assertNotIn("calling.py", error["traceback"])
        self.assertIn("raise KeyError", error["traceback"])

    def test_own_types_are_qualified(self):
        class Own(Exception):
            pass

        def raises(msg, ctx):
            raise Own

        self.assertEqual(answer(raises)["error"]["type"], __name__ + ".Raised.test_own_types_are_qualified.<locals>.Own")

    def test_evil_exceptions(self):
        """Red with either try of faults.of taken out."""

        class Evil(Exception):
            def __str__(self):
                raise ValueError

            __repr__ = __str__

        class Deep(Exception):
            def __str__(self):
                return str(self)

        for raised in (Evil, Deep, MemoryError, RecursionError, GeneratorExit, StopIteration):

            def raises(msg, ctx, raised=raised):
                raise raised

            self.assertEqual(answer(raises)["type"], "fail", raised)

    def test_recursion(self):
        def raises(msg, ctx):
            return raises(msg, ctx)

        error = answer(raises)["error"]
        self.assertEqual(error["type"], "RecursionError")

    def test_texts_are_capped(self):
        """Red with faults.head and faults.tail returning what they got."""

        def raises(msg, ctx):
            raise ValueError("é\ud800" * 100_000)

        error = answer(raises)["error"]
        for key in ("text", "traceback"):
            self.assertLessEqual(len(error[key].encode("utf-8")), TEXT_CAP)
            self.assertIn("cut", error[key])

    def test_exits_pass(self):
        """Red with SystemExit not named in Caller.answer."""
        for exits in (SystemExit, KeyboardInterrupt):

            def raises(msg, ctx, exits=exits):
                raise exits

            with self.assertRaises(exits):
                answer(raises)


class Offering(unittest.TestCase):
    def test_names(self):
        registry = Registry()
        registry.add("handle", None, self.test_names)
        registry.add("route", None, self.test_names)
        registry.add("handle", "x", self.test_names)
        self.assertEqual(list(registry), [("handle", "test_names"), ("route", "test_names"), ("handle", "x")])
        with self.assertRaisesRegex(ValueError, 'two @handler functions are named "x"'):
            registry.add("handle", "x", print)
        with self.assertRaises(TypeError):
            registry.add("handle", "", print)


if __name__ == "__main__":
    unittest.main()

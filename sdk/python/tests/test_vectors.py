"""The wire agrees with protocol/vectors: what to accept, what to refuse and by which name."""

import io
import unittest

import vectors
from coppice_worker.runner import serve
from coppice_worker.violation import Violation
from coppice_worker.wire import Caps, check_binding, decode, encode, read_frame


def exact(value):
    """A value with its types, so that 1, 1.0 and True differ."""
    if isinstance(value, dict):
        return {k: exact(v) for k, v in value.items()}
    if isinstance(value, list):
        return [exact(v) for v in value]
    return (type(value).__name__, value)


def names_of(data, sender, caps):
    """The violation's name, or None."""
    try:
        decode(read_frame(vectors.reader(data), caps), sender, caps)
    except Violation as v:
        return v.name
    return None


class Vectors(unittest.TestCase):
    def test_accept(self):
        """Red with any reader of a field taken out of wire._SCHEMAS."""
        for v in vectors.load("accept.json"):
            with self.subTest(v["name"]):
                caps, source = Caps(**v.get("caps", {})), io.BytesIO(vectors.stream(v["hex"]) + b"next")
                got = decode(read_frame(source.read, caps), v["from"], caps)
                self.assertEqual(source.read(), b"next", "the reader took more than its frame")
                self.assertEqual(exact(got), exact(vectors.message(v["message"])))
                again = b"".join(encode(got, Caps()))
                self.assertEqual(exact(decode(read_frame(vectors.reader(again), Caps()), v["from"], Caps())), exact(got))

    def test_refuse(self):
        """Red with any single raise in wire.py or strictjson.py taken out."""
        for v in vectors.load("refuse.json"):
            with self.subTest(v["name"]):
                self.assertEqual(names_of(vectors.stream(v["hex"]), v["from"], Caps(**v.get("caps", {}))), v["violation"])

    def test_cut(self):
        """Red with the raise of frame-cut replaced by a break."""
        for v in vectors.load("accept.json"):
            whole, caps = vectors.stream(v["hex"]), Caps(**v.get("caps", {}))
            for at in range(1, min(len(whole), 2000)):
                if names_of(whole[:at], v["from"], caps) != "frame-cut":
                    self.fail(f"{v['name']}, cut at byte {at}, is not refused as cut")

    def test_cut_inside(self):
        """A complete outer frame with less in it than its inner lengths say. Red with any raise of split taken out."""
        for v in vectors.load("accept.json"):
            body, caps = vectors.stream(v["hex"])[4:], Caps(**v.get("caps", {}))
            for at in range(min(len(body), 1000)):
                try:
                    decode(body[:at], v["from"], caps)
                    self.fail(f"{v['name']}, a frame cut to {at} bytes, is accepted")
                except Violation as e:
                    self.assertIn(e.name, ("frame-short", "header-cut", "segment-cut", "segment-missing"), v["name"])

    def test_encode_keeps_the_caps(self):
        """What the reader would refuse is refused before it is written. Red with any raise of encode taken out."""
        two = {"type": "result", "id": "5f" * 16, "phase": "handle", "name": "a",
               "sends": [{"to": "a", "body": b"1"}, {"to": "b", "body": b"2"}]}  # fmt: skip
        size = sum(map(len, encode(two, Caps()))) - 4
        encode(two, Caps(frame=size))
        for caps, name in [(Caps(frame=size - 1), "frame-cap"), (Caps(header=20), "header-cap"), (Caps(segments=1), "segment-count")]:
            with self.assertRaises(Violation) as raised:
                encode(two, caps)
            self.assertEqual(raised.exception.name, name)

    def test_binding(self):
        """Red with check_binding emptied."""
        for v in vectors.load("binding.json"):
            with self.subTest(v["name"]):
                answer = decode(read_frame(vectors.reader(vectors.stream(v["hex"])), Caps()), "worker", Caps())
                try:
                    check_binding(v["request"], answer)
                    found = None
                except Violation as e:
                    found = e.name
                self.assertEqual(found, v["violation"])

    def test_promise(self):
        """A promise of 64 MiB allocates for what arrives. Red with read(size - len(got)) in _read_exactly."""
        asked = []

        def read(n):
            asked.append(n)
            return b"\x04\x00\x00\x00"[:n] if len(asked) == 1 else b""

        with self.assertRaises(Violation):
            read_frame(read, Caps())
        self.assertLessEqual(max(asked), 64 << 10)


class Order(unittest.TestCase):
    def test_worker_judges(self):
        """Red with either check of the type in runner.serve taken out."""
        for v in vectors.load("order.json"):
            if v["judge"] != "worker":
                continue
            with self.subTest(v["name"]):
                data = b"".join(vectors.stream(f["hex"]) for f in v["frames"])
                # The file that boot asks for is in memory: what is judged here is the order alone.
                self.assertEqual(self.judged(data), v["violation"])

    def judged(self, data):
        import coppice_worker.runner as runner

        load, runner._load = runner._load, lambda boot: None
        try:
            serve(vectors.reader(data), lambda written: None)
            return None
        except Violation as v:
            return v.name
        finally:
            runner._load = load


if __name__ == "__main__":
    unittest.main()

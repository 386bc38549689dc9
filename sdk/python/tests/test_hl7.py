"""HL7 messages keep every byte that was not set."""

import json
import os
import random
import tracemalloc
import unittest

from coppice_worker.hl7 import HL7, NotHL7

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..")
CASES = os.path.join(ROOT, "protocol", "hl7", "cases.json")
SAMPLES = os.path.join(ROOT, "..", "shared", "samples")
BODY = b"MSH|^~\\&|A|B|||20260102||ADT^A01|C1|P|2.3\rPID|1||111^^^X&Y&Z~222^^^W||DOE^JOHN\rPV1|1|I|2000^A\rOBX|1\rOBX|2||x\r"


def paths(h):
    """A path to every field, repetition, component and subcomponent of a message, and to some beyond."""
    for name, i, at in ((name, i, at) for name, found in h._index.items() for i, at in enumerate(found, 1)):
        segment = f"{name}[{i}]"
        fields = h._parts[at].count(h._field) + 1
        for field in range(3 if name in ("MSH", "BHS", "FHS") else 1, fields + 2):
            yield f"{segment}-{field}"
            yield f"{segment}-{field}[1]"
            yield f"{segment}-{field}[2].1"
            yield f"{segment}-{field}.1"
            yield f"{segment}-{field}.2.1"


def value(v):
    """A value of a case: text, or {"hex": ...}."""
    return v if isinstance(v, str) else bytes.fromhex(v["hex"]).decode("utf-8", "surrogateescape")


class Cases(unittest.TestCase):
    """protocol/hl7/cases.json, which Go's package worker/hl7 and the Node SDK run as well."""

    KEYS = {"name", "body", "hl7", "get", "count", "no_path", "escape", "unescape", "refuse", "set", "bytes"}
    KINDS = {"segment": KeyError, "value": ValueError}

    def test_cases(self):
        with open(CASES, encoding="utf-8") as f:
            cases = json.load(f)
        self.assertGreater(len(cases), 40)
        for case in cases:
            with self.subTest(case["name"]):
                self.assertLessEqual(set(case), self.KEYS)
                self.case(case, case["body"].encode("latin-1"))

    def case(self, case, body):
        if case.get("hl7") is False:
            with self.assertRaises(NotHL7):
                HL7(body)
            return
        h = HL7(body)
        self.reads(case, h)
        self.refuses(case, h)
        self.assertEqual(bytes(h), body)
        for path, new in case.get("set", []):
            h[path] = value(new)
            self.assertEqual(h[path], value(new), path)
        self.assertEqual(bytes(h), case.get("bytes", case["body"]).encode("latin-1"))

    def reads(self, case, h):
        for path, want in case.get("get", {}).items():
            self.assertEqual(h[path], value(want), path)
            if path not in ("MSH-1", "MSH-2", "FHS-1", "FHS-2") and not path.startswith(("MSH-1.", "MSH-2", "MSH[2]-1", "MSH[2]-2")):
                h[path] = h[path]
        for segment, want in case.get("count", {}).items():
            self.assertEqual((h.count(segment), segment in h), (want, want > 0), segment)
        for text, want in case.get("escape", {}).items():
            self.assertEqual(h.escape(text), want)
        for text, want in case.get("unescape", {}).items():
            self.assertEqual(h.unescape(text), want)

    def refuses(self, case, h):
        for path, new, kind in case.get("refuse", []):
            with self.assertRaises(self.KINDS[kind], msg=path):
                h[path] = value(new)
        for path in case.get("no_path", []):
            with self.assertRaisesRegex(ValueError, "is no path", msg=path):
                h[path]
            with self.assertRaisesRegex(ValueError, "is no path", msg=path):
                h[path] = "x"


class Large(unittest.TestCase):
    def test_many_segments(self):
        """A path must not cost what the message is long: this would run into the suite's two minutes."""
        n = 200_000
        line = b"OBX|%d|ST|CODE^TEXT||%d|a|b|c|d|e|f|20260102030405|x|y|zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz\r"
        body = b"MSH|^~\\&|A\r" + b"".join(line % (i, i) for i in range(1, n + 1))
        self.assertGreater(len(body), 20_000_000)
        h = HL7(body)
        for i in range(1, n + 1, 2):
            self.assertEqual(h[f"OBX[{i}]-5"], str(i))
            h[f"OBX[{i}]-3.1"] = "CHANGED"
        self.assertEqual(bytes(h).count(b"|CHANGED^TEXT|"), n // 2)

    def test_many_fields(self):
        """Red with a split of all the fields: a list of twenty million."""
        h = HL7(b"MSH|^~\\&|A\rOBX|" + b"|" * 20_000_000)
        tracemalloc.start()
        self.addCleanup(tracemalloc.stop)
        self.assertEqual(h["OBX-5"], "")
        h["OBX-3"] = "x"
        self.assertLess(tracemalloc.get_traced_memory()[1], 100_000_000)
        self.assertEqual(len(bytes(h)), 20_000_016)


class Paths(unittest.TestCase):
    def test_get(self):
        h = HL7(BODY)
        for path, want in {
            "MSH-1": "|", "MSH-2": "^~\\&", "MSH-3": "A", "MSH-9": "ADT^A01", "MSH-9.2": "A01", "PID-3": "111^^^X&Y&Z~222^^^W",
            "PID-3.1": "111", "PID-3.4": "X&Y&Z", "PID-3.4.2": "Y", "PID-3[2]": "222^^^W", "PID-3[2].4": "W", "PID-3[2].4.1": "W",
            "PID-3[3].1": "", "PID-99": "", "PID-1.2": "", "OBX[2]-3": "x", "OBX[3]-1": "", "ZZZ-1": "", "pid-1": "1",
        }.items():  # fmt: skip
            self.assertEqual(h[path], want, path)
        self.assertEqual((h.count("OBX"), "PV1" in h, "ZZZ" in h, h.get("ZZZ-1", "none")), (2, True, False, "none"))
        self.assertEqual(bytes(h), BODY)

    def test_set(self):
        for path, value, old, new in [
            ("PV1-3.4", "MERCY", b"PV1|1|I|2000^A\r", b"PV1|1|I|2000^A^^MERCY\r"),
            ("PID-3[2].1", "9", b"~222^", b"~9^"), ("PID-3.4.2", "", b"X&Y&Z", b"X&&Z"),
            ("OBX[2]-5", "a^b~c", b"OBX|2||x\r", b"OBX|2||x||a^b~c\r"), ("MSH-9.2", "A08", b"A01", b"A08"),
            ("PID-5.1", "M\u00fcller", b"DOE", b"M\xc3\xbcller"), ("PID-5[2].2", "J", b"DOE^JOHN", b"DOE^JOHN~^J"),
        ]:  # fmt: skip
            h = HL7(BODY)
            h[path] = value
            self.assertEqual(bytes(h), BODY.replace(old, new), path)
            self.assertEqual(h[path], value)

    def test_refused(self):
        """Red with _refuse_separators emptied."""
        h = HL7(BODY)
        for path, value, error in [
            ("PID-3", "a|b", ValueError), ("PID-3.1", "a^b", ValueError), ("PID-3.1", "a~b", ValueError),
            ("PID-3.1.1", "a&b", ValueError), ("PID-3", "a\rb", ValueError), ("PID-3", "a\nb", ValueError),
            ("MSH-1", "#", ValueError), ("MSH-2", "x", ValueError), ("ZZZ-1", "x", KeyError), ("PID-3", 1, TypeError),
            ("PID", "x", ValueError), ("PID-0", "x", ValueError), (3, "x", ValueError),
        ]:  # fmt: skip
            with self.assertRaises(error, msg=(path, value)):
                h[path] = value
        self.assertEqual(bytes(h), BODY)
        for body in (b"", b"MSH", b"PID|1", b"{}", b"\x0bMSH|^~\\&|"):
            with self.assertRaises(NotHL7):
                HL7(body)

    def test_escape(self):
        h = HL7(BODY)
        text = "a|b^c~d\\e&f"
        self.assertEqual(h.escape(text), "a\\F\\b\\S\\c\\R\\d\\E\\e\\T\\f")
        self.assertEqual(h.unescape(h.escape(text)), text)
        self.assertEqual(h.unescape("\\H\\x\\.br\\"), "\\H\\x\\.br\\")
        h["PID-5.1"] = h.escape(text)
        self.assertEqual(h.unescape(h["PID-5.1"]), text)

    def test_bytes_that_are_no_utf8(self):
        h = HL7(b"MSH|^~\\&|\xe9\xff\rPID|1||\xe9")
        h["PID-2"] = h["MSH-3"]
        self.assertEqual(bytes(h), b"MSH|^~\\&|\xe9\xff\rPID|1|\xe9\xff|\xe9")
        latin = HL7(b"MSH|^~\\&" + b"|" * 16 + b"8859/1\rPID|1||\xe9")
        self.assertEqual(latin["PID-3"], "\xe9")
        latin["PID-3"] = "\xfc"
        self.assertTrue(bytes(latin).endswith(b"PID|1||\xfc"))

    def test_odd_separators_ends_and_marks(self):
        for body in (
            b"MSH#*+!%#A\nPID#1##1*2+3\n", b"\xef\xbb\xbfMSH|^~\\&|A\r\nPID|1\r\n", b"MSH|\rPID|1^2", b"MSH|^~\\&|A\rPID|1\nPV1|2\r\n\r\r",
            b"FHS|^~\\&|X\rBHS|^~\\&|Y\rMSH|^~\\&|Z\r", b"MSH|^~\\\\&|A\rPID|a\\b&c", b"MSH|^|A\rPID|a^b~c",
        ):  # fmt: skip
            h = HL7(body)
            self.assertEqual(bytes(h), body)
            for path in paths(h):
                if h[path]:
                    h[path] = h[path]
            self.assertEqual(bytes(h), body)
        h = HL7(b"MSH#*+!%#A\nPID#1##1*2+3\n")
        self.assertEqual((h["PID-3.2"], h["PID-3[2].1"], h["MSH-1"]), ("2", "3", "#"))


class Samples(unittest.TestCase):
    def test_samples(self):
        """Reading every path and setting what is there to itself changes no byte; another value changes its own alone."""
        if not os.path.isfile(os.path.join(SAMPLES, "INDEX.csv")):
            self.skipTest("missing: samples: shared/samples/INDEX.csv beside the checkout")
        seed = int(os.environ.get("SEED", random.randrange(1 << 32)))
        print(f"SEED={seed}")
        rng = random.Random(seed)
        names = sorted(n for n in os.listdir(SAMPLES) if n.endswith(".hl7"))
        self.assertGreater(len(names), 15)
        for name in names:
            with open(os.path.join(SAMPLES, name), "rb") as f:
                body = f.read()
            with self.subTest(name):
                self.keeps(body)
                self.changes_one(body, rng)

    def keeps(self, body):
        h = HL7(body)
        self.assertEqual(bytes(h), body)
        for path in paths(h):
            value = h[path]
            if value:
                h[path] = value
        self.assertEqual(bytes(h), body)

    def changes_one(self, body, rng):
        all_paths = [p for p in paths(HL7(body)) if HL7(body)[p]]
        for path in rng.sample(all_paths, min(len(all_paths), 15)):
            h = HL7(body)
            old = h[path]
            h[path] = "ZQZ"
            changed = bytes(h)
            self.assertEqual(h[path], "ZQZ")
            self.assertEqual(len(changed), len(body) - len(old.encode("utf-8", "surrogateescape")) + 3)
            h[path] = old
            self.assertEqual(bytes(h), body, path)


if __name__ == "__main__":
    unittest.main()

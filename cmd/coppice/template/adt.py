"""A router and a handler. Both run in worker processes: what they print is captured, and `coppice show` has the
last of it; what they raise is recorded with its traceback; if they hang or crash they are cut down and
started again.

serve copies this folder when it starts: an edit takes effect with coppice reload, or at the next start. Files beside this one
are in os.path.dirname(__file__); the working folder is a scratch folder."""

from coppice_worker import router, handler, Send, Drop


@router
def route(msg, ctx):
    """Choose the handlers of a message: any number of them, or none."""
    return ["admit"] if msg.hl7["MSH-9.1"] == "ADT" else []


@handler
def admit(msg, ctx):
    """Answer Send, a list of them, Drop with a reason, or None."""
    h = msg.hl7  # lossless: bytes that are not touched stay as they were
    if not h["PID-3.1"]:
        return Drop("no MRN")
    msg.tag(mrn=h["PID-3.1"])
    if "PV1" in h:
        h["PV1-3.4"] = ctx.settings["facility"]
    return Send("archive", h)

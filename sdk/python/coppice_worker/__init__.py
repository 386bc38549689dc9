"""Write Coppice handlers in Python.

    from coppice_worker import router, handler, Send, Drop

    @router
    def route(msg, ctx):
        return ["admit"] if msg.hl7["MSH-9.2"] == "A01" else []

    @handler
    def admit(msg, ctx):
        return Send("emr", msg.body)

A handler returns None (nothing to send), a Send, a Drop, or a list, tuple or generator of Send; a router returns the
names of handlers. Both may be async functions. What a function prints is captured: coppice show has the
last of it, and the log with coppice serve --log-handler-output only. A function that raises fails its message and not its worker; sys.exit ends the worker, which
the engine treats as a crash.

coppice serve copies the code when it starts, so an edit takes effect with coppice reload, or at the next start. The working
folder is a scratch folder: files beside the handler's are in os.path.dirname(__file__).

The package needs Python 3.9 and the standard library alone. protocol/PROTOCOL.md is the specification of what it
speaks.
"""

from .functions import Context, Drop, Message, Send, handler, router

__all__ = ["Context", "Drop", "Message", "Send", "handler", "router"]
__version__ = "0.1.0"

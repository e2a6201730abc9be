"""What `legroom check` puts into the process of a script: it records a few optimizer steps, and stops there.

`begin` is called when torch has been imported (sitecustomize.py). What is found is written into the folder that the
environment variable LEGROOM_CHECK names: messages.jsonl, a line for each event, and found.json at the end.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import time


class Talk:
    """What the process says: a line of JSON for each message."""

    def __init__(self, folder):
        self.folder = folder
        self.start = time.time()
        self.process = os.getpid()
        self.notes = set()
        self.is_over = False

    def say(self, **message):
        message["process"] = os.getpid()
        line = (json.dumps(message) + "\n").encode()
        descriptor = os.open(os.path.join(self.folder, "messages.jsonl"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)

    def note(self, text):
        if text not in self.notes:
            self.notes.add(text)
            self.say(kind="note", text=text[:900])

    def found(self, values):
        path = os.path.join(self.folder, f"found-{os.getpid()}.json")
        with open(path + ".part", "w") as file:
            json.dump(values, file)
        os.rename(path + ".part", path)
        self.say(kind="found", file=os.path.basename(path))


def _first_line(error):
    """What an error says, in a line; of a process that torch has spawned, what its own error says."""
    lines = str(error).strip().splitlines()
    if type(error).__name__ == "ProcessRaisedException":  # it holds the traceback of that process
        while any(line.startswith("  ") for line in lines):  # up to its last line of code
            lines.pop(0)
    return lines[0] if lines else ""


def begin():
    """Begin to record. torch has just been imported."""
    from legroom_inside import session

    folder = os.environ["LEGROOM_CHECK"]
    asked = json.loads(os.environ.get("LEGROOM_CHECK_ASKED", "{}"))
    talk = Talk(folder)
    session.Session(talk, asked)
    hook = sys.excepthook

    def say_error(error):
        from legroom_inside import device, numbers, places

        talk.is_over = True
        text = _first_line(error)[:1000]
        status = "refused"
        if not isinstance(error, numbers.Unfollowed):
            status = "failed"
            text = f"{type(error).__name__}: {text}"
        line = places.line_of_error(error)
        talk.say(kind="end", status=status, error=text, line=line, hidden_by=device.hidden_by())

    def failed(kind, error, trace):
        from legroom_inside import numbers

        if os.getpid() == talk.process and not talk.is_over:
            say_error(error)
        if not issubclass(kind, numbers.Unfollowed):
            hook(kind, error, trace)

    def ended():
        if os.getpid() != talk.process or talk.is_over:
            return
        error = getattr(sys, "last_value", None)  # of a script whose own excepthook stands in place of this one
        if error is not None:
            say_error(error)
            return
        talk.is_over = True
        talk.say(kind="end", status="ended")

    sys.excepthook = failed
    atexit.register(ended)

"""How a configuration is refused, and which exceptions mean that memory ran out."""

from __future__ import annotations


class Refusal(Exception):
    """A job that cannot run as asked. The message says what is wrong and what to type instead."""


class Diverged(Exception):
    """A training whose weights or optimizer states are not numbers (NaN or infinite) any more."""


class NoStepTaken(Diverged):
    """A training whose loss is never a number, so that the gradient scaler skips each step; its weights are whole."""


class NotHere(Refusal):
    """Data, or a model, that is neither on this machine nor returned by the hub."""


def first_line(error: BaseException) -> str:
    """What an exception says, or its kind where it says nothing, or cannot."""
    try:
        said = str(error).strip()
    except Exception:  # of a class of somebody else's, whose __str__ fails
        said = ""
    return (said or type(error).__name__).splitlines()[0]


class Problem(str):
    """A line that says why a configuration cannot run. key: the key that it is about, where other code asks for it."""

    key: str | None

    def __new__(cls, message: str, key: str | None = None) -> Problem:
        problem = super().__new__(cls, message)
        problem.key = key
        return problem


OUT_OF_MEMORY = (
    "out of memory",
    "can't allocate memory",
    "not enough memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "Cannot allocate memory",
    "can't start new thread",  # no memory for its stack, or more processes than the system allows
)
# What oneDNN says, whole, where the code of a kernel or its buffers find no memory. A kernel that it lacks is
# 'could not create a primitive descriptor for ...'.
NO_ROOM_FOR_A_KERNEL = ("could not create a primitive", "could not create a memory object")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception means that a device or the host has no memory left."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    said = str(error)
    return isinstance(error, (RuntimeError, OSError)) and (
        said.strip() in NO_ROOM_FOR_A_KERNEL or any(text in said for text in OUT_OF_MEMORY)
    )


class UnknownOperation(Exception):
    """An operation whose result the fake device cannot infer."""

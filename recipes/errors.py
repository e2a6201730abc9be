"""The one exception for what a person can put right."""


class Refusal(Exception):
    """A job that cannot run as asked. The message says what is wrong and what to type instead."""


OUT_OF_MEMORY = (
    "out of memory",
    "can't allocate memory",
    "not enough memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "Cannot allocate memory",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception means that a device or the host has no memory left."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, (RuntimeError, OSError)) and any(words in str(error) for words in OUT_OF_MEMORY)

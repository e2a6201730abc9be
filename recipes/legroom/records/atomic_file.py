"""Write a file so that a reader never sees a part of it."""

import glob
import os
import tempfile
from pathlib import Path


def write(path: Path, content: bytes) -> None:
    """Write to a temporary file in the same folder, flush it to the disk and rename it over `path`.

    Raises OSError (no folder, a full disk) with `path` as its file name; an older file of that name is then unchanged.
    """
    name = None
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=path.suffix)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o666 & ~_umask())  # mkstemp gives 0o600
        os.replace(name, path)
    except BaseException as error:
        if name is not None:
            Path(name).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror or str(error), str(path)) from None
        raise


def try_writing(path: Path, size: int) -> None:
    """Write and remove so many bytes where `write(path, ...)` writes its temporary file. Raises OSError as it does."""
    probe = path.with_name(f".{path.stem}-probe{path.suffix}")
    try:
        write(probe, bytes(size))
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    probe.unlink()


def clear(path: Path) -> None:
    """Remove what a `write` of this path has left that was killed. Nothing else may write to it at the same time."""
    for left in path.parent.glob(f".{glob.escape(path.stem)}-*{glob.escape(path.suffix)}"):
        left.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask

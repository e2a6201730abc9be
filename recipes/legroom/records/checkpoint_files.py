"""Checkpoints on disk: whole or not at all, and checked before they are opened.

<run>/checkpoints/step-00000010/
    manifest.json            step, ranks, and the size and CRC-32 of every other file; written last
    rank-0.json              what is no tensor; rank 0 has what all ranks share
    rank-0.weights.safetensors, rank-0.optimizer.safetensors    that rank's pieces of the tensors

A checkpoint is written under another name, flushed to the disk and then renamed, so a folder with the
right name is whole; what happens to it later (a disk that loses a file) shows in sizes and checksums.
Nothing in it is code, and nothing of it is executed. A checkpoint may be somebody else's: only files with our names are
opened, regular ones in the folder itself, and what they hold is checked before it is used. Imports nothing heavy: the
parent looks here too.
"""

import contextlib
import json
import os
import re
import shutil
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeGuard

from legroom.records import checkpoint_values, regular_file, run_folder

FOLDER = run_folder.CHECKPOINTS_FOLDER
UNFINISHED_MODEL = f".{run_folder.MODEL_FOLDER}.unfinished"
MANIFEST = "manifest.json"
FORMAT = 1
NAME = re.compile(r"step-([0-9]{8,15})")
FILE_NAME = re.compile(r"rank-[0-9]{1,6}\.(json|[a-z]+\.safetensors)")
MOST_MANIFEST_BYTES, MOST_JSON_BYTES = 2**26, 2**28  # a million files; the log of a million steps
BLOCK_BYTES = 2**22  # read at once for a checksum


class BrokenCheckpoint(Exception):
    """A checkpoint that is not whole. The message names the file."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was found whole. ranks: what each rank's JSON holds."""

    folder: Path
    step: int
    ranks: list[dict]

    @property
    def values(self) -> dict:
        """What all ranks share."""
        return self.ranks[0]


def folder_name(step: int) -> str:
    """The folder's name of a checkpoint."""
    return f"step-{step:08d}"


def in_run(run: Path) -> list[Path]:
    """The checkpoints in a run's folder, the newest first."""
    folders = [path for path in Path(run, FOLDER).glob("step-*") if NAME.fullmatch(path.name)]
    return sorted(folders, key=step_of, reverse=True)


def step_of(folder: Path) -> int:
    """The step in the name of a checkpoint's folder."""
    return int(folder.name.removeprefix("step-"))


# --- reading -------------------------------------------------------------------------------------


def config_of(folder: Path) -> dict:
    """The configuration of the run that wrote a checkpoint. Raises BrokenCheckpoint.

    Of the checkpoint's files only those that hold it are read, so this is fast also for a large model.
    """
    manifest = _manifest(folder)
    path = folder / rank_file(0)
    _verify_file(path, *manifest["files"][path.name])
    return _rank_values(folder, 0, manifest)["config"]


def verify(folder: Path) -> Checkpoint:
    """The checkpoint in a folder, every byte of it checked. Raises BrokenCheckpoint."""
    manifest = _manifest(folder)
    for file, (size, checksum) in manifest["files"].items():
        _verify_file(folder / file, size, checksum)
    ranks = [_rank_values(folder, rank, manifest) for rank in range(manifest["ranks"])]
    return Checkpoint(folder, manifest["step"], ranks)


def rank_file(rank: int) -> str:
    """The name of the file with what is no tensor of a rank."""
    return f"rank-{rank}.json"


def _manifest(folder: Path) -> dict:
    """The manifest of a checkpoint, its contents checked. Raises BrokenCheckpoint."""
    path = folder / MANIFEST
    manifest = _json(path, MOST_MANIFEST_BYTES)
    if manifest.pop("crc32", None) != crc32_of_values(manifest):
        raise BrokenCheckpoint(f"{path} is damaged")
    if manifest.get("format") != FORMAT:
        raise BrokenCheckpoint(f"{path} is of another format ({manifest.get('format')!r:.20}, not {FORMAT})")
    step, ranks, files = manifest.get("step"), manifest.get("ranks"), manifest.get("files")
    if not _is_size(step) or not _is_size(ranks) or not isinstance(files, dict):
        raise BrokenCheckpoint(f"{path} is not a manifest")
    for name, entry in files.items():
        if not FILE_NAME.fullmatch(name) or not _is_file_entry(entry):
            raise BrokenCheckpoint(f"{path} names files that no checkpoint has")
    if step != step_of(folder) or not 1 <= ranks <= len(files):
        raise BrokenCheckpoint(f"{path} does not fit its folder")
    if any(rank_file(rank) not in files for rank in range(ranks)):
        raise BrokenCheckpoint(f"{path} does not fit its folder")
    return manifest


def _is_file_entry(entry: Any) -> bool:
    """Whether an entry is (size, checksum)."""
    return isinstance(entry, list) and len(entry) == 2 and _is_size(entry[0]) and _is_size(entry[1])


def _is_size(value: Any) -> TypeGuard[int]:
    return type(value) is int and value >= 0


def _verify_file(path: Path, size: int, checksum: int) -> None:
    """Compare a file with the manifest. Raises BrokenCheckpoint, also for anything that is not a regular file."""
    try:
        with open(regular_file.open_regular(path, follow_links=False), "rb") as file:
            file_bytes = os.fstat(file.fileno()).st_size
            if file_bytes != size:
                raise BrokenCheckpoint(f"{path} has {file_bytes} bytes instead of {size}")
            if _crc32_of_file(file) != checksum:
                raise BrokenCheckpoint(f"{path} has changed since it was written")
    except OSError as error:
        raise BrokenCheckpoint(f"{path} cannot be read ({error.strerror})") from error


def _rank_values(folder: Path, rank: int, manifest: dict) -> dict:
    """What a rank's JSON holds, checked. Raises BrokenCheckpoint."""
    path = folder / rank_file(rank)
    values = _json(path, MOST_JSON_BYTES)
    try:
        checkpoint_values.check(values, rank, manifest["step"], manifest["files"])
    except ValueError as error:
        raise BrokenCheckpoint(f"{path} cannot be used: {error}") from error
    return values


def _json(path: Path, most_bytes: int) -> dict:
    try:
        values = regular_file.decode_json(regular_file.read(path, most_bytes, follow_links=False), constants=True)
    except OSError as error:
        raise BrokenCheckpoint(f"{path} cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise BrokenCheckpoint(f"{path} is cut or damaged") from error
    if not isinstance(values, dict):
        raise BrokenCheckpoint(f"{path} is damaged")
    return values


def crc32(path: Path) -> int:
    """The checksum of a file: finds what a disk or a copy does to it, not what a person means to."""
    with open(path, "rb") as file:
        return _crc32_of_file(file)


def _crc32_of_file(file: IO[bytes]) -> int:
    checksum = 0
    while block := file.read(BLOCK_BYTES):
        checksum = zlib.crc32(block, checksum)
    return checksum


def crc32_of_values(values: dict) -> int:
    """The checksum of a manifest, without the checksum itself."""
    return zlib.crc32(json.dumps(values, sort_keys=True).encode())


# --- writing -------------------------------------------------------------------------------------


def write(
    run: Path,
    step: int,
    values: dict,
    tensors: dict[str, dict],
    keep: int,
    rank: int = 0,
    ranks: int = 1,
    barrier: Callable = lambda: None,
    protected: int | None = None,
) -> Path:
    """Write a checkpoint; every rank calls this. Returns its folder.

    values: what is no tensor, for JSON. tensors: {kind: {name: this rank's piece, on the CPU}}.
    keep: how many of the newest stay, besides that of the step `protected`. barrier: returns when all ranks have come
    to it.
    Raises OSError or SafetensorError (a full disk); earlier checkpoints then stand.
    """
    target = Path(run, FOLDER, folder_name(step))
    unfinished = target.with_name(f".{target.name}.unfinished")
    try:
        if rank == 0:
            unfinished.parent.mkdir(exist_ok=True)
            tidy(run)
            unfinished.mkdir()
        barrier()
        _write_rank(unfinished, rank, values, tensors)
        barrier()
        if rank == 0:
            _finish(unfinished, target, step, ranks)
            prune(run, step, keep, protected)
        barrier()
    except BaseException:
        if rank == 0:
            shutil.rmtree(unfinished, ignore_errors=True)
        raise
    return target


def _write_rank(folder: Path, rank: int, values: dict, tensors: dict[str, dict]) -> None:
    from safetensors.torch import save_file

    files = {}
    for kind, pieces in tensors.items():
        path = folder / f"rank-{rank}.{kind}.safetensors"
        save_file(pieces, path)
        _flush(path)
        files[path.name] = [path.stat().st_size, crc32(path)]
    path = folder / rank_file(rank)
    path.write_text(json.dumps(values | {"files": files}))
    _flush(path)


def _finish(unfinished: Path, target: Path, step: int, ranks: int) -> None:
    """The manifest, the disk's own cache, and the name that makes it count."""
    files = {}
    for rank in range(ranks):
        path = unfinished / rank_file(rank)
        files |= json.loads(path.read_text())["files"]
        files[path.name] = [path.stat().st_size, crc32(path)]
    values = {"format": FORMAT, "step": step, "ranks": ranks, "files": files}
    manifest = unfinished / MANIFEST
    manifest.write_text(json.dumps(values | {"crc32": crc32_of_values(values)}, indent=1))
    _flush(manifest)
    _flush(unfinished)
    put_in_place(unfinished, target)  # of a broken one, or one of a training that has gone another way since


def put_in_place(unfinished: Path, target: Path) -> None:
    """Give a folder that is complete its name, and remove the one that had it."""
    _discard(target)
    os.rename(unfinished, target)
    _flush(target.parent)


def prune(run: Path, step: int, keep: int, protected: int | None = None) -> None:
    """Leave the newest checkpoints up to a step, and that of the step `protected`; later ones are broken, or of a
    training that went another way."""
    kept = [folder for folder in in_run(run) if step_of(folder) <= step][:keep]
    for folder in in_run(run):
        if folder not in kept and step_of(folder) != protected:
            _discard(folder)


def discard_all(run: Path, but: int | None = None) -> None:
    """Remove the checkpoints of a run but that of a step, and their folder if nothing else is in it."""
    for folder in in_run(run):
        if step_of(folder) != but:
            _discard(folder)
    with contextlib.suppress(OSError):
        Path(run, FOLDER).rmdir()


def _discard(folder: Path) -> None:
    """Take a checkpoint its name first, so that nothing that is half removed is ever taken for one."""
    if folder.exists():
        gone = folder.with_name(f".{folder.name}.gone")
        os.rename(folder, gone)
        shutil.rmtree(gone, ignore_errors=True)


def tidy(run: Path) -> None:
    """Remove what a save or a removal that was killed has left in a run's folder."""
    checkpoints = Path(run, FOLDER)
    left = [*checkpoints.glob(".step-*.unfinished"), *checkpoints.glob(".step-*.gone")]
    left += [*run.glob(UNFINISHED_MODEL), *run.glob(".model*.gone")]
    for path in left:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()


def _flush(path: Path) -> None:
    """Wait until the disk has a file, or a folder's list of names."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

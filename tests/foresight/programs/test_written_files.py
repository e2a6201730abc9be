"""What a script writes is there for the script, and nowhere when it has ended."""

import functools
import platform
import subprocess
import sys

import pytest

from legroom.foresight import step_estimate
from legroom.foresight.programs import command, process
from legroom.foresight.programs.written_files import WrittenFiles

WRITES = """
import glob, os, pathlib, shutil, tempfile
pathlib.Path("out").write_text("a")
with open("out", "a") as file:
    file.write("b")
assert open("out").read() == "ab"
with open("given", "a") as file:
    file.write(" more")
assert open("given").read() == "given more"
os.makedirs("a/b/c", exist_ok=True)
os.makedirs("a/b/c", exist_ok=True)
pathlib.Path("a/b/x").write_text("{}")
assert sorted(os.listdir("a/b")) == ["c", "x"] and pathlib.Path("a/b/x").is_file()
assert sorted(glob.glob("*")) == ["a", "folder", "given", "out", "script.py"], glob.glob("*")
os.chmod("folder", 0o701)
os.utime("folder", (1, 1))
assert os.stat("folder").st_mode & 0o777 == 0o701 and os.listdir("folder") == ["kept"]
assert [found for found, *_ in os.walk("a")] == ["a", "a/b", "a/b/c"]
os.rename("a/b/x", "a/y")
assert not os.path.exists("a/b/x") and os.path.exists("a/y")
os.rename("folder/kept", "a/kept")
assert open("a/kept").read() == "kept" and os.listdir("folder") == []
shutil.rmtree("a")
shutil.rmtree("folder")
os.remove("given")
for name in ("a", "given", "folder", "folder/kept"):
    assert not os.path.exists(name), name
for name in ("no/such", "folder/new"):
    try:
        open(name, "w")
        raise SystemExit(f"{name} was made")
    except FileNotFoundError:
        pass
pathlib.Path("given").write_text("new")
os.makedirs("a")
shutil.copy("given", "a/g")
shutil.move("a/g", "a/h")
assert os.listdir("a") == ["h"]
with tempfile.TemporaryDirectory() as folder:
    pathlib.Path(folder, "x").write_text("1")
raw = os.open("raw", os.O_CREAT | os.O_WRONLY)
os.write(raw, b"1")
os.close(raw)
assert os.path.getsize("raw") == 1
try:
    open("raw", "x")
    raise SystemExit("made twice")
except FileExistsError:
    pass
"""
PAST_OURS = """
import _io, os, posix
calls = [
    lambda: _io.FileIO("past", "w"), lambda: posix.open("past", os.O_CREAT | os.O_WRONLY), lambda: posix.mkdir("past"),
    lambda: posix.remove("given"), lambda: posix.rename("given", "past"), lambda: posix.truncate("given", 0),
    lambda: posix.chmod("given", 0), lambda: posix.symlink("given", "past"), lambda: posix.link("given", "past"),
    lambda: posix.chown("given", -1, -1), lambda: posix.chmod("folder", 0o701),
    lambda: os.kill(os.getppid(), 15), lambda: os.kill(-1, 9), lambda: os.system("true") or posix.rmdir("folder"),
]
for number, call in enumerate(calls):
    try:
        call()
    except PermissionError:
        continue
    raise SystemExit(f"number {number} was done")
"""
LIBRARIES = """
import os, torch, safetensors.torch
torch.save({"a": 1}, "model.pt")
safetensors.torch.save_file({"a": torch.zeros(1)}, "model.safetensors")
from torch.utils.data import DataLoader
assert [int(each) for each in DataLoader(list(range(4)), num_workers=1)] == [0, 1, 2, 3]
assert os.environ["WANDB_MODE"] == "disabled"
assert torch.load("model.pt") == {"a": 1} and os.path.exists("model.safetensors")
import huggingface_hub
assert huggingface_hub.create_repo("a/b").repo_id == "a/b"
huggingface_hub.HfApi().upload_folder(repo_id="a/b", folder_path=".")
"""


@pytest.mark.parametrize("text", [WRITES, PAST_OURS, LIBRARIES], ids=["writes", "past_ours", "libraries"])
def test_nothing_outside_is_touched(text, tmp_path, monkeypatch):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder").chmod(0o750)
    files = {"folder/kept": "kept", "given": "given", "script.py": text}
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    monkeypatch.chdir(tmp_path)
    if text is WRITES:
        monkeypatch.setenv("HF_HOME", str(tmp_path))  # as on rented machines with one large disk
    done = process.run(process.Asked(command.parse(["script.py"]), None, limits=process.Limits(60)))
    assert (done.status, done.exit_code) == (process.ENDED, 0), done.output
    found = {str(path.relative_to(tmp_path)): path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    assert found == files and (tmp_path / "folder").stat().st_mode & 0o777 == 0o750
    assert any("removed afterwards" in note for note in done.notes) == (text is not PAST_OURS)
    assert (text is LIBRARIES) == any("create_repo" in note for note in done.notes)


def test_programs_that_a_script_starts_are_named(tmp_path, monkeypatch):
    """A frame of the standard library stands for that of a library: it asks the machine for something."""
    said = []
    files = WrittenFiles(tmp_path, (), said.append)
    asked = functools.partial(files.audit, "subprocess.Popen", ("uname", ["uname", "-p"], None, None))
    exec(compile("asked()", platform.__file__, "exec"), {"asked": asked, "__name__": "platform"})
    for command_line in ("", "A=1", "git add -A", b"git add -A"):
        files.audit("os.system", (command_line,))
    exec(compile("asked()", subprocess.__file__, "exec"), {"asked": asked, "__name__": "subprocess"})
    assert [note.partition(" starts ")[2].partition(",")[0] for note in said] == ["git", "git", "uname"]
    assert all(note.startswith(f"{__file__}:") for note in said)


def test_nvidia_smi_is_refused(tmp_path, monkeypatch):
    files = WrittenFiles(tmp_path, (), lambda _: None)
    asked = ("subprocess.Popen", (None, ["/usr/bin/nvidia-smi", "--query-gpu=memory.total"], None, None))
    files.audit(*asked)  # a real run has a real card
    monkeypatch.setattr(step_estimate, "FOLLOWED", True)
    with pytest.raises(FileNotFoundError, match="get_device_properties"):  # which a script may expect without a card
        files.audit(*asked)
    library = {"ask": functools.partial(files.audit, *asked), "__name__": "pynvml"}
    exec(compile("ask()", f"{sys.prefix}/lib/site-packages/pynvml.py", "exec"), library)

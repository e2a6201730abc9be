"""The same tree of files, made by bubblewrap: some systems let this program alone make namespaces with mounts in them
(Ubuntu 25.04 and newer). Version 0.11 or newer, which knows overlays.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
from dataclasses import dataclass, field

from legroom.script_check import mounts
from legroom.script_check.tree import LOOK_UPS, READ_ONLY_IN_PROC, Tree

PROGRAM = "bwrap"
REFUSED_OVERLAY = re.compile(r"Can't make overlay mount on (?:/newroot)?(/.*?) with options")
GONE = "Can't find source path"


def program() -> str:
    """Where bubblewrap lies. Raises OSError where there is none that knows overlays."""
    path = shutil.which(PROGRAM)
    if path is None:
        raise OSError("bubblewrap is not installed")
    options = subprocess.run([path, "--help"], capture_output=True, text=True).stdout
    if "--overlay-src" not in options:
        raise OSError(f"{path} is older than 0.11 and knows no overlays")
    return path


@dataclass
class Arguments(Tree):
    """The tree as arguments of bubblewrap.

    memory: a new folder on a file system in memory.
    refused: (folder, kind of layer) that bubblewrap could not make an overlay of. The kinds: disk, memory, nothing.
    """

    memory: str = ""
    refused: set[tuple[str, str]] = field(default_factory=set)
    arguments: list[str] = field(default_factory=list)

    def build(self, network: bool) -> list[str]:
        """All of bubblewrap's arguments but the command."""
        for folder in (f"{self.private}/disk", f"{self.private}/files", f"{self.private}/nothing", self.memory):
            os.makedirs(folder, exist_ok=True)
        self.arguments = ["--unshare-user", "--unshare-pid", "--unshare-ipc", "--die-with-parent"]
        if not network:
            self.arguments.append("--unshare-net")
        self.place("/")
        self.arguments += ["--dev", "/dev", "--perms", "1777", "--tmpfs", "/dev/shm"]
        for path in LOOK_UPS:
            self.arguments += ["--bind-try", path, path]
        layers = os.path.dirname(self.private)
        self.arguments += ["--bind", self.folder, self.folder, "--tmpfs", layers, "--remount-ro", layers]
        return self.arguments

    def folder_of_layers(self, medium: str) -> str:
        if medium == "memory":
            return self.memory
        return super().folder_of_layers(medium)

    def new_folder(self, path: str) -> None:
        if path != "/":
            mode = stat.S_IMODE(os.stat(path).st_mode)
            self.arguments += ["--perms", f"{mode:o}", "--dir", path]

    def link(self, path: str) -> None:
        self.arguments += ["--symlink", os.readlink(path), path]

    def copy_file(self, path: str) -> bool:
        self.number_of_layers += 1
        copy = f"{self.private}/files/{self.number_of_layers}"
        if not self.copy(path, copy):
            return False
        self.arguments += ["--bind", copy, path]
        return True

    def bind_read_only(self, path: str) -> None:
        self.arguments += ["--ro-bind-try", path, path]

    def cover(self, path: str) -> None:
        parent = os.path.dirname(path)
        if any(parent == folder or mounts.is_below(parent, folder) for folder in self._bound()):
            self.arguments += ["--ro-bind", "/dev/null", path]

    def _bound(self) -> list[str]:
        """The folders that have come with all that is mounted below them."""
        targets = []
        for index, argument in enumerate(self.arguments):
            if argument == "--ro-bind-try":
                targets.append(self.arguments[index + 2])
        return targets

    def overlay(self, path: str, layer: str) -> bool:
        if mounts.is_below(layer, path) or (path, self._kind(layer)) in self.refused:
            return False
        self.arguments += ["--overlay-src", path, "--overlay", f"{layer}-upper", f"{layer}-work", path]
        return True

    def _kind(self, layer: str) -> str:
        if mounts.is_below(layer, self.memory):
            return "memory"
        return "disk"

    def overlay_read_only(self, path: str) -> bool:
        nothing = f"{self.private}/nothing"
        if mounts.is_below(nothing, path) or (path, "nothing") in self.refused:
            return False
        self.arguments += ["--overlay-src", nothing, "--overlay-src", path, "--ro-overlay", path]
        return True

    def processes(self) -> None:
        self.arguments += ["--proc", "/proc"]
        for name in READ_ONLY_IN_PROC:
            self.bind_read_only(f"/proc/{name}")

    def refuse(self, complaint: str) -> bool:
        """Remember the overlay that bubblewrap could not make, so that the next tree is another. Returns whether there
        is a reason to try again."""
        if GONE in complaint:  # a temporary folder of somebody else
            return True
        match = REFUSED_OVERLAY.search(complaint)
        if match is None:
            return False
        path = match[1]
        for index, argument in enumerate(self.arguments):
            if argument == "--overlay" and self.arguments[index + 3] == path:
                self.refused.add((path, self._kind(self.arguments[index + 1])))
                return True
            if argument == "--ro-overlay" and self.arguments[index + 1] == path:
                self.refused.add((path, "nothing"))
                return True
        return False

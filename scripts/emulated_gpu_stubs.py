"""Renew the emulated GPU's list of functions without an answer, from the libraries of CUDA builds that are at hand.

    python scripts/emulated_gpu_stubs.py [--include FOLDER_OF_CUDA_H]... SITE_PACKAGES...

For developers of Legroom; it needs `nm` and a C++ compiler, and installs nothing. What the list already has stays in
it, so that it covers every version that was looked at once.
"""

from __future__ import annotations

import argparse
import re
import subprocess
from pathlib import Path

DEVICE = Path(__file__).resolve().parents[1] / "recipes" / "legroom" / "emulated_gpu" / "device"
STUBS = DEVICE / "stubs.inc"

# Of a folder of installed packages: what links against NVIDIA's libraries.
LIBRARIES = (
    "torch/lib/lib*.so*",
    "torch/_C*.so",
    "bitsandbytes/*.so",
    "triton/**/*.so",
    "torchvision/*.so",
    "torchao/*.so",
    "flash_attn*/*.so",
    "flash_attn*.so",
    "xformers/*.so",
    "deepspeed/**/*.so",
)
WANTED = re.compile(
    r"^(cuda[A-Z]|__cuda|cu[A-Z]|cublas|cusolver|cusparse|cufft|curand|p?nccl|nvml|nvrtc|nvJitLink|nvtx|nvshmem|cudnn|cupti)"
    r"\w+$"
)
NOT_COMPUTED = re.compile(
    r"(Create|Destroy|Get|Set|Init|Logger|bufferSize|BufferSize|Descr|Pointers|analysis|preprocess|Plan|Attribute|Search)"
)


def undefined_names(library: Path) -> set[str]:
    """The functions that a library wants from others."""
    done = subprocess.run(["nm", "-D", "--undefined-only", str(library)], capture_output=True, text=True)
    names = {line.split()[-1].split("@")[0] for line in done.stdout.splitlines() if line.split()}
    return {name for name in names if WANTED.match(name)}


def looked_up_names(library: Path) -> set[str]:
    """Names that stand in a library as text: torch looks functions of the driver and of NVML up."""
    names = re.findall(rb"\0((?:nvml|cu)[A-Z]\w+)(?=\0)", library.read_bytes())
    return {name.decode() for name in names if WANTED.match(name.decode())}


def driver_functions(folder: Path) -> set[str]:
    """The driver's whole interface: programs look its functions up by name."""
    return set(re.findall(r"CUDAAPI\s+(cu[A-Z]\w+)\s*\(", (folder / "cuda.h").read_text()))


def runtime_functions(folder: Path) -> set[str]:
    text = (folder / "cuda_runtime_api.h").read_text()
    return set(re.findall(r"CUDARTAPI\s+(cuda[A-Z]\w+)\s*\(", text))


def nvml_functions(site_packages: Path) -> set[str]:
    """NVML's functions as nvidia-ml-py knows them: they are looked up by name as well."""
    module = site_packages / "pynvml.py"
    return set(re.findall(r'_nvmlGetFunctionPointer\("(nvml\w+)"\)', module.read_text())) if module.is_file() else set()


def answered_names() -> set[str]:
    """The functions that the device's sources answer, after the preprocessor, since macros write many of them."""
    found: set[str] = set()
    for source in DEVICE.glob("*.cpp"):
        if source.name != "stubs.cpp":
            command = ["c++", "-E", "-P", "-std=c++17", str(source)]
            text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            declared = r'extern "C" __attribute__\(\(visibility\("default"\)\)\)\s*[\w:\s\*]*?(\w+)\s*\('
            found |= set(re.findall(declared, text))
    return found


def kind_of(name: str) -> str:
    if name.startswith("nvml"):
        return "NVML_UNSUPPORTED"
    if re.match(r"(cuda[A-Z]|__cuda|cu[A-Z])", name) and not name.startswith("cuFile"):
        return "UNSUPPORTED"
    computes = re.match(r"(cublas|cusolver|cusparse|cufft|curand|cudnn|p?nccl)", name)
    return "LAUNCH" if computes and not NOT_COMPUTED.search(name) else "NOTHING"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--include", type=Path, action="append", default=[], help="a folder with cuda.h")
    parser.add_argument("site_packages", type=Path, nargs="+")
    arguments = parser.parse_args()

    wanted = set(re.findall(r"\((\w+)\)", STUBS.read_text())) if STUBS.exists() else set()
    for folder in arguments.include:
        wanted |= driver_functions(folder) | runtime_functions(folder)
    for site_packages in arguments.site_packages:
        wanted |= nvml_functions(site_packages)
        for pattern in LIBRARIES:
            for library in site_packages.glob(pattern):
                wanted |= undefined_names(library)
        for library in site_packages.glob("torch/lib/libc10_cuda.so"):
            wanted |= looked_up_names(library)
    stubs = sorted(wanted - answered_names())
    STUBS.write_text("".join(f"{kind_of(name)}({name})\n" for name in stubs))
    print(f"{len(stubs)} stubs in {STUBS}")


if __name__ == "__main__":
    main()

"""The emulated GPU without torch: what CUDA's runtime, its driver, NVML and nvidia-smi answer."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import subprocess
import sys
import textwrap

import pytest

from legroom import emulated_gpu
from legroom.emulated_gpu import Card, build

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the emulated GPU needs Linux")

MIB = 1024**2
CARD = Card(
    name="NVIDIA L4",
    capability="8.9",
    multiprocessors=58,
    memory_bytes=1000 * MIB,
    context_bytes=100 * MIB,
    count=2,
    l2_bytes=48 * MIB,
)

# What the short programs below share: CUDA's runtime, as any process finds it.
PRELUDE = """
import ctypes, json
from ctypes import byref, c_float, c_int, c_size_t, c_ubyte, c_uint, c_void_p, create_string_buffer
cuda = ctypes.CDLL("libcudart.so.13")
MIB = 1024**2

def malloc(size):
    address = c_void_p()
    error = cuda.cudaMalloc(byref(address), c_size_t(size))
    return error, address

def free_memory():
    free, total = c_size_t(), c_size_t()
    assert cuda.cudaMemGetInfo(byref(free), byref(total)) == 0
    return free.value
"""


@pytest.fixture(scope="session", autouse=True)
def built():
    """Builds the device before the first test, so that no test waits for it."""
    try:
        build.compiler()
    except emulated_gpu.BuildError as error:
        pytest.skip(str(error))
    return emulated_gpu.library(13)


@pytest.fixture(scope="session")
def on_device():
    """Runs a short program on the emulated device and returns what its last line prints, as JSON."""

    def run(code: str, card: Card = CARD, cuda_major: int = 13, **variables: str):
        environment = emulated_gpu.environment(card, cuda_major, {**os.environ, **variables})
        line = [sys.executable, "-c", PRELUDE + textwrap.dedent(code)]
        done = subprocess.run(line, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


# --- the card ------------------------------------------------------------------------------------------------------


def test_card_is_told_by_environment_variables():
    variables = CARD.environment()
    assert variables["LEGROOM_GPU_NAME"] == "NVIDIA L4"
    assert variables["LEGROOM_GPU_MEMORY_BYTES"] == str(1000 * MIB)
    assert "LEGROOM_GPU_SHARED_PER_BLOCK_BYTES" not in variables  # follows from the capability


def test_environment_keeps_what_the_base_has_and_forgets_another_card():
    base = {"HOME": "/h", "LD_LIBRARY_PATH": "/theirs", "LEGROOM_GPU_L2_BYTES": "5", "LEGROOM_GPU_LOG": "log"}
    small = Card("small", "7.5", 4, 100 * MIB)
    result = emulated_gpu.environment(small, 12, base)
    folder = str(emulated_gpu.library(12))
    assert result["HOME"] == "/h"
    assert result["LD_LIBRARY_PATH"] == f"{folder}:/theirs"
    assert "LEGROOM_GPU_L2_BYTES" not in result
    assert result["LEGROOM_GPU_LOG"] == "log"
    assert result["LEGROOM_GPU_CUDA_VERSION"].startswith("12")


def test_environment_of_an_environment_is_the_same():
    once = emulated_gpu.environment(CARD, 13, os.environ)
    assert emulated_gpu.environment(CARD, 13, once) == once


def test_visible_devices_are_obeyed_by_cuda_and_not_by_nvml(on_device):
    count = """
    cards, listed = c_int(), c_uint()
    cuda.cudaGetDeviceCount(byref(cards)); cuda.nvmlDeviceGetCount_v2(byref(listed))
    print(json.dumps([cards.value, listed.value]))
    """
    assert on_device(count) == [2, 2]
    assert on_device(count, CUDA_VISIBLE_DEVICES="1") == [1, 2]
    assert on_device(count, CUDA_VISIBLE_DEVICES="0,7,1") == [1, 2]  # the list ends at a card that is not there
    assert on_device(count, CUDA_VISIBLE_DEVICES="") == [0, 2]


@pytest.mark.parametrize(
    ("capability", "shared_kib", "threads"),
    [("7.5", 64, 1024), ("8.0", 163, 2048), ("8.9", 99, 1536), ("9.0", 227, 2048)],
)
def test_limits_follow_the_compute_capability(on_device, capability, shared_kib, threads):
    card = Card("card", capability, 10, 1000 * MIB)
    shared_per_block_optin, threads_per_multiprocessor = 97, 39
    code = f"""
    shared, threads = c_int(), c_int()
    cuda.cudaDeviceGetAttribute(byref(shared), {shared_per_block_optin}, 0)
    cuda.cudaDeviceGetAttribute(byref(threads), {threads_per_multiprocessor}, 0)
    print(json.dumps([shared.value, threads.value]))
    """
    assert on_device(code, card) == [shared_kib * 1024, threads]


# --- memory --------------------------------------------------------------------------------------------------------


def test_capacity_is_the_memory_without_the_context(on_device):
    result = on_device("""
    before = free_memory()
    error, first = malloc(500 * MIB)
    after = free_memory()
    refused, _ = malloc(500 * MIB)
    cuda.cudaFree(first)
    print(json.dumps([before, error, after, refused, free_memory()]))
    """)
    out_of_memory = 2
    assert result == [900 * MIB, 0, 400 * MIB, out_of_memory, 900 * MIB]


def test_devices_have_memory_of_their_own(on_device):
    assert on_device("""
    cuda.cudaSetDevice(1); malloc(300 * MIB); second = free_memory()
    cuda.cudaSetDevice(0)
    print(json.dumps([free_memory(), second]))
    """) == [900 * MIB, 600 * MIB]


def test_a_small_copy_is_read_back_and_a_large_one_is_zeros(on_device):
    assert on_device("""
    _, address = malloc(MIB)
    small, large = create_string_buffer(b"values"), create_string_buffer(b"x" * 100_000)
    back = create_string_buffer(100_000)
    cuda.cudaMemcpy(address, small, c_size_t(6), 1); cuda.cudaMemcpy(back, address, c_size_t(6), 2)
    first = back.raw[:6].decode()
    cuda.cudaMemcpy(address, large, c_size_t(100_000), 1); cuda.cudaMemcpy(back, address, c_size_t(100_000), 2)
    print(json.dumps([first, max(back.raw)]))
    """) == ["values", 0]


def test_reading_much_back_takes_no_memory(on_device):
    """A model that is copied to the host is zeros, which the system gives without pages."""
    assert on_device("""
    import mmap
    _, address = malloc(800 * MIB)
    host = mmap.mmap(-1, 800 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    pages = lambda: int(open("/proc/self/statm").read().split()[1])
    before = pages()
    at = ctypes.addressof(c_ubyte.from_buffer(host))
    assert cuda.cudaMemcpy(c_void_p(at), address, c_size_t(800 * MIB), 2) == 0
    print(json.dumps((pages() - before) * 4096 < 10 * MIB and host[5 * MIB] == 0))
    """)


def test_virtual_memory_counts_what_is_created_until_it_is_released_and_unmapped(on_device):
    assert on_device("""
    class Properties(ctypes.Structure):
        _fields_ = [("type", c_int), ("handles", c_int), ("where", c_int), ("device", c_int), ("rest", c_void_p * 2)]
    properties = Properties(1, 0, 1, 0)
    address, handle = c_void_p(), c_void_p()
    cuda.cuMemAddressReserve(byref(address), c_size_t(10_000 * MIB), c_size_t(0), None, c_size_t(0))
    errors = [cuda.cuMemCreate(byref(handle), c_size_t(200 * MIB), byref(properties), c_size_t(0))]
    errors += [cuda.cuMemMap(address, c_size_t(200 * MIB), c_size_t(0), handle, c_size_t(0))]
    created = free_memory()
    cuda.cuMemRelease(handle); released = free_memory()
    cuda.cuMemUnmap(address, c_size_t(200 * MIB)); unmapped = free_memory()
    errors += [cuda.cuMemCreate(byref(handle), c_size_t(2000 * MIB), byref(properties), c_size_t(0))]
    print(json.dumps([errors, created, released, unmapped]))
    """) == [[0, 0, 2], 700 * MIB, 700 * MIB, 900 * MIB]


def test_a_pool_keeps_what_is_freed_up_to_its_threshold(on_device):
    assert on_device("""
    pool, address, threshold = c_void_p(), c_void_p(), ctypes.c_uint64(64 * MIB)
    cuda.cudaDeviceGetDefaultMemPool(byref(pool), 0)
    cuda.cudaMemPoolSetAttribute(pool, 4, byref(threshold))
    cuda.cudaMallocAsync(byref(address), c_size_t(200 * MIB), None); used = free_memory()
    cuda.cudaFreeAsync(address, None); kept = free_memory()
    cuda.cudaMemPoolTrimTo(pool, c_size_t(0))
    print(json.dumps([used, kept, free_memory()]))
    """) == [900 * MIB - 224 * MIB, 900 * MIB - 64 * MIB, 900 * MIB]


# --- streams, events, graphs ---------------------------------------------------------------------------------------


def test_time_between_events_is_not_negative_and_an_event_that_was_not_recorded_is_an_error(on_device):
    elapsed, same, error = on_device("""
    first, second, third, elapsed, same = c_void_p(), c_void_p(), c_void_p(), c_float(), c_float()
    for event in (first, second, third): cuda.cudaEventCreate(byref(event))
    cuda.cudaEventRecord(first, None); cuda.cudaEventRecord(second, None)
    cuda.cudaEventElapsedTime(byref(elapsed), first, second); cuda.cudaEventElapsedTime(byref(same), first, first)
    print(json.dumps([elapsed.value, same.value, cuda.cudaEventElapsedTime(byref(elapsed), first, third)]))
    """)
    invalid_resource_handle = 400
    assert elapsed >= 0 and same == 0 and error == invalid_resource_handle


def test_launches_in_a_capture_are_counted_when_the_graph_is_launched(on_device):
    launches = on_device("""
    from ctypes import c_uint64
    stream, graph, executable = c_void_p(), c_void_p(), c_void_p()
    def launches():
        values = (c_uint64 * 11)()
        cuda.legroom_gpu_counters(0, values, c_size_t(88))
        return values[0]
    def launch(): cuda.cuLaunchKernel(None, 1, 1, 1, 1, 1, 1, 0, stream, None, None)
    cuda.cudaStreamCreate(byref(stream))
    launch(); counts = [launches()]
    cuda.cudaStreamBeginCapture(stream, 0); launch(); launch()
    cuda.cudaStreamEndCapture(stream, byref(graph)); counts.append(launches())
    cuda.cudaGraphInstantiate(byref(executable), graph, c_size_t(0))
    for _ in range(3): cuda.cudaGraphLaunch(executable, stream)
    print(json.dumps(counts + [launches()]))
    """)
    assert launches == [1, 1, 7]


def test_waiting_for_a_stream_that_is_captured_spoils_the_capture(on_device):
    unsupported, invalidated = 900, 901
    assert on_device("""
    stream, graph = c_void_p(), c_void_p()
    cuda.cudaStreamCreate(byref(stream)); cuda.cudaStreamBeginCapture(stream, 0)
    wait = cuda.cudaStreamSynchronize(stream)
    print(json.dumps([wait, cuda.cudaStreamEndCapture(stream, byref(graph)), cuda.cudaStreamSynchronize(stream)]))
    """) == [unsupported, invalidated, 0]


def test_a_capture_spreads_to_streams_that_wait_for_it(on_device):
    active = 1
    assert (
        on_device("""
    first, second, event, status = c_void_p(), c_void_p(), c_void_p(), c_int()
    cuda.cudaStreamCreate(byref(first)); cuda.cudaStreamCreate(byref(second)); cuda.cudaEventCreate(byref(event))
    cuda.cudaStreamBeginCapture(first, 0)
    cuda.cudaEventRecord(event, first); cuda.cudaStreamWaitEvent(second, event, 0)
    cuda.cudaStreamIsCapturing(second, byref(status))
    print(json.dumps(status.value))
    """)
        == active
    )


# --- collectives ---------------------------------------------------------------------------------------------------


def test_collectives_give_what_equal_ranks_would(on_device):
    """int32 (2) and float (7); sum (0) and the largest (2)."""
    assert on_device("""
    import array
    class Id(ctypes.Structure): _fields_ = [("bytes", ctypes.c_char * 128)]
    communicator = c_void_p()
    cuda.ncclCommInitRank(byref(communicator), 4, Id(), 1)
    _, a = malloc(MIB); _, b = malloc(MIB)
    def send(values):
        buffer = (c_ubyte * len(values.tobytes())).from_buffer(values)
        cuda.cudaMemcpy(a, buffer, c_size_t(len(buffer)), 1)
    def read(kind, count):
        values = array.array(kind, [9] * count)
        cuda.cudaMemcpy((c_ubyte * (4 * count)).from_buffer(values), b, c_size_t(4 * count), 2)
        return list(values)
    send(array.array("i", [1, -2, 3]))
    cuda.ncclAllReduce(a, b, c_size_t(3), 2, 0, communicator, None); total = read("i", 3)
    cuda.ncclAllReduce(a, b, c_size_t(3), 2, 2, communicator, None); largest = read("i", 3)
    cuda.ncclAllGather(a, b, c_size_t(3), 2, communicator, None); gathered = read("i", 12)
    send(array.array("f", [0.5, 1.5, 2.5, 3.5]))
    cuda.ncclReduceScatter(a, b, c_size_t(1), 7, 0, communicator, None); scattered = read("f", 1)
    print(json.dumps([total, largest, gathered, scattered]))
    """) == [[4, -8, 12], [1, -2, 3], [1, -2, 3] * 4, [6.0]]


def test_the_thread_that_looks_after_collectives_sees_them_under_way_until_they_are_given_up(on_device):
    """torch's watchdog; every other thread finds all work done."""
    not_ready = 600
    ask = """
    import threading
    event, communicator, seen = c_void_p(), c_void_p(), []
    class Id(ctypes.Structure): _fields_ = [("bytes", ctypes.c_char * 128)]
    cuda.ncclCommInitRank(byref(communicator), 2, Id(), 0)
    cuda.cudaEventCreate(byref(event)); cuda.cudaEventRecord(event, None)
    def look():
        ctypes.CDLL(None).prctl(15, b"pt_nccl_watchdg", 0, 0, 0)  # PR_SET_NAME
        seen.append(cuda.cudaEventQuery(event))
        cuda.ncclCommAbort(communicator)
        seen.append(cuda.cudaEventQuery(event))
    seen.append(cuda.cudaEventQuery(event))
    thread = threading.Thread(target=look); thread.start(); thread.join()
    print(json.dumps(seen))
    """
    assert on_device(ask) == [0, not_ready, 0]
    assert on_device(ask, LEGROOM_GPU_WATCHDOG_SECONDS="0") == [0, 0, 0]


# --- counters, log, functions by name ------------------------------------------------------------------------------


def test_counters_are_none_where_there_is_no_emulated_device():
    assert emulated_gpu.counters() is None


def test_counters_count_memory_copies_and_waits(on_device):
    recipes = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(emulated_gpu.__file__))))
    used, peak, to_device, to_host, waits = on_device(f"""
    import sys; sys.path.insert(0, {recipes!r})
    from legroom.emulated_gpu import counters
    _, first = malloc(50 * MIB); _, second = malloc(30 * MIB); cuda.cudaFree(second)
    host = create_string_buffer(16)
    cuda.cudaMemcpyAsync(first, host, c_size_t(16), 1, None); cuda.cudaMemcpyAsync(host, first, c_size_t(16), 2, None)
    cuda.cudaDeviceSynchronize()
    c = counters()
    print(json.dumps([c.used_bytes, c.peak_bytes, c.copies_to_device, c.copies_to_host, c.synchronisations]))
    """)
    assert [used, peak, to_device, to_host, waits] == [50 * MIB, 80 * MIB, 1, 1, 1]


def test_log_has_a_line_for_each_launch(on_device, tmp_path):
    on_device("cuda.cublasSgemm_v2(); print(1)", LEGROOM_GPU_LOG=str(tmp_path / "log"))
    assert "kernel cublasSgemm_v2" in (tmp_path / "log").read_text().splitlines()


def test_driver_functions_are_found_by_their_plain_names(on_device):
    """The newest form of each that the program's CUDA has; a name that CUDA has not is not found."""
    found, capture_info_differs, unknown = on_device("""
    def look_up(name, version):
        function, result = c_void_p(), c_int()
        cuda.cuGetProcAddress_v2(name, byref(function), version, c_size_t(0), byref(result))
        return function.value
    address = lambda name: ctypes.cast(getattr(cuda, name), c_void_p).value
    found = look_up(b"cuMemAlloc", 12000) == address("cuMemAlloc_v2")
    old, new = look_up(b"cuStreamGetCaptureInfo", 12000), look_up(b"cuStreamGetCaptureInfo", 12030)
    print(json.dumps([found, old != new, look_up(b"cuNoSuchThing", 13000)]))
    """)
    assert found and capture_info_differs and unknown is None


def test_undocumented_tables_are_refused(on_device):
    not_supported = 801
    assert on_device("table = c_void_p(); print(cuda.cuGetExportTable(byref(table), None))") == not_supported


# --- NVML and nvidia-smi -------------------------------------------------------------------------------------------


def test_pynvml_sees_the_machine(on_device):
    assert on_device("""
    import pynvml
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(1)
    cuda.cudaSetDevice(1); malloc(200 * MIB)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    print(json.dumps([
        pynvml.nvmlDeviceGetCount(), pynvml.nvmlDeviceGetName(handle), memory.total, memory.used, memory.free,
        list(pynvml.nvmlDeviceGetCudaComputeCapability(handle)),
        len(pynvml.nvmlDeviceGetComputeRunningProcesses(handle)),
        pynvml.nvmlDeviceGetPciInfo(handle).busId, pynvml.nvmlDeviceGetUtilizationRates(handle).gpu,
    ]))
    """) == [2, "NVIDIA L4", 1000 * MIB, 300 * MIB, 700 * MIB, [8, 9], 1, "00000000:02:00.0", 0]


def test_nvml_says_not_supported_of_what_it_cannot_answer(on_device):
    assert (
        on_device("""
    import pynvml
    pynvml.nvmlInit()
    try:
        pynvml.nvmlDeviceGetMigMode(pynvml.nvmlDeviceGetHandleByIndex(0))
    except pynvml.NVMLError as error:
        print(json.dumps(str(error)))
    """)
        == "Not Supported"
    )


def nvidia_smi(*arguments: str) -> str:
    environment = emulated_gpu.environment(CARD, 13, os.environ)
    line = ["nvidia-smi", *arguments]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=True)
    return done.stdout


def test_nvidia_smi_answers_queries():
    csv = nvidia_smi("--query-gpu=index,name,memory.total,compute_cap", "--format=csv")
    assert csv.splitlines() == [
        "index, name, memory.total [MiB], compute_cap",
        "0, NVIDIA L4, 1000 MiB, 8.9",
        "1, NVIDIA L4, 1000 MiB, 8.9",
    ]
    bare = nvidia_smi("--query-gpu=memory.total", "--format=csv,noheader,nounits", "-i", "1")
    assert bare == "1000\n"


def test_nvidia_smi_shows_the_cards_in_a_table_and_in_a_list():
    table = nvidia_smi()
    assert table.count("NVIDIA L4") == 2 and "1000MiB" in table and "CUDA Version: 13.0" in table
    assert nvidia_smi("-L").startswith("GPU 0: NVIDIA L4 (UUID: GPU-")


# --- the build -----------------------------------------------------------------------------------------------------


def test_the_library_stands_in_for_nvidias_of_both_majors():
    folder = emulated_gpu.library(12)
    assert folder == emulated_gpu.library(13)
    for name in ("libcuda.so.1", "libcudart.so.12", "libcudart.so.13", "libcublas.so.12", "libcudnn.so.9"):
        assert ctypes.CDLL(str(folder / name)).cudaMalloc


def test_an_unknown_cuda_is_refused():
    with pytest.raises(emulated_gpu.BuildError, match="CUDA 12 and 13"):
        emulated_gpu.library(11)


@pytest.fixture
def nothing_built(monkeypatch, tmp_path):
    """As on a machine where the device was never built, and from a checkout."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(build, "READY", tmp_path / "ready")


def test_no_compiler_is_said_with_what_to_install(monkeypatch, nothing_built, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(emulated_gpu.BuildError, match=r"apt install g\+\+.*ziglang"):
        emulated_gpu.library(13)
    assert list((tmp_path / "legroom" / "emulated_gpu").iterdir()) == []  # nothing half made is left


def test_a_library_that_came_with_the_package_is_not_built_again(monkeypatch, nothing_built, built):
    monkeypatch.setenv("CXX", "false")
    ready = build.READY / build.name_of_build(platform.machine())
    ready.mkdir(parents=True)
    (ready / build.LIBRARY).write_bytes((built / build.LIBRARY).read_bytes())
    folder = emulated_gpu.library(13)
    assert ctypes.CDLL(str(folder / "libcudart.so.13")).cudaMalloc


def test_a_compiler_that_fails_is_quoted(monkeypatch, nothing_built):
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(emulated_gpu.BuildError, match="false"):
        emulated_gpu.library(13)

"""An unmodified CUDA build of torch on the emulated GPU: `make test-cuda-build`.

Each test is a script in a process of its own, as a person would write it for a real card, but for small ones.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from legroom import emulated_gpu
from legroom.emulated_gpu import Card
from legroom.script_check import cuda_build, interpreter

FETCHED = cuda_build.folder_of(interpreter.facts(Path(sys.executable)))
CUDA_TORCH = os.environ.get("LEGROOM_CUDA_TORCH") or (str(FETCHED) if FETCHED.exists() else None)
pytestmark = [
    pytest.mark.cuda_build,
    pytest.mark.skipif(not CUDA_TORCH, reason="no CUDA build of torch is fetched: make cuda-build"),
]

MIB = 1024**2
GIB = 1024**3
RTX_4090 = Card("NVIDIA GeForce RTX 4090", "8.9", 128, 25_382_879_232, 450 * MIB, l2_bytes=72 * MIB)
H100 = Card("NVIDIA H100 80GB HBM3", "9.0", 132, 84_944_093_184, 600 * MIB, count=2)
T4 = Card("Tesla T4", "7.5", 40, 15_828_320_256, 200 * MIB)

PRELUDE = """
import json
import os
import sys
import torch
from torch import nn
from torch.nn import functional as F

GIB = 1024**3

def answer(*values):
    print(json.dumps(values))

def model():
    return nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.LayerNorm(2048), nn.Linear(2048, 512)).cuda()

def batch():
    return torch.randn(64, 512, device="cuda")

def counted():
    from legroom.emulated_gpu import counters
    return counters()
"""
# Ranks without the others: what this rank writes stands for what all of them write, and nobody is waited for.
ONE_RANK_OF_EIGHT = """
import torch.distributed as dist

class Alone(dist.Store):
    def __init__(self):
        super().__init__()
        self.values = {}

    def set(self, key, value):
        self.values[key] = value if isinstance(value, bytes) else value.encode()

    def get(self, key):
        return self.values.get(key, b"")

    def add(self, key, amount):
        self.values[key] = str(int(self.values.get(key, b"0")) + amount).encode()
        return max(8, int(self.values[key]))

    def check(self, keys):
        return all(key in self.values for key in keys)

    def wait(self, *arguments):
        pass

    def set_timeout(self, timeout):
        pass

    def clone(self):
        return self

os.environ["TORCH_NCCL_ENABLE_MONITORING"] = "0"
store = Alone()  # torch.distributed itself does not keep it, and asks it until the group is destroyed
dist.init_process_group("nccl", rank=0, world_size=8, store=store)
"""


# Without Python's own end, in which one of some 700 such processes was aborted behind its answer ("terminate called
# without an active exception"): as when a thread of autograd asks for the interpreter there, and Python before 3.14
# unwinds it through C++ that allows no unwinding.
ENDS = """
sys.stdout.flush()
os._exit(0)
"""


def cuda_major() -> int:
    text = (Path(CUDA_TORCH or "") / "torch" / "version.py").read_text()
    return int(text.split("cuda: Optional[str] = ")[1].split("'")[1].split(".")[0])


@pytest.fixture(scope="session")
def on_gpu():
    """Runs a script on the emulated GPU and returns what it gave to `answer`."""

    def run(code: str, card: Card = RTX_4090, **variables: str):
        environment = emulated_gpu.environment(card, cuda_major(), {**os.environ, **variables})
        recipes = Path(emulated_gpu.__file__).parents[2]
        environment["PYTHONPATH"] = os.pathsep.join([str(CUDA_TORCH), str(recipes)])
        code = PRELUDE + textwrap.dedent(code) + ENDS
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-6000:]
        return json.loads(done.stdout.splitlines()[-1])

    return run


# --- the card ------------------------------------------------------------------------------------------------------


# What needs no process of its own: each starts with an import of torch and CUDA's initialization, a second and a half.
TOGETHER = """
seen = {}

x = torch.empty(3 * 1024**2, dtype=torch.uint8, device="cuda")
free, total = torch.cuda.mem_get_info()
statistics = torch.cuda.memory_stats()["allocated_bytes.all.current"]
segments = len(torch.cuda.memory._snapshot()["segments"])
seen["memory"] = torch.cuda.memory_allocated(), statistics, segments, total - free

p = torch.cuda.get_device_properties(0)
seen["card"] = p.name, [p.major, p.minor], p.multi_processor_count, p.total_memory, torch.cuda.device_count()

x = torch.arange(10).pin_memory()
seen["pinned"] = x.is_pinned(), x.cuda(non_blocking=True).tolist(), torch.arange(10).is_pinned()

seen["numbers"] = torch.tensor([3, 1, 2]).cuda().tolist(), torch.tensor(2.5, device="cuda").item()

side = torch.cuda.Stream()
start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
start.record()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    y = batch() * 2
torch.cuda.current_stream().wait_stream(side)
end.record()
torch.cuda.synchronize()
seen["events"] = start.elapsed_time(end), end.query()

answer(seen)
"""


@pytest.fixture(scope="module")
def seen(on_gpu):
    return on_gpu(TOGETHER)[0]


def test_torch_sees_the_card(seen):
    assert seen["card"] == ["NVIDIA GeForce RTX 4090", [8, 9], 128, 25_382_879_232, 1]


def test_memory_statistics_and_snapshot(seen):
    allocated, statistics, segments, used = seen["memory"]
    assert allocated == statistics == 3 * MIB and segments == 1
    assert used == 20 * MIB + 450 * MIB  # the segment of the allocator, and the context


def test_pinned_memory_is_pinned(seen):
    assert seen["pinned"] == [True, list(range(10)), False]


def test_small_numbers_that_were_just_copied_are_read_back(seen):
    assert seen["numbers"] == [[3, 1, 2], 2.5]


def test_streams_and_events(seen):
    elapsed, done = seen["events"]
    assert elapsed > 0 and done


@pytest.mark.slow
def test_bf16_is_supported_by_the_cards_that_have_it(on_gpu):
    code = "answer(torch.cuda.is_bf16_supported(including_emulation=False))"
    assert on_gpu(code) == [True]
    assert on_gpu(code, T4) == [False]


@pytest.mark.slow
def test_torch_reads_the_cards_state(on_gpu):
    utilization, temperature, watts, megahertz = on_gpu("""
    answer(torch.cuda.utilization(), torch.cuda.temperature(), torch.cuda.power_draw(), torch.cuda.clock_rate())
    """)
    assert utilization == 0 and temperature > 0 and watts > 0 and megahertz > 0


def test_no_visible_device_is_no_cuda(on_gpu):
    assert on_gpu("answer(torch.cuda.is_available())", CUDA_VISIBLE_DEVICES="") == [False]


# --- training ------------------------------------------------------------------------------------------------------


@pytest.mark.slow_for("9.0", "7.5")
@pytest.mark.parametrize("card", [RTX_4090, H100, T4], ids=lambda card: card.capability)
def test_training_allocates_what_it_keeps(on_gpu, card):
    """fp32 AdamW: weights, gradients and two states of each, and what the allocator rounds up."""
    after, parameters = on_gpu(
        """
        m = model()
        o = torch.optim.AdamW(m.parameters())
        for _ in range(2):
            m(batch()).square().mean().backward()
            o.step()
        torch._C._cuda_clearCublasWorkspaces()
        answer(torch.cuda.memory_allocated(), sum(p.nbytes for p in m.parameters()))
        """,
        card,
    )
    assert 4 * parameters <= after <= 4 * parameters + 64 * 1024


@pytest.mark.slow
def test_optimizers_train_in_every_precision(on_gpu):
    assert on_gpu("""
    for choice in ({"fused": True}, {"foreach": True}, {"foreach": False}, {"capturable": True}):
        for precision in (torch.float32, torch.bfloat16, torch.float16):
            m = model()
            o = torch.optim.AdamW(m.parameters(), **choice)
            scaler = torch.amp.GradScaler(enabled=precision == torch.float16)
            for _ in range(2):
                with torch.autocast("cuda", precision, enabled=precision != torch.float32):
                    loss = m(batch()).square().mean()
                scaler.scale(loss).backward()
                scaler.unscale_(o)
                nn.utils.clip_grad_norm_(m.parameters(), 1.0)
                scaler.step(o)
                scaler.update()
                o.zero_grad()
            assert torch.isfinite(loss.cpu()), (choice, precision)
    answer("done")
    """) == ["done"]


@pytest.mark.slow_for("8.9")
@pytest.mark.parametrize("card", [RTX_4090, H100], ids=lambda card: card.capability)
def test_attention_of_every_backend(on_gpu, card):
    """Only the plain one keeps the scores, 2 x 8 heads x 512 x 512, in bf16 and more than once."""
    (peaks,) = on_gpu(
        """
        from torch.nn.attention import SDPBackend, sdpa_kernel
        peaks = {}
        batch() @ batch().T  # workspaces
        for name in ("MATH", "FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION"):
            q, k, v = (torch.randn(2, 8, 512, 64, device="cuda", dtype=torch.bfloat16).requires_grad_() for _ in "qkv")
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            with sdpa_kernel(getattr(SDPBackend, name)):
                F.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()
            peaks[name] = torch.cuda.max_memory_allocated() - before
            del q, k, v
        answer(peaks)
        """,
        card,
    )
    scores, heads = 2 * 8 * 512 * 512 * 2, 2 * 8 * 512 * 64 * 2
    assert peaks.pop("MATH") > 2 * scores
    assert all(4 * heads <= peak < scores + 4 * heads for peak in peaks.values()), peaks


@pytest.mark.slow
def test_layers_that_cudnn_and_others_run(on_gpu):
    """Convolutions, batch normalisation, packed rows in recurrent layers, CTC, FFT, linear algebra, sorting."""
    assert on_gpu("""
    image = torch.randn(4, 3, 32, 32, device="cuda").to(memory_format=torch.channels_last)
    nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)).cuda()(image).sum().backward()
    rows = torch.randn(4, 10, 32, device="cuda")
    packed = nn.utils.rnn.pack_padded_sequence(rows, torch.tensor([10, 8, 5, 2]), batch_first=True)
    for kind in (nn.RNN, nn.GRU, nn.LSTM):
        kind(32, 64, num_layers=2, bidirectional=True, batch_first=True).cuda()(packed)[0].data.sum().backward()
    nn.LSTM(32, 64, proj_size=16).cuda()(rows)[0].sum().backward()
    scores = torch.randn(50, 4, 20, device="cuda", requires_grad=True).log_softmax(2)
    F.ctc_loss(scores, torch.randint(1, 20, (4, 10)), torch.full((4,), 50), torch.full((4,), 10)).backward()
    torch.fft.rfft(rows)
    square = torch.eye(16, device="cuda")
    torch.linalg.svd(square), torch.linalg.qr(square), torch.linalg.eigh(square), torch.linalg.solve(square, square)
    torch.sparse.mm(square.to_sparse_coo(), square)
    torch.sort(rows), rows.topk(5), torch.special.bessel_j0(rows), rows.cumsum(0)
    answer("done")
    """) == ["done"]


# --- memory --------------------------------------------------------------------------------------------------------


@pytest.mark.slow_for("max_split_size_mb:64,garbage_collection_threshold:0.8")
@pytest.mark.parametrize(
    "allocator",
    [
        "",
        "expandable_segments:True",
        "backend:cudaMallocAsync",
        "max_split_size_mb:64,garbage_collection_threshold:0.8",
    ],
)
def test_out_of_memory_is_torchs_own_error_and_can_be_recovered_from(on_gpu, allocator):
    held, message, again = on_gpu(
        """
        held = []
        try:
            while True:
                held.append(torch.empty(GIB, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError as error:
            message = str(error)
        count = len(held)
        held.clear()
        torch.cuda.empty_cache()
        again = torch.empty(20 * GIB, dtype=torch.uint8, device="cuda")
        answer(count, message, torch.cuda.memory_allocated() // GIB)
        """,
        PYTORCH_CUDA_ALLOC_CONF=allocator,
    )
    assert held == 23 and again == 20 and "memory" in message
    if "MallocAsync" not in allocator:
        assert "GPU 0 has a total capacity of 23.64 GiB" in message


def test_two_cards_have_memory_of_their_own(on_gpu):
    values, first, second = on_gpu(
        """
        x = torch.tensor([1.0, 2.0], device="cuda:1")
        y = x.to("cuda:0")
        big = torch.empty(GIB, dtype=torch.uint8, device="cuda:1")
        answer(y.tolist(), torch.cuda.memory_allocated(0), torch.cuda.memory_allocated(1))
        """,
        H100,
    )
    assert values == [1.0, 2.0] and first == 512 and second == GIB + 512


@pytest.mark.slow
def test_a_tensor_is_shared_with_another_process(on_gpu, tmp_path):
    """It takes memory once: the child sees an empty card."""
    script = tmp_path / "share.py"
    script.write_text(
        textwrap.dedent("""
        import torch

        def child(queue, answers):
            x = queue.get()
            answers.put([list(x.shape), str(x.device)])
            del x

        if __name__ == "__main__":
            context = torch.multiprocessing.get_context("spawn")
            queue, answers = context.Queue(), context.Queue()
            process = context.Process(target=child, args=(queue, answers))
            process.start()
            x = torch.ones(10, 20, device="cuda")
            queue.put(x)
            print(answers.get())
            process.join()
        """)
    )
    assert on_gpu(f"""
    import subprocess, sys
    answer(subprocess.run([sys.executable, {str(script)!r}], capture_output=True, text=True, check=True).stdout)
    """) == ["[[10, 20], 'cuda:0']\n"]


# --- streams and graphs --------------------------------------------------------------------------------------------


def test_a_graph_is_captured_and_replayed(on_gpu):
    """Replaying counts the kernels that were captured, and memory of the graph's own pool is used again."""
    captured, replayed, replays, kept = on_gpu("""
    m = model()
    x = batch()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            m(x).sum().backward()
    torch.cuda.current_stream().wait_stream(side)
    m.zero_grad(set_to_none=True)
    first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    before = counted().launches
    with torch.cuda.graph(first):
        m(x).sum().backward()
    captured = counted().launches - before
    reserved = torch.cuda.memory_reserved()
    with torch.cuda.graph(second, pool=first.pool()):
        y = m(x)
    before = counted().launches
    for _ in range(2):
        first.replay()
    answer(captured, counted().launches - before, counted().graph_launches, torch.cuda.memory_reserved() == reserved)
    """)
    assert replays == 2 and kept
    assert replayed % 2 == 0 and replayed // 2 > captured  # what surrounds a capture launches a few kernels


@pytest.mark.slow
def test_reading_a_number_in_a_capture_is_an_error_as_on_a_card(on_gpu):
    message, afterwards = on_gpu("""
    x = torch.ones(3, device="cuda")
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            x.sum().item()
    except RuntimeError as error:
        message = str(error)
    answer(message, torch.ones(3, device="cuda").shape[0])
    """)
    assert "capture" in message and afterwards == 3


@pytest.mark.slow
def test_graphed_callables(on_gpu):
    assert on_gpu("""
    m = torch.cuda.make_graphed_callables(model(), (batch().requires_grad_(),))
    m(batch().requires_grad_()).sum().backward()
    answer("done")
    """) == ["done"]


# --- ranks -----------------------------------------------------------------------------------------------------------


def test_ddp_of_one_process(on_gpu):
    assert on_gpu("""
    import torch.distributed as dist
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    nn.parallel.DistributedDataParallel(model())(batch()).sum().backward()
    dist.destroy_process_group()
    answer("done")
    """) == ["done"]


@pytest.mark.slow
def test_ranks_agree_with_themselves(on_gpu):
    """What rank 0 of 8 hands in comes back as eight equal ranks would have it: DDP's checks of shapes rely on it."""
    total, gathered, thing = on_gpu(
        ONE_RANK_OF_EIGHT
        + """
total = torch.tensor([3, 4], device="cuda")
dist.all_reduce(total)
total = total.tolist()
gathered = [torch.zeros(1, device="cuda", dtype=torch.int64) for _ in range(8)]
dist.all_gather(gathered, torch.tensor([5], device="cuda"))
gathered = [x.item() for x in gathered]
things = [None] * 8
dist.all_gather_object(things, {"a": 1})
nn.parallel.DistributedDataParallel(model())(batch()).sum().backward()
answer(total, gathered, things[5])
dist.destroy_process_group()
"""
    )
    assert total == [24, 32] and gathered == [5] * 8 and thing == {"a": 1}


@pytest.mark.parametrize("version", [1, 2])
def test_fsdp_keeps_an_eighth(on_gpu, version):
    kept, whole = on_gpu(
        ONE_RANK_OF_EIGHT
        + f"""
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
m = model()
whole = sum(p.nbytes for p in m.parameters())
m = FullyShardedDataParallel(m) if {version} == 1 else fully_shard(m)
o = torch.optim.AdamW(m.parameters())
for _ in range(2):
    m(batch()).sum().backward()
    nn.utils.clip_grad_norm_(m.parameters(), 1.0)
    o.step()
    o.zero_grad()
kept = sum(p.to_local().nbytes if hasattr(p, "to_local") else p.nbytes for p in m.parameters())
answer(kept, whole)
dist.destroy_process_group()
"""
    )
    assert whole / 8 <= kept <= whole / 8 + 1024


@pytest.mark.slow
def test_tensor_parallelism_in_two_dimensions(on_gpu):
    assert on_gpu(
        ONE_RANK_OF_EIGHT
        + """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
mesh = init_device_mesh("cuda", (2, 4), mesh_dim_names=("data", "tensor"))
m = nn.Sequential(nn.Linear(64, 256), nn.Linear(256, 64)).cuda()
parallelize_module(m, mesh["tensor"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
fully_shard(m, mesh=mesh["data"])
m(torch.randn(4, 64, device="cuda")).sum().backward()
answer([list(p.to_local().shape) for p in m.parameters()])
dist.destroy_process_group()
"""
    ) == [[[32, 64], [32], [32, 64], [32]]]


# --- other libraries -----------------------------------------------------------------------------------------------


def test_bitsandbytes(on_gpu):
    pytest.importorskip("bitsandbytes")
    allocated, weights = on_gpu("""
    import bitsandbytes
    m = nn.Linear(4096, 4096).cuda()
    o = bitsandbytes.optim.AdamW8bit(m.parameters())
    m(torch.randn(4, 4096, device="cuda")).sum().backward()
    o.step()
    torch._C._cuda_clearCublasWorkspaces()
    states = sum(v.nbytes for s in o.state.values() for v in s.values() if isinstance(v, torch.Tensor))
    quantized = bitsandbytes.nn.Linear4bit(512, 512, compute_dtype=torch.bfloat16).cuda()
    quantized(torch.randn(4, 512, device="cuda", dtype=torch.bfloat16, requires_grad=True)).sum().backward()
    answer(states, m.weight.nbytes)
    """)
    assert weights / 2 <= allocated <= weights / 2 * 1.05  # two states of a byte for each weight of four


def needs_triton():
    if not (Path(CUDA_TORCH or "") / "triton").is_dir():
        pytest.skip("no triton beside the CUDA build")


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compile(on_gpu, mode, tmp_path):
    needs_triton()
    (peak,) = on_gpu(
        f"""
        m = torch.compile(model(), mode="{mode}")
        for _ in range(3):
            m(batch()).square().mean().backward()
            m.zero_grad(set_to_none=True)
        answer(torch.cuda.max_memory_allocated())
        """,
        TORCHINDUCTOR_CACHE_DIR=str(tmp_path),
    )
    assert peak > 0


@pytest.mark.slow
def test_profiler(on_gpu):
    assert on_gpu("""
    from torch.profiler import ProfilerActivity, profile
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as measured:
        model()(batch())
    answer(len(measured.key_averages()) > 0)
    """) == [True]

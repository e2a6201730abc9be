"""Training scripts of other people's kind, in a few lines each: what `legroom check` is asked about."""

HEAD = """
import os, queue, subprocess, sys, threading
import torch
from torch import nn
"""

LLAMA = (
    HEAD
    + """
from transformers import LlamaConfig, LlamaForCausalLM
SIZES = dict(vocab_size=4000, hidden_size=128, intermediate_size=352, num_hidden_layers=2, num_attention_heads=4)

def llama():
    return LlamaForCausalLM(LlamaConfig(**SIZES))

def rows(count=4, length=128):
    return torch.randint(0, 4000, (count, length)).cuda()

def train(model, steps=5, optimizer=None):
    optimizer = optimizer or torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        tokens = rows()
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(loss.item())
"""
)

# The number of experts' tokens, sizes of rows and the end of a loop: what only a run computes.
HARD_EXAMPLES = (
    HEAD
    + """
body, head = nn.Linear(256, 256).cuda(), nn.Linear(256, 1024).cuda()
optimizer = torch.optim.Adam([*body.parameters(), *head.parameters()])
for _ in range(5):
    x = torch.randn(2048, 256).cuda()
    y = body(x)
    error = (y - x).pow(2).mean(1)
    hard = (error > 0.1).sum().item()
    kept = max(1, round(0.5 * hard))
    head(y[error.topk(kept).indices]).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
)

DURATIONS = (
    HEAD
    + """
durations, body = nn.Linear(64, 1).cuda(), nn.Linear(64, 64).cuda()
optimizer = torch.optim.Adam([*durations.parameters(), *body.parameters()])
for _ in range(5):
    x = torch.randn(8, 100, 64).cuda()
    length = int(durations(x).exp().sum(1).max())
    body(x.mean(1, keepdim=True).expand(-1, length, -1)).sum().backward()
    optimizer.step()
"""
)

EXPERTS = (
    HEAD
    + """
experts, router = nn.ModuleList(nn.Linear(64, 64) for _ in range(8)).cuda(), nn.Linear(64, 8).cuda()
optimizer = torch.optim.Adam([*experts.parameters(), *router.parameters()])
for _ in range(5):
    x = torch.randn(1024, 64).cuda()
    weights, chosen = router(x).softmax(-1).topk(2, -1)
    out = torch.zeros_like(x)
    for index, expert in enumerate(experts):
        token, place = torch.where(chosen == index)
        out.index_add_(0, token, expert(x[token]) * weights[token, place][:, None])
    out.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
)

GUARDED = (
    LLAMA
    + """
model = llama().cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(5):
    tokens = rows()
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    assert loss.item() < 1e6
    if not (loss == loss).all():
        sys.exit("the loss is no number")
    if norm.item() < 1000:
        optimizer.step()
    optimizer.zero_grad()
    torch.save({"optimizer": optimizer.state_dict(), "table": torch.zeros(2**25).cuda()}, "checkpoint.pt")
"""
)

CATCHES_OUT_OF_MEMORY = (
    LLAMA
    + """
model = llama().cuda()
optimizer = torch.optim.AdamW(model.parameters())
count, done = 2**16, 0
while done < 5:
    try:
        tokens = rows(count)
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        done += 1
    except torch.OutOfMemoryError:
        count //= 2
        torch.cuda.empty_cache()
    optimizer.zero_grad()
"""
)

TWO_CARDS = """
first = nn.Linear(2048, 2048).to("cuda:0")
others = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(4))).to("cuda:1")
optimizer = torch.optim.AdamW([*first.parameters(), *others.parameters()])
for _ in range(5):
    others(first(torch.randn(64, 2048, device="cuda:0")).to("cuda:1")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""

TOO_LARGE = (
    HEAD
    + """
layers = nn.Sequential(*(nn.Linear(16384, 16384) for _ in range(16))).cuda()
optimizer = torch.optim.AdamW(layers.parameters())
for _ in range(5):
    layers(torch.randn(8, 16384).cuda()).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
)

PACKED_LSTM = (
    HEAD
    + """
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
lstm, head = nn.LSTM(64, 128, 2, batch_first=True, dropout=0.1).cuda(), nn.Linear(128, 10).cuda()
optimizer = torch.optim.Adam([*lstm.parameters(), *head.parameters()])
for _ in range(5):
    lengths = torch.randint(5, 50, (16,))
    packed = pack_padded_sequence(torch.randn(16, 50, 64).cuda(), lengths, batch_first=True, enforce_sorted=False)
    out, _ = pad_packed_sequence(lstm(packed)[0], batch_first=True)
    scores = head(out).log_softmax(-1).transpose(0, 1)
    nn.functional.ctc_loss(scores, torch.randint(1, 10, (16, 4)).cuda(), lengths, torch.full((16,), 4)).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
)

TORCH_FUNC = (
    HEAD
    + """
from torch.func import functional_call, grad, vmap
model = nn.Linear(32, 8).cuda()
weights = dict(model.named_parameters())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def loss(weights, x, y):
    return ((functional_call(model, weights, (x[None],)) - y) ** 2).mean()

for _ in range(5):
    x, y = torch.randn(16, 32).cuda(), torch.randn(16, 8).cuda()
    detached = {name: weight.detach() for name, weight in weights.items()}
    gradients = vmap(grad(loss), in_dims=(None, 0, 0))(detached, x, y)
    for name, weight in weights.items():
        weight.grad = gradients[name].mean(0)
    optimizer.step()
"""
)

FLEX_ATTENTION = (
    HEAD
    + """
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
project = nn.Linear(64, 192).cuda()
optimizer = torch.optim.SGD(project.parameters(), lr=0.1)
mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, 256, 256, device="cuda")
for _ in range(5):
    query, key, value = project(torch.randn(2, 4, 256, 64, device="cuda")).chunk(3, -1)
    flex_attention(query, key, value, block_mask=mask).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
)

THREAD = (
    LLAMA
    + """
model = llama().cuda()
optimizer = torch.optim.AdamW(model.parameters())
batches = queue.Queue(2)
threading.Thread(target=lambda: [batches.put(rows()) for _ in range(10)], daemon=True).start()
for _ in range(5):
    tokens = batches.get()
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
)

ASKS_THE_CARD = (
    LLAMA
    + """
import pynvml
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByIndex(0)
print("NVML", pynvml.nvmlDeviceGetName(handle), pynvml.nvmlDeviceGetMemoryInfo(handle).total)
asked = "nvidia-smi --query-gpu=name,memory.total --format=csv,noheader"
print("SMI", subprocess.run(asked, shell=True, capture_output=True, text=True).stdout.strip())
print("TORCH", torch.cuda.get_device_name(), torch.cuda.get_device_capability())
train(llama().cuda())
sys.exit(3)
"""
)

DDP = (
    LLAMA
    + """
torch.distributed.init_process_group("nccl")
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
train(nn.parallel.DistributedDataParallel(llama().cuda(), device_ids=[rank]))
"""
)

# With `device_id` torch splits communicators, and DTensor's collectives name their group.
TENSOR_PARALLEL = (
    HEAD
    + """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
torch.distributed.init_process_group("nccl", device_id=torch.device("cuda", rank))
mesh = init_device_mesh("cuda", (torch.distributed.get_world_size(),))
model = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512)).cuda()
parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(5):
    model(torch.randn(64, 512, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
)

MESH_ALONE = (
    HEAD
    + """
from torch.distributed.device_mesh import init_device_mesh
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("replicate", "shard"))
from torch.distributed.fsdp import fully_shard
model = nn.Sequential(nn.Linear(512, 512), nn.Linear(512, 512))
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(5):
    model(torch.randn(64, 512, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
)

PIPELINE = (
    HEAD
    + """
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
torch.distributed.init_process_group("nccl")
model = nn.Linear(512, 512).to(device)
stage = PipelineStage(model, int(os.environ["RANK"]), torch.distributed.get_world_size(), device)
schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=nn.functional.mse_loss)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(5):
    schedule.step(torch.randn(8, 512, device=device))
    optimizer.step()
"""
)

COMPILED = (
    HEAD
    + """
model = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)).cuda()
compiled = torch.compile(model, mode=sys.argv[1])
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(6):
    compiled(torch.randn(64, 512, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
)

UNEVEN_ROWS = (
    HEAD
    + """
class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.ones(400 if index == 63 else 40, dtype=torch.int64)

def batches(rows):
    tokens = nn.utils.rnn.pad_sequence(rows, batch_first=True)
    return {"input_ids": tokens, "labels": tokens}

embedding, head = nn.Embedding(100, 64).cuda(), nn.Linear(64, 100).cuda()
optimizer = torch.optim.AdamW([*embedding.parameters(), *head.parameters()])
for batch in torch.utils.data.DataLoader(Rows(), batch_size=4, collate_fn=batches):
    labels = batch.pop("labels").cuda()
    scores = head(embedding(batch["input_ids"].cuda()))
    nn.functional.cross_entropy(scores.flatten(0, 1), labels.flatten()).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
)

FSDP2 = (
    LLAMA
    + """
from torch.distributed.fsdp import fully_shard
torch.distributed.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = llama()
for layer in model.model.layers:
    fully_shard(layer)
fully_shard(model)
train(model)
"""
)

TRAINER = (
    LLAMA
    + """
from transformers import HfArgumentParser, Trainer, TrainingArguments

class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        tokens = torch.randint(0, 4000, (128,))
        return {"input_ids": tokens, "labels": tokens, "attention_mask": torch.ones_like(tokens)}

(arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
Trainer(llama(), arguments, train_dataset=Rows(), eval_dataset=Rows()).train()
"""
)

WITHOUT_WEIGHTS = (
    LLAMA
    + """
LlamaConfig(**SIZES, dtype="bfloat16").save_pretrained("only_a_configuration")
model = LlamaForCausalLM.from_pretrained("only_a_configuration", device_map="cuda")
print(model.dtype, next(model.parameters()).device)
print("loaded from", model.config._name_or_path)
train(model)
"""
)

# A step on what the model has generated: rows end where a token is that nobody computed, and are cut on the host.
GENERATED = (
    HEAD
    + """
EOS, LENGTH = 7, 32
embedding, head = nn.Embedding(1000, 64).cuda(), nn.Linear(64, 1000).cuda()
optimizer = torch.optim.AdamW([*embedding.parameters(), *head.parameters()])
for _ in range(5):
    tokens = torch.randint(0, 1000, (4, 1)).cuda()
    unfinished = torch.ones(4, dtype=torch.long, device="cuda")
    with torch.no_grad():
        while tokens.shape[1] < LENGTH:
            following = head(embedding(tokens[:, -1])).argmax(-1) * unfinished + EOS * (1 - unfinished)
            tokens = torch.cat([tokens, following[:, None]], 1)
            unfinished = unfinished & ~(following == EOS)
            if unfinished.max() == 0:
                break
    mask = torch.arange(LENGTH, device="cuda") <= (tokens == EOS).int().argmax(1)[:, None]
    rows = [row[keep].tolist() for row, keep in zip(tokens.cpu(), mask.cpu())]
    texts = [" ".join(chr(token) for token in row) for row in rows]
    longest = max(map(len, rows))
    print("generated", longest, "tokens, the last", rows[0][-1])
    batch = torch.tensor(rows).cuda()
    head(embedding(batch)).logsumexp(-1).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
)

# Lightning's way: the passes are a closure of the step, and the loss is copied behind them.
CLOSURE = (
    HEAD
    + """
model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(4))).cuda()
optimizer = torch.optim.AdamW(model.parameters(), foreach=True)

def passes():
    optimizer.zero_grad()
    loss = model(torch.randn(2, 1024).cuda()).sum()
    loss.backward()
    loss.detach().clone()
    return loss

for _ in range(5):
    optimizer.step(passes)
"""
)

# What unsloth does before it trains.
FREEZES_GARBAGE = (
    LLAMA
    + """
import gc
model = llama().cuda()
model.model.embed_tokens.requires_grad_(False)
gc.freeze()
train(model, optimizer=torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad]))
"""
)

LARGE_ON_THE_HOST = (
    LLAMA
    + """
SIZES.update(hidden_size=4096, intermediate_size=14336, num_hidden_layers=8, num_attention_heads=32)
model = llama().to(torch.bfloat16).cuda()
train(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
"""
)

STARTS_ANOTHER = (
    HEAD
    + """
with open("child.py", "w") as file:
    file.write('''
import torch
model = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.Adam(model.parameters())
for _ in range(100000):
    model(torch.randn(8, 256).cuda()).sum().backward()
    optimizer.step()
''')
sys.exit(subprocess.run([sys.executable, "child.py"]).returncode)
"""
)

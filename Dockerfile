# Two images, of which `make image` builds one: `cpu`, small, and `gpu`, on NVIDIA's build of PyTorch.
#   docker build --target cpu -t legroom:cpu .
#   docker build --target gpu -t legroom:gpu .
#   docker run --rm --gpus all --ipc=host --user "$(id -u):$(id -g)" -e HOME=/tmp -v "$PWD:/runs" legroom:gpu train model=bert_large precision=bf16
ARG PYTHON=3.12
# Not built by us, nor the tag tried. Any tag whose PyTorch pyproject.toml takes; with another one the build ends and says so.
ARG NVIDIA=26.06-py3

FROM python:${PYTHON}-slim AS cpu
WORKDIR /legroom
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY conf conf
COPY recipes recipes
RUN python -m pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu \
    -c constraints.txt ".[8bit,peft,optim]"
RUN useradd --create-home trainer && mkdir /runs && chown trainer /runs
USER trainer
WORKDIR /runs
ENTRYPOINT ["legroom"]
CMD ["train"]

FROM nvcr.io/nvidia/pytorch:${NVIDIA} AS gpu
WORKDIR /legroom
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY conf conf
COPY recipes recipes
# NVIDIA's torch stays: a constraint on it makes pip refuse rather than replace it.
RUN python -c "import torch; print(f'torch=={torch.__version__}')" > torch.txt \
    && python -m pip install --no-cache-dir -c torch.txt ".[8bit,peft,optim,liger,zero]"
RUN useradd --create-home trainer && mkdir -p /runs && chown trainer /runs
USER trainer
WORKDIR /runs
ENTRYPOINT ["legroom"]
CMD ["train"]

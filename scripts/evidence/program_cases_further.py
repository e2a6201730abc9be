"""Twelve further public training scripts. docs/results/programs.md has their commits."""

from __future__ import annotations

from program_cases import CHAT, FP32, GLUE, MNIST, Case

FURTHER = [
    Case(
        "word_language_model",
        "pytorch-examples",
        "{repository}/word_language_model/main.py --data wikitext --emsize 64 --nhid 64 --batch_size 4 --bptt 16 "
        "--epochs 1 --use-optimizer",
        ("wikitext",),
        gpu="--accel",
    ),
    Case("siamese", "pytorch-examples", "{repository}/siamese_network/main.py --batch-size 8 --epochs 1", MNIST),
    Case(
        "forward_forward",
        "pytorch-examples",
        "{repository}/mnist_forward_forward/main.py --epochs 4 --train_size 256 --test_size 64",
        ("data/MNIST",),
    ),
    Case("fsdp2", "pytorch-examples", "torchrun --nproc_per_node 2 {repository}/distributed/FSDP2/example.py"),
    Case(
        "chargpt",
        "minGPT",
        "python -m projects.chargpt.chargpt --model.model_type=None --model.n_layer=2 --model.n_head=2 "
        "--model.n_embd=64 --data.block_size=32 --trainer.batch_size=4 --trainer.num_workers=0 --trainer.max_iters=12",
        ("input.txt",),
        ("mingpt", "projects"),
    ),
    Case(
        "checkpointing",
        "accelerate",
        "{repository}/examples/by_feature/checkpointing.py --checkpointing_steps 1 --output_dir out",
        GLUE,
    ),
    Case(
        "profiler",
        "accelerate",
        "{repository}/examples/by_feature/profiler.py --record_shapes --profile_memory",
        GLUE,
    ),
    Case(
        "cpo",
        "trl",
        f"{{repository}}/examples/scripts/cpo.py {CHAT} --dataset_name preference --max_length 96",
        ("llama", "preference"),
        cpu=FP32,
    ),
    Case(
        "peft_shira",
        "peft",
        "{repository}/examples/shira_finetuning/shira_finetuning.py --base_model llama --data_path instructions "
        "--batch_size 4 --cutoff_len 96 --shira_r 4 --dtype float32 --output_dir out",
        ("llama", "instructions"),
        cpu="--device_map cpu",
    ),
    Case(
        "dreambooth",
        "diffusers",
        "{repository}/examples/dreambooth/train_dreambooth.py --pretrained_model_name_or_path diffusion "
        "--instance_data_dir flat --instance_prompt thing --output_dir out --resolution 64 --train_batch_size 2 "
        "--max_train_steps 8",
        ("diffusion", "flat"),
    ),
    Case(
        "lightning_gan",
        "pytorch-lightning",
        "examples/pytorch/domain_templates/generative_adversarial_net.py",
        ("data/MNIST",),
        ("examples",),
    ),
    Case(
        "stsb",
        "sentence-transformers",
        "{repository}/examples/sentence_transformer/training/sts/training_stsbenchmark.py bert-base-cased",
        ("bert-base-cased", "sentence-transformers/stsb"),
    ),
]

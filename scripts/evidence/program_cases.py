"""Thirty public training scripts, each made small by its own arguments. docs/results/programs.md has their commits."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Case:
    """name: of the folder in which it runs. repository: of the checkout. command: what a person types in that folder;
    {repository} is the checkout. needs: what is made there (program_makers.py). copied: paths of the checkout that the
    folder needs. environment: besides; {folder} is that folder. cpu, gpu: further arguments, by the device."""

    name: str
    repository: str
    command: str
    needs: tuple[str, ...] = ()
    copied: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    cpu: str = ""
    gpu: str = ""


MNIST = ("../data/MNIST",)
FP32 = "--bf16 False"  # TRL's default is bf16, which it refuses without a GPU
GLUE = ("bert-base-cased", "nyu-mll/glue", "glue")
CHAT = "--model_name_or_path llama --output_dir out --max_steps 8 --report_to none --per_device_train_batch_size 4"
PREFERENCE = f"{CHAT} --dataset_name preference --max_length 96"
DIFFUSION = "--pretrained_model_name_or_path diffusion --train_batch_size 2 --max_train_steps 8 --resolution 64"
CASES = [
    Case("mnist", "pytorch-examples", "{repository}/mnist/main.py --batch-size 32 --epochs 1", MNIST),
    Case(
        "mnist_rnn",
        "pytorch-examples",
        "{repository}/mnist_rnn/main.py --batch-size 16 --epochs 1",
        MNIST,
        gpu="--accel",
    ),
    Case("vae", "pytorch-examples", "{repository}/vae/main.py --batch-size 64 --epochs 1", MNIST),
    Case(
        "dcgan",
        "pytorch-examples",
        "{repository}/dcgan/main.py --dataset fake --batchSize 8 --niter 1 --workers 0",
        gpu="--accel",
    ),
    Case("imagenet", "pytorch-examples", "{repository}/imagenet/main.py --dummy --batch-size 4 --workers 0 --epochs 1"),
    Case("gat", "pytorch-examples", "{repository}/gat/main.py --epochs 10 --hidden-dim 16 --num-heads 4", ("cora",)),
    Case("nlp_example", "accelerate", "{repository}/examples/nlp_example.py", GLUE),
    Case("cv_example", "accelerate", "{repository}/examples/cv_example.py --data_dir pets", ("pets", "resnet50d")),
    Case(
        "gradient_accumulation",
        "accelerate",
        "accelerate launch {repository}/examples/by_feature/gradient_accumulation.py --gradient_accumulation_steps 2",
        GLUE,
    ),
    Case("schedule_free", "accelerate", "{repository}/examples/by_feature/schedule_free.py", GLUE),
    Case(
        "sft",
        "trl",
        f"{{repository}}/trl/scripts/sft.py {CHAT} --dataset_name chat --max_length 96",
        ("llama", "chat"),
        cpu=FP32,
    ),
    Case("dpo", "trl", f"{{repository}}/trl/scripts/dpo.py {PREFERENCE}", ("llama", "preference"), cpu=FP32),
    Case(
        "kto",
        "trl",
        f"{{repository}}/trl/scripts/kto.py {CHAT} --dataset_name kto --max_length 96",
        ("llama", "kto"),
        cpu=FP32,
    ),
    Case("reward", "trl", f"{{repository}}/trl/scripts/reward.py {PREFERENCE}", ("llama", "preference"), cpu=FP32),
    Case(
        "grpo",
        "trl",
        f"{{repository}}/trl/scripts/grpo.py {CHAT} --dataset_name prompts --reward_funcs think_format_reward "
        "--num_generations 4 --max_completion_length 16",
        ("llama", "prompts"),
        cpu=FP32,
    ),
    Case("orpo", "trl", f"{{repository}}/examples/scripts/orpo.py {PREFERENCE}", ("llama", "preference"), cpu=FP32),
    Case(
        "unconditional",
        "diffusers",
        "accelerate launch --mixed_precision no {repository}/examples/unconditional_image_generation/"
        "train_unconditional.py --train_data_dir images/train --resolution 32 --train_batch_size 2 "
        "--model_config_name_or_path unet --num_epochs 2 --output_dir out --logger tensorboard --save_images_epochs 9",
        ("images", "unet"),
    ),
    Case(
        "text_to_image",
        "diffusers",
        f"{{repository}}/examples/text_to_image/train_text_to_image.py {DIFFUSION} --train_data_dir captioned "
        "--output_dir out",
        ("diffusion", "captioned"),
    ),
    Case(
        "text_to_image_lora",
        "diffusers",
        f"{{repository}}/examples/text_to_image/train_text_to_image_lora.py {DIFFUSION} --train_data_dir captioned "
        "--output_dir out",
        ("diffusion", "captioned"),
    ),
    Case(
        "textual_inversion",
        "diffusers",
        f"{{repository}}/examples/textual_inversion/textual_inversion.py {DIFFUSION} --train_data_dir flat "
        "--placeholder_token <thing> --initializer_token a --output_dir out --repeats 8",
        ("diffusion", "flat"),
    ),
    Case(
        "peft_sft",
        "peft",
        f"{{repository}}/examples/sft/train.py {CHAT} --dataset_name texts --use_peft_lora True --lora_r 4 "
        "--max_length 96 --dataset_text_field text",
        ("llama", "texts"),
        cpu=FP32,
    ),
    Case(
        "peft_miss",
        "peft",
        "{repository}/examples/miss_finetuning/miss_finetuning.py --base_model_name_or_path llama --bits fp32 "
        "--miss_r 4 --data_path instructions --dataset_split train --dataset_field instruction output --output_dir out "
        "--max_steps 8 --per_device_train_batch_size 4 --report_to none",
        ("llama", "instructions"),
        cpu=FP32,
    ),
    Case(
        "peft_olora",
        "peft",
        "{repository}/examples/olora_finetuning/olora_finetuning.py --base_model llama --data_path instructions "
        "--batch_size 4 --cutoff_len 96 --lora_r 4 --dtype float32",
        ("llama", "instructions"),
        cpu="--device_map cpu",
    ),
    Case(
        "litgpt_pretrain",
        "litgpt",
        "python -m litgpt pretrain pythia-14m --tokenizer_dir checkpoint --data TextFiles --data.train_data_path plain "
        "--data.num_workers 1 --train.max_tokens 4096 --train.global_batch_size 2 --train.micro_batch_size 1 "
        "--train.max_seq_length 128 --out_dir out --precision 32-true",
        ("checkpoint", "plain"),
        ("litgpt",),
    ),
    Case(
        "litgpt_lora",
        "litgpt",
        "python -m litgpt finetune_lora checkpoint --data JSON --data.json_path instructions.json --data.num_workers 0 "
        "--train.max_seq_length 96 --train.global_batch_size 2 --train.micro_batch_size 1 --train.epochs 1 "
        "--out_dir out --precision 32-true",
        ("checkpoint", "instructions"),
        ("litgpt",),
    ),
    Case(
        "nanoGPT",
        "nanoGPT",
        "train.py --dataset=letters --compile=False --n_layer=3 --n_head=4 --n_embd=128 --block_size=64 "
        "--batch_size=4 --gradient_accumulation_steps=2 --eval_iters=1 --max_iters=12",
        ("data/letters",),
        ("train.py", "model.py", "configurator.py"),
        cpu="--device=cpu --dtype=float32",
    ),
    Case(
        "nanochat",
        "nanochat",
        "python -m scripts.base_train --depth=2 --max-seq-len=128 --device-batch-size=2 --total-batch-size=512 "
        "--num-iterations=10 --eval-every=-1 --core-metric-every=-1 --sample-every=-1 --window-pattern L",
        ("nanochat_base",),
        ("nanochat", "scripts", "tasks"),
        {"NANOCHAT_BASE_DIR": "{folder}/nanochat_base"},
    ),
    Case(
        "timm",
        "pytorch-image-models",
        "{repository}/train.py --data-dir images --model resnet18 --num-classes 2 --batch-size 4 --workers 1 "
        "--img-size 64 --epochs 1 --warmup-epochs 0",
        ("images",),
        cpu="--device cpu",
    ),
    Case(
        "lightning_backbone",
        "pytorch-lightning",
        "examples/pytorch/basics/backbone_image_classifier.py --trainer.max_epochs 1 --data.batch_size 16 "
        "--trainer.enable_progress_bar false",
        ("examples/Datasets/MNIST", "data/MNIST"),
        ("examples",),
    ),
    Case(
        "fabric_image_classifier",
        "pytorch-lightning",
        "examples/fabric/image_classifier/train_fabric.py --batch-size 16 --epochs 1",
        ("Datasets/MNIST",),
        ("examples",),
    ),
]

"""Public training scripts that were asked afterwards. docs/results/programs.md has their commits."""

from program_cases import CHAT, DIFFUSION, FP32, GLUE, Case

MORE = [
    Case(
        "makemore",
        "makemore",
        "{repository}/makemore.py --batch-size 8 --n-embd 128 --num-workers 1 --max-steps 12",
        (),
        ("names.txt",),
        gpu="--device cuda",
    ),
    Case(
        "wgan_gp",
        "PyTorch-GAN",
        "{repository}/implementations/wgan_gp/wgan_gp.py --n_epochs 1 --batch_size 32",
        ("../../data/mnist/MNIST",),
    ),
    Case(
        "unet",
        "Pytorch-UNet",
        "{repository}/train.py --epochs 1 --batch-size 2 --scale 1",
        ("data/masks",),
        environment={"WANDB_MODE": "offline"},
    ),
    Case(
        "llama2c",
        "llama2.c",
        "train.py --vocab_source=custom --vocab_size=128 --compile=False --dim=128 --n_layers=3 --n_heads=4 "
        "--n_kv_heads=2 --max_seq_len=64 --batch_size=4 --gradient_accumulation_steps=2 --eval_iters=1 --max_iters=12",
        ("data/tok128",),
        ("train.py", "model.py", "configurator.py", "export.py", "tinystories.py", "tokenizer.py"),
        cpu="--device=cpu --dtype=float32",
    ),
    Case(
        "smp_buildings",
        "segmentation_models.pytorch",
        "{repository}/examples/binary_segmentation_buildings.py",
        ("CamVid", "resnet34"),
        environment={"MPLBACKEND": "Agg"},
    ),
    Case(
        "super_resolution",
        "pytorch-examples",
        "{repository}/super_resolution/main.py --upscale_factor 2 --batchSize 4 --testBatchSize 4 "
        "--nEpochs 2 --threads 0",
        ("dataset/BSDS300",),
        gpu="--accel",
    ),
    Case(
        "gkd",
        "trl",
        f"{{repository}}/examples/scripts/gkd.py {CHAT} --teacher_model_name_or_path llama --dataset_name chat "
        "--max_length 96",
        ("llama", "chat"),
        cpu=FP32,
    ),
    Case(
        "cross_encoder",
        "sentence-transformers",
        "{repository}/examples/cross_encoder/training/sts/training_stsbenchmark.py",
        ("distilbert/distilroberta-base", "sentence-transformers/stsb"),
    ),
    Case("early_stopping", "accelerate", "{repository}/examples/by_feature/early_stopping.py", GLUE),
    Case(
        "adalora",
        "peft",
        "{repository}/examples/conditional_generation/peft_adalora_seq2seq.py",
        ("facebook/bart-base", "zeroshot/twitter-financial-news-sentiment"),
    ),
    Case(
        "lightning_transformer",
        "pytorch-lightning",
        "{repository}/examples/pytorch/basics/transformer.py",
        ("data/wikitext",),
    ),
    Case(
        "kfold",
        "pytorch-lightning",
        "examples/fabric/kfold_cv/train_fabric.py --batch-size 16 --epochs 1 --folds 2",
        ("Datasets/MNIST",),
        ("examples",),
    ),
    Case(
        "instruct_pix2pix",
        "diffusers",
        f"{{repository}}/examples/instruct_pix2pix/train_instruct_pix2pix.py {DIFFUSION} --train_data_dir conditioned "
        "--original_image_column image --edited_image_column conditioning_image --edit_prompt_column text "
        "--output_dir out --seed 0",
        ("diffusion", "conditioned"),
    ),
]

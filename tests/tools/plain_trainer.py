"""What a person writes without Legroom: a plain Trainer script that trains the default job.

    python tests/tools/plain_trainer.py STEPS

`bench_step.py` times it beside `train.py`. It imports nothing of this project.
"""

import sys
import tempfile

import datasets
import numpy
from transformers import AutoConfig, AutoModelForSequenceClassification, Trainer, TrainingArguments, set_seed

if __name__ == "__main__":
    set_seed(0)
    random = numpy.random.default_rng(0)
    rows = datasets.Dataset.from_dict(
        {"input_ids": random.integers(100, 30_000, (512, 512)), "labels": random.integers(0, 2, 512)}
    ).with_format("torch")
    config = AutoConfig.for_model(
        "bert",
        num_hidden_layers=2,
        hidden_size=128,
        num_attention_heads=2,
        intermediate_size=512,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            per_device_train_batch_size=4,
            max_steps=int(sys.argv[1]),
            learning_rate=1e-3,
            lr_scheduler_type="linear",
            report_to=[],
            save_strategy="no",
            logging_steps=10,
            disable_tqdm=True,
        )
        trainer = Trainer(AutoModelForSequenceClassification.from_config(config), arguments, train_dataset=rows)
        trainer.train()

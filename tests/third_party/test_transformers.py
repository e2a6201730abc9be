"""The private names of transformers behave as recipes/third_party/transformers_private.py says."""

from __future__ import annotations

import pytest
import torch
from transformers import TrainingArguments, training_args

from recipes.third_party import transformers_private


@pytest.mark.skipif(torch.cuda.is_available(), reason="tests a machine without a GPU")
def test_unchecked_gpu_support(tmp_path):
    check = training_args.is_torch_bf16_gpu_available
    with transformers_private.unchecked_gpu_support():
        args = TrainingArguments(output_dir=str(tmp_path), bf16=True, tf32=True, report_to="none")
    assert args.bf16 and training_args.is_torch_bf16_gpu_available is check


def test_set_arguments_device(tmp_path):
    args = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to="none")
    transformers_private.set_arguments_device(args, torch.device("meta"))
    assert args.device.type == "meta"

"""The jobs of the checks on a GPU can run, as far as a machine without one can see."""

import gpu_checks

NOT_HERE = ("pip install", "flash", "triton", "Triton")  # what a package or a GPU would lift


def test_every_job_of_the_decoder_can_run_on_a_large_gpu(pretend_gpu, tmp_path):
    pretend_gpu((9, 0), "NVIDIA H100 80GB HBM3")
    asked = gpu_checks.decoder_jobs(tmp_path)
    ready, refused = gpu_checks.composed(asked)
    assert len(ready) + len(refused) == len(asked) > 15 and {*map(tuple, asked)} <= {
        tuple(words[1:]) for words in gpu_checks.jobs(tmp_path)
    }
    assert [line for line in refused if not any(word in line for word in NOT_HERE)] == []

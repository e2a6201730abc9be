"""Steps of a tiny model that take a while, so that a test can stop a training between two of them."""


def code(seconds: float) -> str:
    """What a worker runs before it trains (`conftest.SITECUSTOMIZE`). seconds: of an AdamW step, at least."""
    return f"""
import time, torch
torch.set_num_threads(1)
step = torch.optim.AdamW.step
def slow(*args, **settings):
    time.sleep({seconds})
    return step(*args, **settings)
torch.optim.AdamW.step = slow
"""

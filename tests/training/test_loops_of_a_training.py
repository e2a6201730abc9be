"""The order of what both loops do in a step, between steps and in an evaluation: with made-up models and batches."""

from __future__ import annotations

import contextlib
import itertools
from types import SimpleNamespace

import pytest
import torch
import transformers
from conftest import compose, small

from legroom.data.data_loader import Batch
from legroom.records.record import Evaluation
from legroom.third_party.transformers_trainer_private import HookedTrainer
from legroom.training import accelerate_loop, after_step, evaluate, trainer

# --- between two steps ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "every,loss,stops", list(itertools.product((None, 1, 2), (0.12345, None, float("nan")), (True, False)))
)
def test_when_a_training_is_evaluated_between_two_steps(monkeypatch, every, loss, stops):
    log: list = []
    result = Evaluation(samples=2, loss=loss, seconds=1.0, accuracy=0.5)
    monkeypatch.setattr(after_step.evaluate, "evaluate", lambda *_: log.append("evaluated") or result)
    cfg = SimpleNamespace(eval=SimpleNamespace(every_steps=every))
    step_log = SimpleNamespace(
        flush=lambda: log.append("flushed"),
        evaluation=lambda found: log.append("logged"),
        restart_step_timer=lambda: log.append("timer"),
    )
    progress = SimpleNamespace(send=lambda shown: log.append([shown.text, shown.of_one_run]),
                               enter=lambda *phase, **more: log.append([*phase, more]))  # fmt: skip
    saver = SimpleNamespace(begin=lambda loop: 7, after_step=lambda step: log.append(step) or stops)
    between = after_step.EvaluateThenSave(cfg, None, None, step_log, saver, progress)
    assert between.begin(SimpleNamespace(total_steps=4)) == 7
    said = "0.1235" if loss == 0.12345 else "not a number"
    expected: list = []
    for step in (1, 2, 3, 4):
        assert between.after_step(step) == stops
        if every and step % every == 0 and step < 4:
            text = [f"{step}/4  evaluation loss {said}, accuracy 50.0%", True]
            entered = ["train", "training", {"step": step, "total": 4}]
            expected += ["flushed", "evaluated", "logged", text, entered, "timer"]
        expected.append(step)
    assert log == expected


# --- the raw loop --------------------------------------------------------------------------------


class Made(accelerate_loop.Loop):
    """A loop over numbers instead of batches; notes what a step does."""

    def __init__(self, log, accumulation=2, clips=1.0, skipped=False, pipeline=None, steps=5, per_epoch=2):
        self.log = log
        self.args = SimpleNamespace(gradient_accumulation_steps=accumulation, max_grad_norm=clips)
        self.levers, self.pipeline, self.parameters = [], pipeline, ["weights"]
        self.model = SimpleNamespace(train=lambda: log.append("train"))
        self.optimizer = SimpleNamespace(step=lambda: log.append("step"), zero_grad=lambda: log.append("zero"))
        self.scheduler = SimpleNamespace(step=lambda: log.append("schedule"))
        self.accelerator = SimpleNamespace(
            sync_gradients=None,
            optimizer_step_was_skipped=skipped,
            no_sync=lambda model: log.append("no sync") or contextlib.nullcontext(),
            clip_grad_norm_=lambda weights, most: log.append(["clip", weights, most]) or torch.tensor(3.0),
        )
        self.total_steps, self.steps_per_epoch = steps, per_epoch
        self.loader = Loader(log, accumulation * per_epoch)


class Loader:
    def __init__(self, log, count):
        self.log, self.count, self.left = log, count, 0

    def set_epoch(self, epoch):
        self.log.append(["epoch", epoch])

    def skip(self, batches):
        self.left = batches

    def __iter__(self):
        return iter(range(self.left, self.count))


def shares(batches):
    return [0.25, 0.75, 0.5][: len(batches)], 3, 30, 29


@pytest.mark.parametrize("clips,skipped,count", list(itertools.product((0.0, 0.5), (True, False), (1, 2, 3))))
def test_the_order_of_a_step(monkeypatch, clips, skipped, count):
    log: list = []
    monkeypatch.setattr(accelerate_loop, "step_shares", shares)
    monkeypatch.setattr(accelerate_loop, "learning_rate", lambda *_: log.append("rate") or 0.125)
    loop = Made(log, clips=clips, skipped=skipped)

    def forward_backward(accelerator, model, batch, share, optimizer):
        log.append([batch, share, accelerator.sync_gradients])
        return torch.tensor(share)

    monkeypatch.setattr(accelerate_loop, "forward_backward", forward_backward)
    loss, *figures = loop.step(list(range(count)))
    passes = []
    for index in range(count):
        last = index == count - 1
        passes += [*["no sync"] * (not last), [index, [0.25, 0.75, 0.5][index], last]]
    clip = [["clip", ["weights"], 0.5]] if clips else []
    assert log == [*passes, *clip, "step", "rate", *["schedule"] * (not skipped), "zero"]
    norm = torch.tensor(3.0) if clips else None
    assert loss.item() == sum([0.25, 0.75, 0.5][:count]) and figures == [3, 30, 0.125, norm, 29]


def test_a_pipeline_takes_all_micro_batches_at_once(monkeypatch):
    log: list = []
    monkeypatch.setattr(accelerate_loop, "step_shares", shares)
    monkeypatch.setattr(accelerate_loop, "learning_rate", lambda *_: 0.125)
    pipeline = SimpleNamespace(step=lambda *given: log.append(given) or torch.tensor(2.0))
    loss, *_ = Made(log, pipeline=pipeline, clips=0.0).step([0, 1])
    assert loss == 2.0 and log == [([0, 1], [0.25, 0.75]), "step", "schedule", "zero"]


@pytest.mark.parametrize("done,stops_at", [(0, None), (1, None), (2, None), (3, None), (5, None), (6, None), (0, 3)])
def test_a_training_goes_on_where_it_was(monkeypatch, done, stops_at):
    log: list = []
    monkeypatch.setattr(accelerate_loop.unwrap, "start_training", lambda _: log.append("start"))
    loop = Made(log)
    loop.step = lambda batches: log.append(batches) or ("figures",)
    step_log = SimpleNamespace(begin=lambda: log.append("begin"), step=lambda *_: None)
    saver = SimpleNamespace(begin=lambda _: done, after_step=lambda step: step == stops_at)
    loop.train(step_log, saver)
    expected: list = ["train", "start", "begin"]
    for step in range(done, stops_at or 5):
        epoch, place = divmod(step, 2)
        if place == 0 or step == done:
            expected.append(["epoch", epoch])
        expected.append([2 * place, 2 * place + 1])
    assert log == expected


def test_the_step_of_the_ledger_takes_the_largest_batches(monkeypatch):
    log: list = []
    monkeypatch.setattr(accelerate_loop.unwrap, "start_training", lambda _: log.append("start"))
    monkeypatch.setattr(accelerate_loop.data_loader, "largest_step", lambda data, args: ["a", "b", "c"])
    loop = Made(log)
    loop.data = None
    loop.step = lambda batches: log.append(batches) or (1.0, 2, torch.tensor(30))
    assert loop.one_more_step(contextlib.nullcontext()) == 30 and log == ["train", "start", ["a", "b"]]


# --- the Trainer ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "before,epoch,per_epoch,stops,ran",
    [
        (0, 0, 3, False, (0, 12, 3)),
        (2, 0, 3, False, (8, 4, 1)),
        (3, 0, 3, False, None),
        (4, 0, 3, False, None),
        (4, 1, 3, False, (4, 8, 2)),
        (4, 2, 3, False, (0, 12, 3)),
        (0, 0, 3, True, None),
    ],
)
def test_a_resumed_trainer_runs_the_steps_that_are_left(monkeypatch, before, epoch, per_epoch, stops, ran):
    """Of epochs of `per_epoch` steps of four micro-batches."""
    runs, skipped = [], []
    monkeypatch.setattr(transformers.Trainer, "_run_epoch", lambda self, **given: runs.append(given), raising=False)
    made = HookedTrainer.__new__(HookedTrainer)
    made.steps_before, made.control = before, SimpleNamespace(should_training_stop=stops)
    made.args = SimpleNamespace(gradient_accumulation_steps=4)
    loader = SimpleNamespace(skip=skipped.append)
    given = dict(epoch=epoch, train_dataloader=loader, steps_in_epoch=12, num_update_steps_per_epoch=per_epoch)
    made._run_epoch(**given, more="x")
    if ran is None:
        assert not runs and not skipped
    else:
        left = dict(epoch=epoch, train_dataloader=loader, steps_in_epoch=ran[1], num_update_steps_per_epoch=ran[2])
        assert runs == [left | {"more": "x"}] and skipped == [ran[0]]


@pytest.mark.parametrize("piped", [True, False])
def test_the_trainers_step_is_that_of_the_raw_loop(monkeypatch, piped):
    monkeypatch.setattr(trainer, "step_shares", shares)
    seen = []
    monkeypatch.setattr(trainer, "forward_backward", lambda *given: seen.append(given[2:4]) or torch.tensor(given[3]))
    made = trainer.LegroomTrainer.__new__(trainer.LegroomTrainer)
    made.levers, made.accelerator, made.optimizer = [], None, None
    made.args = SimpleNamespace(device="cpu")
    made.pipeline = SimpleNamespace(step=lambda *given: seen.append(given) or torch.tensor(2.0)) if piped else None
    batches, count = made.get_batch_samples(iter(["a", "b", "c", "d"]), 3, "cpu")
    assert batches == ["a", "b", "c"] and count is None and made.step_size == [3, 30, 29] and made.step_loss is None
    losses = [float(made.training_step("model", batch)) for batch in batches]
    if piped:
        assert losses == [0.0, 0.0, 2.0] and seen == [(["a", "b", "c"], [0.25, 0.75, 0.5])]
        assert made.step_loss == 2.0
    else:
        assert losses == [0.25, 0.75, 0.5] and made.step_loss == 1.5
        assert seen == [("a", 0.25), ("b", 0.75), ("c", 0.5)]


@pytest.mark.parametrize("done,steps,stops", [(0, 3, False), (2, 3, False), (3, 3, True), (4, 3, True)])
def test_the_trainer_begins_where_a_checkpoint_ends(monkeypatch, done, steps, stops):
    log: list = []
    monkeypatch.setattr(trainer.unwrap, "start_training", lambda _: log.append("start"))
    made = SimpleNamespace(model=SimpleNamespace(train=lambda: log.append("train")), optimizer=None)
    saver = SimpleNamespace(begin=lambda loop: done, after_step=lambda step: step == 3)
    step_log = SimpleNamespace(begin=lambda: log.append("begin"), step=lambda *figures: log.append(figures))
    callback = trainer.StepCallback(step_log, saver, SimpleNamespace(trainer=made, optimizer=None, scheduler=None))
    state, control = SimpleNamespace(global_step=None, max_steps=steps), SimpleNamespace(should_training_stop=None)
    callback.on_train_begin(None, state, control)
    assert (state.global_step, made.steps_before, control.should_training_stop) == (done, done, stops)
    assert log == ["train", "start", "begin"]
    log.clear()
    monkeypatch.setattr(trainer, "learning_rate", lambda *_: 0.5)
    made.step_size, made.step_loss, made.clipped_norm = (3, 30, 29), torch.tensor(1.5), None
    callback.on_optimizer_step(None, None, None)
    control.should_training_stop = False
    callback.on_step_end(None, SimpleNamespace(global_step=2), control)
    assert log == [(torch.tensor(1.5), 3, 30, 0.5, None, 29)] and not control.should_training_stop
    callback.on_step_end(None, SimpleNamespace(global_step=3), control)
    assert control.should_training_stop


@pytest.mark.parametrize("deepspeed", [None, "plugin"])
def test_the_trainers_step_of_the_ledger_is_one_more(monkeypatch, deepspeed):
    log: list = []
    monkeypatch.setattr(trainer.accelerate_private, "keep_deepspeed_engine", lambda _: log.append("kept"))
    monkeypatch.setattr(trainer.unwrap, "start_training", lambda _: log.append("start"))
    loop = trainer.Loop.__new__(trainer.Loop)
    loop.args, loop.accelerator = SimpleNamespace(max_steps=9), SimpleNamespace(deepspeed_plugin=deepspeed)
    loop.bare_model = SimpleNamespace(train=lambda: log.append("train"))
    callbacks: list = []

    def train():
        (callback,) = callbacks
        callback.on_train_begin(None, None, None)
        callback.on_step_begin(None, None, None)
        callback.on_step_end(None, None, None)
        log.append([loop.args.max_steps, loop.trainer.under_ledger, loop.trainer.steps_before])

    loop.trainer = SimpleNamespace(train=train, step_size=[2, torch.tensor(30), 29], steps_before=7,
                                   add_callback=callbacks.append, remove_callback=callbacks.remove)  # fmt: skip

    @contextlib.contextmanager
    def ledger():
        log.append("in")
        yield
        log.append("out")

    assert loop.one_more_step(ledger()) == 30 and not callbacks
    assert log == [*["kept"] * bool(deepspeed), "train", "start", "in", "out", [1, True, 0]]


# --- an evaluation -------------------------------------------------------------------------------


def rows(labels, count=None):
    """A batch with a label for each row, or for each token."""
    made = Batch({"input_ids": torch.ones(len(labels), 2).long(), "labels": torch.tensor(labels)})
    made.rows = len(labels) if count is None else count
    made.indices = list(range(len(labels)))
    return made


@pytest.mark.parametrize("ranks,world", [(1, 1), (2, 2), (1, 2), (2, 4)])
@pytest.mark.parametrize("task,available", [("classification", 0), ("classification", 9), ("language_modelling", 0)])
def test_the_figures_of_an_evaluation(monkeypatch, ranks, world, task, available):
    """Of ranks that have the same sums each; those with the same rows count once."""
    monkeypatch.setattr(evaluate, "evaluating", lambda cfg, loop: contextlib.nullcontext("forward"))
    monkeypatch.setattr(evaluate.data_loader, "batch_loader", lambda *given, shuffle: [] if not shuffle else None)
    monkeypatch.setattr(evaluate, "totals", lambda *_: [6.0, 4.0, 8.0, *([2.0] if task == "classification" else [])])
    monkeypatch.setattr(evaluate.collectives, "is_distributed", lambda: world > 1)
    monkeypatch.setattr(evaluate.collectives, "world_size", lambda: world)
    monkeypatch.setattr(evaluate.collectives, "all_reduce_sum", lambda values, _: torch.tensor(values) * world)
    labels = {"labels": [0, 2, 2, 1, 2]}
    held = type("Rows", (list,), {"with_format": lambda self, _: labels})([1, 2, 3])
    data = SimpleNamespace(eval=held, task=task, answers=None, ranks=ranks, eval_available=available)
    entered: list = []
    progress = SimpleNamespace(enter=lambda *phase, total: entered.append((*phase, total)))
    loop = SimpleNamespace(accelerator=SimpleNamespace(device="cpu"))
    found = evaluate.evaluate(SimpleNamespace(eval=SimpleNamespace(batch=2)), None, loop, data, progress)
    assert (found.loss, found.samples) == (1.5, 8 * (ranks if world > 1 else 1)) and found.seconds >= 0
    assert found.available_samples == (available or 3) and entered == [("eval", "evaluating", 0)]
    if task == "classification":
        assert found.accuracy == 0.25 and found.most_frequent_share == pytest.approx(0.6)
    else:
        assert found.accuracy is None and found.most_frequent_share is None and found.perplexity is not None


def test_a_model_is_evaluated_as_it_is_saved_and_goes_on(monkeypatch):
    log: list = []
    monkeypatch.setattr(evaluate.fsdp, "reshard", lambda model: log.append("resharded"))
    model = torch.nn.Linear(2, 2)
    engine = SimpleNamespace()
    accelerator = SimpleNamespace(unwrap_model=lambda wrapped, **_: model)
    for mode in ("single", "zero"):
        cfg = compose(*small()).cfg
        cfg.parallelism.name = mode
        loop = SimpleNamespace(accelerator=accelerator, model=engine, optimizer=None)
        with evaluate.evaluating(cfg, loop) as forward:
            assert forward is (engine if mode == "zero" else model)
            assert not model.training and not torch.is_grad_enabled() and not log
        assert model.training and log == ["resharded"] and torch.is_grad_enabled()
        log.clear()
    with pytest.raises(KeyError), evaluate.evaluating(cfg, loop):
        raise KeyError
    assert model.training

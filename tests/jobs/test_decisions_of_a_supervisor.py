"""What a supervisor does about workers that end, fail or hang: made-up workers, and a clock that is moved on."""

from __future__ import annotations

import copy
import itertools
import math
import signal
from types import SimpleNamespace

import pytest

from legroom.jobs import failures, launch, post_mortem, supervise, training_run, worker
from legroom.ranks.rank_info import RankInfo
from legroom.records.messages import PhaseStarted, RankFailed, RecordUnwritten, Shown
from legroom.records.record import Error, Training


def failed(rank: int, lost: bool = False, status: str = "failed") -> RankFailed:
    return RankFailed(status, Error("step", "ValueError", f"of rank {rank}", rank=rank), lost)


@pytest.fixture(scope="module")
def composed(make_job):
    return make_job("device=cpu")


@pytest.fixture
def job(composed, tmp_path):
    made = copy.deepcopy(composed)
    made.folder = tmp_path
    return made


class Worker:
    """Exits at a time with a code; at another it may send a message, or close its pipe. The clock is the test's."""

    def __init__(self, clock, rank=0, ends=None, code=0, sends=(), closes=None, hangs=False):
        self.clock, self.ends, self.code, self.sends, self.closes = clock, ends, code, list(sends), closes
        self.rank_info, self.process, self.pipe = RankInfo(rank, 2), self, self
        self.signals, self.returncode, self.pid, self.hangs = [], None, 1, hangs

    def poll(self, seconds=None):
        if seconds is not None:  # of the pipe
            return bool(self.sends) and self.sends[0][0] <= self.clock.now
        if self.ends is not None and self.clock.now >= self.ends:
            self.returncode = self.code
        return self.returncode

    def recv(self):
        if self.closes is not None and self.clock.now >= self.closes:
            raise EOFError
        return self.sends.pop(0)[1]

    def wait(self, _):
        raise TimeoutError

    def send_signal(self, number):
        self.signals.append(number)
        if number == signal.SIGINT and not self.hangs:
            self.ends = self.clock.now

    def close(self):
        self.closed = True


@pytest.fixture
def supervisor(job, monkeypatch):
    """supervisor(worker's settings, ...) -> a supervisor of such workers; its `clock.now` goes on by a fifth second."""
    clock = SimpleNamespace(now=0.0)

    def wait(pipes, timeout):
        clock.now = round(clock.now + timeout, 6)
        return [pipe for pipe in pipes if pipe.closes is not None and clock.now >= pipe.closes]

    monkeypatch.setattr(supervise, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(supervise, "wait", wait)
    monkeypatch.setattr(supervise.os, "killpg", lambda *_: None)
    monkeypatch.setattr(supervise, "_launcher_is_gone", lambda: False)

    def supervisor(*workers):
        seen: list = []
        made = supervise.Supervisor(job, seen.append)
        made.seen, made.clock, clock.now = seen, clock, 0.0
        made.workers = [Worker(clock, rank, **settings) for rank, settings in enumerate(workers)]
        return made

    return supervisor


@pytest.mark.parametrize("stop,phase,estimate,forward", list(itertools.product(
    (True, False), ("load", "train", "save", "eval"), (True, False), (True, False))))  # fmt: skip
def test_a_request_to_stop_is_passed_on_once(supervisor, stop, phase, estimate, forward):
    made = supervisor(dict(ends=1.0), dict(ends=1.0))
    made._stop.to_stop, made.phase = stop, phase
    made.job.record.config["recipe"]["name"] = "estimate" if estimate else "trainer"
    reason = made._watch(None, forward_stop=forward)
    asks = stop and forward
    assert reason == ("interrupted" if asks and estimate else "exited")
    assert all(each.signals == [signal.SIGTERM] * (asks and not estimate) for each in made.workers)
    said = asks and not estimate and phase in ("load", "train")
    assert [type(each) for each in made.seen] == [Shown] * said


@pytest.mark.parametrize("listens,forward", list(itertools.product((True, False), repeat=2)))
def test_a_launcher_that_is_gone_ends_its_ranks(supervisor, monkeypatch, listens, forward):
    made = supervisor(dict(ends=1.0))
    monkeypatch.setattr(supervise, "_launcher_is_gone", lambda: True)
    made._stop.listens = listens
    assert made._watch(None, forward_stop=forward) == ("interrupted" if forward and not listens else "exited")
    assert made._stop.to_stop == (forward and listens) == bool(made.workers[0].signals)


def test_what_becomes_of_each_message(supervisor):
    def broken(_):
        raise OSError

    made = supervisor()
    for message in (failed(1), RecordUnwritten("record"), PhaseStarted("save", "saving"), Shown("text")):
        made._handle(message)
    assert (made.failures, made.unwritten, made.phase) == ([failed(1)], "record", "save") and len(made.seen) == 2
    made._on_message = broken
    made._handle(PhaseStarted("eval", "evaluating"))
    assert made.phase == "eval"


@pytest.mark.parametrize("reason,code,reported", list(itertools.product(
    ("exited", "interrupted"), (0, 1, -9), (True, False))))  # fmt: skip
def test_a_rank_of_a_launcher_says_how_it_ended(supervisor, monkeypatch, reason, code, reported):
    made, published = supervisor(dict(ends=0.0, code=code)), []
    made.workers[0].rank_info = made.job.rank_info = RankInfo(1, 2, launched=True)
    made.failures = [failed(1)] if reported else []
    monkeypatch.setattr(supervise.failure_store, "publish_failure", lambda _, failure: published.append(failure))
    record = made.conclude(reason, post_mortem.kernel_kills())
    dies = reason == "exited" and code and not reported
    status = "failed" if reported else "interrupted" if reason == "interrupted" else "ok"
    assert record.status == (("killed" if code < 0 else "failed") if dies else status)
    assert bool(published) == bool(dies) and (record.error is None) == (not dies and not reported)
    assert not dies or published[0]["error"]["rank"] == 1


@pytest.mark.parametrize(
    "reported,codes,rank",
    [
        ([], {0: 0, 1: 0}, None),
        ([failed(1), failed(0)], {0: 1, 1: 1}, 1),
        ([failed(0, lost=True), failed(1)], {}, 1),
        ([failed(0, lost=True)], {0: 1, 1: 0}, 0),
        ([failed(0, lost=True)], {0: 1, 1: -9}, 1),
        ([failed(0, lost=True), failed(2, lost=True)], {0: 1, 2: 1}, 0),
        ([], {0: 0, 2: 3, 1: 7}, 1),
    ],
)
def test_the_cause_is_the_first_that_is_more_than_lost_contact(reported, codes, rank):
    found = supervise.find_cause(reported, codes)
    assert (None if found is None else found.error.rank) == rank
    if not reported and rank is not None:
        assert (found.status, found.error.type, found.error.phase) == ("failed", "WorkerDied", "step")


# --- which workers -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "mode,processes,recipe,launched,ranks",
    [
        ("single", 1, "trainer", False, [(0, 1)]),
        ("ddp", 1, "trainer", False, [(0, 1)]),
        ("ddp", 3, "trainer", False, [(0, 3), (1, 3), (2, 3)]),
        ("ddp", 3, "estimate", False, [(0, 1)]),
        ("ddp", 3, "trainer", True, [(1, 3)]),
        ("dp", 1, "trainer", False, [(0, 1)]),
        ("dp", 2, "trainer", False, [(0, 2), (1, 2)]),
    ],
)
def test_which_ranks_are_started(job, monkeypatch, mode, processes, recipe, launched, ranks):
    started = []

    def start(one, source, listener=None):
        started.append((one.rank_info.rank, one.rank_info.world_size))
        own = one.rank_info
        assert source == "source" and one.folder == job.folder and one.record is job.record
        assert (listener is None) == (own.port == 0) and own.local_rank == own.rank

    job.record.config["parallelism"] |= {"name": mode, "num_processes": processes}
    job.record.recipe = recipe
    if launched:
        job.rank_info = RankInfo(1, 3, 1, 3, launched=True)
    monkeypatch.setattr(launch, "_start", start)
    launch.start(job, "source")
    assert started == ranks


# --- how an error is described -------------------------------------------------------------------


@pytest.mark.parametrize(
    "frames,phase",
    [
        ([], "load"),
        ([("torch/utils/data/dataloader.py", "next")], "load"),
        ([("legroom/training/accelerate_loop.py", "step")], "step"),
        ([("legroom/training/accelerate_loop.py", "train")], "load"),
        (
            [("legroom/training/accelerate_loop.py", "step"), ("legroom/training/step.py", "forward_backward")],
            "forward",
        ),
        ([("legroom/training/step.py", "forward_backward"), ("torch/autograd/__init__.py", "backward")], "backward"),
        ([("torch/autograd/graph.py", "_engine_run_backward"), ("torch/nn/functional.py", "linear")], "backward"),
        ([("torch/autograd/graph.py", "other")], "load"),
        ([("torch/optim/adamw.py", "step")], "step"),
        ([("accelerate/optimizer.py", "step")], "step"),
        ([("accelerate/optimizer.py", "zero_grad")], "load"),
        ([("torch/nn/utils/clip_grad.py", "any")], "step"),
        ([("transformers/trainer.py", "_clip_grad_norm")], "step"),
        ([("C:\\lib\\torch\\optim\\adamw.py", "step")], "step"),
    ],
)
def test_the_phase_of_an_error_is_that_of_its_last_known_frame(monkeypatch, frames, phase):
    found = [SimpleNamespace(filename=f"/lib/{path}", name=name) for path, name in frames]
    monkeypatch.setattr(failures.traceback, "extract_tb", lambda _: found)
    assert failures.phase_of(ValueError(), "train") == phase and failures.phase_of(ValueError(), "save") == "save"


@pytest.mark.parametrize("status,world,lost", list(itertools.product(("ok", "running"), (1, 2), (True, False))))
def test_a_failure_is_noted_unless_the_result_is_written(job, monkeypatch, capsys, status, world, lost):
    reported = []
    monkeypatch.setattr(worker, "_report_failure", lambda info, failure, send: reported.append(failure))
    monkeypatch.setattr(worker.failure_store, "lost_contact", lambda error: lost)
    job.rank_info, job.record.status = RankInfo(1, world), status
    try:
        raise ValueError("x")
    except ValueError as error:
        worker._note_failure(worker.host.configuration(job.record.config), job, error, "save", print)
    assert job.record.status == ("ok" if status == "ok" else "failed")
    assert (job.record.error is None) == (status == "ok") and "ValueError: x" in capsys.readouterr().err
    assert [(each.status, each.error.rank, each.lost_contact) for each in reported] == [("failed", 1, lost)] * (
        world > 1
    )


# --- the phases of a training --------------------------------------------------------------------


class Phases(training_run.TrainingRun):
    """A run whose phases are noted."""

    def __init__(self, job, log, stopped=False, **config):
        cfg = worker.host.configuration(job.record.config)
        for key, value in config.items():
            section, _, leaf = key.partition("__")
            setattr(getattr(cfg, section), leaf, value)
        self.log = log
        progress = SimpleNamespace(enter=lambda phase, name, **_: log.append(phase), warn=log.append, send=log.append)
        stop = SimpleNamespace(at_once=True, stop_at_once=lambda: log.append("stop at once"))
        super().__init__(cfg, job.record, job.folder, RankInfo(), progress, stop)
        note = {
            name: lambda *_, name=name: log.append(name) for name in ("stop_if_asked", "after_stop", "discard_unasked")
        }
        self.saver = SimpleNamespace(
            seconds=0.0, stopped=stopped, before_final_phase=lambda *e: log.append(list(e)), **note
        )
        data = SimpleNamespace(eval=[1, 2], task="language_modelling")
        self.training = SimpleNamespace(data=data, args=None, model="model")
        self.loop = SimpleNamespace(optimizer=None)
        self.step_log = SimpleNamespace(evaluation=lambda result: log.append("logged"))
        self.said_before = [("prompt", "before")]


@pytest.fixture
def phases(job, monkeypatch):
    log: list = []
    monkeypatch.setattr(training_run.saver, "save_final", lambda *_: log.append("saved"))
    monkeypatch.setattr(training_run.saver, "write_card", lambda *_: log.append("card"))
    evaluation = SimpleNamespace(generated=None)
    monkeypatch.setattr(training_run.evaluate, "evaluate", lambda *_: evaluation)
    said = [("prompt", "after")]
    monkeypatch.setattr(training_run.generate, "continuations", lambda model, data, count, warn: said[:count])
    return lambda **config: (Phases(job, log, **config), log)


OFF = {"save__final": False, "eval__enabled": False, "eval__generate": 0}


@pytest.mark.parametrize("final,enabled,generate", list(itertools.product((True, False), (True, False), (0, 1))))
def test_what_follows_a_training(phases, final, enabled, generate):
    run, log = phases(save__final=final, eval__enabled=enabled, eval__generate=generate)
    run.saver.seconds = 2.0
    assert run._save_and_evaluate()
    parts = [
        [run.record.training.steps, enabled],
        "stop at once",
        *["save", "saved"] * final,
        *["eval", "logged"] * enabled,
    ]
    assert log == [*parts, "card"] and not run.stop.at_once and run.record.speed.save_seconds == 2.0
    pair = {"prompt": "prompt", "before": "before", "after": "after"}
    assert not enabled or run.record.evaluation.generated == [pair] * generate


def test_a_signal_after_the_training_saves_it_alone(phases, monkeypatch):
    run, log = phases(**OFF | {"eval__enabled": True})

    def stop(*_):
        raise training_run.stop_request.StopNow

    monkeypatch.setattr(training_run.evaluate, "evaluate", stop)
    assert not run._save_and_evaluate()
    assert log[1:] == ["stop at once", "eval", "after_stop", "card"] and run.record.speed.save_seconds is None
    assert not run.stop.at_once


def test_an_evaluation_needs_rows_and_a_disk_for_its_line(phases, monkeypatch):
    run, log = phases(**OFF | {"eval__enabled": True})
    run.training.data.eval = None
    assert run._save_and_evaluate() and log == [[run.record.training.steps, False], "stop at once", "card"]
    log.clear()
    run.training.data.eval = [1]

    def full(_):
        raise OSError(28, "No space left on device")

    run.step_log.evaluation = full
    assert run._save_and_evaluate()
    assert log[2:] == ["eval", "steps.jsonl lacks the last evaluation: No space left on device.", "card"]
    log.clear()
    monkeypatch.setattr(training_run.collectives, "is_distributed", lambda: True)
    run._save_and_evaluate()
    assert log[1] == "stop_if_asked"


@pytest.mark.parametrize("stopped,goes_on,status", [
    (True, True, "preempted"), (False, False, "preempted"), (False, True, "ok")
])  # fmt: skip
def test_the_phases_in_their_order(phases, stopped, goes_on, status):
    run, log = phases(stopped=stopped)
    for name, answer in (("load", None), ("train", None), ("save_and_evaluate", goes_on), ("measure_step", None)):
        setattr(run, f"_{name}", lambda name=name, answer=answer: log.append(name) or answer)
    run.run()
    ends = ["measure_step", "discard_unasked"] if status == "ok" else []
    assert log == ["load", "train", *([] if stopped else ["save_and_evaluate"]), *ends] and run.record.status == status


@pytest.mark.parametrize("count,task,said", [
    (0, "language_modelling", []), (1, "language_modelling", [("prompt", "after")]), (1, "classification", [])
])  # fmt: skip
def test_only_a_language_model_says_something(phases, count, task, said):
    run, _ = phases(eval__generate=count)
    run.training.data.task = task
    assert run._generated() == said


@pytest.mark.parametrize("seen,own", list(itertools.product((True, False), (True, False))))
def test_the_folder_is_that_of_rank_0(job, monkeypatch, tmp_path, seen, own):
    folder, streams = tmp_path / "shared", []
    if seen:
        folder.mkdir()
    saved = SimpleNamespace(final=True)  # of the record that rank 0 alone may have read
    monkeypatch.setattr(training_run.collectives, "all_gather", lambda value: [(str(folder), "latest", saved), value])
    monkeypatch.setattr(training_run.os, "dup2", lambda _, stream: streams.append(stream))
    cfg = worker.host.configuration(job.record.config)
    job.folder, job.rank_info = (tmp_path if own else None), RankInfo(1, 2)
    assert training_run._share_folder(cfg, job, None) == (folder if seen else None) and cfg.resume == "latest"
    assert cfg.save is saved
    assert streams == ([1, 2] if seen and not own else []) and len(list(tmp_path.rglob("*log*"))) == (seen and not own)


@pytest.mark.parametrize(
    "failure,rank,ends", [(None, 0, []), (failed(1), 0, []), (failed(1), 1, [3.0, 1]), (None, 1, [])]
)
def test_a_rank_ends_once_another_has_failed(monkeypatch, failure, rank, ends):
    seen, sent = [], []
    known_failure = None if failure is None else failure.to_dict()
    monkeypatch.setattr(training_run.failure_store, "wait_for_failure", lambda info, seconds: known_failure)
    monkeypatch.setattr(training_run, "time", SimpleNamespace(sleep=seen.append))
    monkeypatch.setattr(training_run.os, "_exit", seen.append)
    training_run._watch_for_failure(RankInfo(rank, 2, launched=True), SimpleNamespace(send=sent.append))
    assert seen == ends and sent == ([failure] if failure is not None and rank == 0 else [])


LOADED = [
    # on a GPU, main rank, short of memory, keys of eval, rows to evaluate on, task, preview, what is refused
    (False, True, None, {}, [1], "language_modelling", 0, None),
    (True, True, "short", {}, [1], "language_modelling", 2, None),
    (False, False, "short", {}, [1], "language_modelling", 0, None),
    (False, True, None, {"every_steps": 2}, None, "language_modelling", 0, "eval.every_steps=2, and the data has no"),
    (False, True, None, {"generate": 3}, None, "language_modelling", 0, "eval.generate=3, and the data has no"),
    (False, True, None, {"every_steps": 2, "generate": 3}, [1], "language_modelling", 0, None),
    (False, True, None, {"generate": 3}, [1], "classification", 0, "eval.generate=3 does not go with a model"),
    (False, True, None, {"every_steps": 2}, [1], "classification", 0, None),
]


@pytest.mark.parametrize("case", LOADED)
def test_what_is_said_and_refused_while_a_run_loads(phases, monkeypatch, case):
    on_gpu, main, short, keys, rows, task, preview, refused = case
    run, log = phases(**{f"eval__{key}": value for key, value in keys.items()}, data__preview=preview)
    run.cfg.target, run.rank_info = SimpleNamespace(on_gpu=on_gpu), RankInfo(0 if main else 1, 2)
    data = SimpleNamespace(eval=rows, task=task)
    training = SimpleNamespace(data=data, model="model", loop="loop", description="described", warnings=["warned"])
    monkeypatch.setattr(training_run.device_memory, "open_gpu", lambda *_: log.append("opened"))
    monkeypatch.setattr(training_run.host_memory, "shortage", lambda cfg, ranks: short)
    monkeypatch.setattr(training_run.worker_environment, "limit_memory", lambda _: log.append("limited"))
    monkeypatch.setattr(training_run.setup, "build", lambda *_, make_model: training)
    monkeypatch.setattr(training_run.preview, "samples", lambda data, count: f"{count} rows")
    if refused:
        with pytest.raises(training_run.Refusal, match=refused):
            run._load()
        assert "warned" in log, "it may say why no row to evaluate on is left"
        return
    run._load()
    said = [*["opened"] * on_gpu, *[short] * bool(short and main), "limited", "load", "warned"]
    assert log == [*said, *[Shown(f"{preview} rows")] * bool(preview)]
    assert run.record.model == "described" and run.loop == "loop"


MEASURED = list(itertools.product((True, False), (True, False), (True, False), (True, False), (1, 2)))


@pytest.mark.parametrize("ledger,flex,operations,main,world", MEASURED)
def test_what_is_measured_of_one_more_step(phases, monkeypatch, ledger, flex, operations, main, world):
    run, log = phases(measure__ledger=ledger, measure__operations=operations)
    run.cfg.model.attention = "flex_attention" if flex else "sdpa"
    run.rank_info = RankInfo(0 if main else 1, world)
    run.record.memory.of_rank = lambda rank: f"of rank {rank}"
    from legroom.foresight.speed import measured_operations

    def count(*_, with_timeline):
        log.append(["counted", with_timeline])
        return "timeline" if with_timeline else None

    monkeypatch.setattr(training_run.memory_breakdown, "count", count)
    monkeypatch.setattr(training_run.memory_breakdown, "take_largest", lambda _: log.append("largest"))
    monkeypatch.setattr(measured_operations, "enter", lambda *_: log.append("timed") or "operations")
    monkeypatch.setattr(training_run.record_file, "write", lambda record, _: log.append(len(record.warnings)))
    monkeypatch.setattr(training_run.step_file, "try_writing", lambda shown, _: log.append(shown) or ["not written"])
    run._measure_step()
    counts = ledger and not flex
    expected: list = [*[1] * main, "count", ["counted", main]] if counts else []
    expected += ["count", "timed"] * operations
    shown = (
        {"rank": 0}
        | ({"timeline": "timeline"} if counts else {})
        | ({"operations": "operations"} if operations else {})
    )
    expected += [shown, "not written"] * (main and len(shown) > 1)
    assert log == [*expected, *["largest"] * (world > 1)]
    assert run.record.memory.per_rank == [f"of rank {run.rank_info.rank}"]


@pytest.mark.parametrize("on_gpu,fails,share,loss,start", [
    (False, False, None, 1.5, 0), (True, False, 0.25, float("nan"), 7), (False, True, None, 1.5, 0),
    (False, False, 0.5, None, 0), (False, False, None, float("inf"), 0),
])  # fmt: skip
def test_what_is_noted_of_a_training(phases, monkeypatch, on_gpu, fails, share, loss, start):
    import torch

    run, log = phases()
    run.cfg.target = SimpleNamespace(on_gpu=on_gpu)
    run.cfg.tracker.name = "none"
    values = {"step_log": None}
    checkpoint = SimpleNamespace(step=start, folder="folder", values=values) if start else None
    given: dict = {}

    class Log:
        def __init__(self, device, warmup, seconds, send, folder, **more):
            given.update(more, folder=folder)

        def training(self):
            return Training(9, losses=[] if loss is None else [loss], final_loss=loss)

        def speed(self):
            return SimpleNamespace(data_wait_share=share, save_seconds=None, waiting_seconds_per_rank=None)

        def end(self):
            log.append("ended")

        def end_after_failure(self):
            log.append("failed")

    def train(step_log, saver):
        log.append("trained")
        if fails:
            raise KeyboardInterrupt

    accelerator = SimpleNamespace(device="cpu")
    run.loop = SimpleNamespace(
        accelerator=accelerator, total_steps=9, steps_per_epoch=3, train=train, model=None, loader=None
    )
    made = SimpleNamespace(seconds=2.5, stopped=False)
    monkeypatch.setattr(training_run, "StepLog", Log)
    monkeypatch.setattr(training_run.saver, "Saver", lambda *_: made)
    monkeypatch.setattr(training_run.fingerprints, "of_training", lambda *_: {})
    monkeypatch.setattr(training_run.newest, "checkpoint_for", lambda *_: checkpoint)
    monkeypatch.setattr(training_run.transformers, "set_seed", lambda seed: log.append(["seed", seed]))
    monkeypatch.setattr(training_run.accelerate_plugins, "waiting_seconds", lambda _: share)
    monkeypatch.setattr(training_run.collectives, "all_gather", lambda own: [own, 0.125])
    monkeypatch.setattr(training_run.device_memory, "host_peak_rss_bytes", lambda: 11)
    monkeypatch.setattr(training_run.device_memory, "nvml_used_bytes", lambda: 44)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 22)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda: 33)
    if fails:
        with pytest.raises(KeyboardInterrupt):
            run._train()
    else:
        run._train()
    began = [Shown(f"Going on from step {start} of 9: folder")] if start else []
    nan = ["the loss is not a number: lower train.learning_rate, or choose precision=bf16."] * (
        loss is not None and not math.isfinite(loss)
    )
    assert log == [*began, "train", ["seed", run.cfg.train.seed], "trained", "failed" if fails else "ended", *nan]
    memory, speed = run.record.memory, run.record.speed
    assert (memory.host_peak_rss_bytes, speed.save_seconds) == (11, 2.5)
    figures = (memory.peak_allocated_bytes, memory.peak_reserved_bytes, memory.device_used_bytes)
    assert figures == ((22, 33, 44) if on_gpu else (None, None, None))
    assert speed.data_wait_share == share and speed.waiting_seconds_per_rank == (
        None if share is None else [share, 0.125]
    )
    assert (
        given["before"] is None and given["folder"] is None and given["steps_per_epoch"] == 3 and not given["compiled"]
    )


@pytest.mark.parametrize("on_gpu", [True, False])
def test_a_model_is_measured_when_it_is_made(job, monkeypatch, on_gpu):
    import torch

    used = iter([100, 130])
    monkeypatch.setattr(training_run.device_memory, "nvml_used_bytes", lambda: next(used))
    monkeypatch.setattr(training_run.setup, "model_on_device", lambda cfg, build: "model")
    monkeypatch.setattr(training_run.quantized, "count", lambda model: 7)
    reset: list = []
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: reset.append(1))
    cfg = SimpleNamespace(target=SimpleNamespace(on_gpu=on_gpu))
    memory = job.record.memory
    assert training_run._measured_model(memory, cfg, print) == "model" and memory.parameter_count == 7
    assert memory.weights_device_bytes == (30 if on_gpu else None) and len(reset) == on_gpu


@pytest.mark.parametrize("info,local,threads,joins,watches", [
    (RankInfo(), None, None, False, False),
    (RankInfo(1, 2, 1, 2, port=5), None, 3, True, False),
    (RankInfo(1, 9, 1, 9, port=5), None, 1, True, False),
    (RankInfo(1, 2, 1, 2, port=5), "4", None, True, False),
    (RankInfo(1, 2, 1, 2, launched=True, port=5), None, 3, True, True),
])  # fmt: skip
def test_how_a_rank_joins_the_others(job, monkeypatch, info, local, threads, joins, watches):
    """On a machine of six cores."""
    import torch

    log: list = []
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if local is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", local)
    monkeypatch.setattr(training_run.host, "usable_cores", lambda: 6)
    monkeypatch.setattr(torch, "set_num_threads", log.append)
    monkeypatch.setattr(training_run.collectives, "init_process_group", lambda *given: log.append(given[1:]))
    monkeypatch.setattr(training_run, "_share_folder", lambda *_: "shared")
    thread = SimpleNamespace(start=lambda: log.append("watches"))
    monkeypatch.setattr(training_run.threading, "Thread", lambda target, args, daemon: thread)
    monkeypatch.setattr(training_run.TrainingRun, "run", lambda self: log.append(self.folder))
    cfg = worker.host.configuration(job.record.config)
    job.rank_info = info
    progress = SimpleNamespace(enter=lambda *phase: log.append(phase))
    training_run.run(cfg, job, info, progress, None, 7)
    waits = [("load", f"waiting for {info.world_size} ranks"), (False, 7)]
    expected = [*[threads] * (threads is not None), *waits, *["watches"] * watches, "shared"]
    assert log == (expected if joins else [job.folder])

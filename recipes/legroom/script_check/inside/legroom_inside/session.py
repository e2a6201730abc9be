"""The recording of one process: from the first allocation to the end of the last step that is followed."""

from __future__ import annotations

import atexit
import gc
import os
import sys
import time
import weakref

import torch
from torch.nn.modules import module as torch_modules

from legroom_inside import compilation, device, imports, levers, numbers, places, ranks, reads, storages, weights
from legroom_inside.hollow import Hollow
from legroom_inside.recorder import Recorder
from legroom_inside.rows import STEPS as LONGEST_STEPS
from legroom_inside.rows import Rows
from legroom_inside.steps import Steps
from legroom_inside.storages import COPY, GRADIENT, OPTIMIZER, OTHER, PARAMETER, STEP, StorageLog
from legroom_inside.values import Values

GRAPHED = 3  # steps of compiled code that is captured in CUDA graphs: one warms up, and one is recorded
COUNTED = 2  # steps of a real run whose tensors are counted
MOST_MORE = 8  # steps that are followed where the script has run out of memory in one, and goes on with less


class Session:
    """talk: takes messages. asked: steps (after which the script is stopped), yes (lines that are answered yes),
    strict, changes (levers.py), longest (whether further steps are on the longest rows), and real: the script really
    computes, on the device that it finds."""

    def __init__(self, talk, asked):
        self.talk = talk
        self.limit = asked.get("steps", 2)
        self.is_real = asked.get("real", False)
        self.keeps_peaks = asked.get("keeps_peaks", False)  # the script reads torch's own
        self.log = StorageLog(device.type_of_real_run() if self.is_real else "cuda")
        host = Hollow()
        known = Values(host, talk.note)
        numbers.DECISIONS = numbers.Decisions(talk.note, asked.get("yes", ()), asked.get("strict", False))
        self.plain = None
        self.recorder = Recorder(self.log, known, host, numbers.DECISIONS, self.is_real)
        self.step_start = 0
        self.phases = []
        self.steps = Steps(self._before_optimizer, self._over)
        self.counted = {}
        self._watch_modules()
        self._watch_resizes()
        self._watch_compilation()
        self._watch_deepspeed()
        self.frozen = []
        self._watch_freezing()
        self.levers = None
        if asked.get("changes") is not None:
            self.levers = levers.Levers(asked["changes"])
            self.levers.install()
        self.ends = []  # seconds at the end of each step of a real run
        if not self.is_real:
            self.plain = reads.install(self.recorder, talk.note)
            ranks.install()
            weights.install(talk.note)
            compilation.take_first_blocks()
        self.rows = None
        self.usual = None  # the figures of a step on rows as they come
        if not self.is_real and asked.get("longest", True):
            self.rows = Rows(talk.note)
            self.rows.install()
        self.recorder.__enter__()
        os.register_at_fork(after_in_child=self._record_in_fork)

    def _record_in_fork(self):
        """A mode is of one thread: a process that another thread has forked would not be recorded."""
        if torch._C._len_torch_dispatch_stack() == 0:
            self.recorder.__enter__()

    # --- what is watched ---

    def _watch_modules(self):
        modules = self.log.modules

        def enter(module, _):
            if not torch.compiler.is_compiling():
                modules.append(module)

        def leave(module, *_):
            if modules and not torch.compiler.is_compiling():
                modules.pop()

        self._hooks = [
            torch_modules.register_module_forward_pre_hook(enter),
            torch_modules.register_module_forward_hook(leave, always_call=True),
        ]

    def _watch_resizes(self):
        resize = torch.UntypedStorage.resize_
        log = self.log

        def observed(storage, size):
            before = storage.nbytes()
            result = resize(storage, size)
            log.resized(storage, before)
            return result

        torch.UntypedStorage.resize_ = observed

    def _watch_compilation(self):
        """Hooks of all modules would change what is compiled: without them operations have no module's name."""
        compile_ = torch.compile
        session = self

        def compiled(*args, **settings):
            is_of_the_script = (args and isinstance(args[0], torch.nn.Module)) or places.asking_line()
            if not is_of_the_script:  # transformers compiles functions as it is imported
                return compile_(*args, **settings)
            for hook in session._hooks:
                hook.remove()
            session._hooks = []
            if session.plain is not None:
                session.plain.withdraw()
            session.log.modules.clear()
            if not session.is_real:
                settings = compilation.without_tuning(settings, session.talk.note)
                if compilation.uses_graphs(settings):
                    session.limit = max(session.limit, GRAPHED)
            return compile_(*args, **settings)

        torch.compile = compiled

    def _watch_freezing(self):
        """Note the modules that gc.freeze() takes away from the garbage collector: it lists them no more."""
        freeze = gc.freeze

        def noting():
            self.frozen += [weakref.ref(module) for module in _modules()]
            freeze()

        gc.freeze = noting

    def _watch_deepspeed(self):
        imports.after("deepspeed.runtime.engine", lambda module: self.steps.of_deepspeed(module.DeepSpeedEngine))

    # --- around a step ---

    def _before_optimizer(self, optimizer):
        self._mark(gradients=True)
        self.log.phase.latest = STEP

    def _mark(self, gradients):
        """Say which storages are weights, gradients and states, as they are now."""
        log = self.log
        names = self._names()
        for optimizer in self.steps.optimizers:
            for weight in _weights_of(optimizer):
                name = names.get(id(weight), "")
                log.mark(weight, PARAMETER if name else COPY, name)
                if gradients and weight.grad is not None:
                    log.mark(weight.grad, GRADIENT, name + " gradient")
            for weight, state in optimizer.state.items():
                if not isinstance(state, dict):
                    continue
                name = names.get(id(weight), "") if isinstance(weight, torch.Tensor) else ""
                for key, value in state.items():
                    if isinstance(value, (torch.Tensor, list, tuple, dict)):
                        log.mark(value, OPTIMIZER, f"{name} {key}")

    def _names(self):
        """The names of all weights by their id; modules are named, too."""
        if self.steps.done in self.counted:
            return self.counted[self.steps.done]
        modules = _modules()
        for reference in self.frozen:
            module = reference()
            if module is not None:
                modules.append(module)
        inner = set()
        for module in modules:
            inner.update(id(child) for child in module.children())
        names = {}
        for root in modules:
            if id(root) in inner or issubclass(type(root), torch.nn.modules.loss._Loss):
                continue
            for name, module in root.named_modules():
                names.setdefault(id(module), name)
            for name, weight in root.named_parameters():
                names.setdefault(id(weight), name or "weight")
                self.log.mark(weight, PARAMETER, name)
                if weight.grad is not None:
                    self.log.mark(weight.grad, GRADIENT, name + " gradient")
            for name, buffer in root.named_buffers():
                self.log.mark(buffer, OTHER, name)
        self.counted = {self.steps.done: names}
        return names

    def _over(self, number):
        if self.is_real:
            self._over_for_real(number)
            return
        self._mark(gradients=True)
        self._note_peaks()
        seconds = time.time() - self.talk.start
        self.talk.say(kind="step", step=number, line=self.steps.line, seconds=seconds)
        if number >= self.limit:
            if self._ran_out() and number < self.limit + MOST_MORE:
                self._say_ran_out()
            elif self.usual is None and self.rows is not None and self.rows.follow_longest():
                self.usual = self.figures()
                self.limit = number + LONGEST_STEPS
            else:
                self._stop()
        if self._ran_out():
            torch.cuda.empty_cache()  # what a failed attempt has left there is not needed by what goes on with less
        if not self.keeps_peaks:
            device.forget_peaks()
        self.recorder.operations.clear()
        self.recorder.counts_operations = True
        self.recorder.launches.start()
        self.step_start = len(self.log.events)

    def _over_for_real(self, number):
        """The first two steps are counted, and the later ones timed."""
        if self.log.device_type == "cuda":
            torch.cuda.synchronize()
        self.ends.append(time.perf_counter())
        seconds = time.time() - self.talk.start
        self.talk.say(kind="step", step=number, line=self.steps.line, seconds=seconds)
        if number == 1:
            self._mark(gradients=True)
            self.step_start = len(self.log.events)
            self.recorder.counts_operations = True
        elif number == COUNTED:
            self._mark(gradients=True)
            self._note_peaks()
            self.counted_figures = self.figures()
            self.recorder.__exit__(None, None, None)
            for hook in self._hooks:
                hook.remove()
            atexit.register(self._say_measured)  # a script of few steps ends by itself
        if number >= self.limit:
            self._say_measured()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)

    def _say_measured(self):
        if self.talk.is_over or os.getpid() != self.talk.process or getattr(sys, "last_value", None) is not None:
            return
        self.talk.is_over = True
        self.talk.found(dict(self.counted_figures, ends=self.ends, device_name=device.name()))

    def _note_peaks(self):
        """The peaks of each card in the step that is over."""
        self.phases.append([device.peaks(card) for card in device.cards()])

    def _say_ran_out(self):
        smaller = None
        if self.rows is not None:
            smaller = self.rows.smaller_batch()
        with_less = ""
        if smaller is not None:
            now, at_first = smaller
            with_less = f" with batches of {now} rows in place of {at_first}"
        self.talk.note(f"the script ran out of memory in a step, and went on{with_less}: a later step was followed.")

    def _ran_out(self):
        """Whether a card had no memory left at some moment of the last step."""
        ooms_before = 0
        if len(self.phases) > 1:
            ooms_before = sum(peaks["ooms"] for peaks in self.phases[-2])
        return sum(peaks["ooms"] for peaks in self.phases[-1]) > ooms_before

    def _fullest_card(self):
        """The number of the card on which most was reserved."""
        fullest = 0
        most = -1
        for card in range(len(self.phases[-1]) if self.phases else 0):
            reserved = max(peaks["reserved"] for peaks in self._phases_of(card))
            if reserved > most:
                fullest = card
                most = reserved
        return fullest

    def _phases_of(self, card):
        """The peaks of a card in each phase; it may not have been there in the first ones."""
        return [cards[card] for cards in self.phases if card < len(cards)]

    def _stop(self):
        self.recorder.__exit__(None, None, None)
        self.talk.is_over = True
        figures = self.figures()
        if self.usual is not None:
            for name in ("operations", "launches"):
                figures[name] = self.usual[name]  # its time is that of rows as they come
        self.talk.found(figures)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)  # no `finally` of the script, which might save or send, and no way to catch it

    # --- what is written ---

    def figures(self):
        """What is written for whoever judges it, in JSON's types."""
        storages.settle_activations(self.log.events)
        names = self._names()
        card = self._fullest_card()
        followed = (card, None)
        events = [(entry, sign) for entry, sign, _ in self.log.events if entry.card in followed]
        before_step = [entry for entry, _, _ in self.log.events[: self.step_start] if entry.card in followed]
        entries = {entry.number: entry for entry, _ in events}
        operations = []
        for (phase, caller, module, call), times in self.recorder.operations.items():
            operations.append([phase, caller, names.get(module, ""), call, times])
        cards_used = [other for other in device.cards() if any(peaks["reserved"] for peaks in self._phases_of(other))]
        return {
            "torch": torch.__version__,
            "events": [[entry.number, sign] for entry, sign in events],
            "entries": {
                number: [entry.bytes, entry.kind, entry.phase, _origin(entry, names)]
                for number, entry in entries.items()
            },
            "step_start": len(before_step),
            "operations": operations,
            "phases": self._phases_of(card),
            "card": card,
            "cards_used": len(cards_used),
            "device": device.counters(card),
            "launches": self.recorder.launches.of_step(),
            "trained": self._trained(),
            "parameters": sum(entry.bytes for entry in entries.values() if entry.kind == PARAMETER),
            "tf32": _uses_tf32(),
            "device_type": self.log.device_type,
            "hidden_by": device.hidden_by(),
            "facts": self._facts(),
        }

    def _trained(self):
        """[elements, type] of each weight that an optimizer trains."""
        weights = {}
        for optimizer in self.steps.optimizers:
            for weight in _weights_of(optimizer):
                if weight.requires_grad:
                    weights[id(weight)] = [weight.numel(), str(weight.dtype)]
        return list(weights.values())

    def _facts(self):
        if self.levers is None:
            return {}
        self.levers.note_optimizers(self.steps.optimizers)
        return self.levers.facts


def _weights_of(optimizer):
    return [weight for group in optimizer.param_groups for weight in group["params"]]


def _origin(entry, names):
    """What a storage is called: by its weight, or by the module and the operation that made it."""
    if entry.name:
        return entry.name
    operation = entry.operation.partition(".")[0]
    if entry.module is None:
        return operation
    module = names.get(id(entry.module), type(entry.module).__name__)
    return f"{module} {operation}".strip()


def _modules():
    """All modules that the garbage collector knows."""
    return [value for value in gc.get_objects() if issubclass(type(value), torch.nn.Module)]


def _uses_tf32():
    try:
        return torch.get_float32_matmul_precision() != "highest"
    except RuntimeError:  # it was set in both ways
        return True

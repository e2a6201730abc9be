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
        self.talk, self.limit = talk, asked.get("steps", 2)
        self.is_real = asked.get("real", False)
        self.keeps_peaks = asked.get("keeps_peaks", False)  # the script reads torch's own
        self.log = StorageLog(device.type_of_real_run() if self.is_real else "cuda")
        host = Hollow()
        known = Values(host, talk.note)
        numbers.DECISIONS = decisions = numbers.Decisions(talk.note, asked.get("yes", ()), asked.get("strict", False))
        self.decisions = decisions
        self.plain = None
        self.recorder = Recorder(self.log, known, host, decisions, self.is_real)
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
        self.usual = None  # what was found in a step on rows as they come
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
        resize, log = torch.UntypedStorage.resize_, self.log

        def observed(storage, size):
            before = storage.nbytes()
            result = resize(storage, size)
            log.resized(storage, before)
            return result

        torch.UntypedStorage.resize_ = observed

    def _watch_compilation(self):
        """Hooks of all modules would change what is compiled: without them operations have no module's name."""
        compile_, session = torch.compile, self

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
        log, names = self.log, self._names()
        for optimizer in self.steps.optimizers:
            owners = [weight for group in optimizer.param_groups for weight in group["params"]]
            for weight in owners:
                name = names.get(id(weight), "")
                log.mark(weight, PARAMETER if name else COPY, name)
                if gradients and weight.grad is not None:
                    log.mark(weight.grad, GRADIENT, name + " gradient")
            for weight, state in optimizer.state.items():
                name = names.get(id(weight), "") if isinstance(weight, torch.Tensor) else ""
                for key, value in state.items() if isinstance(state, dict) else ():
                    if isinstance(value, (torch.Tensor, list, tuple, dict)):
                        log.mark(value, OPTIMIZER, f"{name} {key}")

    def _names(self):
        """The names of all weights by their id; modules are named, too."""
        if self.steps.done in self.counted:
            return self.counted[self.steps.done]
        found = [*_modules(), *(module for module in (reference() for reference in self.frozen) if module is not None)]
        inner = {id(child) for module in found for child in module.children()}
        names = {}
        for root in found:
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
                self.usual = self.found()
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
            self.counted_figures = self.found()
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
        smaller = None if self.rows is None else self.rows.smaller_batch()
        with_less = "" if smaller is None else " with batches of {} rows in place of {}".format(*smaller)
        self.talk.note(f"the script ran out of memory in a step, and went on{with_less}: a later step was followed.")

    def _ran_out(self):
        """Whether a card had no memory left at some moment of the last step."""
        last = self.phases[-1]
        before = self.phases[-2] if len(self.phases) > 1 else []
        ooms = [sum(peaks["ooms"] for peaks in cards) for cards in (before, last)]
        return ooms[1] > ooms[0]

    def _fullest_card(self):
        """The number of the card on which most was reserved."""
        cards = range(len(self.phases[-1]) if self.phases else 0)
        return max(cards, key=lambda card: max(_of_card(phase, card, "reserved") for phase in self.phases), default=0)

    def _stop(self):
        self.recorder.__exit__(None, None, None)
        self.talk.is_over = True
        found = self.found()
        if self.usual is not None:
            for name in ("operations", "launches"):
                found[name] = self.usual[name]  # its time is that of rows as they come
        self.talk.found(found)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)  # no `finally` of the script, which might save or send, and no way to catch it

    # --- what was found ---

    def found(self):
        """What is written for whoever judges it, in JSON's types."""
        storages.settle_activations(self.log.events)
        names = self._names()
        modules = names
        card = self._fullest_card()
        events = [event for event in self.log.events if event[0].card in (card, None)]
        entries = {}
        for entry, _, _ in events:
            if entry.number not in entries:
                module = "" if entry.module is None else modules.get(id(entry.module), type(entry.module).__name__)
                made_by = entry.name or " ".join(filter(None, (module, entry.operation.partition(".")[0])))
                entries[entry.number] = [entry.bytes, entry.kind, entry.phase, made_by]
        weights = {}
        for optimizer in self.steps.optimizers:
            for group in optimizer.param_groups:
                weights.update({id(weight): weight for weight in group["params"]})
        operations = []
        for (phase, caller, module, call), times in self.recorder.operations.items():
            operations.append([phase, caller, modules.get(module, ""), call, times])
        return {
            "torch": torch.__version__,
            "events": [[entry.number, sign] for entry, sign, _ in events],
            "entries": entries,
            "step_start": sum(event[0].card in (card, None) for event in self.log.events[: self.step_start]),
            "operations": operations,
            "phases": [cards[card] for cards in self.phases if card < len(cards)],
            "card": card,
            "cards_used": sum(any(cards[each]["reserved"] for cards in self.phases) for each in device.cards()),
            "device": device.counters(card),
            "launches": self.recorder.launches.of_step(),
            "trained": [[weight.numel(), str(weight.dtype)] for weight in weights.values() if weight.requires_grad],
            "parameters": sum(entry[0] for entry in entries.values() if entry[1] == PARAMETER),
            "tf32": _uses_tf32(),
            "device_type": self.log.device_type,
            "hidden_by": device.hidden_by(),
            "facts": self._facts(),
        }

    def _facts(self):
        if self.levers is None:
            return {}
        self.levers.optimizers(self.steps.optimizers)
        return self.levers.facts


def _of_card(phase, card, name):
    """A figure of a card in a phase; 0 where the card was not there yet."""
    return phase[card][name] if card < len(phase) else 0


def _modules():
    """All modules that the garbage collector knows."""
    return [each for each in gc.get_objects() if issubclass(type(each), torch.nn.Module)]


def _uses_tf32():
    try:
        return torch.get_float32_matmul_precision() != "highest"
    except RuntimeError:  # it was set in both ways
        return True

"""The command `chat`: talk to a trained model in the terminal, also beside the model that it was before."""

from __future__ import annotations

import argparse
import io
import re
import shlex
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from legroom import invocation
from legroom.cli import console
from legroom.errors import Refusal
from legroom.machine import host, worker_environment
from legroom.records import saved_model

if TYPE_CHECKING:
    from legroom.models.trained import Trained  # imports torch

KEYS = "/new begins again, /quit (or Ctrl-D) ends"


def main(argv: list[str]) -> int:
    """Run the command until /quit, Ctrl-D or the end of the input. Returns its exit code."""
    arguments = _parser().parse_args(argv)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)  # as Ctrl-C, they would only end an answer
    others = [word for word in argv if Path(word) != arguments.folder]
    folder, record = saved_model.locate(arguments.folder, shlex.join(["chat", *others]))
    saved_model.check_talks(folder, record, arguments.compare)  # before libraries are imported
    with worker_environment.quiet_libraries():
        worker_environment.prepare_imports()
        from legroom.models import trained

        device = arguments.device or ("cuda" if host.gpus() else "cpu")
        opened = trained.open_trained(arguments.folder, device, arguments.compare)
    conversation = Conversation(opened, arguments)
    for line in opened.notes:
        console.say(f"Note: {line}")
    for stream in (sys.stdin, sys.stdout):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # bytes that are no text, and characters that the terminal lacks
    talk(conversation, sys.stdin.isatty())
    return 0


def talk(conversation: Conversation, asks: bool) -> None:
    """Answer line by line. asks: a person types; else each line of the input is a message."""
    if asks:
        console.say(f"{conversation.heading} {KEYS}.")
    while True:
        try:
            line = input("> " if asks else "")
        except (EOFError, KeyboardInterrupt):
            if asks:
                print()  # the shell's prompt gets a line of its own
            return
        if line.strip() == "/quit":
            return
        if line.strip() == "/new":
            conversation.messages.clear()
        elif re.match(r"/\w*(\s|$)", line):  # a path has a second slash
            print(f"{line.split()[0]} is not known here; {KEYS}. A text may begin with a space.", file=sys.stderr)
        elif line.strip():
            try:
                conversation.answer(line)
            except KeyboardInterrupt:  # ends the answer
                print()
            except Refusal as refusal:
                console.say_problems([str(refusal)])


class Conversation:
    """What was said, and the model that answers, with the chat template of its tokenizer.

    Without a template each line is a text that the model continues.
    """

    def __init__(self, opened: Trained, arguments: argparse.Namespace):
        from legroom.data import answer_ends

        self.opened = opened
        self.arguments = arguments
        self.messages: list[dict[str, str]] = []
        self.has_template = opened.tokenizer.chat_template is not None
        if arguments.system and not self.has_template:
            raise Refusal("--system: the tokenizer has no chat template, so there are no roles. Leave it out.")
        if self.has_template:
            self.heading = "Talk to the model."
        else:
            self.heading = "No chat template: type a text, and the model continues it."
        ends = getattr(opened.model.generation_config, "eos_token_id", None)
        self.ends = answer_ends.end_tokens(opened.tokenizer, ends, opened.notes.append)

    def answer(self, line: str) -> None:
        """Print the answer to a line as it is made, and keep it. With --compare the former model's stands first."""
        messages = [*self.messages, {"role": "user", "content": line}]
        if self.arguments.compare and self.opened.base is not None:
            print(f"[{self.opened.base_name}]")
            with self.opened.base() as other:
                self._generate(other or self.opened.model, messages)
            print("[trained]")
        text = self._generate(self.opened.model, messages)
        self.messages = [*messages, {"role": "assistant", "content": text}]

    def _generate(self, model: Any, messages: list[dict[str, str]]) -> str:
        import torch
        from transformers import TextStreamer

        from legroom.models import architectures

        torch.manual_seed(self.arguments.seed)
        ids = self._ids(messages).to(model.device)  # (1, T)
        limit = getattr(model.config.get_text_config(), "max_position_embeddings", None) or 0
        room = self.arguments.tokens
        if limit >= 1:  # XLNet has -1 for no limit
            room = min(room, limit - ids.shape[1])
        if room < 1:
            raise Refusal(f"this conversation has {ids.shape[1]} tokens, and the model sees {limit}. Type /new.")
        vocabulary = architectures.vocabulary(model.config)
        highest = int(ids.max())
        if vocabulary is not None and highest >= vocabulary:
            raise Refusal(
                f"this conversation has token ids up to {highest}, and the model a vocabulary of {vocabulary}. Tokens "
                "were added to the tokenizer after the weights were trained: resize the embeddings."
            )
        sampling: dict[str, Any] = {"do_sample": False}
        if self.arguments.temperature:
            sampling = {"do_sample": True, "temperature": self.arguments.temperature, "top_k": 0}
        with torch.inference_mode():
            generated = model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=room,
                eos_token_id=self.ends or None,
                pad_token_id=self.ends[0] if self.ends else 0,
                streamer=TextStreamer(self.opened.tokenizer, skip_prompt=True, skip_special_tokens=True),
                **sampling,
            )
        return self.opened.tokenizer.decode(generated[0, ids.shape[1] :], skip_special_tokens=True)

    def _ids(self, messages: list[dict[str, str]]) -> Any:
        """The token ids (1, T) that the model continues."""
        tokenizer = self.opened.tokenizer
        if not self.has_template:
            return tokenizer(messages[-1]["content"], return_tensors="pt")["input_ids"]
        if self.arguments.system:
            messages = [{"role": "system", "content": self.arguments.system}, *messages]
        try:
            text = tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True, **self.opened.template_arguments
            )
        except Exception as error:  # a template is a program
            raise Refusal(f"the chat template does not take this conversation: {error}") from None
        return tokenizer(text, add_special_tokens=False, split_special_tokens=False, return_tensors="pt")["input_ids"]


def tokens(text: str) -> int:
    """A count of tokens. Raises ValueError, for which argparse says which argument is wrong."""
    count = int(text)
    if count < 1:
        raise ValueError("at least 1")
    return count


def temperature(text: str) -> float:
    """A temperature. Raises ValueError as `tokens` does."""
    value = float(text)
    if not 0 <= value < float("inf"):
        raise ValueError("at least 0")
    return value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=invocation.command("chat"),
        description="Talk to a trained model: a line is a message. Off a terminal each line of the input is answered.",
        epilog=f"In the conversation: {KEYS}.",
    )
    parser.add_argument(
        "folder", type=invocation.path, metavar="RUN", help="a run's folder, or of a model or an adapter"
    )
    parser.add_argument("--compare", action="store_true", help="also show what the model said before the training")
    parser.add_argument("--system", default="", metavar="TEXT", help="the system message")
    parser.add_argument("--tokens", type=tokens, default=256, metavar="N", help="of an answer, at most (256)")
    parser.add_argument(
        "--temperature",
        type=temperature,
        default=0.0,
        help="0: always the likeliest token (default); 1: drawn as learned",
    )
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="by default the GPU where there is one")
    return parser

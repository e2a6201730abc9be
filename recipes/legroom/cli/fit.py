"""The fastest configurations that fit a GPU, with the commands to paste.

    {fit} model=gpt2_xl gpu=rtx4090_24gb batch.effective=64 'fit.allow=[precision,optim]'
    {fit} model=gpt2_xl gpu=rtx4090_24gb fit.gpus=4 batch.effective=64 data.seq_len=1024

    {fit} model=bert_large gpu=l4_24gb,rtx4090_24gb,a100_80gb 'fit.gpus=[1,2,4]' batch.effective=64

Takes the overrides of {train}. What they leave open of precision, checkpointing, attention, optimizer and batch is
searched, and with fit.gpus=4 how four GPUs train together; the effective batch stays the same.
With several GPUs of the menu, gpu='glob(*)' for all, or several numbers of them, each is searched, and the table has
the best configuration of each.

    fit.keep=[checkpointing]     keep these as they are
    fit.allow=[optim,precision]  also search these, which change the numbers a training computes; adapter is
                                 another
    fit.top=5                    how many rows to print
    fit.allow=[mesh]             the layouts of parallelism=mesh for fit.gpus=8 or more: tensor, pipeline, shards
    fit.gpus=4                   how many GPUs train together; [1,2,4] compares
    fit.prices={{l4_24gb:0.7}}     of a GPU and hour; then the table of several GPUs has the cost of a million tokens;
                                 machines of clouds (gpu=aws/p5.48xlarge,gcp/a3-highgpu-8g) have dated prices
    fit.sort=cost                the table of several GPUs by cost, or by hours of the whole run; speed otherwise

Exit code 0 when something fits, 3 when nothing does, 2 for a refusal.
"""

import time
from concurrent.futures.process import BrokenProcessPool

from legroom import invocation, paths
from legroom.cli import console, exit_codes, flags
from legroom.errors import Refusal, first_line, is_out_of_memory
from legroom.foresight.search import plan, pool, present, request
from legroom.options import model_names

NO_MEMORY = "this machine may be out of memory. That says nothing about the GPU."


def main(argv: list[str]) -> int:
    """Run the command. Returns its exit code: 0 if something fits, 3 if nothing does, 130 for Ctrl-C."""
    if not argv or {"-h", "--help"} & set(argv):
        print((__doc__ or "").format(fit=invocation.command("fit"), train=invocation.command()), end="")
        return 0
    try:
        return find(flags.take_own_menus(argv))
    except KeyboardInterrupt:
        return exit_codes.INTERRUPTED


def find(argv: list[str]) -> int:
    """Search for what the command line leaves open, and print it. Returns the exit code."""
    options, typed, problems = request.read_options(argv)
    if problems:
        raise Refusal("\n".join(problems))
    overrides, notes = model_names.in_overrides(typed, paths.menus())
    for note in notes:
        console.say(note)
    places, others, problems = request.read_places(overrides, options)
    if problems:
        raise Refusal("\n".join(problems))
    for instance in dict.fromkeys(place.instance for place in places):
        if instance is not None:
            console.say(f"{instance.name}: {instance.text}.")
    try:
        if len(places) > 1:
            return _find_places(places, others, options)
        (place,) = places
        typed_once = f"gpu={place.gpu}" in overrides and len(others) == len(overrides) - 1
        if place.gpu is not None and (options.prices or not typed_once or place.instance):
            overrides = place.overrides(others, options)
        return _find_one(overrides, place.options(options))
    except BrokenProcessPool:
        console.say_problems([f"a worker process was killed: {NO_MEMORY}"])
        return 1
    except (MemoryError, RuntimeError, OSError) as error:
        if not is_out_of_memory(error):
            raise
        console.say_problems([f"{type(error).__name__} in an estimate ({first_line(error)}): {NO_MEMORY}"])
        return 1


def _find_one(overrides: list[str], options: request.Options) -> int:
    """Search for one GPU, or one number of them, and print the table. Returns the exit code."""
    search, problems = plan.plan(overrides, options)
    if search is None:
        raise Refusal("\n".join(problems))
    reads_model = bool(search.base.model.pretrained)
    if not reads_model:
        console.say(present.heading(search))
    start = time.monotonic()
    with pool.worker_pool(search.base) as workers, console.Heartbeat("reading the model") as beat:
        from legroom.foresight.search import runner  # imports torch, which a refusal need not wait for

        if reads_model:
            problem = workers.submit(runner.refused_model, search.base).result()
            if problem:
                raise Refusal(problem)
            console.say(present.heading(search))
        result = runner.run(search, options.top, workers, beat.show)
    console.say(present.report(search, result, time.monotonic() - start))
    return 0 if result.fits else exit_codes.OUT_OF_MEMORY


def _find_places(places: list[request.Place], others: list[str], options: request.Options) -> int:
    """Search for each of several GPUs or numbers of them, and print what each is best with. Returns the exit code."""
    with console.Heartbeat("composing") as beat:
        planned, refused = plan.plan_all(places, others, options, beat.show)
    if not planned:
        problems: dict[str, None] = {}  # each once
        for lines in refused.values():
            problems |= dict.fromkeys(lines)
        raise Refusal("\n".join(problems))
    start = time.monotonic()
    done = []
    interrupted = False
    with pool.worker_pool(planned[0][1].base) as workers, console.Heartbeat("reading the model") as beat:
        from legroom.foresight.search import runner  # imports torch

        first = planned[0][1].base
        if first.model.pretrained:
            problem = workers.submit(runner.refused_model, first).result()
            if problem:
                raise Refusal(problem)
        console.say(present.heading_of_places(planned, refused))
        try:
            for number, (place, search) in enumerate(planned, 1):
                at = f"{number} of {len(planned)}, {place.label}: "
                result = runner.run(search, 1, workers, lambda text, at=at: beat.show(at + text))
                done.append(present.Searched(place, search, result))
        except KeyboardInterrupt:  # what was found is not lost
            interrupted = True
            console.say(f"Interrupted: {len(done)} of {len(planned)} are searched.")
    if done:
        console.say(present.report_of_places(done, options, time.monotonic() - start))
    if interrupted:
        return exit_codes.INTERRUPTED
    if any(searched.result.fits for searched in done):
        return 0
    return exit_codes.OUT_OF_MEMORY

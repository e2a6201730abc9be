"""The data of a search's extrapolations, which a worker process builds once for all configurations that share it."""

from __future__ import annotations

import json
from dataclasses import replace

from legroom import config
from legroom.config import Config
from legroom.data import dataset
from legroom.data.dataset import Data, Head
from legroom.options import parallelism

KEPT = 4  # packed rows and others, of two modes of parallelism

_BUILT: dict[str, Data] = {}


def build_data(cfg: Config, task: str, vocab: int, head: Head = None, last_id: int | None = None) -> Data:
    """`dataset.build_data`, or what it has returned for a configuration that differs in other things."""
    values = config.to_dict(cfg)
    del values["model"]["layers"], values["model"]["attention"]  # which extrapolations change
    parts = [values[section] for section in ("data", "eval", "model")]
    known = [*parts, cfg.train.seed, parallelism.data_share(cfg), task, vocab, head and dict(head), last_id]
    key = json.dumps(known, sort_keys=True, default=str)
    if key not in _BUILT:
        if len(_BUILT) >= KEPT:
            _BUILT.clear()
        _BUILT[key] = dataset.build_data(cfg, task, vocab, head, last_id)
    return replace(_BUILT[key], warnings=list(_BUILT[key].warnings))

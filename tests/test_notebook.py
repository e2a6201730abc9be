"""The notebook of examples/, from its prediction to the merged model, with a tiny model on the CPU."""

from __future__ import annotations

import os
import re
import shutil

import pytest
from conftest import ROOT

nbformat = pytest.importorskip("nbformat", reason="`make setup` installs it")
nbclient = pytest.importorskip("nbclient", reason="`make setup` installs it")

NOTEBOOK = ROOT / "examples" / "own_chat.ipynb"
# llama.cpp's converter does not know the tokenizer of bytes that a tiny model has, and would have to be cloned.
SETTINGS = """
MODEL = {model!r}
EPOCHS = 1
LEVERS = ["adapter=lora", "precision=fp32"]
SEQ_LEN = 64
TO_GGUF = False
"""


def tagged(notebook, tag: str) -> int:
    """The index of the one cell with a tag."""
    (found,) = [index for index, cell in enumerate(notebook.cells) if tag in cell.metadata.get("tags", [])]
    return found


def printed(notebook) -> str:
    return "".join(output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", []))


def test_no_output_is_stored():
    """What a reader sees was made on the reader's machine."""
    cells = [cell for cell in nbformat.read(NOTEBOOK, as_version=4).cells if cell.cell_type == "code"]
    assert cells and not any(cell.outputs or cell.execution_count for cell in cells)


@pytest.mark.timeout(600)
def test_from_the_prediction_to_the_merged_model(train, tmp_path, monkeypatch):
    base = train("model=llama_tiny", "data=source", "save.final=true", "measure.ledger=false").folder / "model"
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    del notebook.cells[tagged(notebook, "install")]
    notebook.cells.insert(
        tagged(notebook, "parameters") + 1, nbformat.v4.new_code_cell(SETTINGS.format(model=str(base)))
    )
    shutil.copy(ROOT / "examples" / "talks.jsonl", tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "recipes"), os.environ.get("PYTHONPATH", "")]))
    nbclient.NotebookClient(notebook, timeout=500, resources={"metadata": {"path": str(tmp_path)}}).execute()
    text = printed(notebook)
    assert re.search(r"^fits: ", text, re.MULTILINE) and re.search(r"^ok: ", text, re.MULTILINE), text
    tensors = re.search(r"^tensors at the peak +([\d.]+) MiB +([\d.]+) MiB", text, re.MULTILINE)
    assert tensors is not None and float(tensors[1]) == pytest.approx(float(tensors[2]), rel=0.1), text
    assert list((tmp_path / "outputs/own_chat/trained/merged").glob("*.safetensors"))

"""A small BERT of the library of that name: decorated forwards, and outputs with fields of None."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from alike import difference, tensors
from torch import nn
from zoo.acting import EITHER, compiled, watched
from zoo.checks import recorded

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.usefixtures("extensions")

SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 50}
IDS = torch.arange(14).view(2, 7) % 50
GIVEN = {"input_ids": IDS, "attention_mask": (IDS % 7 < 5).long()}


def bert(name: str) -> nn.Module:
    config = transformers.BertConfig(**SIZES, intermediate_size=32, max_position_embeddings=16)
    torch.manual_seed(0)
    module: nn.Module = getattr(transformers, name)(config).eval()
    return module


EXAMPLES: dict[str, tuple[str, dict[str, Any]]] = {
    "a model": ("BertModel", GIVEN),
    "its hidden states": ("BertModel", {**GIVEN, "output_hidden_states": True}),
    "with a loss": ("BertForSequenceClassification", {**GIVEN, "labels": torch.tensor([0, 1])}),
}


@pytest.mark.parametrize("case", EXAMPLES)
def test_outputs_and_gradients_are_eagers(case: str) -> None:
    name, given = EXAMPLES[case]
    fused, eager = compiled(bert(name), **given)
    others: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((), given),
        ((IDS,), {"output_hidden_states": True}),
        ((), {**given, "return_dict": False}),
    ]
    for args, kwargs in others:
        with watched(fused, EITHER):
            ours, found = recorded(fused, (args, kwargs))
        theirs, wanted = recorded(eager, (args, kwargs))
        for mine, other in ((ours, theirs), (found, wanted)):
            assert difference(mine, other) is None
            for a, b in zip(tensors(mine), tensors(other), strict=True):
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)

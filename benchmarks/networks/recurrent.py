"""Recurrent layers between a projection and a head: LSTM, GRU, plain RNN, both directions."""

import torch
from torch import nn

VARIANTS = {
    "lstm": dict(kind="LSTM", batch=32, tokens=512, width=256, layers=2, both=False, dropout=0.1),
    "gru": dict(kind="GRU", batch=32, tokens=512, width=256, layers=2, both=False, dropout=0.1),
    "bilstm": dict(kind="LSTM", batch=32, tokens=128, width=256, layers=2, both=True, dropout=0.0),
    "rnn": dict(kind="RNN", batch=32, tokens=512, width=256, layers=1, both=False, dropout=0.0),
    "small": dict(kind="LSTM", batch=3, tokens=5, width=8, layers=2, both=True, dropout=0.1),
    "small_gru": dict(kind="GRU", batch=3, tokens=5, width=8, layers=1, both=False, dropout=0.0),
    "small_rnn": dict(kind="RNN", batch=3, tokens=5, width=8, layers=1, both=False, dropout=0.0),
}
CHOSEN = "lstm"
sizes = VARIANTS[CHOSEN]


class Model(nn.Module):
    def __init__(self, kind, width, layers, both, dropout):
        super().__init__()
        self.inward = nn.Linear(width, width)
        self.cell = getattr(nn, kind)(
            width, width, layers, batch_first=True, bidirectional=both, dropout=dropout
        )
        self.norm = nn.LayerNorm(width * (2 if both else 1))
        self.head = nn.Linear(width * (2 if both else 1), 10)

    def forward(self, x):
        hidden, last = self.cell(torch.relu(self.inward(x)))
        state = last[0] if isinstance(last, tuple) else last
        return self.head(self.norm(hidden)[:, -1]), torch.tanh(state)


def get_inputs():
    return [torch.randn(sizes["batch"], sizes["tokens"], sizes["width"])]


def get_init_inputs():
    return [sizes[name] for name in ("kind", "width", "layers", "both", "dropout")]

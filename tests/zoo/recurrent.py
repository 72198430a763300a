"""Recurrent layers, unrolled cells and scans over time."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from zoo.case import Case, tokens, x, xs


class LSTMTagger(nn.Module):
    def __init__(self, bidirectional: bool = False) -> None:
        super().__init__()
        self.lstm = nn.LSTM(5, 4, batch_first=True, bidirectional=bidirectional)
        self.head = nn.Linear(8 if bidirectional else 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.lstm(x)
        return torch.log_softmax(self.head(out), dim=-1)


class GRUClassifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 5)
        self.gru = nn.GRU(5, 4, num_layers=2, batch_first=True)
        self.norm = nn.LayerNorm(4)

    def forward(self, tokens: Tensor) -> Tensor:
        _, last = self.gru(self.embed(tokens))
        return torch.tanh(self.norm(last[-1]))


class ByCell(nn.Module):
    """A cell in a Python loop; the state starts as zeros of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(4, 5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = x.new_zeros(x.shape[0], 5)
        c = torch.zeros_like(h)
        outputs = []
        for step in x.unbind(1):
            h, c = self.cell(step, (h, c))
            outputs.append(h)
        return torch.stack(outputs, dim=1), c


class GRUByHand(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inputs = nn.Linear(4, 15)
        self.hidden = nn.Linear(5, 15)

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        for t in range(x.shape[1]):
            i_r, i_z, i_n = self.inputs(x[:, t]).chunk(3, -1)
            h_r, h_z, h_n = self.hidden(h).chunk(3, -1)
            r, z = torch.sigmoid(i_r + h_r), torch.sigmoid(i_z + h_z)
            n = torch.tanh(i_n + r * h_n)
            h = (1 - z) * n + z * h
        return h


class MovingAverage(nn.Module):
    """A diagonal linear recurrence with learned rates."""

    def __init__(self) -> None:
        super().__init__()
        self.rate = nn.Parameter(torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        keep = torch.sigmoid(self.rate)
        state, out = x[:, 0], []
        for t in range(x.size(1)):
            state = keep * state + (1 - keep) * x[:, t]
            out.append(state)
        return torch.stack(out, 1)


class CumulativeMean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        counts = torch.arange(1, x.shape[1] + 1, device=x.device, dtype=x.dtype)
        return torch.relu(torch.cumsum(x, dim=1) / counts[None, :, None])


CASES = [
    Case("lstm_bare", lambda: nn.LSTM(5, 4, batch_first=True), x(3, 5),
         only_aten="the layer is one ATen operator", mode_matters=True),
    Case("lstm_tagger", LSTMTagger, x(3, 5), mode_matters=True),
    Case("lstm_bidirectional", lambda: LSTMTagger(True), x(3, 5), mode_matters=True),
    Case("gru_classifier", GRUClassifier, tokens(3), mode_matters=True),
    Case("rnn_sequence_first", lambda: nn.RNN(5, 4), lambda n: (torch.randn(3, n, 5),),
         falls_back="the batch is the second dimension",
         only_aten="the layer is one ATen operator", mode_matters=True),
    Case("lstm_cell_loop", ByCell, x(3, 4), only_aten="a cell is one ATen operator"),
    Case("gru_by_hand", GRUByHand, xs((3, 4), (5,))),
    Case("moving_average", MovingAverage, x(5, 4)),
    Case("cumulative_mean", CumulativeMean, x(5, 4)),
]  # fmt: skip

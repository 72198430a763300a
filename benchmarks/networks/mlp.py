"""Linear layers with ReLU between them: wide and shallow, narrow and deep."""

import torch
from torch import nn

VARIANTS = {
    "mlp3": dict(batch=1024, layers=3, width=4096, classes=1000, dropout=0.0),
    "mlp8": dict(batch=1024, layers=8, width=2048, classes=1000, dropout=0.1),
    "mlp20": dict(batch=1024, layers=20, width=1024, classes=1000, dropout=0.0),
    "small": dict(batch=6, layers=3, width=24, classes=7, dropout=0.1),
}
CHOSEN = "mlp3"
sizes = VARIANTS[CHOSEN]


class Model(nn.Module):
    def __init__(self, layers, width, classes, dropout):
        super().__init__()
        steps = []
        for _ in range(layers - 1):
            steps += [nn.Linear(width, width), nn.ReLU(inplace=True), nn.Dropout(dropout)]
        self.body = nn.Sequential(*steps)
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        return self.head(self.body(x))


def get_inputs():
    return [torch.randn(sizes["batch"], sizes["width"])]


def get_init_inputs():
    return [sizes[name] for name in ("layers", "width", "classes", "dropout")]

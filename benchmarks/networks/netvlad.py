"""NetVLAD-like pooling: soft assignment of features to clusters, residuals added up, normalised."""

import torch
import torch.nn.functional as F
from torch import nn

VARIANTS = {
    "netvlad": dict(batch=128, features=100, width=512, clusters=32, ghosts=16),
    "small": dict(batch=3, features=7, width=12, clusters=4, ghosts=2),
}
CHOSEN = "netvlad"
sizes = VARIANTS[CHOSEN]


class Model(nn.Module):
    """Ghost clusters take assignments, and their residuals are dropped."""

    def __init__(self, width, clusters, ghosts):
        super().__init__()
        self.clusters = clusters
        self.assign = nn.Linear(width, clusters + ghosts, bias=False)
        self.norm = nn.BatchNorm1d(clusters + ghosts)
        self.centres = nn.Parameter(torch.randn(1, width, clusters) * width**-0.5)

    def forward(self, x):
        batch, features, width = x.shape
        scores = self.norm(self.assign(x.reshape(-1, width)))
        weights = F.softmax(scores, dim=1)[:, : self.clusters]
        weights = weights.view(batch, features, self.clusters)
        total = weights.sum(dim=1, keepdim=True) * self.centres
        vlad = torch.matmul(weights.transpose(1, 2), x).transpose(1, 2) - total
        vlad = F.normalize(vlad, dim=1)
        return F.normalize(vlad.reshape(batch, -1), dim=1)


def get_inputs():
    return [torch.randn(sizes["batch"], sizes["features"], sizes["width"])]


def get_init_inputs():
    return [sizes[name] for name in ("width", "clusters", "ghosts")]

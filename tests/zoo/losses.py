"""Heads and losses as modules: what a training script calls at the end of its forward."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.case import Case, x, xs


class LinearLoss(nn.Module):
    """A Linear and torch's loss against a target that is an input."""

    def __init__(self, loss: nn.Module, outside: int = 4) -> None:
        super().__init__()
        self.fc = nn.Linear(6, outside)
        self.loss = loss

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return self.loss(self.fc(x), target)


class LogitsAndLoss(nn.Module):
    """The style of language-model libraries: a loss if targets are given, logits always."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 5)

    def forward(self, x: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        logits = self.head(x)
        if targets is None:
            return logits, None
        loss = F.cross_entropy(logits.view(-1, 5), targets.reshape(-1), ignore_index=-1)
        return logits, loss


class Distillation(nn.Module):
    def __init__(self, temperature: float = 2.0) -> None:
        super().__init__()
        self.temperature = temperature

    def forward(self, student: Tensor, teacher: Tensor) -> Tensor:
        t = self.temperature
        log_p, q = F.log_softmax(student / t, dim=1), F.softmax(teacher / t, dim=1)
        return F.kl_div(log_p, q, reduction="batchmean") * t * t


class KLDiv(nn.Module):
    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return F.kl_div(x.log_softmax(-1), target.log_softmax(-1), log_target=True)


class InfoNCE(nn.Module):
    """Contrastive loss of two views: the diagonal of the similarities is the positive pair."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(6, 4)
        self.logit_scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        a, b = F.normalize(self.project(a), dim=1), F.normalize(self.project(b), dim=1)
        logits = a @ b.t() * self.logit_scale.exp()
        labels = torch.arange(a.size(0), device=a.device)
        return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)) / 2


class Triplet(nn.Module):
    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        return F.triplet_margin_loss(anchor, positive, negative, margin=0.7)


class TripletByHand(nn.Module):
    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        near = (anchor - positive).pow(2).sum(1)
        far = (anchor - negative).pow(2).sum(1)
        return F.relu(near - far + 1.0).mean()


class Focal(nn.Module):
    def __init__(self, gamma: float = 2.0) -> None:
        super().__init__()
        self.gamma = gamma

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        loss = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
        return ((1 - torch.exp(-loss)) ** self.gamma * loss).mean()


class Dice(nn.Module):
    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        p = torch.sigmoid(logits).flatten(1)
        target = target.flatten(1)
        overlap = 2 * (p * target).sum(1) + 1.0
        return (1 - overlap / (p.sum(1) + target.sum(1) + 1.0)).mean()


class CosineHead(nn.Module):
    """Cosines to learned class vectors, with a learned temperature."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, 6))
        self.scale = nn.Parameter(torch.tensor(10.0))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * F.cosine_similarity(x.unsqueeze(1), self.weight.unsqueeze(0), dim=-1)


class LogSumExpHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 9)

    def forward(self, x: Tensor) -> Tensor:
        energy = torch.logsumexp(self.fc(x) / 0.5, dim=1, keepdim=True)
        return -0.5 * energy


class MixtureDensity(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 9)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        logits, mean, log_scale = self.fc(x).chunk(3, dim=-1)
        log_p = -0.5 * ((y - mean) / log_scale.exp()) ** 2 - log_scale
        return -torch.logsumexp(F.log_softmax(logits, -1) + log_p, dim=-1).mean()


class Regularised(nn.Module):
    """A loss with a penalty on the weights themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 3)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        penalty = sum(p.pow(2).sum() for p in self.parameters())
        return F.mse_loss(self.fc(x), target) + 0.01 * penalty


class MeanPerSample(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.square().sum() / x.shape[0]


def classes(n: int) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 6), torch.randint(4, (n,))


def targets(n: int) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 6), torch.randn(n, 4)


def binary(n: int) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 6), (torch.rand(n, 6) > 0.5).float()


LOSS = "the loss is one operator of ATen"

CASES = [
    Case("cross_entropy", lambda: LinearLoss(nn.CrossEntropyLoss()), classes),
    Case("cross_entropy_smoothed", lambda: LinearLoss(nn.CrossEntropyLoss(label_smoothing=0.1)),
         classes),
    Case("cross_entropy_weighted",
         lambda: LinearLoss(nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.5, 0.1]))),
         classes, only_aten=LOSS),
    Case("mse_loss", lambda: LinearLoss(nn.MSELoss()), targets, only_aten=LOSS),
    Case("l1_loss_sum", lambda: LinearLoss(nn.L1Loss(reduction="sum")), targets, only_aten=LOSS),
    Case("huber_loss", lambda: LinearLoss(nn.HuberLoss(delta=0.5)), targets, only_aten=LOSS),
    Case("smooth_l1_loss", lambda: LinearLoss(nn.SmoothL1Loss(beta=0.3)), targets, only_aten=LOSS),
    Case("gaussian_nll", lambda: nn.GaussianNLLLoss(),
         lambda n: (torch.randn(n, 4), torch.randn(n, 4), torch.rand(n, 4) + 0.1),
         refused="it raises by the values of a tensor", only_aten=LOSS),
    Case("poisson_nll", lambda: nn.PoissonNLLLoss(), xs((4,), (4,)), only_aten=LOSS),
    Case("logits_and_loss", LogitsAndLoss,
         lambda n: (torch.randn(n, 3, 6), torch.randint(5, (n, 3)))),
    Case("logits_without_loss", LogitsAndLoss, x(3, 6),
         only_aten="a Linear alone is one library call"),
    Case("distillation_batchmean", Distillation, xs((5,), (5,))),
    Case("kl_div_log_target", KLDiv, xs((5,), (5,))),
    Case("contrastive_info_nce", InfoNCE, xs((6,), (6,))),
    Case("triplet_loss", Triplet, xs((6,), (6,), (6,))),
    Case("triplet_by_hand", TripletByHand, xs((6,), (6,), (6,))),
    Case("focal_loss", Focal, binary),
    Case("dice_loss", Dice, binary),
    Case("cosine_head", CosineHead, x(6)),
    Case("logsumexp_head", LogSumExpHead, x(6)),
    Case("mixture_density", MixtureDensity, lambda n: (torch.randn(n, 6), torch.randn(n, 1))),
    Case("weight_penalty", Regularised, xs((6,), (3,))),
    Case("mean_per_sample", MeanPerSample, x(6)),
    Case("triplet_swapped_sum", lambda: nn.TripletMarginLoss(p=1.0, swap=True, reduction="sum"),
         xs((6,), (6,), (6,))),
    Case("cross_entropy_of_pixels", lambda: nn.CrossEntropyLoss(ignore_index=2),
         lambda n: (torch.randn(n, 5, 3, 4), torch.randint(5, (n, 3, 4)))),
]  # fmt: skip

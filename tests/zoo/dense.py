"""Models of vectors: perceptrons, gates, experts, adapters, autoencoders, embeddings."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.case import Case, tokens, x, xs


class MLP(nn.Module):
    def __init__(self, *widths: int, act: type[nn.Module] = nn.ReLU) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        self.act = act()

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = self.act(layer(x))
        return self.layers[-1](x)


class ResidualMLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.fc1, self.fc2 = nn.Linear(8, 12), nn.Linear(12, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.fc2(F.gelu(self.fc1(self.norm(x))))


class SwiGLU(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w1 = nn.Linear(6, 10, bias=False)
        self.w2 = nn.Linear(10, 6, bias=False)
        self.w3 = nn.Linear(6, 10, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class GatedByChunk(nn.Module):
    """GEGLU: one projection, cut in half."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(6, 16)

    def forward(self, x: Tensor) -> Tensor:
        value, gate = self.project(x).chunk(2, dim=-1)
        return value * F.gelu(gate)


class GLUBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 8)

    def forward(self, x: Tensor) -> Tensor:
        return F.glu(self.fc(x), dim=-1) + 0.1


class Highway(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.transform, self.gate = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        t = torch.sigmoid(self.gate(x))
        return t * F.relu(self.transform(x)) + (1 - t) * x


class SoftExperts(nn.Module):
    """A mixture of experts in which every expert counts by its gate."""

    def __init__(self, experts: int = 3) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(6, 4) for _ in range(experts))
        self.gate = nn.Linear(6, experts)

    def forward(self, x: Tensor) -> Tensor:
        weights = F.softmax(self.gate(x), dim=-1)
        outputs = torch.stack([F.relu(e(x)) for e in self.experts], dim=1)
        return (weights.unsqueeze(-1) * outputs).sum(dim=1)


class TopExperts(nn.Module):
    """Gates of the two best experts only, all experts computed."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(6, 4, bias=False)
        self.weight = nn.Parameter(torch.randn(4, 6, 5))

    def forward(self, x: Tensor) -> Tensor:
        scores, chosen = torch.topk(self.gate(x), 2, dim=-1)
        gates = torch.zeros(x.shape[0], 4, device=x.device, dtype=x.dtype)
        gates = gates.scatter(1, chosen, scores.softmax(-1))
        return torch.einsum("be,beo->bo", gates, torch.einsum("bi,eio->beo", x, self.weight).relu())


class FiLM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.condition = nn.Linear(4, 6)
        self.conv = nn.Conv2d(2, 3, 3, padding=1)

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        gamma, beta = self.condition(c)[:, :, None, None].chunk(2, dim=1)
        return F.relu((1 + gamma) * self.conv(x) + beta)


class LoRALinear(nn.Module):
    def __init__(self, inside: int, outside: int, rank: int = 2, alpha: float = 4.0) -> None:
        super().__init__()
        self.base = nn.Linear(inside, outside)
        self.base.requires_grad_(False)
        self.lora_a = nn.Parameter(torch.randn(rank, inside) * 0.1)
        self.lora_b = nn.Parameter(torch.zeros(outside, rank))
        self.scaling = alpha / rank

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + (x @ self.lora_a.T @ self.lora_b.T) * self.scaling


class MixerBlock(nn.Module):
    def __init__(self, patches: int = 5, channels: int = 6) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.tokens = nn.Sequential(nn.Linear(patches, 7), nn.GELU(), nn.Linear(7, patches))
        self.channels = nn.Sequential(nn.Linear(channels, 7), nn.GELU(), nn.Linear(7, channels))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 2))
        self.decoder = nn.Sequential(nn.Linear(2, 5), nn.ReLU(), nn.Linear(5, 8), nn.Sigmoid())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        code = self.encoder(x)
        return self.decoder(code), code


class VAE(nn.Module):
    """The noise of the reparametrisation is an input, so that a call is a function."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 6)
        self.mean, self.log_variance = nn.Linear(6, 3), nn.Linear(6, 3)
        self.decoder = nn.Linear(3, 8)

    def reparametrise(self, mean: Tensor, log_variance: Tensor, noise: Tensor) -> Tensor:
        return mean + torch.exp(0.5 * log_variance) * noise

    def forward(self, x: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        h = F.relu(self.fc(x))
        mean, log_variance = self.mean(h), self.log_variance(h)
        out = torch.sigmoid(self.decoder(self.reparametrise(mean, log_variance, noise)))
        kl = -0.5 * torch.sum(1 + log_variance - mean.pow(2) - log_variance.exp(), dim=1)
        return out, kl.mean()


class DropoutMLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(6, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.dropout(F.gelu(self.fc1(x)), p=0.3, training=self.training)
        return torch.tanh(self.fc2(x))


class BagOfWords(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6, padding_idx=0)
        self.fc = nn.Linear(6, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        keep = (tokens != 0).unsqueeze(-1)
        pooled = (self.embed(tokens) * keep).sum(1) / keep.sum(1).clamp(min=1)
        return F.log_softmax(self.fc(pooled), dim=-1)


class EmbeddingBagModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(11, 6, mode="mean")
        self.fc = nn.Linear(6, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return F.relu(self.fc(self.bag(tokens)))


class WideAndDeep(nn.Module):
    """Categorical columns through embeddings beside dense ones, as in recommenders."""

    def __init__(self) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(size, 3) for size in (5, 7))
        self.wide = nn.Linear(4, 1)
        self.deep = nn.Sequential(nn.Linear(10, 6), nn.ReLU(), nn.Linear(6, 1))

    def forward(self, dense: Tensor, categories: Tensor) -> Tensor:
        embedded = [e(categories[:, i]) for i, e in enumerate(self.embeddings)]
        deep = self.deep(torch.cat([dense, *embedded], dim=1))
        return torch.sigmoid(self.wide(dense) + deep).squeeze(1)


class FactorisationMachine(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 1)
        self.v = nn.Parameter(torch.randn(6, 3))

    def forward(self, x: Tensor) -> Tensor:
        pairs = (x @ self.v).pow(2) - x.pow(2) @ self.v.pow(2)
        return self.linear(x) + 0.5 * pairs.sum(1, keepdim=True)


class DeepSets(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.phi = nn.Sequential(nn.Linear(4, 6), nn.ReLU())
        self.rho = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.rho(self.phi(x).sum(dim=1)))


class RadialBasis(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.centres = nn.Parameter(torch.randn(7, 4))
        self.log_widths = nn.Parameter(torch.zeros(7))

    def forward(self, x: Tensor) -> Tensor:
        distance = (x.unsqueeze(1) - self.centres.unsqueeze(0)).pow(2).sum(-1)
        return torch.exp(-distance * torch.exp(self.log_widths))


class Maxout(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 12)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x).view(x.shape[0], 4, 3).max(dim=-1).values


class HyperNetwork(nn.Module):
    """One input makes the weights for the other."""

    def __init__(self) -> None:
        super().__init__()
        self.make = nn.Linear(3, 4 * 5)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        weight = self.make(condition).view(-1, 5, 4)
        return torch.tanh(torch.bmm(weight, x.unsqueeze(-1)).squeeze(-1))


class LowRankCross(nn.Module):
    """DCN's cross layer."""

    def __init__(self) -> None:
        super().__init__()
        self.u, self.v = nn.Linear(2, 6), nn.Linear(6, 2, bias=False)

    def forward(self, x0: Tensor, x: Tensor) -> Tensor:
        return x0 * self.u(self.v(x)) + x


class FourierFeatures(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("frequencies", torch.randn(3, 5))
        self.fc = nn.Linear(10, 3)

    def forward(self, coordinates: Tensor) -> Tensor:
        angles = 2 * torch.pi * coordinates @ self.frequencies
        return torch.sigmoid(self.fc(torch.cat([angles.sin(), angles.cos()], dim=-1)))


class TimeEmbedding(nn.Module):
    """Diffusion models' embedding of an integer step."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, step: Tensor) -> Tensor:
        rates = torch.exp(torch.arange(4, device=step.device) * -0.5)
        angles = step[:, None].to(self.fc1.weight.dtype) * rates[None]
        return self.fc2(F.silu(self.fc1(torch.cat([angles.cos(), angles.sin()], dim=-1))))


class DuelingQ(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(6, 8)
        self.value, self.advantage = nn.Linear(8, 1), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.body(x))
        advantage = self.advantage(h)
        return self.value(h) + advantage - advantage.mean(dim=1, keepdim=True)


class GaussianPolicy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.mean, self.log_std = nn.Linear(6, 8), nn.Linear(8, 2), nn.Linear(8, 2)

    def forward(self, x: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(self.body(x))
        mean, log_std = self.mean(h), self.log_std(h).clamp(-5, 2)
        action = torch.tanh(mean + log_std.exp() * noise)
        log_p = -0.5 * noise.pow(2) - log_std - torch.log(1 - action.pow(2) + 1e-6)
        return action, log_p.sum(-1)


class Graph(nn.Module):
    """A graph convolution with a dense adjacency that is an input."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 5)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        adjacency = torch.sigmoid(adjacency)
        degree = adjacency.sum(-1, keepdim=True).clamp(min=1e-3)
        return F.elu(adjacency @ self.fc(x) / degree)


class BilinearHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bilinear = nn.Bilinear(4, 5, 3)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.relu(self.bilinear(a, b))


CASES = [
    Case("linear", lambda: nn.Linear(6, 4), x(6), only_aten="a Linear alone is one library call"),
    Case("mlp", lambda: MLP(6, 8, 8, 3), x(6)),
    Case("mlp_silu", lambda: MLP(6, 8, 3, act=nn.SiLU), x(5, 6)),
    Case("residual_mlp", ResidualMLP, x(8)),
    Case("swiglu", SwiGLU, x(6)),
    Case("geglu", GatedByChunk, x(6)),
    Case("glu_block", GLUBlock, x(6)),
    Case("highway", Highway, x(6)),
    Case("soft_experts", SoftExperts, x(6)),
    Case("top_experts", TopExperts, x(6)),
    Case("film", FiLM, xs((2, 4, 4), (4,))),
    Case("lora_linear", lambda: LoRALinear(6, 4), x(6)),
    Case("mixer_block", MixerBlock, x(5, 6)),
    Case("autoencoder", Autoencoder, x(8)),
    Case("vae", VAE, xs((8,), (3,))),
    Case("dropout_mlp_train", DropoutMLP, x(6), random=True, mode_matters=True),
    Case("dropout_mlp_eval", DropoutMLP, x(6), mode="eval", mode_matters=True),
    Case("bag_of_words", BagOfWords, tokens(5)),
    Case("embedding_bag", EmbeddingBagModel, tokens(5)),
    Case("wide_and_deep", WideAndDeep,
         lambda n: (torch.randn(n, 4), torch.randint(5, (n, 2)))),
    Case("factorisation_machine", FactorisationMachine, x(6)),
    Case("deep_sets", DeepSets, x(5, 4)),
    Case("radial_basis", RadialBasis, x(4)),
    Case("maxout", Maxout, x(6)),
    Case("hyper_network", HyperNetwork, xs((4,), (3,))),
    Case("low_rank_cross", LowRankCross, xs((6,), (6,))),
    Case("fourier_features", FourierFeatures, x(3)),
    Case("time_embedding", TimeEmbedding, lambda n: (torch.randint(50, (n,)),)),
    Case("dueling_q", DuelingQ, x(6)),
    Case("gaussian_policy", GaussianPolicy, xs((6,), (2,))),
    Case("graph_convolution", Graph, xs((5, 4), (5, 5))),
    Case("bilinear_head", BilinearHead, xs((4,), (5,))),
]  # fmt: skip

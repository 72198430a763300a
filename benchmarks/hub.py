"""Models of two libraries as they come, from small configs: what holds through `optimize`.

In: a table of configs of transformers and diffusers. Out: for each model and each step of daily use
(forward, other sizes, masks, autocast, backward, generate, saving and copying) whether it holds:
the result is eager's, and no call fell back. Each model is a process of its own, and a line of the
file of results; what is there already is not done again. `--page` writes the page of the documents.
"""

from __future__ import annotations

import argparse
import copy
import functools
import io
import json
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests"))

STEPS = (
    "forward", "sizes", "mask", "autocast", "backward", "generate", "pretrained", "copies",
)  # fmt: skip
LENGTHS = (7, 12, 9)
VOCABULARY = 96
HOLDS, FALLS_BACK, REFUSED, WRONG, RAISES = "holds", "falls back", "refused", "wrong", "raises"
TOLERANCE = {torch.float32: 2e-4, torch.bfloat16: 4e-2}


@dataclass(frozen=True)
class Model:
    """How a model is built, and called at one of three sizes, with or without a mask."""

    name: str
    library: str
    build: Callable[[], nn.Module]
    call: Callable[[int, bool], dict[str, Any]]
    masks: bool = True
    generates: dict[str, Any] | None = None


# ---- what is called ------------------------------------------------------------------------------


def _numbers(*shape: int, of: int = VOCABULARY, seed: int = 0) -> Tensor:
    return torch.randint(3, of, shape, generator=torch.Generator().manual_seed(seed))


def _noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def text(length: int, masked: bool, batch: int = 2) -> dict[str, Any]:
    given: dict[str, Any] = {"input_ids": _numbers(batch, length)}
    if masked:
        mask = torch.ones(batch, length, dtype=torch.long)
        mask[0, : length // 3] = 0
        given["attention_mask"] = mask
    return given


def pair(length: int, masked: bool) -> dict[str, Any]:
    given = text(length, masked)
    return {**given, "decoder_input_ids": _numbers(2, length // 2 + 1, seed=1)}


def image(size: int = 32, name: str = "pixel_values") -> Callable[[int, bool], dict[str, Any]]:
    """Three batch sizes: most of these models have one size of images."""
    return lambda length, masked: {name: _noise(length // 3, 3, size, size)}


def sound(length: int, masked: bool) -> dict[str, Any]:
    return {"input_values": _noise(2, 400 + 80 * length)}


def whispered(length: int, masked: bool) -> dict[str, Any]:
    ids = _numbers(2, length)
    return {"input_features": _noise(2, 16, 40), "decoder_input_ids": ids}


def captioned(length: int, masked: bool) -> dict[str, Any]:
    return {**text(length, masked), "pixel_values": _noise(2, 3, 32, 32)}


# ---- what is built -------------------------------------------------------------------------------

SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}
ENDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
GROUPED = {**SMALL, **ENDS, "num_key_value_heads": 2}
PATCHES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "image_size": 32,
    "patch_size": 8,
}
SEQ2SEQ = {
    **ENDS,
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 64,
}
GREEDY = {"max_new_tokens": 6, "do_sample": False}


def _of(config: str, model: str, **fields: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import transformers

        made = getattr(transformers, config)(**fields)
        return getattr(transformers, model)(made).eval()  # type: ignore[no-any-return]

    return build


def _encoder(name: str, stem: str, task: str = "Model", **fields: Any) -> Model:
    build = _of(f"{stem}Config", f"{stem}{task}", **{**SMALL, "pad_token_id": 0, **fields})
    return Model(name, "transformers", build, text)


def _decoder(name: str, stem: str, task: str = "ForCausalLM", **fields: Any) -> Model:
    build = _of(f"{stem}Config", f"{stem}{task}", **(fields or GROUPED))
    return Model(name, "transformers", build, text, generates=GREEDY)


def _vision(name: str, stem: str, task: str = "Model", size: int = 32, **fields: Any) -> Model:
    build = _of(f"{stem}Config", f"{stem}{task}", **fields)
    return Model(name, "transformers", build, image(size), masks=False)


def _diffuser(name: str, kind: str, call: Callable[[int, bool], dict[str, Any]], **f: Any) -> Model:
    def build() -> nn.Module:
        import diffusers

        return getattr(diffusers, kind)(**f).eval()  # type: ignore[no-any-return]

    return Model(name, "diffusers", build, call, masks=False)


def _whisper() -> Model:
    fields = {
        **SEQ2SEQ, "num_mel_bins": 16, "max_source_positions": 20, "max_target_positions": 64,
        "decoder_start_token_id": 1,
    }  # fmt: skip
    build = _of("WhisperConfig", "WhisperForConditionalGeneration", **fields)
    return Model("Whisper", "transformers", build, whispered, masks=False)


def _t5() -> Model:
    fields = dict(vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4)
    build = _of("T5Config", "T5ForConditionalGeneration", **fields, decoder_start_token_id=0)
    return Model("T5", "transformers", build, pair, generates=GREEDY)


def _seq2seq(name: str, stem: str, task: str = "ForConditionalGeneration") -> Model:
    build = _of(f"{stem}Config", f"{stem}{task}", **SEQ2SEQ, decoder_start_token_id=1)
    return Model(name, "transformers", build, pair, generates=GREEDY)


def _clip() -> Model:
    words = {**SMALL, **ENDS}
    build = _of("CLIPConfig", "CLIPModel", text_config=words, vision_config=PATCHES)
    return Model("CLIP", "transformers", build, captioned)


def _steps(length: int, masked: bool) -> dict[str, Any]:
    return {"sample": _noise(length // 3, 3, 16, 16), "timestep": torch.tensor(7)}


def _told(length: int, masked: bool) -> dict[str, Any]:
    return {**_steps(length, masked), "encoder_hidden_states": _noise(length // 3, 5, 16)}


def _pixels(length: int, masked: bool) -> dict[str, Any]:
    return {"sample": _noise(length // 3, 3, 16, 16)}


def _classed(length: int, masked: bool) -> dict[str, Any]:
    labels = _numbers(length // 3, of=10)
    kept = {"hidden_states": _noise(length // 3, 4, 8, 8), "class_labels": labels}
    return {**kept, "timestep": _numbers(length // 3, of=100)}


def _joint(length: int, masked: bool) -> dict[str, Any]:
    batch = length // 3
    given = {"hidden_states": _noise(batch, 4, 8, 8), "timestep": _numbers(batch, of=100)}
    given["encoder_hidden_states"] = _noise(batch, 5, 16)
    return {**given, "pooled_projections": _noise(batch, 16)}


BLOCKS = dict(block_out_channels=(16, 32), layers_per_block=1, norm_num_groups=8)
HIDDEN = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, vocab_size=VOCABULARY)
MODELS = (
    _encoder("BERT", "Bert"),
    _encoder("RoBERTa", "Roberta"),
    Model(
        "DistilBERT", "transformers",
        _of("DistilBertConfig", "DistilBertModel", vocab_size=VOCABULARY, dim=32, n_layers=2,
            n_heads=4, hidden_dim=64, max_position_embeddings=64), text,
    ),
    _decoder("GPT-2", "GPT2", "LMHeadModel", **ENDS, vocab_size=VOCABULARY, n_embd=32, n_layer=2,
             n_head=4, n_positions=64),
    _decoder("Llama", "Llama"),
    _decoder("Mistral", "Mistral"),
    _decoder("Qwen2", "Qwen2"),
    _t5(),
    _vision("ViT", "ViT", **PATCHES),
    _vision("ConvNeXt", "ConvNext", depths=[1, 1, 1, 1], hidden_sizes=[8, 16, 24, 32]),
    _whisper(),
    _encoder("BERT classifier", "Bert", "ForSequenceClassification"),
    _encoder("ALBERT", "Albert", embedding_size=16),
    _encoder("ELECTRA", "Electra", embedding_size=16),
    _encoder("MPNet", "MPNet"),
    _encoder("DeBERTa-v2", "DebertaV2", relative_attention=True, pos_att_type=["p2c", "c2p"]),
    _decoder("OPT", "OPT", **ENDS, vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2,
             num_attention_heads=4, ffn_dim=64, max_position_embeddings=64,
             word_embed_proj_dim=32),
    _decoder("GPT-NeoX", "GPTNeoX", **SMALL, **ENDS),
    _decoder("GPT-Neo", "GPTNeo", **ENDS, vocab_size=VOCABULARY, hidden_size=32, num_layers=2,
             num_heads=4, attention_types=[[["global", "local"], 1]], window_size=8,
             max_position_embeddings=64),
    _decoder("BLOOM", "Bloom", **ENDS, vocab_size=VOCABULARY, hidden_size=32, n_layer=2, n_head=4),
    _decoder("Phi", "Phi"),
    _decoder("Gemma", "Gemma", **{**GROUPED, "head_dim": 8}),
    _decoder("Qwen3", "Qwen3", **{**GROUPED, "head_dim": 8}),
    _decoder("Falcon", "Falcon", **ENDS, **HIDDEN),
    _seq2seq("BART", "Bart"),
    _seq2seq("Marian", "Marian", "MTModel"),
    _vision("DeiT", "DeiT", **PATCHES),
    _vision("DINOv2", "Dinov2", **{**PATCHES, "mlp_ratio": 2}),
    _vision("ResNet", "ResNet", embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1],
            layer_type="basic"),
    _clip(),
    _diffuser("UNet2D", "UNet2DModel", _steps, sample_size=16, **BLOCKS, attention_head_dim=8,
              down_block_types=("DownBlock2D", "AttnDownBlock2D"),
              up_block_types=("AttnUpBlock2D", "UpBlock2D")),
    _diffuser("UNet2DCondition", "UNet2DConditionModel", _told, sample_size=16, in_channels=3,
              out_channels=3, **BLOCKS, cross_attention_dim=16, attention_head_dim=4,
              down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
              up_block_types=("CrossAttnUpBlock2D", "UpBlock2D")),
    _diffuser("AutoencoderKL", "AutoencoderKL", _pixels, **BLOCKS, latent_channels=4,
              down_block_types=("DownEncoderBlock2D",) * 2,
              up_block_types=("UpDecoderBlock2D",) * 2),
    _diffuser("VQModel", "VQModel", _pixels, **BLOCKS, num_vq_embeddings=16,
              down_block_types=("DownEncoderBlock2D",) * 2,
              up_block_types=("UpDecoderBlock2D",) * 2),
    _diffuser("DiT", "DiTTransformer2DModel", _classed, num_attention_heads=2,
              attention_head_dim=8, in_channels=4, out_channels=4, num_layers=2, sample_size=8,
              num_embeds_ada_norm=10),
    _diffuser("SD3", "SD3Transformer2DModel", _joint, sample_size=8, patch_size=2, in_channels=4,
              num_layers=2, attention_head_dim=8, num_attention_heads=2, joint_attention_dim=16,
              caption_projection_dim=16, pooled_projection_dim=16, out_channels=4,
              pos_embed_max_size=8),
)  # fmt: skip
BY_NAME = {model.name: model for model in MODELS}


# ---- how it is judged ----------------------------------------------------------------------------


def opened(value: Any) -> Any:
    """A result with its caches as dicts of what they hold."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return type(value)(opened(part) for part in value)
    if isinstance(value, dict):
        return {"class": type(value).__name__, **{k: opened(v) for k, v in value.items()}}
    if hasattr(value, "__dict__") and not callable(value):
        return {"class": type(value).__name__, **opened(vars(value))}
    return value


def compared(ours: Any, theirs: Any, dtype: torch.dtype = torch.float32) -> str | None:
    """The first difference, in structure or beyond what rounding makes."""
    from alike import difference, tensors

    ours, theirs = opened(ours), opened(theirs)
    found = difference(ours, theirs, laid_out=False)
    if found is not None:
        return found
    for i, (a, b) in enumerate(zip(tensors(ours), tensors(theirs), strict=True)):
        if not b.is_floating_point():
            if not torch.equal(a, b):
                return f"result {i} has other integers"
            continue
        if not torch.equal(a.isfinite(), b.isfinite()):
            return f"result {i} is not finite elsewhere"
        a, b = (x.detach().double().nan_to_num() for x in (a, b))
        error, scale = (a - b).abs().max().item() if a.numel() else 0.0, 1.0
        scale = max(scale, b.abs().max().item() if b.numel() else 0.0)
        if error > TOLERANCE[dtype] * scale:
            return f"result {i} is off by {error:.1e} of {scale:.1e}"
    return None


class Judge:
    """One model, eager and optimized, through the steps."""

    def __init__(self, model: Model) -> None:
        import kernelwright

        self.model = model
        torch.manual_seed(0)
        self.eager = model.build()
        self.fused = kernelwright.optimize(copy.deepcopy(self.eager), **self._example())
        self.fused_of = self.fused

    def _example(self) -> dict[str, Any]:
        return {"example_kwargs": self.model.call(LENGTHS[0], False)}

    def alike(
        self, act: Callable[[nn.Module], Any], dtype: torch.dtype = torch.float32
    ) -> tuple[str, str]:
        """What one action gives of both, and what the optimized one fell back for meanwhile."""
        before = dict(self.fused.fallbacks)
        torch.manual_seed(1)
        theirs = act(self.eager)
        torch.manual_seed(1)
        ours = act(self.fused)
        found = compared(ours, theirs, dtype)
        if found is not None:
            return WRONG, found
        now = self.fused.fallbacks
        causes = [cause for cause in now if now[cause] != before.get(cause, 0)]
        return (FALLS_BACK, causes[0]) if causes else (HOLDS, "")

    def forward(self) -> Iterator[tuple[str, str]]:
        with torch.no_grad():
            for _ in range(2):
                yield self.alike(lambda m: m(**self.model.call(LENGTHS[0], False)))

    def sizes(self) -> Iterator[tuple[str, str]]:
        with torch.no_grad():
            for length in (*LENGTHS, *LENGTHS):
                given = functools.partial(self.model.call, length, False)
                yield self.alike(lambda m, given=given: m(**given()))

    def mask(self) -> Iterator[tuple[str, str]]:
        with torch.no_grad():
            for length in (*LENGTHS, *LENGTHS) if self.model.masks else ():
                given = functools.partial(self.model.call, length, True)
                yield self.alike(lambda m, given=given: m(**given()))

    def autocast(self) -> Iterator[tuple[str, str]]:
        def act(model: nn.Module) -> Any:
            with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
                return model(**self.model.call(LENGTHS[0], False))

        for _ in range(2):
            yield self.alike(act, torch.bfloat16)

    def backward(self) -> Iterator[tuple[str, str]]:
        from alike import tensors

        def act(model: nn.Module) -> Any:
            model.zero_grad()
            outputs = opened(model(**self.model.call(LENGTHS[0], self.model.masks)))
            roots = [y for y in tensors(outputs) if y.requires_grad]
            loss = sum(y.float().square().mean() for y in roots)
            assert isinstance(loss, Tensor)
            loss.backward()
            return {name: p.grad for name, p in model.named_parameters()}

        yield self.alike(act)

    def generate(self) -> Iterator[tuple[str, str]]:
        if self.model.generates is None:
            return
        given = self.model.call(LENGTHS[0], True)
        given.pop("decoder_input_ids", None)
        for cache in (None, "static"):
            options = {**self.model.generates, **({"cache_implementation": cache} if cache else {})}
            try:
                with torch.no_grad():
                    self.eager.generate(**given, **options)  # type: ignore[operator]
            except Exception:
                continue  # the model itself has no such cache
            yield self.alike(lambda m, o=options: m.generate(**given, **o))

    def pretrained(self) -> Iterator[tuple[str, str]]:
        with tempfile.TemporaryDirectory() as folder:
            self.fused.save_pretrained(folder)  # type: ignore[operator]
            again = type(self.fused).from_pretrained(folder).eval()
            plain = type(self.eager).from_pretrained(folder).eval()
        given = functools.partial(self.model.call, LENGTHS[0], False)
        with torch.no_grad():
            wanted = self.eager(**given())
            for model in (again, plain):
                found = compared(model(**given()), wanted)
                yield (WRONG, found) if found else (HOLDS, "")
            self.fused.load_state_dict(plain.state_dict())
            yield self.alike(lambda m: m(**given()))

    def copies(self) -> Iterator[tuple[str, str]]:
        kept, file = self.fused, io.BytesIO()
        torch.save(kept, file)
        file.seek(0)
        try:
            for made in (copy.deepcopy(kept), torch.load(file, weights_only=False)):
                self.fused = made
                with torch.no_grad():
                    yield self.alike(lambda m: m(**self.model.call(LENGTHS[0], False)))
        finally:
            self.fused = kept


def judge(model: Model, steps: list[str]) -> dict[str, Any]:
    """What each step came to: the worst of its parts, and why."""
    start, found = time.perf_counter(), {}
    try:
        judged = Judge(model)
    except Exception as error:
        return {"steps": {step: [REFUSED, _said(error)] for step in steps}, "kinds": 0}
    order = [HOLDS, FALLS_BACK, RAISES, WRONG]
    for step in steps:
        worst = HOLDS, ""
        begun = time.perf_counter()
        try:
            for verdict in getattr(judged, step)():
                worst = max(worst, verdict, key=lambda v: order.index(v[0]))
        except Exception as error:
            if "-v" in sys.argv:
                traceback.print_exc()
            worst = RAISES, _said(error)
        found[step] = [*worst, round(time.perf_counter() - begun, 1)]
        print(f"  {step}: {' '.join(map(str, found[step]))}", flush=True)
    from kernelwright.live import further_of

    kinds: Any = further_of(judged.fused)
    print(kinds)
    return {
        "steps": found,
        "kinds": len(kinds.made.all),
        "seconds": round(time.perf_counter() - start, 1),
    }


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:300]


# ---- the runner ----------------------------------------------------------------------------------


def table(results: dict[str, Any]) -> str:
    """The page: a row for each model, and the reasons for what does not hold."""
    lines = ["| model | " + " | ".join(STEPS) + " |", "|---|" + "---|" * len(STEPS)]
    reasons = []
    for model in MODELS:
        record = results.get(model.name)
        if record is None:
            continue
        cells = [record["steps"].get(step, ["not run", ""]) for step in STEPS]
        lines.append(f"| {model.name} | " + " | ".join(c[0] for c in cells) + " |")
        reasons += [
            f"- {model.name}, {step}: {c[0]}: {c[1]}"
            for step, c in zip(STEPS, cells, strict=True)
            if c[0] != HOLDS
        ]
    whole = sum(holds_throughout(r) for r in results.values())
    head = f"{whole} of {len(results)} models that were tried hold throughout."
    return "\n".join([head, "", *lines, "", *reasons]).rstrip() + "\n"


PAGE = """\
# Models of transformers and diffusers, as they come

[benchmarks/hub.py](../benchmarks/hub.py) makes models of two libraries from small configs, with
their caches on and nothing patched, gives each to `kernelwright.optimize` as a live module, and
uses it as people do:

- *forward* twice; *sizes*: three lengths in turns, for images three batches; *mask*: the same with
  a mask of padding; *autocast* to bfloat16; *backward*: the gradients of all parameters;
- *generate*: greedy, with a cache that grows and with a static one, where the model has that;
- *pretrained*: `save_pretrained`, `from_pretrained` by the result's class and by the original's,
  and the loaded weights put back; *copies*: `deepcopy`, `torch.save` and `torch.load`.

A step *holds* if structure, types and values are eager's (float32 within 2e-4 of the largest value,
under autocast 4e-2; tokens exactly) and no call fell back. On a CPU, transformers {transformers},
diffusers {diffusers}, torch {torch}. This page is written by

```sh
python benchmarks/hub.py --out hub.jsonl --page docs/hub.md
```

which goes on where it was stopped, and takes `--only NAME`.

{table}"""


def page(results: dict[str, Any]) -> str:
    import diffusers
    import transformers

    kept = {"transformers": transformers.__version__, "diffusers": diffusers.__version__}
    return PAGE.format(**kept, torch=torch.__version__.split("+")[0], table=table(results))


def holds_throughout(record: dict[str, Any]) -> bool:
    return all(record["steps"].get(step, [""])[0] == HOLDS for step in STEPS)


def read(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    return {r["model"]: r for r in map(json.loads, path.read_text().splitlines())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("hub.jsonl"))
    parser.add_argument("--only", nargs="*", help="models by name, done again")
    parser.add_argument("--first", type=int, default=len(MODELS), help="so many of the table")
    parser.add_argument("--steps", nargs="*", choices=STEPS, default=list(STEPS))
    parser.add_argument("--time-limit", type=float, default=900.0, help="seconds for each model")
    parser.add_argument("--table", action="store_true", help="print what was found, run nothing")
    parser.add_argument("--page", type=Path, help="write the page of what was found")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("-v", action="store_true")
    options = parser.parse_args()
    if options.child:
        warnings.simplefilter("ignore")
        record = judge(BY_NAME[options.child], options.steps)
        with options.out.open("a") as file:
            file.write(json.dumps({"model": options.child, **record}) + "\n")
        return
    if options.table:
        print(table(read(options.out)))
        if options.page is not None:
            options.page.write_text(page(read(options.out)))
        return
    wanted = options.only or [m.name for m in MODELS[: options.first]]
    for name in wanted:
        if name in read(options.out) and not options.only:
            continue
        print(name, flush=True)
        command = [sys.executable, __file__, "--child", name, "--out", str(options.out)]
        command += ["--steps", *options.steps, *(["-v"] if options.v else [])]
        try:
            done = subprocess.run(command, timeout=options.time_limit)
            why = f"the process ended with {done.returncode}" if done.returncode else None
        except subprocess.TimeoutExpired:
            why = f"not done within {options.time_limit:.0f} s"
        if why is not None:
            steps = {step: [RAISES, why, 0.0] for step in options.steps}
            with options.out.open("a") as file:
                file.write(json.dumps({"model": name, "steps": steps, "kinds": 0}) + "\n")
    print(table(read(options.out)))
    if options.page is not None:
        options.page.write_text(page(read(options.out)))


if __name__ == "__main__":
    main()

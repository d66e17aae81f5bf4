"""One valid message of every type, with every kind of value in it."""

from __future__ import annotations

from outboard.protocol.messages import (
    Message,
    Record,
    adapters,
    cache,
    client,
    common,
    control,
    engine,
    guidance,
)
from outboard.protocol.values import ITEM_SIZES, Blob, WireTensor

DIGEST = "0123456789abcdef" * 2


def tensor(*shape: int, dtype: str = "float32") -> WireTensor:
    size = ITEM_SIZES[dtype]
    for length in shape:
        size *= length
    pattern = bytearray(range(251)) * (size // 251 + 1)
    return WireTensor(dtype, shape, memoryview(pattern)[:size])


MODEL = common.ModelRef(name="flux/dev.safetensors", size=23_000_000_000, digest=DIGEST)
SHARED = tensor(2, 3)
CONDITIONING = {
    "context": tensor(1, 7, 8, dtype="bfloat16"),
    "y": Blob(DIGEST),
    "guidance": 3.5,
    "control": {"input": [tensor(1, 2), None, SHARED], "output": []},
    "ref_latents": [SHARED],
    "flags": [True, False, -1, 2**64 - 1, -(2**63), "später", None, {}],
    "empty": tensor(0, 4),
    "scalar": tensor(),
}
EMPTY = common.Branch(id="n", conditioning={"context": tensor(1, 7, 8, dtype="bfloat16")})
CACHE = cache.CacheSettings(
    preset="custom",
    values={"residual_diff_threshold": 0.2, "scm_compute_bins": [2, 1], "skip_fn_on_static": False},
    force=True,
)
REPORT = common.Report(
    path="per_step",
    reason="areas",
    peak_bytes=[1, 2],
    low_bit_layers={"fp8": 3},
    unmatched_keys=["a.lora_A"],
    cache=cache.CacheReport(
        values={"scm_cache_bins": [3], "scm_preset": "none"},
        hit_rates={"p": 0.5},
        residuals=[cache.Residual(step=1, distance=0.25)],
        notes=["off"],
    ),
)

SAMPLES: tuple[Message, ...] = (
    client.Hello(protocol="2.0", client="tests", version="1", token="t", host="h", capabilities=["a"]),
    client.Load(model=MODEL, settings=common.ModelSettings(dtype="bfloat16", weight_dtype="fp8_e5m2")),
    client.PutBlob(digest=DIGEST, tensor=tensor(5, dtype="uint8")),
    client.PutAdapters(
        digest=DIGEST,
        parts=[DIGEST],
        adapters=[
            adapters.WeightPatch(
                kind="lokr",
                key="blocks.0.qkv.weight",
                tensors={"w1": tensor(2, 2), "w2": Blob(DIGEST)},
                strength=-0.5,
                strength_model=0.25,
                alpha=4.0,
                offset=[0, 8, 4],
                bypass=True,
            ),
            adapters.LoraFile(name="style/ink.safetensors", size=7, digest=DIGEST, strength=1.0),
        ],
    ),
    client.Run(
        model=MODEL,
        sampling=common.FlowSampling(multiplier=1000.0),
        sampler="euler",
        sampler_options={"s_churn": 0.5, "solver": "midpoint", "order": 2, "final": True, "r": None},
        sigmas=tensor(5),
        noise=tensor(1, 16, 4, 4),
        latent=tensor(1, 16, 4, 4),
        seed=2**64 - 1,
        guidance=guidance.PerpNeg(scale=4.5, negative_scale=1.0, empty=[EMPTY]),
        changes=[
            guidance.CfgOverride(scale=1.0, start=1.0, end=0.5),
            guidance.Apg(
                eta=1.0,
                norm_threshold=5.0,
                momentum=-0.5,
                state=guidance.Momentum(average=tensor(1, 16, 4, 4), sigma=0.5),
            ),
            guidance.PerpNegCfg(negative_scale=1.0, empty=[EMPTY]),
            guidance.Mahiro(),
        ],
        positive=[
            common.Branch(id="p", conditioning=CONDITIONING, strength=0.5, start=0.9, end=0.1),
            common.Branch(
                id="q",
                conditioning=CONDITIONING,
                area=common.Area(size=[2, 2], offset=[0, 1]),
                region=common.Region(mask=tensor(1, 4, 4), strength=2.0),
            ),
        ],
        negative=[EMPTY, common.Branch(id="f", conditioning={}, fallback=True)],
        mask=common.Mask(
            mask=tensor(1, 1, 4, 4),
            differential=common.Differential(strength=1.0, sigma_min=0.0, sigma_max=1.0),
        ),
        cache=CACHE,
        preview=True,
        adapters=DIGEST,
        reply=common.Slot(segment="outboard-e-0123456789abcdef-1", offset=64, nbytes=1024),
    ),
    client.Predict(
        run="r-1",
        model=MODEL,
        x=tensor(2, 16, 4, 4, dtype="float16"),
        timestep=tensor(2),
        sigma=0.25,
        branches=["p", "n"],
        conditioning=CONDITIONING,
        schedule=cache.Schedule(
            sampler="euler", sampler_options={"eta": 0.0}, sigmas=tensor(5), objection="tiles"
        ),
        cache=CACHE,
    ),
    client.CloseRun(run="r-1"),
    client.Bye(),
    engine.Welcome(
        protocol="2.0",
        version="1",
        engine="e1",
        session="s1",
        host="h",
        device="cpu",
        world_size=2,
        samplers=["euler"],
        families=["flux"],
        capabilities=["a"],
        limits=engine.Limits(header=1, tensor=2, message=3, blobs=4),
    ),
    engine.Progress(phase="loading", done=1, total=2, text="dev.safetensors"),
    engine.Loaded(family="flux", dtype="bfloat16", nbytes=1, seconds=2.0),
    engine.Stored(digest=DIGEST),
    engine.Step(index=0, total=4, sigma=0.9, x0=tensor(1, 16, 4, 4)),
    engine.Result(
        latent=tensor(1, 16, 4, 4),
        report=REPORT,
        momenta=[guidance.Momentum(average=tensor(1, 16, 4, 4), sigma=0.5)],
    ),
    engine.Prediction(v=tensor(2, 16, 4, 4, dtype="float16"), seconds=0.1),
    engine.Closed(report=REPORT),
    engine.Error(code="missing_blob", message="no blob", hint="send it", details={"digests": DIGEST}),
    control.Cancel(request="r1"),
    control.Status(),
    control.Unload(model=MODEL),
    control.Ping(),
    control.Shutdown(),
    control.CancelReply(found=False),
    control.StatusReport(
        engine="e1",
        version="1",
        protocol="2.0",
        pid=1,
        life="owned",
        uptime=1.5,
        sessions=1,
        queued=0,
        running="flux",
        ranks=[control.RankStatus(rank=0, pid=2, state="ready")],
        models=[control.ResidentModel(name="dev", family="flux", dtype="bfloat16", nbytes=3)],
        counters={"runs": 1.0},
    ),
    control.Unloaded(bytes_freed=7),
    control.Pong(),
    control.ShuttingDown(),
)


def same(left: object, right: object) -> bool:
    """Whether two values are equal, tensors by dtype, shape and bytes."""
    if isinstance(left, WireTensor) and isinstance(right, WireTensor):
        return (left.dtype, left.shape, bytes(left.data)) == (right.dtype, right.shape, bytes(right.data))
    if isinstance(left, Record):
        return type(left) is type(right) and same(vars(left), vars(right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    return type(left) is type(right) and left == right

"""The names of tensors in the vision models of transformers, as rules: of files, and of live modules of transformers 5.

Queries, keys and values are three maps there.
"""

from vitrail.weights.family import NameRule, rename_rules


def _qkv(theirs: str, *three: str) -> NameRule:
    return NameRule("blocks.#.attn.qkv.*", tuple(f"{theirs}.{name}.*" for name in three))


SPLIT, PROJECTIONS = ("query", "key", "value"), ("q_proj", "k_proj", "v_proj")  # before transformers 5, and since
HEADS = {"head.*": "classifier.* cls_classifier.* visual_projection.*", "head_dist.*": "distillation_classifier.*"}
OUTSIDE = {  # the blocks
    "cls_token": "embeddings.cls_token",
    "dist_token": "embeddings.distillation_token",
    "reg_token": "embeddings.register_tokens",
    "pos_embed": "embeddings.position_embeddings",
    "patch_embed.proj.*": "embeddings.patch_embeddings.projection.*",
    "norm.*": "layernorm.*",
}
OUTSIDE_CLIP = {
    "patch_embed.proj.*": "embeddings.patch_embedding.*",
    "norm_pre.*": "pre_layrnorm.*",  # so it is spelled
    "norm.*": "post_layernorm.*",
    "pool.query": "head.probe",
    "pool.attn.qkv.weight": "head.attention.in_proj_weight",
    "pool.attn.qkv.bias": "head.attention.in_proj_bias",
    "pool.attn.proj.*": "head.attention.out_proj.*",
    "pool.norm.*": "head.layernorm.*",
    "pool.mlp.fc1.*": "head.mlp.fc1.*",
    "pool.mlp.fc2.*": "head.mlp.fc2.*",
}
NORMS = {"norm1.*": "layernorm_before.*", "norm2.*": "layernorm_after.*"}
DENSE = {"attn.proj.*": "attention.output.dense.*", "mlp.fc1.*": "intermediate.dense.*", "mlp.fc2.*": "output.dense.*"}
SCALED = {
    "norm1.*": "norm1.*",
    "attn.proj.*": "attention.output.dense.* attention.o_proj.*",  # in files; live
    "ls1.gamma": "layer_scale1.lambda1",
    "norm2.*": "norm2.*",
    "mlp.fc1.*": "mlp.fc1.*",
    "mlp.fc2.*": "mlp.fc2.* mlp.down_proj.*",
    "ls2.gamma": "layer_scale2.lambda1",
}
GATED = {"mlp.fc1.*": "mlp.weights_in.*", "mlp.fc2.*": "mlp.weights_out.*"}
LIVE = {"attn.proj.*": "attention.o_proj.*", "mlp.fc1.*": "mlp.fc1.*", "mlp.fc2.*": "mlp.fc2.*"}
INSIDE_CLIP = {
    "norm1.*": "layer_norm1.*",
    "attn.proj.*": "self_attn.out_proj.*",
    "norm2.*": "layer_norm2.*",
    "mlp.fc1.*": "mlp.fc1.*",
    "mlp.fc2.*": "mlp.fc2.*",
}
OUTSIDE_DINOV3 = {"patch_embed.proj.*": "embeddings.patch_embeddings.*", "norm.*": "norm.*"}
OUTSIDE_AIMV2 = {"patch_embed.proj.*": "embeddings.patch_embed.*", "patch_embed.norm.*": "embeddings.rms_norm.*"}
OUTSIDE_AIMV2 |= {"norm.*": "rms_norm.*", "pool.query": "head.cls_token", "pool.attn.proj.*": "head.output_proj.*"}
INSIDE_AIMV2 = {"norm1.*": "rms_norm1.*", "norm2.*": "rms_norm2.*"}
INSIDE_AIMV2 |= {"attn.proj.*": "attention.out_proj.*", "mlp.fc2.*": "ffn.down_proj.*"}
FILE, FILE_CLIP, BARE = "encoder.layer.#", "encoder.layers.#", "layer.#"  # what a block is called
WITHOUT_KEYS = f"{BARE}.attention.q_proj.bias", f"{BARE}.attention.v_proj.bias"
NAMED = {  # rules by the first words of `model_type`: of one tensor the first rule is that of files
    "vit": (
        *rename_rules(OUTSIDE),
        *rename_rules(NORMS | DENSE, FILE),
        _qkv(f"{FILE}.attention.attention", *SPLIT),
        *rename_rules(NORMS | LIVE, "layers.#"),
        _qkv("layers.#.attention", *PROJECTIONS),
    ),
    "dinov2": (
        *rename_rules(OUTSIDE),
        *rename_rules(SCALED, FILE),
        *rename_rules(GATED, FILE),
        _qkv(f"{FILE}.attention.attention", *SPLIT),
        _qkv(f"{FILE}.attention", *PROJECTIONS),
        NameRule("blocks.#.mlp.fc1.*", (f"{FILE}.mlp.gate_proj.*", f"{FILE}.mlp.up_proj.*")),
    ),
    "clip": (
        *rename_rules(OUTSIDE_CLIP),
        NameRule(
            "cls_token",
            ("embeddings.class_embedding",),
            lambda theirs: theirs[0].reshape(1, 1, -1),
            lambda ours, count: [ours.flatten()],
        ),
        NameRule(
            "pos_embed",
            ("embeddings.position_embedding.weight",),
            lambda theirs: theirs[0][None],
            lambda ours, count: [ours[0]],
        ),
        *rename_rules(INSIDE_CLIP, FILE_CLIP),
        _qkv(f"{FILE_CLIP}.self_attn", *PROJECTIONS),
    ),
    "dinov3": (
        *rename_rules(OUTSIDE_DINOV3),
        *rename_rules(SCALED, BARE),
        _qkv(f"{BARE}.attention", *PROJECTIONS),
        NameRule("blocks.#.attn.qkv.bias", WITHOUT_KEYS, without=f"{BARE}.attention.k_proj.bias"),
        NameRule("blocks.#.mlp.fc1.*", (f"{BARE}.mlp.up_proj.*",), without=f"{BARE}.mlp.gate_proj.weight"),
        NameRule("blocks.#.mlp.fc1.*", (f"{BARE}.mlp.gate_proj.*", f"{BARE}.mlp.up_proj.*")),
        NameRule("rotary.periods", ("rope_embeddings.inv_freq",), lambda theirs: 1 / theirs[0]),
    ),
    "aimv2": (
        *rename_rules(OUTSIDE_AIMV2),
        *rename_rules(INSIDE_AIMV2, FILE_CLIP),
        _qkv(f"{FILE_CLIP}.attention", *PROJECTIONS),
        NameRule("blocks.#.mlp.fc1.*", (f"{FILE_CLIP}.ffn.gate_proj.*", f"{FILE_CLIP}.ffn.up_proj.*")),
        NameRule("pool.attn.qkv.*", ("head.k_proj.*", "head.v_proj.*")),
    ),
}
NAMED |= {"deit": NAMED["vit"], "siglip": NAMED["clip"]}
RULES = tuple(dict.fromkeys((*rename_rules(HEADS), *(rule for rules in NAMED.values() for rule in rules))))

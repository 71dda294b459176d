"""What timm wants to read in `config.json`, so that it opens a saved model without vitrail.

    timm.create_model("local-dir:runs/latest/model", pretrained=True)

Tensors bear timm's names already. A network that timm's VisionTransformer cannot express gets no keys.
"""

from typing import Any

from vitrail.data.preprocessing import Preprocessing
from vitrail.nn import ViTConfig

EPSILON = 1e-6  # of timm's LayerNorm


def timm_keys(config: ViTConfig, preprocessing: Preprocessing, classes: tuple[str, ...]) -> dict[str, Any]:
    """The keys of timm's model hub for this model; empty when timm cannot express it.

    Args:
        config: Of the network.
        preprocessing: Of the model.
        classes: Its class names.
    """
    hidden = config.mlp_width / config.width
    expressible = (
        config.heads * config.head_width == config.width
        and int(config.width * hidden) == config.mlp_width
        and not config.distillation_token
        and config.norm_eps == EPSILON
        and config.classes > 0
        and config.embed_bias  # timm leaves it out only together with a norm behind the embedding
        and config.head_bias
        and config.out_bias == config.mlp_bias  # timm has one switch for both
    )
    if not expressible:
        return {}
    height, width = config.image
    pooling = "token" if config.pooling == "class" else "avg"
    return {
        "architecture": "vit_base_patch16_224",  # any of timm's plain ViTs: the arguments below say the rest
        "num_classes": config.classes,
        "num_features": config.width,
        "global_pool": pooling,
        "label_names": list(classes),
        "model_args": {
            "img_size": [height, width],
            "patch_size": list(config.patch),
            "in_chans": config.channels,
            "embed_dim": config.width,
            "depth": config.depth,
            "num_heads": config.heads,
            "mlp_ratio": hidden,
            "qkv_bias": config.qkv_bias,
            "proj_bias": config.out_bias,
            "init_values": config.layer_scale or None,
            "class_token": config.class_token,
            "global_pool": pooling,
            "reg_tokens": config.registers,
            "pos_embed": "none" if config.positions == "none" else "learn",
            "act_layer": config.activation,
            "fc_norm": False,
        },
        "pretrained_cfg": {
            "input_size": [config.channels, height, width],
            "fixed_input_size": True,
            "interpolation": preprocessing.interpolation,
            "crop_pct": preprocessing.crop_ratio,
            "crop_mode": {"crop": "center", "squash": "squash", "pad": "border"}[preprocessing.resize],
            "mean": list(preprocessing.mean),
            "std": list(preprocessing.std),
            "num_classes": config.classes,
            "first_conv": "patch_embed.proj",
            "classifier": "head",
        },
    }

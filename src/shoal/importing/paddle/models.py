"""Models: PaddleClas's names of architectures, and what Shoal (that is timm, mostly) calls the same net."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

SE: dict[str, Any] = {"block_args": {"attn_layer": "se"}}

_LIKE: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (r"ResNet(18|34|50|101|152)", r"resnet\1"),
    (r"ResNet(18|34|50|101|152|200)_vd", r"resnet\1d"),
    (r"ResNet(50)_vc", r"resnet\1c"),
    (r"SE_ResNet(18|34|50|101|152)_vd", r"resnet\1d"),
    (r"SE_ResNe[xX]t(50|101)_(32x4d)", r"seresnext\1_\2"),
    (r"(?:SE_)?ResNe[xX]t(50)_vd_(32x4d)", r"resnext\1d_\2"),
    (r"ResNe[xX]t(50_32x4d|101_32x4d|101_64x4d)", r"resnext\1"),
    (r"ResNe[xX]t101_(32x(?:8|16|32)d)_wsl", r"resnext101_\1"),
    (r"ResNe[xX]t101_32x48d_wsl", "ig_resnext101_32x48d"),
    (r"VGG(11|13|16|19)", r"vgg\1"),
    (r"AlexNet", "alexnet"),
    (r"GoogLeNet", "googlenet"),
    (r"InceptionV([34])", r"inception_v\1"),
    (r"DenseNet(121|161|169|201)", r"densenet\1"),
    (r"DPN(68|92|98|107|131)", r"dpn\1"),
    (r"DLA(34|46_c|46x_c|60|60x|60x_c|102|102x|102x2|169)", r"dla\1"),
    (r"MobileNetV1", "mobilenetv1_100"),
    (r"MobileNetV2", "mobilenetv2_100"),
    (r"MobileNetV2_x(0_5|0_75)", lambda m: f"mobilenetv2_{_hundredths(m[1])}"),
    (r"MobileNetV3_large_x(0_75|1_0)", lambda m: f"mobilenetv3_large_{_hundredths(m[1])}"),
    (r"MobileNetV3_small_x(0_5|0_75|1_0)", lambda m: f"mobilenetv3_small_{_hundredths(m[1])}"),
    (r"MobileNetV4_(conv|hybrid)_(small|medium|large)", r"mobilenetv4_\1_\2"),
    (r"GhostNet_x(0_5|1_0|1_3)", lambda m: f"ghostnet_{_hundredths(m[1])}"),
    (r"EfficientNetB([0-7])", r"efficientnet_b\1"),
    (r"EfficientNetV2_(S|M|L|XL)", lambda m: f"efficientnetv2_{m[1].lower()}"),
    (r"HRNet_W(18|30|32|40|44|48|64)_C", r"hrnet_w\1"),
    (r"Res2Net50_(26w_4s|14w_8s|26w_6s|26w_8s|48w_2s)", r"res2net50_\1"),
    (r"Res2Net(50|101)_vd_26w_4s", r"res2net\1d"),
    (r"ResNeSt(50)", r"resnest\1d"),
    (r"ResNeSt(101|200|269)", r"resnest\1e"),
    (r"RegNet([XY])_(\d+)(MF|GF)", lambda m: f"regnet{m[1].lower()}_{_hundreds_of_megaflops(m[2], m[3])}"),
    (r"RepVGG_([ABD]\d)(g4|se)?", lambda m: f"repvgg_{m[1].lower()}{m[2] or ''}"),
    (r"ReXNet_(\d)_(\d)", r"rexnet_\1\g<2>0"),
    (r"MixNet_(S|M|L)", lambda m: f"mixnet_{m[1].lower()}"),
    (r"Xception(41|65|71)", r"xception\1"),
    (r"(?:CSP)?Dark[Nn]et53", lambda m: m[0].lower()),
    (r"PPHGNet_(tiny|small|base)", r"hgnet_\1"),
    (r"PPHGNetV2_B([0-6])", r"hgnetv2_b\1"),
    (r"PPLCNetV2_(small|base|large)", r"lcnetv2_\1"),
    (r"PPLCNet_x(0_25|0_35|0_5|0_75|1_0|1_5|2_0|2_5)", lambda m: f"lcnet_{_hundredths(m[1])}"),
    (r"SwinTransformerV2_(\w+?)_patch4_window(\d+)_(\d+)", r"swinv2_\1_window\2_\3"),
    (r"SwinTransformer_(\w+)", r"swin_\1"),
    (r"ViT_(\w+)", r"vit_\1"),
    (r"DeiT_(\w+)", r"deit_\1"),
    (r"CLIP_vit_(base|large)_patch(\d+)_(\d+)", r"vit_\1_patch\2_clip_\3"),
    (r"BEiT(v2)?_(base|large)_patch16_224(?:_ft1k|_ft22k(?:to1k)?)?", lambda m: f"beit{m[1] or ''}_{m[2]}_patch16_224"),
    (r"TNT_small", "tnt_s_patch16_224"),
    (r"TNT_base", "tnt_b_patch16_224"),
    (r"PVT_V2_B([0-5])", r"pvt_v2_b\1"),
    (r"PVT_V2_B2_Linear", "pvt_v2_b2_li"),
    (r"pcpvt_(small|base|large)", r"twins_pcpvt_\1"),
    (r"alt_gvt_(small|base|large)", r"twins_svt_\1"),
    (r"LeViT_?(128S|128|192|256|384)", lambda m: f"levit_{m[1].lower()}"),
    (r"ConvNeXt_(tiny|small|base|large|xlarge)(?:_(?:224|384))?", r"convnext_\1"),
    (r"NextViT_(small|base|large)_(?:224|384)", r"nextvit_\1"),
    (r"MobileViT_(XXS|XS|S)", lambda m: f"mobilevit_{m[1].lower()}"),
    (r"MobileViTV2_x(\d)_(\d+)", lambda m: f"mobilevitv2_{_hundredths(f'{m[1]}_{m[2]}')}"),
    (r"FasterNet_(T0|T1|T2|S|M|L)", lambda m: f"fasternet_{m[1].lower()}"),
    (r"StarNet_S([1-4])", r"starnet_s\1"),
    (r"TinyNet_([A-E])", lambda m: f"tinynet_{m[1].lower()}"),
    (r"DINOv3_vit([sbl])16", lambda m: f"vit_{ {'s': 'small', 'b': 'base', 'l': 'large'}[m[1]] }_patch16_dinov3"),
    (r"CSATv2(_21m)?_(?:512|640)", lambda m: f"csatv2{m[1] or ''}"),
    (r"CoAtNet_(\w+)", lambda m: f"coatnet_{m[1].lower()}"),
    (r"Ca[iI]T_(X{0,2}S|M)(\d+)_(\d+)", lambda m: f"cait_{m[1].lower()}{m[2]}_{m[3]}"),
)
"""Paddle's names, as patterns, and timm's. A pattern may match more than timm has: whoever asks looks the name up."""


def called(name: str) -> tuple[str, dict[str, Any]]:
    """(what Shoal calls it, options of the timm model); a name that follows no rule comes back in small letters."""
    for pattern, ours in _LIKE:
        if match := re.fullmatch(pattern, name):
            with_se = name.startswith("SE_ResNet") or name.startswith(("SE_ResNeXt50_vd", "SE_ResNext50_vd"))
            return match.expand(ours) if isinstance(ours, str) else ours(match), SE if with_se else {}
    return name.lower(), {}


def _hundredths(size: str) -> str:
    """`0_35` -> `035`, `1_0` -> `100`."""
    whole, _, part = size.partition("_")
    return f"{whole}{part:0<2}"


def _hundreds_of_megaflops(size: str, unit: str) -> str:
    """`400MF` -> `004`, `4GF` -> `040`."""
    return f"{int(size) // 100 if unit == 'MF' else int(size) * 10:03d}"

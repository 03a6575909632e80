"""SemiFL's WideResNet, SSFL's ResNet-9, RSCFed's CNN: size by hand, function against the released order of layers."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmark.errors import ConfigError
from benchmark.models import ImageShape, Model, build, count_parameters, forward_flops

# N images, C channels, H rows, W columns, D classes

RSCFED = Model(network="rscfed_cnn", norm="none")


def images_of(shape: ImageShape, count: int = 3) -> Tensor:
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize(
    ("model", "image_shape", "num_classes", "parameters"),
    [
        # the figure printed for the released network
        (Model(network="wresnet28x2", norm="bn"), (3, 32, 32), 10, 1_467_610),
        (Model(network="wresnet28x2", norm="sbn"), (3, 32, 32), 10, 1_467_610),
        # convolutions with bias 27*64+64 + 576*128+128 + 2*(1152*128+128) + 1152*256+256 + 2304*512+512
        # + 2*(4608*512+512) = 6,565,760; norms 2*(64+3*128+256+3*512) = 4,480; fc 513*10 = 5,130
        (Model(network="resnet9"), (3, 32, 32), 10, 6_575_370),
        (Model(network="resnet9", norm="none"), (3, 32, 32), 10, 6_575_370 - 4_480),
        # convolutions with bias 27*64+64 + 576*128+128 + 1152*256+256 + 2304*256+256 + 2304*512+512
        # + 3*(4608*512+512) = 9,220,480; norms 2*(64+128+2*256+4*512+512) = 6,528; 96 pixels become 3:
        # fc 4609*512 + 513*128 + 129*10 = 2,426,762
        (Model(network="vgg11"), (3, 96, 96), 10, 9_220_480 + 6_528 + 2_426_762),
        (Model(network="vgg11", norm="none"), (3, 96, 96), 10, 9_220_480 + 2_426_762),
        # 28 pixels become 14, 7, 4, 2, 1: 512 features, 8 * 512 * 512 weights fewer; one channel 18 * 64 fewer
        (Model(network="vgg11", norm="bn"), (1, 28, 28), 10, 11_653_770 - 8 * 512 * 512 - 18 * 64),
        # 75*6+6 + 150*16+16 + 401*120 + 121*84 + 85*84 + 85*256 + 257*10
        # = 456 + 2,416 + 48,120 + 10,164 + 7,140 + 21,760 + 2,570; with 100 classes 257*90 = 23,130 more
        (RSCFED, (3, 32, 32), 10, 92_626),
        (RSCFED, (3, 32, 32), 100, 115_756),
        # 28 pixels become 24, 12, 8, 4: 256 features, 144*120 fewer; one channel: 50*6 fewer
        (RSCFED, (1, 28, 28), 10, 92_626 - 17_280 - 300),
    ],
)
def test_parameters_by_hand(model: Model, image_shape: ImageShape, num_classes: int, parameters: int) -> None:
    assert count_parameters(build(model, image_shape, num_classes, seed=0)) == parameters


def test_forward_flops_by_hand() -> None:
    """Twice the multiplications: RSCFed's maps are 28x28 and 10x10; ResNet-9's 32, 32, 16, 16, 8 and, twice, 4 wide."""
    rscfed: int = 28**2 * 6 * 75 + 10**2 * 16 * 150 + 400 * 120 + 120 * 84 + 84 * 84 + 84 * 256 + 256 * 10
    assert forward_flops(build(RSCFED, (3, 32, 32), 10, seed=0), (3, 32, 32)) == 2 * rscfed
    resnet9: int = 9 * 32**2 * (3 * 64 + 64 * 128) + 9 * 16**2 * (2 * 128 * 128 + 128 * 256)
    resnet9 += 9 * 8**2 * 256 * 512 + 9 * 4**2 * 2 * 512 * 512 + 512 * 10
    assert forward_flops(build(Model(network="resnet9"), (3, 32, 32), 10, seed=0), (3, 32, 32)) == 2 * resnet9


def wresnet_forward(weights: dict[str, Tensor], images_NCHW: Tensor) -> Tensor:
    """The released forward pass (wresnet.py:9-60) at batch statistics, with its `equal_inout` branches."""

    def active(hidden: Tensor, norm: str) -> Tensor:
        scale, shift = weights[f"{norm}.weight"], weights[f"{norm}.bias"]
        mean, var = hidden.mean(dim=(0, 2, 3)), hidden.var(dim=(0, 2, 3), unbiased=False)
        normalised = (hidden - mean[:, None, None]) / (var[:, None, None] + 1e-5).sqrt()
        return F.relu(normalised * scale[:, None, None] + shift[:, None, None])

    hidden = F.conv2d(images_NCHW, weights["conv1.weight"], padding=1)
    for index in range(12):
        stride = 2 if index in (4, 8) else 1
        name, equal_inout = f"blocks.{index}", index not in (0, 4, 8)
        out = active(hidden, f"{name}.norm1")
        if not equal_inout:
            hidden = out
        inner = F.conv2d(out, weights[f"{name}.conv1.weight"], stride=stride, padding=1)
        inner = F.conv2d(active(inner, f"{name}.norm2"), weights[f"{name}.conv2.weight"], padding=1)
        if not equal_inout:
            hidden = F.conv2d(hidden, weights[f"{name}.projection.weight"], stride=stride)
        hidden = hidden + inner
    pooled = F.adaptive_avg_pool2d(active(hidden, "norm"), 1).flatten(1)
    return pooled @ weights["fc.weight"].T + weights["fc.bias"]


def resnet9_forward(weights: dict[str, Tensor], images_NCHW: Tensor) -> Tensor:
    """The released forward pass (resnet9.py:28-63) with its fixed 4x4 window."""

    def block(hidden: Tensor, name: str) -> Tensor:
        hidden = F.conv2d(hidden, weights[f"{name}.conv.weight"], weights[f"{name}.conv.bias"], padding=1)
        return F.relu(F.group_norm(hidden, 32, weights[f"{name}.norm.weight"], weights[f"{name}.norm.bias"]))

    hidden = block(images_NCHW, "prepare")
    hidden = F.max_pool2d(block(hidden, "stage1"), 2)
    hidden = block(block(hidden, "residual1.0"), "residual1.1") + hidden
    hidden = F.max_pool2d(block(hidden, "stage2"), 2)
    hidden = F.max_pool2d(block(hidden, "stage3"), 2)
    hidden = block(block(hidden, "residual3.0"), "residual3.1") + hidden
    return F.linear(F.max_pool2d(hidden, 4).flatten(1), weights["fc.weight"], weights["fc.bias"])


def vgg11_forward(weights: dict[str, Tensor], images_NCHW: Tensor) -> Tensor:
    """The released forward pass (vgg.py:28-74) with group norms; a pool's last window is padded with the least."""

    def norm(hidden: Tensor, name: str) -> Tensor:
        return F.relu(F.group_norm(hidden, 32, weights[f"{name}.weight"], weights[f"{name}.bias"]))

    hidden, layer = images_NCHW, 0
    for step in (64, "M", 128, "M", 256, 256, "M", 512, 512, "M", 512, 512, "M"):
        if step == "M":
            even = F.pad(hidden, (0, hidden.shape[3] % 2, 0, hidden.shape[2] % 2), value=-torch.inf)
            hidden = F.max_pool2d(even, 2)
            continue
        hidden = F.conv2d(hidden, weights[f"convs.{layer}.weight"], weights[f"convs.{layer}.bias"], padding=1)
        assert hidden.shape[1] == step
        hidden, layer = norm(hidden, f"norms.{layer}"), layer + 1
    hidden = norm(F.linear(hidden.flatten(1), weights["fc1.weight"], weights["fc1.bias"]), "norm")
    hidden = F.linear(hidden, weights["fc2.weight"], weights["fc2.bias"])
    return F.linear(hidden, weights["fc3.weight"], weights["fc3.bias"])


def rscfed_forward(weights: dict[str, Tensor], images_NCHW: Tensor) -> Tensor:
    """The released forward pass (models.py:14-85): ReLU before pooling, none between the last two layers."""
    hidden = images_NCHW
    for layer in "12":
        hidden = F.relu(F.conv2d(hidden, weights[f"conv{layer}.weight"], weights[f"conv{layer}.bias"]))
        hidden = F.max_pool2d(hidden, 2, 2)
    hidden = hidden.flatten(1)
    for layer in "123":
        hidden = F.relu(F.linear(hidden, weights[f"fc{layer}.weight"], weights[f"fc{layer}.bias"]))
    hidden = F.linear(hidden, weights["fc4.weight"], weights["fc4.bias"])
    return F.linear(hidden, weights["fc5.weight"], weights["fc5.bias"])


@pytest.mark.parametrize(
    ("model", "image_shape", "written_out"),
    [
        (Model(network="wresnet28x2", norm="bn"), (3, 32, 32), wresnet_forward),
        (Model(network="wresnet28x2", norm="sbn"), (1, 28, 28), wresnet_forward),
        (Model(network="resnet9"), (3, 32, 32), resnet9_forward),
        (Model(network="vgg11"), (3, 48, 48), vgg11_forward),
        (Model(network="vgg11"), (1, 28, 28), vgg11_forward),
        (RSCFED, (3, 32, 32), rscfed_forward),
        (RSCFED, (1, 28, 28), rscfed_forward),
    ],
)
def test_forward_and_gradient_are_those_of_the_function_written_out(model, image_shape, written_out) -> None:
    """With norms that scale and shift, which at their initial 1 and 0 a wrong order could hide."""
    module = build(model, image_shape, 10, seed=3)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, weight in module.named_parameters():
            if "norm" in name:
                weight.add_(torch.randn(weight.shape, generator=generator), alpha=0.2)
    weights = {name: tensor.detach().clone().requires_grad_() for name, tensor in module.named_parameters()}
    images_NCHW = images_of(image_shape)
    found_ND, expected_ND = module(images_NCHW), written_out(weights, images_NCHW)
    torch.testing.assert_close(found_ND, expected_ND, rtol=1e-4, atol=1e-4)
    found_ND.logsumexp(dim=1).sum().backward()
    expected_ND.logsumexp(dim=1).sum().backward()
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(parameter.grad, weights[name].grad, rtol=1e-3, atol=1e-3)


def test_wresnet_begins_as_released() -> None:
    """Kaiming, fan_out: a 3x3 convolution to 128 channels has standard deviation sqrt(2 / (9 * 128)) = .04167,
    a 1x1 shortcut to 128 channels sqrt(2 / 128) = .125; 147,456 and 8,192 draws estimate them to within 1 and 4 %.
    """
    module = build(Model(network="wresnet28x2", norm="bn"), (3, 32, 32), 10, seed=0)
    weights = module.state_dict()
    assert weights["blocks.11.conv1.weight"].std().item() == pytest.approx(0.04167, rel=0.01)
    assert weights["blocks.8.projection.weight"].std().item() == pytest.approx(0.125, rel=0.04)
    assert not weights["fc.bias"].any()


@pytest.mark.parametrize("norm", ["gn", "bn", "sbn"])
def test_a_network_without_a_place_for_a_norm_refuses_one(norm) -> None:
    with pytest.raises(ConfigError, match=f"norm: '{norm}', but rscfed_cnn has no place for a norm; choose none"):
        Model(network="rscfed_cnn", norm=norm)


def test_group_norm_of_the_wresnet_must_divide_its_stem() -> None:
    """Its first norm sees the stem's 16 channels, which the papers' 32 groups do not divide."""
    with pytest.raises(ConfigError, match="norm_groups: 32 does not divide 16 channels"):
        Model(network="wresnet28x2", norm="gn")

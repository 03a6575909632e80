"""Networks: parameters by hand, independent forward passes, reproducible weights."""

import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import cast
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models import resnet18

from benchmark.errors import ConfigError
from benchmark.models.build import NETWORKS, ImageShape, Model, build, count_parameters, forward_flops
from benchmark.models.classifier import Classifier
from benchmark.models.norms import NORMS
from benchmark.streams import DrawingFrom, stream_seed

# N images, C channels, H rows, W columns, D classes

RELEASED_EMNIST = Model(network="emnist_cnn", norm="none", dropout=0.25)
RSCFED_CNN = Model(network="rscfed_cnn", norm="none")
SMALL_CNN = Model(network="small_cnn", norm_groups=4)
TINY_CNN = Model(network="tiny_cnn", norm_groups=4)


# Networks in words, from their descriptions alone, which `forward` reads.
HEAD = "flatten fc1 relu fc2"
TINY = f"conv1 norm1 relu conv2 pool norm2 relu {HEAD}"
SMALL = f"conv1 pool norm1 relu conv2 pool norm2 relu {HEAD}"
EMNIST = TINY  # EMNIST_model.py:9-24, with norms where it declares them
FEDAVG = f"conv1 norm1 relu pool conv2 norm2 relu pool {HEAD}"
RSCFED = f"conv1 relu pool conv2 relu pool {HEAD} relu fc3 relu fc4 fc5"  # models.py:14-85
RESIDUAL = "[ {name}0.conv {name}0.norm relu {name}1.conv {name}1.norm relu ]"
STAGE = "{name}.conv {name}.norm relu pool"
RESNET9 = " ".join(  # resnet9.py:28-63, with its fixed 4x4 window
    [
        "prepare.conv prepare.norm relu",
        STAGE.format(name="stage1"),
        RESIDUAL.format(name="residual1."),
        STAGE.format(name="stage2"),
        STAGE.format(name="stage3"),
        RESIDUAL.format(name="residual3."),
        "pool pool flatten fc",
    ]
)
VGG11 = " ".join(  # vgg.py:28-74 with norms
    f"convs.{layer} norms.{layer} relu {'even pool' if layer in (0, 1, 3, 5, 7) else ''}" for layer in range(8)
)
VGG11 += " flatten fc1 norm relu fc2 fc3"


def resnet_block(index: int) -> str:
    """Build a stage of four pre-activated blocks (wresnet.py:9-60); the first shortcut begins after norm and ReLU."""
    name, first, stride = f"blocks.{index}", not index % 4, ":2" if index in (4, 8) else ""
    begin = f"{name}.norm1 relu [" if first else f"[ {name}.norm1 relu"
    work = f"{name}.conv1{stride} {name}.norm2 relu {name}.conv2"
    return f"{begin} {work} {f']{name}.projection{stride}' if first else ']'}"


WRESNET = f"conv1 {' '.join(map(resnet_block, range(12)))} norm relu mean fc"


def forward(
    description: str, weights: dict[str, Tensor], images_NCHW: Tensor, padding: int = 1, norm: int = 4
) -> Tensor:
    """Compute the output layer by layer; "[" begins a shortcut that "]" adds, or "]NAME" after that layer; ":2" is a
    stride.

    A norm has this number of groups, or the batch's own statistics if it is 0; a norm without weights is left out. With
    "even", the missing values in a pool's last window count as the smallest.
    """

    def layer(name: str, hidden: Tensor) -> Tensor:
        name, _, stride = name.partition(":")
        weight, bias = weights[f"{name}.weight"], weights.get(f"{name}.bias")
        if weight.dim() == 4:
            side = padding if weight.shape[-1] > 1 else 0
            return F.conv2d(hidden, weight, bias, stride=int(stride or 1), padding=side)
        if weight.dim() == 2:
            return F.linear(hidden, weight, bias)
        if norm:
            return F.group_norm(hidden, norm, weight, bias)
        return F.batch_norm(hidden, None, None, weight, bias, training=True)

    hidden, shortcuts = images_NCHW, list[Tensor]()
    for word in description.split():
        match word:
            case "mean":
                hidden = hidden.mean(dim=(2, 3))
            case "relu":
                hidden = F.relu(hidden)
            case "even":
                hidden = F.pad(hidden, (0, hidden.shape[3] % 2, 0, hidden.shape[2] % 2), value=-torch.inf)
            case "pool":
                hidden = F.max_pool2d(hidden, 2)
            case "flatten":
                hidden = hidden.reshape(len(hidden), -1)
            case "[":
                shortcuts.append(hidden)
            case _ if word.startswith("]"):
                hidden = hidden + (layer(word[1:], shortcuts.pop()) if word[1:] else shortcuts.pop())
            case _ if "norm" not in word or f"{word}.weight" in weights:
                hidden = layer(word, hidden)
    return hidden


def images_of(shape: ImageShape, count: int = 3) -> Tensor:
    return torch.rand(count, *shape, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize(
    ("model", "image_shape", "num_classes", "parameters"),
    [
        # (9*1+1)*32 + (9*32+1)*64 + (9216+1)*128 + (128+1)*47 = 320 + 18,496 + 1,179,776 + 6,063
        (RELEASED_EMNIST, (1, 28, 28), 47, 1_204_655),
        # 11,168,832 without its fc; 512*512 + 512 + 512*256 + 256 + 256*7 + 7 (RSCFed's 11.56 M)
        (Model(network="resnet18_mlp", norm="bn"), (3, 64, 64), 7, 11_564_615),
        # stem 27*16 + 32; blocks 2*144*16 + 64, (144+16)*32 + 288*32 + 192, (288+32)*64 + 576*64 + 384; fc 65*10
        # = 464 + 4,672 + 14,528 + 57,728 + 650
        (Model(network="resnet8", norm_groups=8), (3, 32, 32), 10, 78_042),
        # four times the channels: 1,856 + 73,984 + 230,144 + 919,040 + 2,570
        (Model(network="resnet8x4", norm="bn"), (3, 32, 32), 10, 1_227_594),
        # (9+1)*16 + 2*16 + (9*16+1)*32 + 2*32 + (1568+1)*128 + 129*10 = 160+32+4,640+64+200,832+1,290
        (SMALL_CNN, (1, 28, 28), 10, 207_018),
        # (9+1)*16 + 2*16 + (9*16+1)*32 + 2*32 + (512+1)*64 + 65*10 = 160+32+4,640+64+32,832+650
        (TINY_CNN, (1, 8, 8), 10, 38_378),
        # convolutions with bias 27*64+64 + 576*128+128 + 2*(1152*128+128) + 1152*256+256 + 2304*512+512
        # + 2*(4608*512+512) = 6,565,760; norms 2*(64+3*128+256+3*512) = 4,480; fc 513*10 = 5,130
        (Model(network="resnet9"), (3, 32, 32), 10, 6_575_370),
        # convolutions with bias 27*64+64 + 576*128+128 + 1152*256+256 + 2304*256+256 + 2304*512+512
        # + 3*(4608*512+512) = 9,220,480; norms 2*(64+128+2*256+4*512+512) = 6,528; 96 pixels become 3:
        # fc 4609*512 + 513*128 + 129*10 = 2,426,762
        (Model(network="vgg11"), (3, 96, 96), 10, 9_220_480 + 6_528 + 2_426_762),
        # 28 pixels become 14, 7, 4, 2, 1: 512 features, 8 * 512 * 512 weights fewer; one channel 18 * 64 fewer
        (Model(network="vgg11", norm="bn"), (1, 28, 28), 10, 11_653_770 - 8 * 512 * 512 - 18 * 64),
        # 75*6+6 + 150*16+16 + 401*120 + 121*84 + 85*84 + 85*256 + 257*10
        # = 456 + 2,416 + 48,120 + 10,164 + 7,140 + 21,760 + 2,570
        (RSCFED_CNN, (3, 32, 32), 10, 92_626),
        # 28 pixels become 24, 12, 8, 4: 256 features, 144*120 fewer; one channel: 50*6 fewer
        (RSCFED_CNN, (1, 28, 28), 10, 92_626 - 17_280 - 300),
    ],
)
def test_parameters_by_hand(model: Model, image_shape: ImageShape, num_classes: int, parameters: int) -> None:
    assert count_parameters(build(model, image_shape, num_classes, seed=0)) == parameters


def test_forward_flops_of_the_emnist_cnn_by_hand() -> None:
    """Twice the multiplications: outputs x inputs of each, the maps being 26x26, 24x24 and, pooled, 12x12."""
    by_hand = 2 * (26 * 26 * 32 * 9 + 24 * 24 * 64 * 9 * 32 + 9216 * 128 + 128 * 47)
    assert by_hand == 23_994_368
    assert forward_flops(build(RELEASED_EMNIST, (1, 28, 28), 47, seed=0), (1, 28, 28)) == by_hand


@pytest.mark.parametrize(
    ("model", "image_shape", "written_out"),
    [
        (RELEASED_EMNIST, (1, 28, 28), partial(forward, EMNIST, padding=0)),
        (Model(network="emnist_cnn"), (1, 28, 28), partial(forward, EMNIST, padding=0, norm=32)),
        (Model(network="fedavg_cnn"), (3, 16, 16), partial(forward, FEDAVG, padding=2, norm=32)),
        (SMALL_CNN, (1, 28, 28), partial(forward, SMALL)),
        (TINY_CNN, (1, 8, 8), partial(forward, TINY)),
        (Model(network="wresnet28x2", norm="bn"), (3, 16, 16), partial(forward, WRESNET, norm=0)),
        (Model(network="wresnet28x2", norm="sbn"), (1, 28, 28), partial(forward, WRESNET, norm=0)),
        (Model(network="resnet9"), (3, 32, 32), partial(forward, RESNET9, norm=32)),
        (Model(network="vgg11"), (1, 28, 28), partial(forward, VGG11, norm=32)),
        (RSCFED_CNN, (3, 32, 32), partial(forward, RSCFED, padding=0)),
    ],
    ids=lambda value: getattr(value, "network", ""),
)
def test_forward_and_gradient_are_those_of_the_function_written_out(model, image_shape, written_out) -> None:
    """Without dropout, with norms that scale and shift, which at their initial 1 and 0 a wrong order could hide."""
    module = build(replace(model, dropout=0.0), image_shape, 10, seed=3)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, weight in module.named_parameters():
            if "norm" in name:
                weight.add_(torch.randn(weight.shape, generator=generator), alpha=0.2)
    weights = {name: tensor.detach().clone().requires_grad_() for name, tensor in module.named_parameters()}
    images_NCHW = images_of(image_shape)
    actual_ND, expected_ND = module(images_NCHW), written_out(weights, images_NCHW)
    torch.testing.assert_close(actual_ND, expected_ND, rtol=1e-4, atol=1e-4)
    for logits_ND in (actual_ND, expected_ND):
        logits_ND.logsumexp(dim=1).sum().backward()
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(parameter.grad, weights[name].grad, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("network", ["resnet8x4", "wresnet28x2"])
def test_convolutions_begin_he_normal_by_fan_out(network: str) -> None:
    """Deviation (2 / (9 channels out))^.5 of a 3x3 convolution, (2 / channels out)^.5 of 1x1; 8,192 weights or more,
    so that the estimate's own deviation is below 1 / (2 x 8,192)^.5 = .8 %. PyTorch's default is another one."""
    module = build(Model(network=network, norm="bn"), (3, 32, 32), 10, seed=0)
    for part in module.modules():
        if isinstance(part, nn.Conv2d) and part.weight.numel() >= 8192:
            entries = part.out_channels * part.kernel_size[0] ** 2
            assert part.weight.std().item() == pytest.approx((2 / entries) ** 0.5, rel=0.032)
    assert network == "resnet8x4" or not module.state_dict()["fc.bias"].any()


def test_resnet18_is_torchvisions_with_another_stem() -> None:
    """torchvision's ResNet-18 with a 3x3 stem and no max-pool has the same tensors in the same order: copied over,
    they must give the same logits. (Its downsample stands last in a block, as our shortcut does.)
    """
    theirs = resnet18(num_classes=10, norm_layer=lambda channels: nn.GroupNorm(32, channels))
    theirs.conv1, theirs.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.Identity()
    ours = build(Model(network="resnet18"), (3, 32, 32), 10, seed=1)
    our_tensors, their_tensors = list(ours.state_dict().values()), list(theirs.state_dict().values())
    for our_tensor, their_tensor in zip(our_tensors, their_tensors, strict=True):
        assert our_tensor.shape == their_tensor.shape
    theirs.load_state_dict(dict(zip(theirs.state_dict(), our_tensors, strict=True)))
    images_NCHW = images_of((3, 32, 32))
    with torch.no_grad():
        torch.testing.assert_close(ours(images_NCHW), theirs(images_NCHW))


def test_resnet18_with_a_head_of_three_layers() -> None:
    """The same features; one ReLU in the head, after its first layer."""
    ours = build(Model(network="resnet18_mlp"), (3, 32, 32), 10, seed=1)
    plain = build(Model(network="resnet18"), (3, 32, 32), 10, seed=2)
    shared = {name: value for name, value in ours.state_dict().items() if not name.startswith("fc.")}
    plain.load_state_dict(shared, strict=False)
    plain.fc = nn.Identity()
    w = {name: value for name, value in ours.state_dict().items() if name.startswith("fc.")}
    images_NCHW = images_of((3, 32, 32))
    with torch.no_grad():
        hidden_NF = torch.relu(plain(images_NCHW) @ w["fc.0.weight"].T + w["fc.0.bias"])
        hidden_NF = hidden_NF @ w["fc.2.weight"].T + w["fc.2.bias"]
        torch.testing.assert_close(ours(images_NCHW), hidden_NF @ w["fc.3.weight"].T + w["fc.3.bias"])


@pytest.mark.parametrize("network", list(NETWORKS))
def test_logits_are_the_last_layer_s_of_the_features_at_the_smallest_side(network: str) -> None:
    """Bit by bit; the head is the last linear layer, and every output comes from it."""
    model, side = Model(network=network, norm="none"), getattr(NETWORKS[network], "smallest_side")  # noqa: B009
    module, images_NCHW = build(model, (1, side, side), 7, seed=2), images_of((1, side, side))
    head = cast(nn.Linear, module.get_submodule(NETWORKS[network].head))
    assert head is [part for part in module.modules() if isinstance(part, nn.Linear)][-1]
    with torch.no_grad():
        features_NF = cast(Classifier, module).features(images_NCHW)
        assert features_NF.shape == (3, head.in_features)
        assert torch.equal(torch.nn.functional.linear(features_NF, head.weight, head.bias), module(images_NCHW))
    with pytest.raises(ConfigError, match=f" {side} x {side}, "):
        build(model, (1, side - 1, side), 3, seed=0)


def test_initial_weights_depend_on_the_seed_alone() -> None:
    first = build(TINY_CNN, (1, 8, 8), 10, seed=7)
    torch.rand(11)
    again, other = build(TINY_CNN, (1, 8, 8), 10, seed=7), build(TINY_CNN, (1, 8, 8), 10, seed=8)
    pairs = zip(first.parameters(), again.parameters(), strict=True)
    assert all(torch.equal(weight, same) for weight, same in pairs)
    assert not torch.equal(first.conv1.weight, other.conv1.weight)  # type: ignore[union-attr, arg-type]


def with_the_global_generator(model: Model, side: int, seed: int) -> dict[str, Tensor]:
    """Return the initial weights by torch's defaults: its global generator, seeded from the stream of that name."""
    options: dict[str, float] = {"dropout": model.dropout} if model.dropout else {}
    with torch.random.fork_rng():
        torch.manual_seed(stream_seed(seed, "initial weights"))
        norm = NORMS[model.norm](model.norm_groups)
        return NETWORKS[model.network]((3, side, side), 10, norm, **options).state_dict()


def equal_trees(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("network", list(NETWORKS))
def test_initial_weights_are_torch_s_defaults_and_touch_no_global_generator(network: str) -> None:
    """Bit by bit. A generator that is not the global one gives the same numbers from the same seed."""
    has_norm = getattr(NETWORKS[network], "norm_channels", ()) != ()
    for norm in ("gn", "bn", "sbn", "none") if has_norm else ("none",):
        model = Model(network=network, norm=norm, norm_groups=4)
        expected = with_the_global_generator(model, 32, seed=5)
        before = torch.get_rng_state()
        with mock.patch.object(torch.random, "fork_rng", side_effect=AssertionError):
            assert equal_trees(build(model, (3, 32, 32), 10, seed=5).state_dict(), expected)
        assert torch.equal(torch.get_rng_state(), before)


def test_threads_that_build_at_the_same_time_get_their_own_weights() -> None:
    """Four seeds in threads, while the main thread draws from the global generator and seeds it."""
    model = Model(network="resnet8", norm_groups=4)
    expected = {seed: with_the_global_generator(model, 32, seed) for seed in range(4)}
    begin, stop = threading.Barrier(5), threading.Event()

    def built(seed: int) -> list[bool]:
        begin.wait()
        return [equal_trees(build(model, (3, 32, 32), 10, seed).state_dict(), expected[seed]) for _ in range(20)]

    def disturb() -> list[float]:
        begin.wait()
        drawn = []
        while not stop.is_set():
            torch.manual_seed(1)
            drawn.append(float(torch.rand(1000).sum()))
        return drawn

    with ThreadPoolExecutor(5) as threads:
        disturbed = threads.submit(disturb)
        right = [threads.submit(built, seed) for seed in range(4)]
        results = [future.result() for future in right]
        stop.set()
        drawn = disturbed.result()
    assert all(map(all, results))
    assert len(set(drawn)) == 1


def test_draws_are_those_of_the_global_generator_in_the_same_state() -> None:
    """Each way of drawing that an initialisation may take, and a draw with a generator of its own."""
    own = torch.Generator()

    def draws() -> list[Tensor]:
        weight = torch.empty(7, 5)
        return [
            torch.rand(17),
            torch.randn(3, 5),
            torch.randint(9, (4,)),
            torch.randint(2, 9, (4,)),
            torch.randperm(11),
            torch.rand_like(weight),
            torch.randn_like(weight),
            torch.normal(0.0, 1.0, (5,)),
            torch.bernoulli(torch.full((20,), 0.5)),
            nn.init.orthogonal_(torch.empty(4, 4)),
            nn.init.trunc_normal_(torch.empty(6)),
            nn.init.xavier_uniform_(weight),
            F.dropout(torch.ones(64), 0.5),
            torch.multinomial(torch.ones(9), 3),
            torch.rand(3, generator=own.manual_seed(8)),
        ]

    with torch.random.fork_rng():
        torch.manual_seed(6)
        expected = draws()
        before = torch.get_rng_state()
        with DrawingFrom(torch.Generator().manual_seed(6)):
            found = draws()
        assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_dropout_zeroes_whole_channels_in_training_only() -> None:
    module = build(Model(network="emnist_cnn", norm="none", dropout=0.5), (1, 28, 28), 10, seed=0)
    with torch.no_grad():
        dropped_NCHW = module.dropout(torch.ones(64, 64, 12, 12))  # type: ignore[operator]
        share = dropped_NCHW[:, :, 0, 0].eq(0).double().mean().item()
        images_NCHW = images_of((1, 28, 28))
        assert not torch.equal(module(images_NCHW), module(images_NCHW))
        module.eval()
        assert torch.equal(module(images_NCHW), module(images_NCHW))
    assert torch.equal(dropped_NCHW.amin(dim=(2, 3)), dropped_NCHW.amax(dim=(2, 3)))
    # 4096 coins: a standard deviation of .0078, so five of them either way
    assert 0.46 < share < 0.54


@pytest.mark.parametrize(
    ("settings_", "message"),
    [
        ({"network": "resnet188"}, "network: unknown value 'resnet188'; did you mean 'resnet18'"),
        ({"network": "small_cnn"}, "norm_groups is 32, .* 16 channels; choose 1, 2, 4, 8 or 16"),
        ({"network": "resnet18", "dropout": 0.1}, "dropout is 0.1, but resnet18 has no dropout; choose 0"),
        (
            {"network": "wresnet28x2", "norm": "none", "width": 0.5},
            "width is 0.5, but wresnet28x2 has .* choose 1",
        ),
        ({"network": "rscfed_cnn"}, "norm is 'gn', but rscfed_cnn has no norm; choose none"),
    ],
)
def test_a_wrong_model_says_what_would_be_right(settings_: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Model(**settings_)

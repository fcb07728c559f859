"""The input of a convolution, read off the convolution's gradient of one sample, up to a factor.

The gradient of a convolution's weight, as a matrix `[outputs, channels · kernel]`, is Δ X: a row of X is the
patch of the input at one of the n positions of the output, and Δ the gradient of the output. If n is at most
the number of output channels, the matrix has rank n, and its row space is spanned by the patches. This is the
observation that SPEAR makes for linear layers (Dimitrov et al., NeurIPS 2024), with the n positions in the
place of a batch of samples. Here no sparsity is needed to find the patches in their span: neighbouring
patches overlap and have to agree there, and padding is zero. That is a homogeneous linear system for the
input, whose null space the input spans.

With a stride, the null space also contains the input shifted by whole strides, if no padding on the far side
prevents it. A ReLU in front of the convolution then tells them apart: only the input itself has both no
negative values and zeros where a sum with shifted copies would have none.

Batch norm behind the convolution makes the gradient of each output channel sum to zero over the positions.
The rank is then n − 1, and the row space that of the patches' differences from their mean, which is one more
unknown.
"""

import math
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor

from refiner.attacks.closed_form.conv_layers import ConvLayer

# Conjugate gradients end when the residual is this part of the first, or after so many iterations.
_CG_TOLERANCE, _CG_ITERATIONS = 1e-11, 1000
# Values of the first block that are smaller than this part of its largest are too small to divide by.
_SMALL = 0.1
# What counts as zero, in terms of the root mean square, at first and at last, and the factor between.
_FIRST_ZERO, _LAST_ZERO, _ZERO_FACTOR = 0.1, 1e-4, 0.6


def conv_input(gradient: Tensor, layer: ConvLayer) -> Tensor:
    """Return a convolution's input up to a positive factor, exactly for an undefended upload of one sample.

    Args:
        gradient: The gradient `[outputs, channels, *kernel]` of the convolution's weight, of one victim.
        layer: The convolution, from `revealing_layer`.

    Returns:
        `[channels, *size]` of length 1 and a sum ≥ 0, in float64. A defended upload gives an estimate.

    >>> conv = torch.nn.Conv2d(2, 20, 3, padding=1)
    >>> x = torch.rand(1, 2, 4, 4)
    >>> (gradient,) = torch.autograd.grad(conv(x).sin().sum(), [conv.weight])
    >>> layer = ConvLayer("", "weight", 2, (4, 4), (4, 4), (3, 3), (1, 1), (1, 1))
    >>> torch.allclose(conv_input(gradient, layer).float(), x[0] / x.norm(), atol=1e-3)
    True
    """
    count = math.prod(layer.positions)
    # Divided by the largest first, so that squares neither overflow nor vanish.
    matrix = gradient.flatten(1).double()
    matrix = matrix / matrix.abs().amax().clamp_min(torch.finfo(torch.float64).tiny)
    rows: Tensor = torch.linalg.svd(matrix, full_matrices=False).Vh
    span = rows[: count - layer.centred]
    start = torch.rand(
        1, layer.channels, *layer.size, generator=torch.Generator().manual_seed(0), dtype=matrix.dtype
    ).to(matrix.device)
    if not layer.centred:
        # The part of the null space that begins here; shifted copies begin with zeros.
        mask = torch.zeros_like(start)
        mask[:, :, : layer.block[0], : layer.block[1]] = 1
        start = start * mask
    image = _null_vector(span, layer, start)[0]
    if layer.centred:
        image = _without_offsets(image, layer)
    elif math.prod(layer.shifts) > 1:
        image = _unshifted(image, layer)
    length: Tensor = torch.linalg.vector_norm(image)
    return torch.where(image.sum() < 0, -image, image) / length.clamp_min(torch.finfo(torch.float64).tiny)


def _null_vector(span: Tensor, layer: ConvLayer, start: Tensor) -> Tensor:
    """The projection of `start` on the images whose patches are in a span, `[1, channels, *size]`.

    Args:
        span: Orthonormal rows `[rank, channels · kernel]`; the span of the patches' differences from their
            mean if the layer is centred.
        layer: The convolution.
        start: An image.
    """

    def fold(patches: Tensor) -> Tensor:
        return F.fold(patches, layer.size, layer.kernel, padding=layer.padding, stride=layer.stride)

    coverage = fold(start.new_ones(1, math.prod(layer.kernel), math.prod(layer.positions)))
    scale = coverage.rsqrt()  # eigenvalues are then in 0..1

    def outside(image: Tensor) -> Tensor:
        patches = F.unfold(scale * image, layer.kernel, padding=layer.padding, stride=layer.stride)
        if layer.centred:
            patches = patches - patches.mean(2, keepdim=True)
        return scale * fold(patches - span.T @ (span @ patches))

    # The start minus its part in the range of `outside`, by conjugate gradients.
    solution, residual = torch.zeros_like(start), outside(start)
    direction, squared = residual, residual.square().sum()
    target = squared * _CG_TOLERANCE**2
    for _ in range(_CG_ITERATIONS):
        if not bool(squared > target):
            break
        image = outside(direction)
        step = squared / (direction * image).sum()
        solution, residual = solution + step * direction, residual - step * image
        previous, squared = squared, residual.square().sum()
        direction = residual + squared / previous * direction
    return scale * (start - solution)


def _without_offsets(image: Tensor, layer: ConvLayer) -> Tensor:
    """The ReLU's output `[channels, *size]` from one with a constant added to some values of each channel.

    Patches whose mean is unknown leave a constant open for values at the same place of every patch, if no
    other entry of a patch and no padding is ever at that place. Their lowest is then taken as the lowest of
    the others, which is zero after a ReLU.
    """
    places = [
        [r for r in range(s) if not any(o < p for o in range(r, k, s))]
        for k, s, p in zip(layer.kernel, layer.stride, layer.padding, strict=True)
    ]
    free = torch.zeros(layer.size, dtype=torch.bool, device=image.device)
    classes = []
    for place in product(*places):
        member = torch.zeros_like(free)
        top, left = ((r - p) % s for r, p, s in zip(place, layer.padding, layer.stride, strict=True))
        member[top :: layer.stride[0], left :: layer.stride[1]] = True
        classes.append(member)
        free |= member
    image = torch.where(image[:, ~free].sum() < 0, -image, image)
    lowest = image[:, ~free].amin(1, keepdim=True)
    for member in classes:
        values = image[:, member]
        image[:, member] = values - values.amin(1, keepdim=True) + lowest
    return image


def _unshifted(image: Tensor, layer: ConvLayer) -> Tensor:
    """The ReLU's output `[channels, *size]` from a sum of it and its shifted copies.

    Shifted copies begin with zeros: the first block of a stride's size is a multiple of the output there. The
    next block has the output's values plus an unknown multiple of the first block. As the output is nowhere
    negative, and zero for some positive values of the first block, the multiple is the least ratio.
    """
    (height, width), (down, right) = layer.size, layer.stride
    image = torch.where(image[:, : layer.block[0], : layer.block[1]].sum() < 0, -image, image)
    first = image[:, : layer.block[0], : layer.block[1]].clone()
    large = first > _SMALL * first.amax()
    for i, j in product(*map(range, layer.shifts)):
        if i == j == 0 or not bool(large.any()):
            continue
        top, left = i * down, j * right
        here = image[:, top : top + layer.block[0], left : left + layer.block[1]]
        inside = large[:, : here.shape[1], : here.shape[2]]
        ratios = here[inside] / first[:, : here.shape[1], : here.shape[2]][inside]
        shifted = torch.zeros_like(image)
        shifted[:, top:, left:] = image[:, : height - top, : width - left]
        image = image - ratios.amin() * shifted
    return _with_most_zeros(image, layer)


def _with_most_zeros(image: Tensor, layer: ConvLayer) -> Tensor:
    """The sum of `image` and its shifted copies, near `image`, with the most zeros and no negative values.

    Reweighted least squares; it corrects blocks where no zero of the output met a positive value of the
    first block.
    """
    (height, width), (down, right) = layer.size, layer.stride
    copies = []
    for i, j in list(product(*map(range, layer.shifts)))[1:]:
        copies.append(torch.zeros_like(image))
        copies[-1][:, i * down :, j * right :] = image[:, : height - i * down, : width - j * right]
    basis: Tensor = torch.linalg.qr(torch.stack(copies).flatten(1).T).Q
    start = values = image.flatten()
    smoothing = _FIRST_ZERO
    while smoothing > _LAST_ZERO:
        scale = values.square().mean().clamp_min(torch.finfo(torch.float64).tiny)
        weights = 1 / (values.clamp_min(0).square() / scale + smoothing**2)
        weighted = (weights[:, None] * basis).T
        values = start - basis @ torch.linalg.solve(weighted @ basis, weighted @ start)
        smoothing *= _ZERO_FACTOR
    return values.view_as(image)

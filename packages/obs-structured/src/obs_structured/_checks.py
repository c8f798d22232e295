"""What the inputs must be, said in one line where they are not."""

import torch

SYMMETRY = 1e-5  # largest |H − Hᵀ| allowed, relative to the largest |H|
BLOCK = 192
DEFINITENESS = 1e-6  # most negative eigenvalue allowed, relative to the largest one


def finite_tensor(name: str, tensor: object, *shapes: tuple[int, ...] | int) -> None:
    """Raise unless `tensor` is a floating point tensor of one of the shapes or ranks, all finite."""
    if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
        kind = tensor.dtype if isinstance(tensor, torch.Tensor) else type(tensor).__name__
        raise ValueError(f"{name} must be a real floating point tensor, not {kind}")
    shape = tuple(tensor.shape)
    if 0 in shape or not any(shape == wanted or len(shape) == wanted for wanted in shapes):
        wanted = " or ".join(f"{one} dimensions" if isinstance(one, int) else str(one) for one in shapes)
        raise ValueError(f"{name} has shape {shape}, but must have {wanted}, none of them empty")
    if tensor.is_meta:
        raise ValueError(f"{name} is on the meta device and has no values; load it to a real one")
    values = tensor.float() if tensor.element_size() == 1 else tensor  # few operations know 8 bits
    if not torch.stack(values.aminmax()).isfinite().all():  # one pass, no copy; nan shows in both
        bad = int((~values.isfinite()).sum())
        raise ValueError(
            f"{name} has {bad} of {values.numel()} values that are nan or inf; all must be finite"
        )


def nonzero(name: str, tensor: torch.Tensor) -> None:
    """Raise if all values are zero: then there is nothing to preserve, and no scale for errors."""
    if not tensor.any():
        raise ValueError(f"{name} is all zero {tuple(tensor.shape)}; it must have nonzero values")


def symmetrised(name: str, matrix: torch.Tensor) -> torch.Tensor:
    """Copy of a matrix (d, d), symmetric to the last digit; raise unless |M − Mᵀ| is below 1e-5 of |M|."""
    result = torch.empty_like(matrix, memory_format=torch.contiguous_format)
    gap = 0.0
    for start in range(0, len(matrix), BLOCK):  # a transpose in strips stays in cache
        stop = start + BLOCK
        below, above = matrix[start:stop, :stop], matrix[:stop, start:stop].mT  # (b, stop)
        above = above.clone(memory_format=torch.contiguous_format)
        gap = max(gap, float(torch.dist(below, above, torch.inf)))
        above.add_(below).mul_(0.5)
        result[start:stop, :stop] = above
        result[:stop, start:stop] = above.mT
    largest = float(torch.linalg.vector_norm(matrix, torch.inf))
    if gap > SYMMETRY * largest:
        raise ValueError(
            f"{name} is not symmetric: |M - M.T| reaches {gap:.3g}, more than {SYMMETRY:g} of its largest "
            f"value {largest:.3g}"
        )
    return result


def semidefinite_spectrum(name: str, smallest: float, largest: float) -> None:
    """Raise if the smallest eigenvalue is below −1e-6 of the largest."""
    if smallest < -DEFINITENESS * largest:
        raise ValueError(
            f"{name} is not positive semidefinite: its smallest eigenvalue {smallest:.3g} is below "
            f"-{DEFINITENESS:g} of its largest, {largest:.3g}"
        )


def one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    """Raise unless `value` is one of the names allowed."""
    if value not in allowed:
        raise ValueError(f"{name} is {value!r}, but must be one of {', '.join(map(repr, allowed))}")

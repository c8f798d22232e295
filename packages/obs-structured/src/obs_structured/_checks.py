"""Argument checks. Each error is one line that gives the offending value and the rule it breaks."""

import math

import torch

SYMMETRY = 1e-5  # largest |M − Mᵀ| allowed, relative to the largest |M|
DEFINITENESS = 1e-6  # most negative eigenvalue allowed, relative to the largest one
# Limits of the largest absolute value of an argument. Sums of up to 1e18 such values are still finite.
LEAST, MOST = 1e-290, 1e290
BLOCK = 192


def finite_tensor(name: str, tensor: object, *shapes: tuple[int, ...] | int) -> None:
    """Raise unless `tensor` is a non-empty, finite floating-point tensor of an allowed shape.

    Args:
        name: name of the argument, for the error message.
        tensor: value to check.
        shapes: allowed shapes; an int allows every shape with that number of dimensions.

    Raises:
        ValueError: if `tensor` breaks one of these rules.
    """
    if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
        kind = tensor.dtype if isinstance(tensor, torch.Tensor) else type(tensor).__name__
        raise ValueError(f"{name} must be a real floating-point tensor, not {kind}")
    shape = tuple(tensor.shape)
    if 0 in shape or not any(shape == allowed or len(shape) == allowed for allowed in shapes):
        expected = " or ".join(f"{one} dimensions" if isinstance(one, int) else str(one) for one in shapes)
        raise ValueError(f"{name} has shape {shape}, but must have {expected}, and no dimension may be 0")
    if tensor.is_meta:
        raise ValueError(f"{name} is on the meta device and has no values; load it to a real device")
    values = tensor.float() if tensor.element_size() == 1 else tensor  # few operations support 8-bit floats
    # The minimum and maximum need one pass and no copy, and a nan anywhere makes both nan.
    if not torch.stack(values.aminmax()).isfinite().all():
        bad = int((~values.isfinite()).sum())
        raise ValueError(f"{name} is nan or inf in {bad} of {values.numel()} values; all must be finite")


def nonzero(name: str, tensor: torch.Tensor) -> None:
    """Raise ValueError if all values are zero, since relative errors would be undefined."""
    if not tensor.any():
        raise ValueError(f"{name} is all zero; at least one of its {tensor.numel()} values must be nonzero")


def moderate(name: str, tensor: torch.Tensor) -> None:
    """Raise ValueError if the largest absolute value is so large or so small that sums over- or underflow."""
    values = tensor.float() if tensor.element_size() == 1 else tensor  # few operations support 8-bit floats
    smallest, largest = values.aminmax()
    size = max(-float(smallest), float(largest))
    if not LEAST <= size <= MOST:
        raise ValueError(
            f"the largest absolute value of {name} is {size:.3g}, but must be between {LEAST:g} and "
            f"{MOST:g}; multiply {name} by a constant"
        )


def power_of_two(tensor: torch.Tensor) -> float:
    """Return a power of two close to the largest absolute value.

    Dividing by it changes no digit of a result, but keeps squares within the float range.
    """
    _, exponent = math.frexp(float(torch.linalg.vector_norm(tensor, torch.inf)))
    return math.ldexp(1.0, exponent - 1)


def symmetrised(name: str, matrix: torch.Tensor) -> torch.Tensor:
    """Return a copy of a matrix (d, d) that is exactly symmetric.

    Raises:
        ValueError: if |M − Mᵀ| exceeds 1e-5 of the largest |M| anywhere.
    """
    result = torch.empty_like(matrix, memory_format=torch.contiguous_format)
    gap = 0.0
    for start in range(0, len(matrix), BLOCK):  # strips of a transpose stay in cache
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
            f"{name} is not symmetric: |M - M.T| reaches {gap:.3g}, more than {SYMMETRY:g} times its largest "
            f"value, {largest:.3g}"
        )
    return result


def semidefinite_spectrum(name: str, smallest: float, largest: float) -> None:
    """Raise ValueError if the smallest eigenvalue is below −1e-6 times the largest."""
    if smallest < -DEFINITENESS * largest:
        raise ValueError(
            f"{name} is not positive semidefinite: its smallest eigenvalue {smallest:.3g} is below "
            f"-{DEFINITENESS:g} times its largest, {largest:.3g}"
        )


def under_metric(metric: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    """Return M Y for a matrix Y (r, d) and a metric M, (r, r) or its diagonal (r,).

    Raises:
        ValueError: if the metric has a wrong shape, is not finite or not symmetric, or if its diagonal form
            has negative values.
    """
    rows = len(matrix)
    finite_tensor("metric", metric, (rows, rows), (rows,))
    metric = metric.detach().to(matrix)
    if metric.ndim == 1:
        semidefinite_spectrum("metric", float(metric.min()), float(metric.max()))
        return metric[:, None] * matrix
    return symmetrised("metric", metric) @ matrix


def is_constant_diagonal(metric: torch.Tensor) -> bool:
    """Return whether a metric is the diagonal (r,) of a multiple of the identity."""
    return metric.ndim == 1 and bool((metric == metric[0]).all())


def one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    """Raise ValueError unless `value` is one of the allowed names."""
    if value not in allowed:
        raise ValueError(f"{name} is {value!r}, but must be one of {', '.join(map(repr, allowed))}")


def is_real(value: object) -> bool:
    """Return whether a value is a number that can be compared with others: no text, and no tensor."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def shortened(value: object, *, quoted: bool = True) -> str:
    """Return a value as one line of at most 120 characters, for an error message."""
    if type(value) is int and value.bit_length() > 200:
        return f"an integer of {value.bit_length()} bits"
    text = repr(value) if quoted else " ".join(str(value).split())
    return text if len(text) <= 120 else f"{text[:117]}..."

"""Teacher: gradients, eval mode, dtype and device, and the cache of logits."""

import pytest
import torch
from hypothesis import given
from token_distill import Outputs, Teacher, span_loss
from token_distill_counting import IDS, Counting
from token_distill_reference import masks, normal, seeds
from torch import nn


def test_a_teacher_runs_in_eval_mode_without_gradients():
    module = Counting().train()
    teacher = Teacher(module)
    module.train()  # as a training loop may do
    first, second = teacher(IDS), teacher(ids=IDS)
    assert torch.equal(first.logits, second.logits)  # no dropout
    assert not module.built_a_graph
    assert not first.logits.requires_grad
    assert not any(states.requires_grad for states in first.hidden_states)
    module.train()
    assert not torch.equal(module(IDS)["logits"], module(IDS)["logits"])  # control: dropout is active


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_teacher_runs_in_its_own_dtype(dtype):
    exact = Teacher(Counting())(IDS).logits
    teacher = Teacher(Counting(), dtype=dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = teacher(IDS, shift=torch.zeros(1, dtype=torch.float16))
    assert outputs.logits.dtype == outputs.hidden_states[0].dtype == dtype
    torch.testing.assert_close(outputs.logits.float(), exact, rtol=1e-5, atol=1e-6)


def test_a_teacher_needs_a_floating_point_dtype():
    with pytest.raises(ValueError, match=r"torch\.int8"):
        Teacher(Counting(), dtype=torch.int8)


def test_a_teacher_moves_its_inputs_to_its_device():
    class Elsewhere(nn.Module):
        def forward(self, pair, *, extra):
            assert all(tensor.device.type == "meta" for tensor in (*pair, extra["deep"]))
            return torch.ones(2)

    outputs = Teacher(Elsewhere(), device="meta")((IDS, IDS), extra={"deep": IDS})
    assert outputs.logits.device.type == "cpu"


def test_any_module_that_returns_logits_can_be_a_teacher():
    assert Teacher(nn.Linear(3, 2))(torch.ones(4, 3)).logits.shape == (4, 2)


@pytest.mark.parametrize("kind", ["classes", "tokens", "span"])
def test_the_second_epoch_is_read_from_disk(kind, tmp_path):
    mask = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 0]])
    module = Counting(kind)
    first = Teacher(module, cache=tmp_path / "new" / "cache").logits(["a", "b/c", 7], mask, IDS, mask)
    assert module.calls == 1
    again = Teacher(module, cache=tmp_path / "new" / "cache")
    second = again.logits(torch.tensor([7]), mask[2:], IDS[2:], mask[2:])
    third = again.logits(["7", "b/c", "a"], mask.flip(0), IDS.flip(0), mask.flip(0))
    assert module.calls == 1
    assert second.hidden_states is None
    for one, other, alone in zip(parts_of(first), parts_of(third), parts_of(second), strict=True):
        keep = torch.ones(3, dtype=torch.bool) if kind == "classes" else mask.bool()
        assert torch.equal(one[keep], other.flip(0)[keep])
        assert torch.equal(one[2:][keep[2:]], alone[keep[2:]])
    again.logits(["a", "new"], mask[:2], IDS[:2], mask[:2])
    assert module.calls == 2
    again.logits(["new"], mask[1:2], IDS[1:2], mask[1:2])
    assert module.calls == 2


def parts_of(outputs):
    return outputs.logits if isinstance(outputs.logits, tuple) else (outputs.logits,)


@given(masks(), seeds)
def test_cached_spans_can_be_padded_differently(tmp_path_factory, mask, seed):
    """The loss on cached logits does not depend on the side and the amount of padding."""
    ids = torch.randint(50, mask.shape, generator=torch.Generator().manual_seed(seed))
    teacher = Teacher(Counting("span"), cache=tmp_path_factory.mktemp("cache"))
    examples = range(len(ids))
    student = (normal(*mask.shape, seed=seed), normal(*mask.shape, seed=seed + 1))
    expected = span_loss(student, teacher(ids).logits, 2.0, mask)
    teacher.logits(examples, mask, ids)
    wide = torch.cat([torch.zeros_like(mask), mask], dim=1)
    cached = teacher.logits(examples, wide).logits
    assert teacher.module.calls == 2
    padded = tuple(torch.cat([part, part], dim=1) for part in student)
    assert span_loss(padded, cached, 2.0, wide).item() == pytest.approx(expected.item(), rel=1e-12, abs=1e-14)


def test_two_teachers_may_share_a_cache(tmp_path):
    """Two teachers write the same examples, as concurrent processes would; a third reads them."""
    module = Counting("span")
    pair = [Teacher(module, cache=tmp_path) for _ in range(2)]
    first, _ = (teacher.logits([0, 1, 2], None, IDS) for teacher in pair)
    assert len(list(tmp_path.iterdir())) == 2
    third = Teacher(module, cache=tmp_path).logits([0, 1, 2], None, IDS)
    assert module.calls == 2
    assert all(torch.equal(one, other) for one, other in zip(first.logits, third.logits, strict=True))


def test_logits_without_a_cache_are_computed():
    module = Counting()
    teacher = Teacher(module)
    assert torch.equal(teacher.logits([0, 1, 2], None, IDS).logits, teacher(IDS).logits)
    assert module.calls == 2


def test_a_cache_of_other_weights_raises(tmp_path):
    Teacher(Counting(), cache=tmp_path).logits([0, 1, 2], None, IDS)
    Teacher(Counting(), cache=tmp_path)  # the same weights
    trained = Counting()
    with torch.no_grad():
        trained.head.bias[0] += 1e-6
    for teacher in (
        lambda: Teacher(trained, cache=tmp_path),
        lambda: Teacher(Counting(), cache=tmp_path, dtype=torch.half),
    ):
        with pytest.raises(ValueError, match="other weights") as error:
            teacher()
        assert str(tmp_path) in str(error.value)


def test_autocast_does_not_change_the_cached_logits(tmp_path):
    module = Counting()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        Teacher(module, cache=tmp_path).logits([0, 1, 2], None, IDS)
        assert Teacher(module)(IDS).logits.dtype == torch.bfloat16  # control: without a cache it does
    again = Teacher(module, cache=tmp_path)
    assert torch.equal(again.logits([0, 1, 2], None, IDS).logits, Teacher(module)(IDS).logits)
    assert module.calls == 3  # the cache was read


def test_extra_state_of_a_module_does_not_invalidate_the_cache(tmp_path):
    class WithExtraState(Counting):
        def get_extra_state(self):
            return {"steps": 7}

        def set_extra_state(self, state):
            raise AssertionError

    module = WithExtraState()
    first = Teacher(module, cache=tmp_path).logits([0, 1, 2], None, IDS)
    assert torch.equal(Teacher(module, cache=tmp_path).logits([0, 1, 2], None, IDS).logits, first.logits)
    assert module.calls == 1


def test_ids_may_be_tensors(tmp_path):
    module = Counting()
    teacher = Teacher(module, cache=tmp_path)
    first = teacher.logits(list(torch.tensor([3, 4, 5])), None, IDS).logits  # a list of scalar tensors
    for examples in ([3, 4, 5], ["3", "4", "5"], torch.tensor([3, 4, 5])):
        assert torch.equal(teacher.logits(examples, None, IDS).logits, first)
    assert module.calls == 1


def test_an_empty_batch_writes_nothing(tmp_path):
    assert Teacher(Counting(), cache=tmp_path).logits([], None, IDS[:0]).logits.shape == (0, 3)
    assert list(tmp_path.iterdir()) == []


def test_ids_mask_and_logits_must_fit(tmp_path):
    teacher = Teacher(Counting("tokens"), cache=tmp_path)
    mask = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 0]])
    with pytest.raises(ValueError, match=r"2 example ids .* batch of 3"):
        teacher.logits([0, 1], mask, IDS)
    with pytest.raises(ValueError, match=r"2 example ids .* batch of 3"):
        teacher.logits([0, 1], None, IDS)
    with pytest.raises(ValueError, match=r"mask \(3, 2\) does not fit logits \(3, 3, 3\)"):
        teacher.logits([0, 1, 2], mask[:, :2], IDS)
    teacher.logits([0, 1, 2], mask, IDS)
    with pytest.raises(ValueError, match="example 2 was cached with 1 tokens and now has 2"):
        teacher.logits([2], mask[1:2], IDS[1:2])
    with pytest.raises(ValueError, match=r"\(1, 3\), \(2, 3\), \(3, 3\).*pass the mask"):
        teacher.logits([0, 1, 2], None, IDS)

    class OnlyStates(nn.Module):
        def forward(self, ids):
            return Outputs(hidden_states=(ids,))

    with pytest.raises(ValueError, match="no logits"):
        Teacher(OnlyStates()).logits([0, 1, 2], None, IDS)

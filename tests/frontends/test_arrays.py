"""Test the collectives on NumPy arrays. Several front-ends use these collectives.

Every worker runs these tests.
"""

import hashlib

import barriers
import numpy as np
import pytest

import bps
from bps import _arrays, _core, _dtypes, _elastic, _group, _ops, _picks, _residuals, _sets
from bps._compression import Coding

HALF = Coding("float16")


@pytest.fixture(scope="session", autouse=True)
def job():
    _core.init()
    yield
    _core.shutdown()


@pytest.fixture(autouse=True)
def together():
    """Wait until all workers have ended the previous test."""
    _ops.barrier()


def ranks():
    return range(_core.size())


def total(value=lambda rank: rank + 1):
    return sum(map(value, ranks()))


@pytest.mark.parametrize("dtype", [*_dtypes.NAMES, *_dtypes.CARRIERS])
def test_every_type_is_reduced_with_and_without_a_name(dtype):
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    kind = _dtypes.numpy_type(dtype)
    op = bps.MAX if dtype == "bool" else bps.SUM
    # Worker r has the values of r + 2 steps of a stair. A bool is set where one of them is not 0.
    everyones = [np.arange(33) % (r + 2) for r in ranks()]
    want = sum(everyones).astype(kind).reshape(3, 11)
    for name in (None, f"type.{dtype}"):
        x = everyones[_core.rank()].astype(kind).reshape(3, 11)
        (out,) = _arrays.reduce(_core.runtime(), [x], name=name, op=op)
        assert out.dtype == kind and out.shape == (3, 11)
        assert (out == want).all()


def step_values(n, rank, step):
    """Return values between -1 and 1 that differ between workers and steps."""
    return np.sin(np.arange(n) * (rank + 1) + step).astype(np.float32)


@pytest.mark.parametrize(("wire", "levels"), [("q8", 254), ("q4", 14)])
@pytest.mark.parametrize("name", [None, "blocks"])
def test_large_floats_are_sent_in_blocks_and_all_else_as_it_is(wire, levels, name):
    rt, me, n = _core.runtime(), _core.rank(), 40001
    if name:
        name = f"{name}.{wire}"
    arrays = [
        step_values(n, me, 0).reshape(1, n),
        np.full(7, me, np.float32),
        np.full(30000, me, np.int32),
        step_values(40000, me, 1).astype(np.float16),
    ]
    out = _arrays.reduce(
        rt, arrays, name=name, op=bps.SUM, prescale=2, coding=Coding(wire, 1 << 16)
    )
    size = _core.size()
    # each worker, each machine and the server encode once; no value is larger than 2 * size
    bound = 2 * 3 * size / levels * 1.01
    want = [2 * sum(step_values(k, r, i) for r in ranks()) for i, k in ((0, n), (1, 40000))]
    assert np.abs(out[0].reshape(-1) - want[0]).max() <= bound
    assert 0 < np.abs(out[0].reshape(-1) - want[0]).max(), "the values were not encoded"
    assert (out[1] == 2 * sum(ranks())).all() and (out[2] == 2 * sum(ranks())).all()
    assert out[3].dtype == np.float16
    assert np.abs(out[3].astype(np.float32) - want[1]).max() <= bound + 0.01 * size
    same = _ops.allgather_object([o.tobytes() for o in out])
    assert same.count(same[0]) == size


@pytest.mark.parametrize("wire", ["q8", "q4"])
def test_residuals_give_back_what_blocks_lose(wire):
    rt, me, n, steps = _core.runtime(), _core.rank(), 20001, 30
    plain, coding = Coding(wire, 1 << 16), Coding(wire, 1 << 16, True)
    sums = {False: 0, True: 0}
    for step in range(steps):
        x = step_values(n, me, 0) * np.float32(0.01)
        x[::64] = 1  # large values, beside which the others are lost without a residual
        for has_residual, one in ((False, plain), (True, coding)):
            (out,) = _arrays.reduce(
                rt, [x], name=f"ef.{wire}.{has_residual}", op=bps.SUM, coding=one
            )
            sums[has_residual] = sums[has_residual] + out.astype(np.float64)
        if step == 10:  # a checkpoint keeps the residuals
            state = _residuals.compression_state_dict()
            _residuals.clear()
            _residuals.load_compression_state_dict(state)
    want = steps * sum(step_values(n, r, 0).astype(np.float64) * 0.01 for r in ranks())
    want[::64] = steps * _core.size()
    errors = {k: np.abs(v - want).mean() for k, v in sums.items()}
    # The sums of a machine with several workers, and the results, are encoded without a residual.
    assert errors[True] < errors[False] * (0.7 if wire == "q8" else 1), errors
    kept = {k: v for k, v in _residuals.compression_state_dict().items() if f"ef.{wire}." in k}
    (residual,) = kept.values()  # that of the coding with a residual
    step = 1 / (127 if wire == "q8" else 7)
    assert 0 < np.abs(residual).max() <= step
    _residuals.scale_compression_state(4)
    assert (_residuals.compression_state_dict()[next(iter(kept))] == 4 * residual).all()


def test_a_process_set_has_residuals_of_its_own():
    half = _sets.add_process_set([0])
    x, coding = step_values(20001, 0, 0), Coding("q8", 1 << 16, True)
    runtimes = [_core.runtime()] + ([half.runtime()] if half.included() else [])
    for i, rt in enumerate(runtimes):
        _arrays.reduce(rt, [x * (i + 1)], name="ef.set", coding=coding)
    kept = [v for k, v in _residuals.compression_state_dict().items() if "ef.set" in k]
    assert len(kept) == len(runtimes)
    if half.included():  # a job of one worker encodes, too
        assert np.abs(kept[1] - 2 * kept[0]).max() < 1e-6
    _sets.remove_process_set(half)


@pytest.mark.parametrize("wire", ["q4", "randomk"])
def test_optimizers_that_share_a_name_have_residuals_of_their_own(wire):
    rt, coding = _core.runtime(), Coding(wire, 1 << 16, True, k=0.1)
    for i, label in enumerate(("actor", "critic")):
        x = step_values(20001, _core.rank(), i)
        _arrays.reduce(rt, [x], name=f"ef.twins.{wire}", coding=coding, labels=[label])
    state = _residuals.compression_state_dict()
    first, second = (v for k, v in state.items() if f"ef.twins.{wire}" in k)
    assert first.any() and second.any() and (first != second).any()


def test_an_elastic_state_keeps_residuals():
    rt, coding = _core.runtime(), Coding("q4", 1 << 16, True)
    x, state = [step_values(20001, _core.rank(), 0)], _elastic.State(step=0)
    _arrays.reduce(rt, x, name="ef.state", coding=coding)
    state.save()
    saved = _residuals.compression_state_dict()
    _arrays.reduce(rt, x, name="ef.state", coding=coding)
    (name,) = (name for name in saved if "ef.state" in name)
    assert (_residuals.compression_state_dict()[name] != saved[name]).any()
    state.restore()
    assert (_residuals.compression_state_dict()[name] == saved[name]).all()


@pytest.mark.parametrize("k", [0.01, 300, 10**9])
@pytest.mark.parametrize("name", [None, "picks"])
def test_workers_agree_on_the_values_that_they_send(k, name, monkeypatch):
    rt, me, n = _core.runtime(), _core.rank(), 40001
    coding = Coding("randomk", 1 << 16, k=k, seed=3)
    if name:
        name = f"{name}.{k}"
    small = np.full(7, me, np.float32)
    monkeypatch.setattr(_group._PickBucket, "most", 128)  # spans begin inside of arrays
    seen = []
    for step in range(3):
        x = step_values(n, me, step)
        out, rest = _arrays.reduce(rt, [x, small], name=name, op=bps.SUM, coding=coding)
        want = sum(step_values(n, r, step) for r in ranks())
        is_sent = out != 0
        assert np.allclose(out[is_sent], want[is_sent], atol=1e-5) and (rest == sum(ranks())).all()
        seen.append(is_sent)
    sent = min({0.01: 401, 300: 300}.get(k, n), n)
    # sums of values that are zero are not counted
    assert all(sent - 2 <= s.sum() <= sent for s in seen)
    assert k == 10**9 or (seen[0] != seen[1]).any(), "each step has other positions"


def plain_position(seed, name, step, n, k, j):
    """Return position j of k, in Python's integers."""
    raw = hashlib.blake2b(f"{seed}/{step}/{name}".encode(), digest_size=8).digest()
    z = (int.from_bytes(raw, "little") + (j + 1) * 0x9E3779B97F4A7C15) % 2**64
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        z = (z ^ z >> shift) * factor % 2**64
    first, last = j * n // k, (j + 1) * n // k
    return first + ((z >> 32) * (last - first) >> 32)


def test_the_positions_of_values_are_a_function_of_seed_name_and_step():
    args, n, k = (5, "name", 7), 1003, 100
    at = _picks.positions(*args, n, k, 0, k)
    ends = np.arange(k + 1) * n // k
    assert (ends[:-1] <= at).all() and (at < ends[1:]).all()
    assert (at[40:60] == _picks.positions(*args, n, k, 40, 60)).all()
    assert at.tolist() == [plain_position(*args, n, k, j) for j in range(k)]
    others = [(6, "name", 7), (5, "other", 7), (5, "name", 8)]
    assert all((at != _picks.positions(*other, n, k, 0, k)).any() for other in others)
    # each place of a range of 10 is drawn equally often: 20,000 draws, 5 standard deviations
    places = [(_picks.positions(0, "n", s, 1000, 100, 0, 100) % 10) for s in range(200)]
    counts = np.bincount(np.concatenate(places), minlength=10)
    assert np.abs(counts - 2000).max() < 5 * np.sqrt(20000 * 0.1 * 0.9)


def test_residuals_send_all_values_in_time():
    rt, me, n, steps = _core.runtime(), _core.rank(), 20000, 60
    coding = Coding("randomk", 1 << 16, True, k=0.1)
    x, total = step_values(n, me, 0), 0
    for _ in range(steps):
        (out,) = _arrays.reduce(rt, [x], name="ef.picks", op=bps.SUM, coding=coding)
        total = total + out.astype(np.float64)
    state = _residuals.compression_state_dict()
    (mine,) = (v for k, v in state.items() if "ef.picks" in k)
    kept = sum(_ops.allgather_object(mine.astype(np.float64)))
    want = steps * sum(step_values(n, r, 0).astype(np.float64) for r in ranks())
    assert np.allclose(total + kept, want, atol=1e-3), "a value was lost"
    x[123] = np.inf if me == 0 else 0
    (out,) = _arrays.reduce(rt, [x], name="ef.picks", op=bps.SUM, coding=coding)
    assert np.isnan(out).any(), "the overflow does not arrive"
    state = _residuals.compression_state_dict()
    assert all(np.isfinite(v).all() for v in state.values())


def test_blocks_are_refused_where_they_make_no_sense():
    rt, x = _core.runtime(), np.zeros(40000, np.float32)
    with pytest.raises(ValueError, match="max needs the values themselves"):
        _arrays.reduce(rt, [x], name="wrong", op=bps.MAX, coding=Coding("q8"))
    with pytest.raises(ValueError, match="needs the argument name"):
        _arrays.reduce(rt, [x], op=bps.SUM, coding=Coding("q8", 0, True))
    if max(_ops.allgather_object(rt.job.local_size)) > 1:
        with pytest.raises(ValueError, match="use Compression.int4"):
            _arrays.reduce(rt, [x], name="sign", coding=Coding("sign", 0, True))
    else:
        (out,) = _arrays.reduce(rt, [x + 2], name="sign", coding=Coding("sign", 0, True))
        assert (out == 2).all()


def test_a_group_of_many_types_and_sizes_is_reduced_in_one_call():
    rt = _core.runtime()
    kinds = [np.float32, np.int32, np.float64, np.float32]
    arrays = [
        np.full(n, _core.rank() + 1, kind)
        for n, kind in zip((1, 0, 1000, 77, 9), (*kinds, np.uint8))
    ]
    for _ in range(3):
        outputs = _arrays.reduce(rt, arrays, name="mixed", op=bps.SUM)
        assert [o.shape for o in outputs] == [a.shape for a in arrays]
        assert all(o.dtype == a.dtype and (o == total()).all() for o, a in zip(outputs, arrays))


def test_an_array_larger_than_a_bucket_is_cut(monkeypatch):
    monkeypatch.setattr(_group, "BUCKET_BYTES", 4096)
    arrays = [np.arange(n, dtype=np.float32) + _core.rank() for n in (100, 5000, 3)]
    outputs = _arrays.reduce(_core.runtime(), arrays, name="cut", op=bps.SUM)
    for out, n in zip(outputs, (100, 5000, 3)):
        assert (out == np.arange(n) * _core.size() + sum(ranks())).all()


def test_outputs_are_reused_only_when_no_reference_is_left():
    rt = _core.runtime()
    one = _group.group(rt, "again", [(np.dtype("f4"), (10,)), (np.dtype("f4"), (20,))])
    held = []
    for step in range(6):
        own = float(step + _core.rank())
        arrays = [np.full(10, own, "f4"), np.full(20, -own, "f4")]
        outputs = one.reduce(arrays, op=bps.SUM)
        assert all(o.ctypes.data % 64 == 0 for o in outputs)
        held.append(outputs[1])
    for step, out in enumerate(held):
        assert (out == -total(lambda r, step=step: step + r)).all()
    first = held[0].ctypes.data
    held.clear()
    del outputs, out
    assert {one.reduce(arrays)[1].ctypes.data for _ in range(4)} == {first}


def test_given_outputs_are_written_in_place():
    x = np.full((4, 4), float(_core.rank()))
    (out,) = _arrays.reduce(_core.runtime(), [x], [x], "place", bps.SUM)
    assert out is x and (x == sum(ranks())).all()


def test_factors_apply_before_and_after_the_sum():
    x = np.full(5, float(_core.rank() + 1), "f4")
    for name in (None, "factors"):
        (out,) = _arrays.reduce(
            _core.runtime(), [x], name=name, op=bps.SUM, prescale=0.5, postscale=4.0
        )
        assert np.allclose(out, 2.0 * total())


@pytest.mark.parametrize("name", [None, "scaled"])
def test_integers_are_scaled_in_64_bits_and_rounded_once(name):
    n, rt = 2**40 + 1, _core.runtime()
    options = {"name": name, "op": bps.SUM, "prescale": 0.5, "postscale": 3.0}
    (out,) = _arrays.reduce(rt, [np.full(3, 2 * n)], **options)
    assert out.dtype == np.int64 and (out == 3 * n * rt.job.size).all()
    (mean,) = _arrays.reduce(rt, [np.full(3, -5, "i4")], name=name, postscale=0.5)
    assert (mean == -2).all()
    with pytest.raises(ValueError, match="bools"):
        _arrays.reduce(rt, [np.ones(3, bool)], prescale=2.0)


def test_compression_changes_the_type_on_the_wire_only():
    x = np.full(8, 0.5 + _core.rank(), "f4")
    (out,) = _arrays.reduce(_core.runtime(), [x], name="half", op=bps.SUM, coding=HALF)
    assert out.dtype == np.float32 and (out == total(lambda r: 0.5 + r)).all()


@pytest.mark.parametrize("name", [None, "limited"])
@pytest.mark.parametrize("sizes", [[100], [99], [99, 100, 1]])
def test_small_arrays_and_integers_are_not_compressed(name, sizes):
    coding, fine = Coding("float16", min_bytes=400), np.float32(1 + 2**-12)  # 1 in float16
    x = [np.full(n, fine) for n in sizes]
    x.append(np.full(200, 2**12 + 1, np.int32))
    outputs = _arrays.reduce(_core.runtime(), x, name=name, op=bps.MAX, coding=coding)
    for n, out in zip(sizes, outputs):
        assert (out == (1 if n == 100 else fine)).all()
    assert (outputs[-1] == 2**12 + 1).all()


def test_types_that_cannot_be_summed_are_refused_in_words():
    with pytest.raises(TypeError, match="complex64 cannot be summed"):
        _arrays.reduce(_core.runtime(), [np.ones(3, np.complex64)])


def test_an_unnamed_array_takes_pieces_first_and_then_a_slot_of_its_own():
    rt = _core.runtime()
    x = np.arange(1_500_000, dtype=np.float32)
    for _ in range(3):
        (out,) = _arrays.reduce(rt, [x + _core.rank()], op=bps.SUM)
        assert (out == x * _core.size() + sum(ranks())).all()
    assert ("f32", bps.SUM, 1_500_000, 1) in rt.slots._own


def test_lists_that_differ_between_workers_are_an_error_at_all():
    arrays = [np.ones(3 + 100 * _core.rank(), "f4")] * 2
    with pytest.raises(bps.Error, match="differ"):
        _arrays.reduce(_core.runtime(), arrays, name="differ")


@pytest.mark.parametrize("n", [3, 40_000])
def test_arrays_without_a_name_that_differ_are_an_error_at_all_and_the_job_goes_on(n):
    for _ in range(2):
        mine = np.ones(n * (1 + (_core.rank() > 0)), "f4")
        with pytest.raises(bps.Error, match="workers disagree in all_reduce: rank 0 has"):
            _arrays.reduce(_core.runtime(), [mine])
        (out,) = _arrays.reduce(_core.runtime(), [np.ones(n, "f4")], op=bps.SUM)
        assert (out == _core.size()).all()
    with pytest.raises(bps.Error, match="workers disagree in broadcast"):
        _arrays.broadcast(_core.runtime(), [np.ones(n + _core.rank())], 0)


SHAPES = [
    (np.ones((2, 6), "f4"), np.ones((3, 4), "f4"), "float32 [2, 6]", "float32 [3, 4]"),
    (np.ones(4, "f4"), np.ones(4, "i4"), "float32 [4]", "int32 [4]"),
    (np.ones(4, "f8"), np.ones(8, "f4"), "float64 [4]", "float32 [8]"),
]


@pytest.mark.parametrize("name", ["alone", None, "two", "unnamed two", "broadcast", "broadcasts"])
@pytest.mark.parametrize("first, other, text, other_text", SHAPES)
def test_equal_bytes_with_other_shapes_or_types_are_an_error(name, first, other, text, other_text):
    rt, x = _core.runtime(), other if _core.rank() else first
    alike = np.arange(3.0)
    label = f"{name} {other_text}"
    calls = {
        "alone": lambda: _arrays.reduce(rt, [x], name=label),
        None: lambda: _arrays.reduce(rt, [x]),
        "two": lambda: _arrays.reduce(rt, [alike, x], name=label, labels=["a", "b"]),
        "unnamed two": lambda: _arrays.reduce(rt, [alike, x], labels=["a", "b"]),
        "broadcast": lambda: _arrays.broadcast(rt, [x], 0),
        "broadcasts": lambda: _arrays.broadcast(rt, [alike, x], 0, labels=["a", "b"]),
    }
    for _ in range(2):
        with pytest.raises(bps.Error, match="workers disagree in ") as caught:
            calls[name]()
        assert f"rank 0 has {text}" in str(caught.value)
        assert f"has {other_text}" in str(caught.value)
        if name is not None and ("two" in name or name == "broadcasts"):
            assert "tensor 'b': rank 0" in str(caught.value)
    (out,) = _arrays.reduce(rt, [np.ones(5)], op=bps.SUM)
    assert (out == _core.size()).all()


def test_arrays_that_are_moved_across_each_other_are_an_error():
    sizes = (4, 2) if _core.rank() else (2, 4)
    match = "tensor 'x': rank 0 has float64 .2., rank 1 has float64 .4."
    for name in ("across", None):
        with pytest.raises(bps.Error, match=match):
            _arrays.reduce(
                _core.runtime(), [np.ones(n) for n in sizes], name=name, labels=["x", "y"]
            )


def test_broadcast_matches_arrays_by_name():
    mine = [(name, np.full(2, 10.0 * _core.rank() + i)) for i, name in enumerate("abc")]
    mine = mine[_core.rank() :] + mine[: _core.rank()]
    arrays, names = [a for _, a in mine], [name for name, _ in mine]
    got = dict(zip(names, _arrays.broadcast(_core.runtime(), arrays, 1, names=names)))
    assert [got[name].tolist() for name in "abc"] == [[10.0 + i] * 2 for i in range(3)]


def test_arrays_of_objects_and_of_other_types_are_refused_by_the_job():
    job = _core.runtime().job
    with pytest.raises(TypeError, match="broadcast: .*Python objects.*broadcast_object"):
        job.broadcast(np.array([{}, {}]))
    with pytest.raises(TypeError, match="allgather: .*Python objects.*allgather_object"):
        job.allgather(np.array([{}, {}]))
    with pytest.raises(TypeError, match="Python objects"):
        _arrays.broadcast(_core.runtime(), [np.array([{}])], 0)
    with pytest.raises(TypeError, match="Python objects"):
        _arrays.gather(_core.runtime(), np.array([{}]))
    for first, other in (("f4", "i4"), ("i8", "i4")):
        mine = np.full(4, 2**20 + _core.rank(), other if _core.rank() else first)
        for call in (job.broadcast, job.allgather):
            names = f"{np.dtype(other).name} .4..*{np.dtype(first).name} .4."
            names += f"|{np.dtype(first).name} .4..*{np.dtype(other).name} .4."
            with pytest.raises(ValueError, match=f"rank . has (?:{names})"):
                call(mine.copy())
            assert (mine == 2**20 + _core.rank()).all()


@pytest.mark.parametrize("kind", [">f4", ">i8", "<f8", ">u2"])
def test_arrays_of_either_byte_order_keep_their_values(kind):
    order = ">" if _core.rank() else "<"
    job, mine = _core.runtime().job, np.full((2, 3), 5 + _core.rank(), order + kind[1:])
    assert (job.allgather(mine)[:, 0, 0] == np.arange(5, 5 + _core.size())).all()
    assert (
        _arrays.gather(_core.runtime(), mine)[0][::2, 0] == np.arange(5, 5 + _core.size())
    ).all()
    assert (_arrays.broadcast(_core.runtime(), [mine], 1)[0] == 6).all()
    if kind != ">u2":
        assert (
            _arrays.reduce(_core.runtime(), [mine], op=bps.SUM)[0] == total(lambda r: 5 + r)
        ).all()
    assert job.broadcast(mine, 1) is mine and (mine == 6).all()


def test_a_name_may_come_back_with_other_sizes():
    for n in (3, 50, 3):
        x = np.full(n, _core.rank() + 1.0, "f4")
        (out,) = _arrays.reduce(_core.runtime(), [x], name="sizes", op=bps.SUM)
        assert out.tolist() == [float(total())] * n


@pytest.mark.parametrize("root", [0, 1])
def test_broadcast_gives_every_worker_the_arrays_of_root(root):
    mine = [np.full((2, 3), _core.rank(), "i1"), np.array(_core.rank() * 0.5), np.empty(0)]
    outputs = _arrays.broadcast(_core.runtime(), mine, root)
    assert (outputs[0] == root).all() and outputs[1] == root * 0.5 and outputs[1].shape == ()
    assert outputs[2].shape == (0,)


def test_gather_takes_different_numbers_of_rows():
    x = np.full((_core.rank(), 2), _core.rank(), "i4")
    out, rows, extras = _arrays.gather(_core.runtime(), x, extra=_core.rank() * "x")
    assert rows == list(ranks()) and extras == [r * "x" for r in ranks()]
    assert out[:, 0].tolist() == [r for r in ranks() for _ in range(r)]


def test_gather_names_the_worker_whose_shape_differs():
    x = np.zeros((1, 2 + (_core.rank() == 1)))
    with pytest.raises(bps.Error, match=r"rank \d has shape"):
        _arrays.gather(_core.runtime(), x)


def test_exchange_sends_each_worker_its_rows():
    splits = [r + 1 for r in ranks()]
    x = np.repeat(np.array(ranks()), splits) + 100 * _core.rank()
    out, received = _arrays.exchange(_sets.global_process_set, x, splits)
    me = _core.rank()
    assert received == [me + 1] * _core.size()
    assert out.tolist() == [100 * r + me for r in ranks() for _ in range(me + 1)]


@pytest.mark.parametrize("n_rows", [None, 8])
def test_rows_of_all_workers_are_summed_by_index_and_averaged(n_rows):
    rt, size = _core.runtime(), _core.size()
    values, mine = np.full((2, 3), _core.rank() + 1.0, "f4"), np.array([_core.rank(), 7])
    rows, indices = _arrays.sum_rows(rt, values, mine, n_rows, bps.AVG)
    assert indices.tolist() == [*ranks(), 7]
    means = [(r + 1) / size for r in ranks()] + [(size + 1) / 2]
    assert rows.shape == (size + 1, 3) and np.allclose(rows, np.array(means)[:, None])


@pytest.fixture
def some():
    """Yield a process set of the last two workers."""
    one = _sets.add_process_set([_core.size() - 2, _core.size() - 1])
    yield one
    _sets.remove_process_set(one)


def test_a_set_of_workers_runs_collectives_of_its_own(some):
    last, x = _core.size() - 1, np.full((2, 3), _core.rank() + 1.0)
    if some.included():
        rt = some.runtime()
        for name in (None, "some"):
            (out,) = _arrays.reduce(rt, [x], name=name, op=bps.SUM)
            assert (out == 2 * last + 1).all()
            (out,) = _arrays.reduce(rt, [x], name=name, op=bps.AVG)
            assert (out == last + 0.5).all()
        (out,) = _arrays.broadcast(rt, [x], some.place(last))
        assert (out == last + 1).all()
        out, rows, extras = _arrays.gather(rt, x, extra=_core.rank())
        assert out[:, 0].tolist() == [last, last, last + 1, last + 1]
        assert (rows, extras) == ([2, 2], some.ranks)
        out, received = _arrays.exchange(some, x + 100 * np.arange(2)[:, None], None)
        place = 100 * some.rank()
        assert out[:, 0].tolist() == [last + place, last + 1 + place] and received == [1, 1]
    else:
        with pytest.raises(ValueError, match="is not in"):
            some.runtime()
    (out,) = _arrays.reduce(_core.runtime(), [x], op=bps.SUM)
    assert (out == total()).all()


def test_sets_next_to_each_other_do_not_mix():
    sets = [_sets.add_process_set(ranks()[first::2]) for first in (0, 1)]
    own = sets[_core.rank() % 2]
    for step in range(3):
        x = np.full(3, _core.rank() + step)
        (out,) = _arrays.reduce(own.runtime(), [x], name="own", op=bps.SUM)
        assert (out == sum(r + step for r in own.ranks)).all()
    for one in sets:
        _sets.remove_process_set(one)


def test_a_barrier_waits_for_all_workers_and_that_of_a_set_for_its_own(some, tmp_path):
    path = _ops.broadcast_object(tmp_path, 0)
    barriers.check(_ops.barrier, path / "all", _core.rank(), ranks())
    barriers.check(lambda: _ops.barrier(some), path / "some", _core.rank(), some.ranks)


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("name", [None, "sent"])
def test_compressions_and_operations_that_differ_are_an_error_at_all(n, name):
    rt, x = _core.runtime(), [np.ones(3, np.float32)] * n
    if name is not None:
        name = f"{name}.{n}"
    for options in ({"coding": HALF}, {"op": bps.MAX}):
        mine = options if _core.rank() else {}
        with pytest.raises(bps.Error, match=r"disagree .*rank 0 has.* avg"):
            _arrays.reduce(rt, x, name=name and f"{name}.{[*options]}", **mine)
        for out in _arrays.reduce(rt, x, name=name, op=bps.SUM):
            assert out.tolist() == [_core.size()] * 3


def test_a_name_can_be_used_again_after_arrays_that_differ():
    rt = _core.runtime()
    with pytest.raises(bps.Error, match=r"rank 0 has float32 \[2\], rank 1 has float32 \[3\]"):
        _arrays.reduce(rt, [np.ones(3 if _core.rank() else 2, np.float32)], name="again")
    for n in (3, 2):
        (out,) = _arrays.reduce(rt, [np.ones(n, np.float32)], name="again", op=bps.SUM)
        assert out.tolist() == [_core.size()] * n


def test_an_array_and_an_object_are_not_mixed():
    rt = _core.runtime()
    with pytest.raises(bps.Error, match="disagree in all_gather_object: rank 0 has an object"):
        _arrays.gather(rt, np.ones(3)) if _core.rank() else rt.allgather_object(1)
    assert rt.allgather_object(1) == [1] * _core.size()

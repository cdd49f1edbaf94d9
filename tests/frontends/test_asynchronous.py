"""Asynchronous training with PyTorch: all workers run these tests in the same order.

Sums of float64 differ from those of the service in the order of their additions only. With values
around 1 and a few hundred additions, the difference stays below NEAR.
"""

import copy
import time

import jobs
import pytest
import torch

import bps.torch as bps
from bps import _core

NEAR = 1e-12
SLOW_S = 0.05


@pytest.fixture(scope="session", autouse=True)
def job():
    bps.init()
    yield
    bps.shutdown()


@pytest.fixture(autouse=True)
def together():
    """Wait until all workers have ended the previous test."""
    bps.barrier()


def machines():
    """Return how many agents the workers have. With one, workers stay in step."""
    return len(set(bps.allgather_object(_core.host_key())))


def network(dtype=torch.float64):
    torch.manual_seed(1 + bps.rank())
    layers = torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)
    return torch.nn.Sequential(*layers).to(dtype)


def wrap(model, lr=0.05, stale=None, optimizer=torch.optim.SGD, **options):
    plain = optimizer(model.parameters(), lr=lr)
    options = {"asynchronous": True, "stale": stale, **options}
    return bps.DistributedOptimizer(plain, model.named_parameters(), **options)


def values(model):
    return torch.cat([p.detach().reshape(-1).double() for p in model.parameters()])


def same_everywhere(model):
    rows = bps.allgather(values(model).view(1, -1))
    return bool((rows == rows[0]).all())


def set_gradients(model, value):
    for p in model.parameters():
        p.grad = torch.full_like(p, value)


def train(model, optimizer, steps):
    """Fit a linear function, each worker with its own inputs. Return the last loss."""
    generator = torch.Generator().manual_seed(bps.rank())
    target = torch.linspace(-1, 1, 18, dtype=torch.float64).view(6, 3)
    for _ in range(steps):
        x = torch.randn(32, 6, generator=generator, dtype=torch.float64)
        loss = ((model(x) - x @ target) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


@pytest.mark.parametrize("stale", [0, 2, None])
def test_training_converges_and_all_workers_end_with_equal_parameters(stale):
    model = network()
    optimizer = wrap(model, stale=stale)
    first = train(model, optimizer, 1)
    last = train(model, optimizer, 300)
    assert last < first / 10, (first, last)
    optimizer.pull_values()
    assert same_everywhere(model)


@pytest.mark.parametrize("is_before", [True, False])
def test_the_values_begin_with_the_parameters_of_rank_0(is_before):
    model = network()
    if is_before:
        bps.broadcast_parameters(model.state_dict(), 0)
    optimizer = wrap(model)
    if not is_before:
        bps.broadcast_parameters(model.state_dict(), 0)
    begin = values(model)
    set_gradients(model, 0.0)
    optimizer.step()
    assert torch.equal(values(model), begin)


def test_the_values_are_those_of_rank_0_without_a_broadcast():
    model = network()
    wanted = bps.broadcast(values(model), 0)
    optimizer = wrap(model)
    set_gradients(model, 0.0)
    optimizer.step()
    assert torch.equal(values(model), wanted)


@pytest.mark.parametrize("stale", [0, None])
def test_the_updates_of_all_workers_are_added_and_not_averaged(stale):
    model = network()
    optimizer = wrap(model, lr=0.5, stale=stale)
    bps.broadcast_parameters(model.state_dict(), 0)
    begin, steps = values(model), 5 + (bps.size() if stale == 0 else 0)
    for _ in range(steps):
        set_gradients(model, 1.0 + bps.rank())
        optimizer.step()
    optimizer.pull_values()
    total = 0.5 * steps * sum(1.0 + r for r in range(bps.size()))
    assert (values(model) - (begin - total)).abs().max() < 1e-10
    assert same_everywhere(model)


def test_own_updates_are_in_the_answer():
    model = network()
    optimizer = wrap(model, lr=1.0)
    set_gradients(model, 0.0)
    optimizer.step()
    for _ in range(5):
        begin = values(model)
        set_gradients(model, 1.0)
        optimizer.step()
        assert (values(model) <= begin - 1 + NEAR).all()


@pytest.mark.parametrize("stale", [0, None])
def test_only_a_bound_lets_the_others_wait_for_a_slow_worker(stale):
    if machines() == 1:
        stale = 0  # workers of one machine stay in step
    model, steps = network(), 20
    optimizer = wrap(model, stale=stale)
    set_gradients(model, 0.0)
    optimizer.step()
    bps.barrier()
    is_slow, start = bps.rank() == bps.size() - 1, time.monotonic()
    for _ in range(steps):
        if is_slow:
            time.sleep(SLOW_S)
        optimizer.step()
    seconds = time.monotonic() - start
    others_wait = seconds > (steps - 2) * SLOW_S
    optimizer.pull_values()
    if not is_slow:
        assert others_wait == (stale == 0), seconds


def test_workers_may_make_different_numbers_of_steps_without_a_bound():
    if machines() < bps.size():
        return  # workers of one machine make the same number of steps
    model = network()
    optimizer = wrap(model, lr=1.0)
    bps.broadcast_parameters(model.state_dict(), 0)
    begin = values(model)
    for _ in range(1 + 3 * bps.rank()):
        set_gradients(model, 1.0)
        optimizer.step()
    optimizer.pull_values()
    total = sum(1.0 + 3 * r for r in range(bps.size()))
    assert (values(model) - (begin - total)).abs().max() < 1e-10
    assert same_everywhere(model)


@pytest.mark.parametrize("name", ["Adam", "Adagrad", "RMSprop"])
def test_each_worker_has_its_own_state(name):
    model = network()
    optimizer = wrap(model, lr=0.01, optimizer=getattr(torch.optim, name))
    first, last = train(model, optimizer, 1), train(model, optimizer, 200)
    assert last < first / 2, (first, last)
    optimizer.pull_values()
    assert same_everywhere(model)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_short_types_have_values_in_f32(dtype):
    model = network(dtype)
    optimizer = wrap(model, lr=1.0)
    bps.broadcast_parameters(model.state_dict(), 0)
    begin = values(model)
    for _ in range(4):
        set_gradients(model, 0.25)
        optimizer.step()
    optimizer.pull_values()
    total = 4 * 0.25 * bps.size()
    step = torch.finfo(dtype).eps * (begin.abs() + total)  # rounding of each update
    assert ((values(model) - (begin - total)).abs() <= 8 * bps.size() * step).all()
    assert same_everywhere(model)


def test_layouts_frozen_and_empty_parameters():
    weight = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last).requires_grad_()
    frozen, empty = torch.randn(3), torch.empty(0, requires_grad=True)
    named = [("weight", weight), ("frozen", frozen), ("empty", empty)]
    plain = torch.optim.SGD([one for _, one in named], lr=1.0)
    optimizer = bps.DistributedOptimizer(plain, named, asynchronous=True)
    bps.broadcast_parameters(named, 0)
    begin, still = weight.detach().clone(), frozen.clone()
    gradient = torch.arange(96.0).view(2, 3, 4, 4)
    weight.grad = gradient.clone()
    optimizer.step()
    optimizer.pull_values()
    assert (weight - (begin - bps.size() * gradient)).abs().max() < 1e-3
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(frozen, still)


def test_sparse_gradients():
    torch.manual_seed(1)
    table = torch.nn.Embedding(10, 4, sparse=True)
    optimizer = wrap(table, lr=1.0)
    begin = table.weight.detach().clone()
    optimizer.zero_grad()
    table(torch.tensor([bps.rank()])).sum().backward()
    optimizer.step()
    optimizer.pull_values()
    begin[: bps.size()] -= 1
    assert (table.weight - begin).abs().max() < 1e-6


def test_gradients_of_several_backward_passes_are_added():
    model = network()
    optimizer = wrap(model, lr=1.0, backward_passes_per_step=2)
    bps.broadcast_parameters(model.state_dict(), 0)
    begin = values(model)
    for _ in range(2):
        sum(p.sum() for p in model.parameters()).backward()
    optimizer.step()
    optimizer.pull_values()
    assert (values(model) - (begin - 2 * bps.size())).abs().max() < 1e-10


def test_clipping_as_with_synchronous_gradients():
    model = network()
    optimizer = wrap(model, lr=1.0)
    bps.broadcast_parameters(model.state_dict(), 0)
    begin = values(model)
    sum(p.sum() for p in model.parameters()).backward()
    optimizer.synchronize()
    torch.nn.utils.clip_grad_value_(model.parameters(), 0.5)
    with optimizer.skip_synchronize():
        optimizer.step()
    optimizer.pull_values()
    assert (values(model) - (begin - 0.5 * bps.size())).abs().max() < 1e-10


def test_a_closure_computes_the_gradients():
    model = network()
    optimizer = wrap(model, lr=0.1)

    def closure():
        set_gradients(model, 1.0)
        return 7.0

    assert optimizer.step(closure) == 7.0


def test_parameters_changed_outside_of_a_step_are_refused_until_the_values_are_reset():
    model = network()
    optimizer = wrap(model, lr=1.0)
    set_gradients(model, 0.0)
    optimizer.step()
    saved = copy.deepcopy(model.state_dict())
    model.load_state_dict(saved)
    optimizer.step()  # the same bits are no change
    other = {name: one + bps.rank() + 1 for name, one in saved.items()}
    model.load_state_dict(other)
    with pytest.raises(RuntimeError, match=r"parameter '0\.weight' was changed outside of step"):
        optimizer.step()
    optimizer.reset_values()
    optimizer.step()
    wanted = torch.cat([one.reshape(-1) + 1 for one in saved.values()])
    wanted = bps.broadcast(wanted, 0)
    optimizer.pull_values()
    assert torch.equal(values(model), wanted)


def test_a_broadcast_after_a_step_is_allowed_and_changes_no_value():
    model = network()
    optimizer = wrap(model, lr=1.0)
    bps.broadcast_parameters(model.state_dict(), 0)
    begin = values(model)
    for _ in range(3):
        set_gradients(model, 1.0 + bps.rank())
        optimizer.step()
        bps.broadcast_parameters(model.state_dict(), 0)  # answers differ between workers
    optimizer.pull_values()
    total = 3 * sum(1.0 + r for r in range(bps.size()))
    assert (values(model) - (begin - total)).abs().max() < 1e-10
    assert same_everywhere(model)


def test_parameters_of_a_group_that_is_added_are_exchanged():
    model, more = network(), torch.nn.Parameter(torch.full((5,), float(bps.rank())))
    optimizer = wrap(model, lr=1.0)
    set_gradients(model, 0.0)
    optimizer.step()
    optimizer.add_param_group({"params": [more]})
    more.grad = torch.ones(5)
    optimizer.step()
    optimizer.pull_values()
    assert torch.equal(more.detach(), torch.full((5,), -float(bps.size())))


def test_a_copy_has_values_of_its_own():
    model = network()
    optimizer = wrap(model, lr=1.0)
    set_gradients(model, 0.0)
    optimizer.step()
    kept = values(model)
    both = copy.deepcopy({"model": model, "optimizer": optimizer})
    set_gradients(both["model"], 1.0)
    both["optimizer"].step()
    both["optimizer"].pull_values()
    optimizer.pull_values()
    assert torch.equal(values(model), kept)
    assert (values(both["model"]) - (kept - bps.size())).abs().max() < 1e-10


@pytest.mark.parametrize(
    "variables, wanted",
    [
        ({}, None),
        ({"BYTEPS_ENABLE_ASYNC": "0"}, None),
        ({"BYTEPS_ENABLE_ASYNC": "1"}, (None,)),
        ({"BPS_STALE": "3"}, (3,)),
        ({"BPS_STALE": "inf"}, (None,)),
        ({"BYTEPS_ENABLE_ASYNC": "1", "BPS_STALE": "0"}, (0,)),
    ],
)
def test_variables_choose_the_bound(monkeypatch, variables, wanted):
    for name in ("BYTEPS_ENABLE_ASYNC", "BPS_STALE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    model = network()
    bound = wrap(model, asynchronous=None)._bps_bound
    assert bound == wanted
    assert wrap(model, asynchronous=False)._bps_bound is None
    if wanted:
        assert wrap(model, stale=7)._bps_bound == (7,)
        with pytest.raises(ValueError, match="DistributedDataParallel cannot train async"):
            bps.DistributedDataParallel(model)
        with pytest.raises(ValueError, match="LocalSGD cannot train asynchronously"):
            bps.LocalSGD(model, torch.optim.SGD(model.parameters(), lr=0.1), sync_every=2)
        with pytest.raises(ValueError, match="ddp_hook cannot train asynchronously"):
            bps.HookState()


def test_a_wrong_bound_is_refused(monkeypatch):
    model = network()
    with pytest.raises(ValueError, match="stale is -1"):
        wrap(model, stale=-1)
    with pytest.raises(ValueError, match="stale needs asynchronous=True"):
        wrap(model, asynchronous=False, stale=1)
    monkeypatch.setenv("BPS_STALE", "soon")
    with pytest.raises(ValueError, match="BPS_STALE=soon is not a bound"):
        wrap(model, asynchronous=None)


@pytest.mark.parametrize(
    "name, value",
    [
        ("compression", bps.Compression.fp16),
        ("compression", bps.Compression.int8),
        ("compression_params", {"compressor": "onebit"}),
        ("op", bps.Sum),
        ("gradient_predivide_factor", 2.0),
        ("num_groups", 2),
        ("groups", 2),
        ("sparse_as_dense", True),
        ("cross_barrier", True),
        ("one_step_late", True),
    ],
)
def test_options_that_exclude_asynchronous_training(name, value):
    with pytest.raises(ValueError, match=f"{name} cannot be combined with asynchronous training"):
        wrap(network(), **{name: value})


def test_other_things_that_cannot_be_combined():
    model = network()
    optimizer = wrap(model)
    with pytest.raises(ValueError, match="LocalSGD cannot use an asynchronous"):
        bps.LocalSGD(model, optimizer, sync_every=2)
    with pytest.raises(NotImplementedError, match="asynchronous"):
        bps.join()
    with pytest.raises(RuntimeError, match="GradScaler needs an optimizer with asynchronous=False"):
        optimizer._step_supports_amp_scaling  # noqa: B018
    whole = torch.nn.Parameter(torch.zeros(3, dtype=torch.complex64))
    with pytest.raises(TypeError, match="'param.0' has the type complex64"):
        bps.DistributedOptimizer(torch.optim.SGD([whole], lr=1.0), asynchronous=True)


@pytest.mark.parametrize(
    "mine, text",
    [({"stale": 1}, "asynchronous training with the bound"), ({"asynchronous": False}, "factors")],
)
def test_workers_that_disagree_get_an_error(mine, text):
    model = network()
    optimizer = wrap(model, **({"stale": 2} if bps.rank() else {**mine}))
    set_gradients(model, 1.0)
    if bps.rank() == 0 and "asynchronous" in mine:
        sum(p.sum() for p in model.parameters()).backward()
    with pytest.raises(bps.Error, match=text) as found:
        optimizer.step()
    assert "workers disagree" in str(found.value)


ASYNCHRONOUS_JOB = """
import torch
import bps.torch as bps
bps.init()
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer = bps.DistributedOptimizer(optimizer, model.named_parameters())
def step():
    optimizer.zero_grad()
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
"""
LAGGING = """
step()
step()
if bps.rank() == 0:
    bps.shutdown()
else:
    try:
        step()
    except bps.Error as error:
        print("ERROR", error)
"""


@pytest.mark.parametrize("variable", ["BPS_BACKUP", "BPS_ELASTIC"])
def test_a_job_that_cannot_have_values_is_refused_in_words(tmp_path, variable):
    if bps.rank() == 0:
        script = ASYNCHRONOUS_JOB + "try:\n    step()\nexcept ValueError as e:\n    print('NO', e)"
        more = {"BPS_ON_AGENT_LOSS": "shrink"} if variable == "BPS_ELASTIC" else {}
        _, outputs = jobs.start(
            script, tmp_path, 2, BYTEPS_ENABLE_ASYNC="1", **{variable: "1"}, **more
        )
        for text in outputs:
            assert "NO this job cannot train asynchronously" in text, text
            assert f"option {variable[4:].lower()} cannot have values" in text, text
    bps.barrier()


def test_a_worker_that_has_ended_early_is_named(tmp_path):
    if bps.rank() == 0:
        _, outputs = jobs.start(ASYNCHRONOUS_JOB + LAGGING, tmp_path, 2, BYTEPS_ENABLE_ASYNC="1")
        assert "ERROR" in outputs[1] and "rank 0" in outputs[1], outputs
        assert "let all workers make the same number of steps" in outputs[1], outputs
    bps.barrier()


# The first round of rank 0 times out, because rank 1 is late. Rank 0 calls the step again.
LATE = """
import os, time
from bps._values import Values
with torch.no_grad():
    for p in model.parameters():
        p.fill_(1.0)
submit = Values._submit
def submit_late(self, write):
    Values._submit = submit
    deadline = time.monotonic() + 60
    while not os.path.exists("again"):  # until rank 0 has had its time-out
        assert time.monotonic() < deadline
        time.sleep(0.01)
    submit(self, write)
if bps.rank() == 1:
    Values._submit = submit_late
is_due = True
while is_due:
    try:
        step()
        is_due = False
    except bps.Timeout:
        print("AGAIN")
        open("again", "w").close()
optimizer.pull_values()
for p in model.parameters():
    assert torch.allclose(p, torch.full_like(p, 1 - 0.1 * bps.size())), p
print("DONE")
"""


def test_a_time_out_of_the_first_round_does_not_set_the_values_twice(tmp_path):
    if bps.rank() == 0:
        more = {"BYTEPS_ENABLE_ASYNC": "1", "BPS_TIMEOUT": "2s"}
        _, outputs = jobs.start(ASYNCHRONOUS_JOB + LATE, tmp_path, 2, **more)
        assert "AGAIN" in outputs[0], outputs
        assert all("DONE" in text for text in outputs), outputs
    bps.barrier()


def test_a_step_replaces_a_pull_that_has_timed_out(monkeypatch):
    model = network()
    optimizer = wrap(model)
    train(model, optimizer, 3)
    barrier, passed = _core.runtime().job.barrier, []

    def time_out_at_the_second_barrier(*arguments):
        barrier(*arguments)
        passed.append(True)
        if len(passed) == 2:
            raise TimeoutError

    monkeypatch.setattr(_core.runtime().job, "barrier", time_out_at_the_second_barrier)
    with pytest.raises(TimeoutError):
        optimizer.pull_values()
    train(model, optimizer, 1 + bps.rank() if machines() > 1 else 2)
    optimizer.pull_values()
    assert len(passed) == 4
    assert same_everywhere(model)


def test_the_values_are_set_again_after_a_suspension(tmp_path):
    if bps.rank() == 0:
        script = ASYNCHRONOUS_JOB + (
            "step()\noptimizer.reset_values()\nstep()\noptimizer.pull_values()\n"
            "begin = [p.detach().clone() for p in model.parameters()]\n"
            "bps.suspend()\nbps.resume(2)\nstep()\noptimizer.pull_values()\n"
            "for p, q in zip(model.parameters(), begin):\n"
            "    assert torch.allclose(p, q - 0.1 * bps.size()), (p, q)\n"
            "print('DONE')"
        )
        _, outputs = jobs.start(script, tmp_path, 2, BPS_STALE="inf")
        assert all("DONE" in text for text in outputs), outputs
    bps.barrier()


def test_a_job_of_one_worker(tmp_path):
    if bps.rank() == 0:
        script = ASYNCHRONOUS_JOB + "step()\nstep()\noptimizer.pull_values()\nprint('DONE')"
        _, outputs = jobs.start(script, tmp_path, 1, BPS_STALE="2")
        assert "DONE" in outputs[0], outputs
        assert "is ignored" not in outputs[0], outputs
    bps.barrier()

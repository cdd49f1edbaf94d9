"""DiLoCo, LocalSGD and steps that are one step late: all workers run these tests in the same order.

The references train all workers in this process, with the formulas of the papers. Sums of float64
differ from those of the service in the order of their additions only. An average of n values then
differs by at most n 2^-53 of their size, and a few steps with small rates do not enlarge this
beyond NEAR.
"""

import copy

import coded
import pytest
import torch

import bps.torch as bps

NEAR = 1e-12
STEPS, BATCH = 12, 4
NESTEROV = {"lr": 0.7, "momentum": 0.9, "nesterov": True}


@pytest.fixture(scope="session", autouse=True)
def job():
    bps.init()
    yield
    bps.shutdown()


@pytest.fixture(autouse=True)
def together():
    """Wait until all workers have ended the previous test."""
    bps.barrier()


def network(dtype=torch.float64, width=8):
    torch.manual_seed(1)
    layers = torch.nn.Linear(6, width), torch.nn.Tanh(), torch.nn.Linear(width, 3)
    return torch.nn.Sequential(*layers).to(dtype)


def loss_of(model, rank, step):
    """Return the loss of a worker in a step, with data that differ between workers and steps."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    dtype = model[0].weight.dtype
    x, y = (torch.randn(BATCH, n, generator=generator, dtype=dtype) for n in (6, 3))
    return ((model(x) - y) ** 2).mean()


def adam(model):
    return torch.optim.AdamW(model.parameters(), lr=0.02)


def train(model, optimizer, steps, rank=None):
    for step in steps:
        optimizer.zero_grad()
        loss_of(model, bps.rank() if rank is None else rank, step).backward()
        optimizer.step()


def values(model):
    return [p.detach().clone() for p in model.parameters()]


def are_near(model, wanted, near=NEAR):
    return all((p - q).abs().max() <= near for p, q in zip(model.parameters(), wanted))


def same_everywhere(model):
    rows = bps.allgather(torch.cat([p.detach().view(-1) for p in model.parameters()]).view(1, -1))
    return bool((rows == rows[0]).all())


def parts_of(model, n):
    return [model] if n == 1 else [model[0], model[2]]


class Reference:
    """DiLoCo with emulated workers: algorithm 2 of Douillard et al. 2025, where one fragment is
    exchanged at a time, and SGD with Nesterov's momentum as the outer optimizer."""

    def __init__(self, n_workers, n_parts, sync_every, delay, alpha, lr=0.7, momentum=0.9):
        self.models = [network() for _ in range(n_workers)]
        self.inner = [adam(model) for model in self.models]
        self.period, self.delay, self.alpha = sync_every // n_parts, delay, alpha
        self.lr, self.momentum = lr, momentum
        self.globals = [values(part) for part in parts_of(self.models[0], n_parts)]
        self.velocities = [[torch.zeros_like(p) for p in part] for part in self.globals]
        self.sent = None

    def locals(self, part):
        n = len(self.globals)
        return [list(parts_of(model, n)[part].parameters()) for model in self.models]

    def step(self, step):
        """Run step number `step`, from 1."""
        for rank, (model, inner) in enumerate(zip(self.models, self.inner)):
            train(model, inner, [step], rank)
        part = (step - 1) // self.period % len(self.globals)
        with torch.no_grad():
            if step % self.period == (self.period - self.delay) % self.period:
                workers = zip(*self.locals(part))
                self.sent = [
                    sum(old - p for p in all_) / len(all_)
                    for old, all_ in zip(self.globals[part], workers)
                ]
            if step % self.period == 0:
                self.apply(part)

    def apply(self, part):
        pairs = zip(self.globals[part], self.velocities[part], self.sent)
        for i, (old, velocity, change) in enumerate(pairs):
            velocity.mul_(self.momentum).add_(change)
            old.sub_(self.lr * (change + self.momentum * velocity))
            for params in self.locals(part):
                params[i].copy_((1 - self.alpha) * old + self.alpha * params[i])


SCHEDULES = {
    "DiLoCo": (1, 4, 0, 0.0),
    "every step": (1, 1, 0, 0.0),
    "late": (1, 6, 4, 0.0),
    "late and mixed": (1, 4, 2, 0.5),
    "fragments": (2, 4, 0, 0.0),
    "late fragments": (2, 6, 2, 0.25),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("has_one_outer", [False, True])
def test_diloco_equals_the_algorithm_of_the_papers(schedule, has_one_outer):
    n_parts, sync_every, delay, alpha = SCHEDULES[schedule]
    model = network()
    parts, inner = parts_of(model, n_parts), adam(model)
    outer = [torch.optim.SGD(part.parameters(), **NESTEROV) for part in parts]
    if has_one_outer:
        outer = torch.optim.SGD(model.parameters(), **NESTEROV)
    options = {"fragment_sync_delay": delay, "fragment_update_alpha": alpha}
    reference = Reference(bps.size(), n_parts, sync_every, delay, alpha)
    with bps.DiLoCo(parts, inner, outer, sync_every, **options) as diloco:
        for step in range(1, STEPS + 1):
            train(model, inner, [step])
            reference.step(step)
            assert are_near(model, reference.models[bps.rank()].parameters()), step
    diloco.restore_parameters()
    assert are_near(model, [p for part in reference.globals for p in part])
    assert same_everywhere(model)


def test_an_exchange_in_each_step_with_a_rate_of_1_averages_the_parameters():
    models = [network() for _ in range(bps.size())]
    optimizers = [adam(model) for model in models]
    model = network()
    inner, outer = adam(model), torch.optim.SGD(model.parameters(), lr=1.0)
    with bps.DiLoCo([model], inner, outer, sync_every=1):
        for step in range(STEPS):
            train(model, inner, [step])
            assert same_everywhere(model)
            for rank, (one, optimizer) in enumerate(zip(models, optimizers)):
                train(one, optimizer, [step], rank)
            means = [sum(p) / len(p) for p in zip(*map(values, models))]
            assert are_near(model, means)
            with torch.no_grad():
                for one in models:
                    for p, mean in zip(one.parameters(), means):
                        p.copy_(mean)


def test_local_sgd_averages_parameters_after_some_steps():
    models = [network() for _ in range(bps.size())]
    optimizers = [adam(model) for model in models]
    model = network()
    optimizer = adam(model)
    with bps.LocalSGD(model, optimizer, sync_every=3) as local:
        for step in range(1, 8):
            train(model, optimizer, [step])
            for rank, (one, other) in enumerate(zip(models, optimizers)):
                train(one, other, [step], rank)
            if step % 3 == 0:
                means = [sum(p) / len(p) for p in zip(*map(values, models))]
                for p, mean in zip((p for one in models for p in one.parameters()), means * 9):
                    p.data.copy_(mean)
            assert are_near(model, models[bps.rank()].parameters())
            assert same_everywhere(model) == (step % 3 == 0)
        local.sync()
    assert same_everywhere(model)


def test_after_the_with_statement_each_worker_trains_alone():
    model = network()
    optimizer = adam(model)
    with bps.LocalSGD(model, optimizer, sync_every=1):
        train(model, optimizer, [0])
    train(model, optimizer, [1])
    assert not same_everywhere(model)


@pytest.mark.parametrize("compressor, levels", [*coded.KINDS, (bps.Compression.fp16, 2**10)])
def test_compressed_exchanges_leave_the_global_parameters_equal(compressor, levels):
    model = network(torch.float32, width=4000)
    inner, outer = adam(model), torch.optim.SGD(model.parameters(), lr=1.0)
    with bps.DiLoCo([model], inner, outer, 2, compression=compressor) as diloco:
        for turn in range(3):
            before = values(model)
            train(model, inner, [2 * turn])
            alone = copy.deepcopy((model, inner))
            alone[1]._optimizer_step_pre_hooks.clear()
            alone[1]._optimizer_step_post_hooks.clear()
            train(*alone, [2 * turn + 1])
            train(model, inner, [2 * turn + 1])
            assert same_everywhere(model)
            changes = [old - p for old, p in zip(before, values(alone[0]))]
            largest = bps.allreduce(max(c.abs().max() for c in changes), op=bps.Max)
            for p, old, change in zip(values(model), before, changes):
                error = (old - bps.allreduce(change) - p).abs().max()
                # f32 adds some roundings of parameters, which are below 1.
                assert error <= coded.bound(levels, largest) + 2**-21
    assert diloco.state_dict()["fragments"][0]["residuals"] == {}


def test_quantized_in_torchfts_words_is_int8():
    model = network(torch.float32, width=4000)
    outer = torch.optim.SGD(model.parameters(), lr=1.0)
    diloco = bps.DiLoCo([model], adam(model), outer, 2, should_quantize=True)
    assert str(diloco.reducers[0]._coding).startswith(" sent as q8")


RESUMED = {
    "plain": {},
    "late": {"fragment_sync_delay": 2, "fragment_update_alpha": 0.5},
    "int8": {"compression": bps.Compression.int8.with_residual(), "fragment_sync_delay": 1},
}


@pytest.mark.parametrize("n_parts", [1, 2])
@pytest.mark.parametrize("kind", RESUMED)
def test_a_checkpoint_at_any_step_resumes_with_the_same_bits(kind, n_parts, tmp_path):
    sync_every = 3 * n_parts

    def make():
        model = network(torch.float32, width=4000 if kind == "int8" else 8)
        inner = adam(model)
        parts = parts_of(model, n_parts)
        outer = [torch.optim.SGD(part.parameters(), **NESTEROV) for part in parts]
        return model, inner, bps.DiLoCo(parts, inner, outer, sync_every, **RESUMED[kind])

    model, inner, diloco = make()
    saved, wanted = [], []
    with diloco:
        for step in range(STEPS):
            train(model, inner, [step])
            torch.save([one.state_dict() for one in (model, inner, diloco)], tmp_path / str(step))
            saved.append(tmp_path / str(step))
            wanted.append(values(model))
    has_residual = kind == "int8"
    for start in (1, 4, 5, STEPS - 2):
        again = make()
        states = torch.load(saved[start], weights_only=False)
        assert bool(states[2]["fragments"][0]["residuals"]) == has_residual
        for one, state in zip(again, states):
            one.load_state_dict(state)
        with again[2]:
            for step in range(start + 1, STEPS):
                train(*again[:2], [step])
                for p, q in zip(again[0].parameters(), wanted[step]):
                    assert torch.equal(p.detach(), q), (start, step)


def test_a_state_of_other_fragments_is_refused():
    model = network()
    inner, outer = adam(model), torch.optim.SGD(model.parameters(), lr=1.0)
    one = bps.DiLoCo([model], inner, outer, 2)
    two = bps.DiLoCo(parts_of(model, 2), inner, outer, 2)
    with pytest.raises(ValueError, match="has 2 fragments and 1 outer optimizers, not 1 and 1"):
        one.load_state_dict(two.state_dict())
    other = torch.nn.Linear(2, 2)
    third = bps.DiLoCo([other], adam(other), torch.optim.SGD(other.parameters(), lr=1.0), 2)
    with pytest.raises(ValueError, match="of another model"):
        one.load_state_dict(third.state_dict())


def test_the_state_of_one_worker_is_given_to_the_others():
    torch.manual_seed(bps.rank())
    model = torch.nn.Linear(3, 2)
    inner, outer = adam(model), torch.optim.SGD(model.parameters(), **NESTEROV)
    with bps.DiLoCo([model], inner, outer, 4, fragment_sync_delay=2) as diloco:
        diloco.broadcast_state()
        for step in range(3):  # the fragment is in flight
            inner.zero_grad()
            (model(torch.ones(3)) - bps.rank() - step).pow(2).sum().backward()
            inner.step()
        diloco.broadcast_state(bps.size() - 1)
        inner.step()
    momenta = [outer.state[p]["momentum_buffer"].tolist() for p in model.parameters()]
    states = bps.allgather_object((diloco.state_dict()["fragments"][0]["backup"], momenta))
    assert str(states[0]) == str(states[-1]) and same_everywhere(model)


def test_frozen_parameters_stay_as_they_are_until_they_are_trained():
    model = network()
    model[0].requires_grad_(False)
    before = values(model[0])
    inner, outer = adam(model), torch.optim.SGD(model.parameters(), weight_decay=0.5, **NESTEROV)
    with bps.DiLoCo([model], inner, outer, 2):
        train(model, inner, range(4))
        assert all(map(torch.equal, before, values(model[0])))
        model[0].requires_grad_(True)
        train(model, inner, range(4))
    assert not any(map(torch.equal, before, values(model[0]))) and same_everywhere(model)


def test_the_gradients_of_the_inner_optimizer_stay():
    model = network()
    inner, outer = adam(model), torch.optim.SGD(model.parameters(), lr=1.0)
    with bps.DiLoCo([model], inner, outer, 1):
        loss_of(model, bps.rank(), 0).backward()
        grads = [p.grad.clone() for p in model.parameters()]
        inner.step()
    assert all(map(torch.equal, grads, (p.grad for p in model.parameters())))


def test_a_worker_goes_on_while_a_fragment_is_in_flight():
    model = network()
    inner, outer = adam(model), torch.optim.SGD(model.parameters(), lr=1.0)
    with bps.DiLoCo([model], inner, outer, 4, fragment_sync_delay=2):
        for turn in range(3):
            train(model, inner, [0])
            if turn == 0:  # the first exchange also compares the parameters
                train(model, inner, [1])
                train(model, inner, [2, 3])
                continue
            # Rank 1 sends its part only when rank 0 has returned from the step that sends.
            if bps.rank() == 0:
                train(model, inner, [1, 2])
                bps.allreduce(torch.ones(1), name="rank 0 goes on")
            else:
                bps.allreduce(torch.ones(1), name="rank 0 goes on")
                train(model, inner, [1, 2])
            train(model, inner, [3])
        assert same_everywhere(model)


def wrapped(optimizer, **options):
    params = [p for group in optimizer.param_groups for p in group["params"]]
    named = [(str(i), p) for i, p in enumerate(params)]
    return bps.DistributedOptimizer(optimizer, named, **options)


def test_arguments_that_make_no_sense_are_refused():
    model, other = network(), network()
    inner, outer = adam(model), torch.optim.SGD(model.parameters(), lr=1.0)
    parts = parts_of(model, 2)
    for error, match, arguments, options in [
        (TypeError, "takes no manager", (object(), inner, outer, 2), {}),
        (TypeError, "list of modules", (model, inner, outer, 2), {}),
        (ValueError, "have no parameters", ([torch.nn.ReLU()], inner, outer, 2), {}),
        (ValueError, "in two of", ([model, model], inner, outer, 2), {}),
        (ValueError, "2 parameters .* in none", (parts[:1], inner, outer, 2), {}),
        (ValueError, "multiple of 2", (parts, inner, outer, 3), {}),
        (ValueError, "must be 1 or more", ([model], inner, outer, 0), {}),
        (ValueError, "1 outer optimizers for 2", (parts, inner, [outer], 2), {}),
        (ValueError, "lacks parameters of frag", ([model], inner, adam(other), 2), {}),
        (ValueError, "less than 2", (parts, inner, outer, 4), {"fragment_sync_delay": 2}),
        (ValueError, "from 0 to 1", ([model], inner, outer, 4), {"fragment_update_alpha": 1.5}),
        (
            ValueError,
            "exclude each other",
            ([model], inner, outer, 4),
            {"should_quantize": True, "compression": bps.Compression.int4},
        ),
        (ValueError, "DistributedOptimizer, which", ([model], wrapped(inner), outer, 2), {}),
        (ValueError, "optimizer of PyTorch", ([model], inner, wrapped(outer), 2), {}),
    ]:
        with pytest.raises(error, match=match):
            bps.DiLoCo(*arguments, **options)
    with pytest.raises(ValueError, match="must be 1 or more"):
        bps.LocalSGD(model, inner, 0)
    with bps.LocalSGD(model, inner, 2) as local, pytest.raises(RuntimeError, match="with state"):
        local.__enter__()


def test_a_worker_cannot_join_the_averages_of_others_with_zeros():
    model = network()
    local = bps.LocalSGD(model, adam(model), 2)
    with pytest.raises(NotImplementedError, match="same number of steps"):
        bps.join()
    del local


# ---- one step late ----


def one_step_late(steps, rate=0.05, clip=None, momentum=0.9):
    """Return the parameters after each step of SGD with gradients that are one step old, and those
    after the last gradients. All workers' gradients are computed in this process."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=momentum)
    late, found = None, []
    for step in [*steps, None]:
        new = None
        if step is not None:
            optimizer.zero_grad()
            (sum(loss_of(model, r, step) for r in range(bps.size())) / bps.size()).backward()
            new = [p.grad for p in model.parameters()]
        for i, p in enumerate(model.parameters()):
            p.grad = late[i] if late else None
        if clip and late:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        late = new
        found.append(values(model))
    return found


def late_optimizer(model, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return wrapped(optimizer, one_step_late=True, **options)


@pytest.mark.parametrize("sets_none", [True, False])
def test_a_step_applies_the_gradients_of_the_step_before(sets_none):
    wanted = one_step_late(range(6))
    model = network()
    optimizer = late_optimizer(model, bucket_bytes=300)
    for step in range(6):
        optimizer.zero_grad(set_to_none=sets_none)
        loss_of(model, bps.rank(), step).backward()
        optimizer.step()
        assert are_near(model, wanted[step]) and same_everywhere(model)
    optimizer.flush()
    optimizer.flush()  # nothing is left
    assert are_near(model, wanted[-1]) and same_everywhere(model)
    assert are_near(network(), wanted[0], 0.0), "the first step applies nothing"


def test_late_gradients_are_clipped_after_they_are_averaged():
    wanted = one_step_late(range(5), clip=0.1)
    model = network()
    optimizer = late_optimizer(model)
    for step in range(5):
        optimizer.zero_grad()
        loss_of(model, bps.rank(), step).backward()
        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        with optimizer.skip_synchronize():
            optimizer.step()
        assert are_near(model, wanted[step])


def test_late_gradients_add_up_over_several_backward_passes():
    wanted = one_step_late(range(4))
    model = network()
    optimizer = late_optimizer(model)
    for step in range(4):
        optimizer.zero_grad()
        for _ in range(2):
            (loss_of(model, bps.rank(), step) / 2).backward()
        optimizer.step()
        assert are_near(model, wanted[step])


def test_late_gradients_in_blocks_are_equal_everywhere():
    models = [network(torch.float32, width=4000) for _ in range(2)]
    for model, kind in zip(models, (bps.Compression.none, bps.Compression.int8)):
        optimizer = late_optimizer(model, compression=kind)
        for step in range(3):
            optimizer.zero_grad(set_to_none=False)
            loss_of(model, bps.rank(), step).backward()
            optimizer.step()
        optimizer.flush()
        assert same_everywhere(model)
    # Three gradients below 1 with errors of coded.bound(127), and momentum: at most 6 of them.
    assert are_near(models[0], models[1].parameters(), 6 * 0.05 * coded.bound(127))
    assert not are_near(models[0], network(torch.float32, width=4000).parameters(), 1e-3)


def test_late_gradients_are_in_the_state_of_the_optimizer():
    model = network()
    optimizer = late_optimizer(model)
    train(model, optimizer, range(3))
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    train(model, optimizer, range(3, 6))
    again = network()
    restored = late_optimizer(again)
    for one, state in zip((again, restored), saved):
        one.load_state_dict(state)
    train(again, restored, range(3, 6))
    assert all(map(torch.equal, values(model), values(again)))
    bps.broadcast_optimizer_state(restored)
    optimizer.flush()
    restored.flush()
    assert all(map(torch.equal, values(model), values(again)))


def test_a_late_optimizer_is_copied_when_nothing_is_in_flight():
    model = network()
    optimizer = late_optimizer(model)
    train(model, optimizer, range(2))
    with pytest.raises(RuntimeError, match=r"call flush\(\) first"):
        copy.deepcopy(optimizer)
    optimizer.flush()
    other, twin = copy.deepcopy((model, optimizer))
    for one in ((model, optimizer), (other, twin)):
        train(*one, range(2))
        one[1].flush()
    assert all(map(torch.equal, values(model), values(other)))


def test_a_step_does_not_wait_for_the_gradients_of_the_same_step():
    model = network()
    optimizer = late_optimizer(model)
    train(model, optimizer, [0])  # the first step compares the parameters
    for step in range(3):
        # Rank 1 submits its gradients only when rank 0 has returned from its step.
        if bps.rank() == 0:
            train(model, optimizer, [step])
            bps.allreduce(torch.ones(1), name="rank 0 has stepped")
        else:
            bps.allreduce(torch.ones(1), name="rank 0 has stepped")
            train(model, optimizer, [step])
    optimizer.flush()
    assert same_everywhere(model)


def test_combinations_with_one_step_late_that_make_no_sense_are_refused():
    model = network()
    with pytest.raises(ValueError, match="cross_barrier exclude each other"):
        late_optimizer(model, cross_barrier=True)
    with pytest.raises(ValueError, match="leave backward_passes_per_step at 1"):
        late_optimizer(model, backward_passes_per_step=2)
    optimizer = late_optimizer(model)
    with pytest.raises(ValueError, match="leave backward_passes_per_step at 1"):
        optimizer.set_backward_passes_per_step(2)
    with pytest.raises(ValueError, match="takes no closure"):
        optimizer.step(lambda: None)
    with pytest.raises(NotImplementedError, match="same number of steps"):
        bps.join()
    if hasattr(torch.amp, "GradScaler"):
        scaler = torch.amp.GradScaler("cpu")
        scaler.scale(loss_of(model, 0, 0)).backward()
        with pytest.raises(RuntimeError, match="one_step_late=False"):
            scaler.step(optimizer)


def test_sparse_gradients_cannot_be_late():
    table = torch.nn.Embedding(4, 2, sparse=True)
    optimizer = wrapped(torch.optim.SGD(table.parameters(), lr=0.1), one_step_late=True)
    table(torch.tensor([0])).sum().backward()
    with pytest.raises(NotImplementedError, match="pass sparse_as_dense=True"):
        optimizer.step()
    optimizer = wrapped(
        torch.optim.SGD(table.parameters(), lr=0.1), one_step_late=True, sparse_as_dense=True
    )
    table.zero_grad()
    before = table.weight.detach().clone()
    table(torch.tensor([0])).sum().backward()
    optimizer.step()
    optimizer.flush()
    assert torch.allclose(before[0] - table.weight[0], torch.full((2,), 0.1))

"""Channels: order, bounds, ends, deadlines, and no item lost or doubled whoever goes."""

import asyncio
import gc
import random
import threading
import time

import pytest

pytest.importorskip("torch")

import torch

from plugrl.errors import NotRegistered, PeerLostError, RuntimeTimeout, TransportError, UserError
from plugrl.runtime.channel.errors import ChannelClosed, ChannelEmpty, ChannelFull


def large(value):
    return torch.full((50_000,), float(value))


def wait_until(condition, seconds=5.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.01)


def test_items_small_and_large_come_out_as_they_went_in(run):
    producer, consumer = run.create(), run.connect()
    for item in (1, "x", None, {"a": torch.ones(3), "b": [large(2), None]}, large(5), b"z" * 300_000):
        producer.put(item)
        got = consumer.get()
        if isinstance(item, torch.Tensor):
            assert torch.equal(item, got)
        elif isinstance(item, dict):
            assert torch.equal(item["a"], got["a"]) and torch.equal(item["b"][0], got["b"][0]) and got["b"][1] is None
        else:
            assert item == got


def test_four_producers_keep_their_order_and_nothing_is_lost(run):
    run.create(maxsize=50)

    def produce(channel, who):
        for number in range(250):
            channel.put((who, number, large(number) if number % 50 == 0 else None))

    threads = [threading.Thread(target=produce, args=(run.connect(), who)) for who in range(4)]
    for thread in threads:
        thread.start()
    consumer = run.connect()
    got = [consumer.get() for _ in range(1000)]
    for thread in threads:
        thread.join()
    for who in range(4):
        assert [number for sender, number, _ in got if sender == who] == list(range(250))
    assert all(tensor is None or int(tensor[0]) == number for _, number, tensor in got)
    assert consumer.qsize() == 0


def test_a_bound_blocks_the_third_put_until_a_get(run):
    channel = run.create(maxsize=2)
    other = run.connect()
    assert (channel.qsize(), channel.empty(), channel.full()) == (0, True, False)
    channel.put(1)
    assert (channel.qsize(), channel.full()) == (1, False)
    channel.put(2)
    assert (channel.qsize(), channel.full()) == (2, True)
    third = other.put(3, async_op=True)
    time.sleep(0.2)
    assert not third.done() and channel.qsize() == 2
    assert channel.get() == 1
    third.wait(5)
    assert (channel.qsize(), channel.full()) == (2, True)
    with pytest.raises(ChannelFull):
        channel.put_nowait(4)
    with pytest.raises(RuntimeTimeout, match="no room.*maxsize 2"):
        channel.put(4, timeout=0.2)
    assert [channel.get(), channel.get()] == [2, 3]


def test_a_bound_in_bytes_holds_per_key_and_admits_one_item_that_is_larger(run):
    channel = run.create(max_bytes=100_000)
    channel.put(large(1))
    with pytest.raises(ChannelFull):
        channel.put_nowait(torch.ones(10))
    channel.put_nowait(torch.ones(10), key="another")
    assert channel.full() and not channel.full("another")
    assert channel.get()[0] == 1
    channel.put_nowait(torch.ones(10))


def test_nowait_raises_the_errors_of_asyncio_too(run):
    channel = run.create(maxsize=1)
    for error in (ChannelEmpty, asyncio.QueueEmpty):
        with pytest.raises(error):
            channel.get_nowait()
    channel.put_nowait(1)
    for error in (ChannelFull, asyncio.QueueFull):
        with pytest.raises(error):
            channel.put_nowait(2)
    assert channel.get_nowait() == 1


def test_close_drains_and_then_ends_and_wakes_who_waits(run):
    channel = run.create()
    for number in range(3):
        channel.put(number)
    waiting = [run.connect().get("other", async_op=True) for _ in range(2)]
    channel.put(9, key="kept open")
    channel.close()
    for getter in waiting:
        with pytest.raises(ChannelClosed):
            getter.wait(5)
    with pytest.raises(ChannelClosed):
        channel.put(4)
    assert list(channel) == [0, 1, 2]
    with pytest.raises(ChannelClosed):
        channel.get()
    assert channel.get("kept open") == 9


def test_one_key_can_be_closed_alone_and_a_blocked_put_learns_of_it(run):
    channel = run.create(maxsize=1)
    channel.put(1, key="a")
    blocked = channel.put(2, key="a", async_op=True)
    channel.close("a")
    with pytest.raises(ChannelClosed):
        blocked.wait(5)
    channel.put(3, key="b")
    assert channel.get("a") == 1 and channel.get("b") == 3
    with pytest.raises(ChannelClosed):
        channel.get("a")


def test_batches_of_weights(run):
    channel = run.create()
    for weight in (1, 2, 3):
        channel.put(weight, weight=weight)
    batch = channel.get_batch(3)
    assert (batch, batch.weight, batch.reason) == ([1, 2], 3, "weight")
    assert channel.get_batch(3) == [3]
    channel.put("heavy", weight=10)
    channel.put(large(7), weight=1)
    assert channel.get_batch(3) == ["heavy"]
    batch = channel.get_batch(3, fill=False)
    assert batch.reason == "min_items" and batch[0][0] == 7
    channel.put("only", weight=1)
    with pytest.raises(RuntimeTimeout):
        channel.get_batch(3, min_items=2, timeout=0.2)
    batch = channel.get_batch(3, timeout=0.2)
    assert (batch, batch.reason) == (["only"], "timeout")
    waiting = channel.get_batch(5, async_op=True)
    channel.put("last", weight=1)
    time.sleep(0.1)
    assert not waiting.done()
    channel.close()
    assert waiting.wait(5) == ["last"] and waiting.wait().reason == "closed"
    with pytest.raises(UserError, match="min_items"):
        channel.get_batch(1, min_items=0)


def test_concurrent_batches_are_whole_prefixes(run):
    channel = run.create()
    batches = []

    def consume(mine):
        while True:
            try:
                batches.append(list(mine.get_batch(7, timeout=10)))
            except ChannelClosed:
                return

    threads = [threading.Thread(target=consume, args=(run.connect(),)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(100):
        channel.put(number, weight=1 + number % 3)
    channel.close()
    for thread in threads:
        thread.join()
    assert all(batch == list(range(batch[0], batch[0] + len(batch))) for batch in batches)
    assert sorted(number for batch in batches for number in batch) == list(range(100))


def test_awaiting_leaves_the_event_loop_free(run):
    channel, producer = run.create(), run.connect()

    async def main():
        late = []

        async def tick():
            last = time.monotonic()
            while True:
                await asyncio.sleep(0.01)
                now = time.monotonic()
                late.append(now - last - 0.01)
                last = now

        ticking = asyncio.create_task(tick())
        got = asyncio.ensure_future(channel.get(async_op=True).async_wait())
        await asyncio.sleep(0.3)
        threading.Thread(target=producer.put, args=(large(3),)).start()
        value = await got
        ticking.cancel()
        assert value[0] == 3 and max(late) < 0.05, f"a tick came {max(late):.3f} s late"

    asyncio.run(main())


@pytest.mark.parametrize("seed", range(2))
def test_cancelled_gets_lose_and_reorder_nothing(run, seed):
    channel, producer = run.create(), run.connect()
    rng = random.Random(seed)
    got = []

    def produce():
        for number in range(120):
            producer.put(number)
        producer.close()

    thread = threading.Thread(target=produce)
    thread.start()
    while True:
        pending = channel.get(async_op=True, timeout=20)
        if rng.random() < 0.5:
            if rng.random() < 0.3:
                time.sleep(0.001)
            if rng.random() < 0.3:
                del pending  # Dropped: who takes it, if it comes?
                continue
            if pending.cancel():
                continue
        try:
            got.append(pending.wait(20))
        except ChannelClosed:
            break
    thread.join()
    assert sorted(got) == list(range(120))


def test_a_cancelled_coroutine_leaves_its_item_to_the_next(run):
    channel = run.create()

    async def main():
        task = asyncio.ensure_future(channel.get(async_op=True).async_wait())
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        channel.put(1)
        return await channel.get(async_op=True)

    assert asyncio.run(main()) == 1


def test_deadlines_are_kept_and_say_what_was_waited_for(run):
    channel = run.create(name="rewards")
    begun = time.monotonic()
    with pytest.raises(RuntimeTimeout, match="'rewards' has nothing to give"):
        channel.get(timeout=0.3)
    assert 0.25 < time.monotonic() - begun < 1.3


def test_items_outlive_the_endpoint_that_put_them(run):
    consumer = run.create()
    leaver = run.endpoint("leaver")
    producer = run.connect(endpoint=leaver)
    for number in range(3):
        producer.put(large(number))
    leaver.close()
    assert [int(consumer.get()[-1]) for _ in range(3)] == [0, 1, 2]
    gc.collect()
    wait_until(lambda: not len(run.host.hub.arenas) and not run.server._uses)
    wait_until(lambda: not len(consumer._endpoint.hub.arenas))


def test_a_consumer_that_goes_before_it_has_its_item_leaves_it_at_the_head(run):
    producer = run.create()
    for number in range(4):
        producer.put((number, large(number)))
    leaver = run.endpoint("leaver")
    quick = run.connect(endpoint=leaver)
    unread = [quick.get(async_op=True) for _ in range(2)]
    wait_until(lambda: all(pending.done() for pending in unread))
    other = run.connect()
    late = other.get_batch(100, async_op=True)
    producer.close()
    time.sleep(0.1)
    assert not late.done(), "two items may still come back"
    leaver.close()
    assert [number for number, _ in late.wait(5)] == [0, 1, 2, 3]


def test_a_dead_consumers_waiting_gets_are_dropped(run):
    producer = run.create()
    leaver = run.endpoint("leaver")
    run.connect(endpoint=leaver).get(async_op=True)
    leaver.close()
    producer.put(1)
    assert run.connect().get() == 1


def test_memory_of_a_producer_returns_to_its_baseline(run):
    channel, other = run.create(), run.connect()
    pool = channel._endpoint.hub.pool
    for _ in range(5):
        channel.put(large(1))
        other.get()
    channel.put(large(2))
    kept = other.get()
    gc.collect()
    wait_until(lambda: pool.held_blocks == 1)
    assert kept[0] == 2
    del kept
    channel.close()
    with pytest.raises(ChannelClosed):
        channel.put(large(3))
    wait_until(lambda: pool.held_blocks == 0)
    wait_until(lambda: pool.held_bytes == 0)


def test_a_thousand_keys_leave_nothing_in_the_server(run):
    channel = run.create()
    for number in range(1000):
        channel.put(number, key=f"key {number}")
        assert channel.get(f"key {number}") == number
    wait_until(lambda: channel.info()["in_flight"] == 0)
    assert channel.info()["keys"] == 0 and not run.server._flights and not run.server._waiting


def test_names_are_taken_once_and_found_by_others(run):
    first = run.create("a")
    with pytest.raises(UserError, match="'a' exists already"):
        run.create("a")
    run.create("a", exist_ok=True).put(1)
    assert first.get() == 1
    with pytest.raises(TransportError, match="no channel 'b'. There are: a"):
        run.connect("b").get(timeout=1)
    first.delete()
    run.create("a")
    with pytest.raises(NotRegistered, match="fifo"):
        run.create("z", balancer="fiffo")


def test_a_server_that_goes_ends_every_wait(run):
    channel = run.create()
    waiting = channel.get(async_op=True)
    run.host.close()
    with pytest.raises(PeerLostError, match="host"):
        waiting.wait(5)
    with pytest.raises(PeerLostError):
        channel.put(1)


def test_a_snapshot_holds_what_nobody_has_and_can_be_put_into_a_new_channel(run):
    channel, other = run.create(maxsize=4), run.connect()
    channel.put({"x": large(1)}, weight=2, key="k", affinity="a")
    channel.put(torch.tensor(2))
    channel.put(torch.tensor(3))
    pending = other.get(async_op=True)
    wait_until(pending.done)
    state = channel.snapshot()
    assert [(row["key"], row["weight"], row["affinity"]) for row in state["items"]] == [
        ("k", 2, "a"), ("default", 1, None), ("default", 1, None),
    ]  # fmt: skip
    assert int(pending.wait()) == 2 and int(channel.get()) == 3
    fresh = run.create("fresh", maxsize=1)
    fresh.restore(state)
    assert fresh.get("k")["x"][0] == 1 and [int(fresh.get()), int(fresh.get())] == [2, 3]
    fresh.put(1)
    with pytest.raises(UserError, match="not empty"):
        fresh.restore(state)
    with pytest.raises(UserError, match="version"):
        fresh.restore({"version": 2, "items": []})


def test_without_shared_memory_large_items_still_pass(run):
    poor = run.endpoint("poor", memory_bytes=1)
    channel = run.create(endpoint=poor)
    channel.put(large(1))
    assert run.connect().get()[-1] == 1
    far = run.endpoint("far", node="elsewhere")
    channel.put(large(2))
    assert run.connect(endpoint=far).get()[-1] == 2
    run.connect(endpoint=far).put(large(3))
    assert channel.get()[-1] == 3
    near = run.connect()
    near.put(large(4))
    assert run.connect(endpoint=far).get()[-1] == 4
    wait_until(lambda: near._endpoint.hub.pool.held_blocks == 0)


def consume(channel, speed, finished):
    while True:
        try:
            cost = channel.get(timeout=20)
        except ChannelClosed:
            return
        time.sleep(cost * speed)
        channel.task_done(cost)
        finished.append(cost)


@pytest.mark.parametrize("balancer", ["fifo", "least_loaded", "weighted", "kk"])
def test_every_balancer_hands_out_everything_once(run, balancer):
    options = {"balancer_options": {"consumers": 3, "window": 30}} if balancer == "kk" else {}
    channel = run.create(balancer=balancer, **options)
    costs = [random.Random(1).randint(1, 9) for _ in range(30)]
    for cost in costs:
        channel.put(cost, weight=cost)
    channel.close()
    shares = [[] for _ in range(3)]
    threads = [threading.Thread(target=consume, args=(run.connect(), 0.002, share)) for share in shares]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(cost for share in shares for cost in share) == sorted(costs)
    if balancer in ("weighted", "kk"):
        assert max(map(sum, shares)) <= 1.15 * sum(costs) / 3, shares


def test_sticky_keeps_an_affinity_at_one_consumer_until_that_is_gone(run):
    channel = run.create(balancer="sticky")
    leaver = run.endpoint("leaver")
    first, second = run.connect(endpoint=leaver), run.connect()
    channel.put(1, affinity="a")
    assert first.get() == 1
    channel.put(2, affinity="a")
    channel.put(3, affinity="b")
    assert second.get() == 3
    with pytest.raises(ChannelEmpty):
        second.get_nowait()
    assert first.get() == 2
    channel.put(4, affinity="a")
    leaver.close()
    assert second.get(timeout=5) == 4

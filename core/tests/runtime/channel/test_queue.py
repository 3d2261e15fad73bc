"""The state of one key against a model of a few lines, over random programs."""

import random

import pytest

from plugrl.errors import ConfigError, NotRegistered
from plugrl.runtime.channel.balancers import Consumer, Fifo, KarmarkarKarp, make_balancer, partition
from plugrl.runtime.channel.queue import Delivery, Getter, Item, KeyQueue, Putter


class Model:
    """What get_batch means: a list of weights, and the prefix that it would give."""

    def __init__(self):
        self.items = []
        self.closed = False

    def batch(self, max_weight, min_items, fill, over=False):
        chosen, complete = [], False
        for number, weight in self.items:
            if chosen and sum(w for _, w in chosen) + weight > max_weight:
                complete = True
                break
            chosen.append((number, weight))
        complete |= bool(chosen) and sum(w for _, w in chosen) >= max_weight
        complete |= self.closed or (not fill and len(chosen) >= min_items)
        if chosen and (complete or (over and len(chosen) >= min_items)):
            self.items = self.items[len(chosen) :]
            return [number for number, _ in chosen]
        return None


@pytest.mark.parametrize("block", range(10))
def test_get_batch_is_what_the_model_says(block):
    """One consumer; puts, batches, deadlines and the end of the stream in any order: 50 programs a block."""
    for seed in range(50 * block, 50 * block + 50):
        compare_with_model(seed)


def compare_with_model(seed):
    rng = random.Random(seed)
    model, queue, consumer = Model(), KeyQueue("k", Fifo()), Consumer("c", 0)
    waiting, number = None, 0

    def served():
        found = [[item.number for item in result.items] for result in queue.settle() if isinstance(result, Delivery)]
        queue.in_flight = 0
        return found[0] if found else None

    for _ in range(40):
        step = rng.choice(["put", "put", "get", "expire", "close" if rng.random() < 0.1 else "put"])
        if step == "put" and not model.closed:
            number += 1
            weight = rng.choice([0, 1, 1, 2, 3, 7])
            model.items.append((number, weight))
            queue.put(Putter(None, Item(number, weight, None, 1)))
        elif step == "get" and waiting is None:
            waiting = (rng.choice([1, 3, 5]), rng.choice([1, 2, 3]), rng.random() < 0.5)
            queue.get(Getter("g", consumer, *waiting))
        elif step == "close":
            model.closed = True
            queue.close()
        elif step == "expire" and waiting is not None:
            assert served() is None
            result = queue.expire("g")
            expected = model.batch(*waiting, over=True)
            assert (result.items if isinstance(result, Delivery) else None) == expected or [
                item.number for item in result.items
            ] == expected
            waiting = None
            queue.in_flight = 0
        if waiting is not None:
            expected = model.batch(*waiting)
            assert served() == expected, (seed, waiting)
            if expected is not None or (model.closed and queue.drained()):
                waiting = None
        else:
            assert served() is None
        assert [item.number for item in queue.items] == [n for n, _ in model.items]


def test_bounds_in_items_and_bytes_admit_one_item_that_is_larger():
    queue = KeyQueue("k", Fifo(), maxsize=0, max_bytes=10)
    for number, size in enumerate((50, 3, 3)):
        queue.put(Putter(number, Item(number, 1, None, size)))
    assert [result.ident for result in queue.settle()] == [0] and queue.full()
    queue.get(Getter("g", Consumer("c", 0)))
    results = list(queue.settle())
    assert [type(result).__name__ for result in results] == ["Delivery", "Putter", "Putter"]
    assert not queue.full() and len(queue) == 2


def test_what_comes_back_stands_where_it_was():
    queue, consumer = KeyQueue("k", Fifo()), Consumer("c", 0)
    for number in range(5):
        queue.put(Putter(number, Item(number, 1, None, 1)))
    for ident in "abc":
        queue.get(Getter(ident, consumer))
    taken = [result.items for result in queue.settle() if isinstance(result, Delivery)]
    queue.take_back(taken[1])
    queue.take_back(taken[0])
    assert [item.number for item in queue.items] == [0, 1, 3, 4]


def test_a_batch_that_cannot_grow_because_the_queue_is_full_is_given_with_that_reason():
    queue = KeyQueue("k", Fifo(), maxsize=2)
    for number in range(3):
        queue.put(Putter(number, Item(number, 1, None, 1)))
    queue.get(Getter("g", Consumer("c", 0), 10.0))
    deliveries = [result for result in queue.settle() if isinstance(result, Delivery)]
    assert [(delivery.reason, len(delivery.items)) for delivery in deliveries] == [("full", 2)]


@pytest.mark.parametrize("seed", range(30))
def test_a_partition_holds_every_index_once_and_is_nearly_even(seed):
    rng = random.Random(seed)
    weights = [rng.randint(1, 4096) for _ in range(rng.randint(0, 200))]
    parts = rng.randint(1, 8)
    sets = partition(weights, parts)
    assert len(sets) == parts and sorted(index for members in sets for index in members) == list(range(len(weights)))
    sums = [sum(weights[index] for index in members) for members in sets]
    if len(weights) >= 20 * parts:
        assert max(sums) - min(sums) <= max(weights) * 0.1
    assert max(sums) - min(sums) <= max(weights, default=0)


def test_the_textbook_case_of_the_differencing_method():
    assert sorted(sum([4, 5, 6, 7, 8][i] for i in members) for members in partition([4, 5, 6, 7, 8], 2)) == [14, 16]


def test_windows_of_kk_are_parts_and_a_lost_consumers_part_is_anybodys():
    balancer = KarmarkarKarp(consumers=2, window=4)
    first, second = Consumer("a", 0), Consumer("b", 1)
    items = [Item(number, weight, None, 1) for number, weight in enumerate((8, 7, 6, 5))]
    assert list(balancer.choose("k", items[:3], first, [first], False)) == []
    mine = list(balancer.choose("k", items, first, [first], False))
    others = list(balancer.choose("k", items, second, [second], False))
    assert sorted(mine + others) == [0, 1, 2, 3]
    assert sum(items[index].weight for index in mine) == sum(items[index].weight for index in others) == 13
    balancer.lost(second)
    assert sorted(balancer.choose("k", items, first, [first], False)) == [0, 1, 2, 3]


def test_balancers_are_found_by_name_and_check_their_options():
    assert isinstance(make_balancer("FIFO", {}), Fifo)
    with pytest.raises(NotRegistered, match="weighted"):
        make_balancer("weigted", {})
    with pytest.raises(ConfigError, match="kk"):
        make_balancer("kk", {"consumer": 2})
    with pytest.raises(ConfigError, match="at least 1"):
        make_balancer("kk", {"consumers": 0, "window": 1})

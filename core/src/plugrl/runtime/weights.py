"""Weights from one sender to many receivers. The parts are in :mod:`plugrl.runtime.sync`."""

from plugrl.runtime.sync import WeightReceiver, WeightRoute, WeightSender, weight_route

__all__ = ["WeightReceiver", "WeightRoute", "WeightSender", "weight_route"]

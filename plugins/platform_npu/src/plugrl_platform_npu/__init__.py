"""Huawei Ascend NPUs: the platform and its engines."""

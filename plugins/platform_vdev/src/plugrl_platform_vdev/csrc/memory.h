// The memory of the devices: host memory, counted to the byte per device.
#pragma once
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Storage.h>

#include "settings.h"

namespace vdev {

c10::DeviceAllocator& allocator();
c10::Allocator& pinned_allocator();
bool is_pinned(const void* data);

// Count bytes as allocated on a device. Raises OutOfMemoryError beyond the budget, or when a fault says so.
void charge(int index, size_t bytes);
void discharge(int index, size_t bytes);
bool has_allocated(int index);

// Make a storage of a device out of the memory of a host storage, without a copy; it is charged, and freed as usual.
c10::Storage adopt(const c10::Storage& host, int index);

// Give a storage of a device another size; the bytes that fit both are kept.
void resize_storage(c10::StorageImpl& storage, size_t bytes);

}  // namespace vdev

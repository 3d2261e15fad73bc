#include "memory.h"

#include <c10/core/impl/alloc_cpu.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <mutex>

#include "guard.h"

namespace vdev {
namespace {

using c10::CachingAllocator::format_size;
using c10::CachingDeviceAllocator::DeviceStats;
constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);

struct Accounts {
  std::mutex mutex;
  std::array<DeviceStats, kMaxDevices> devices;
  std::array<bool, kMaxDevices> touched{};
  int64_t num_allocations = 0;
};

Accounts& accounts() {
  static Accounts* instance = new Accounts();
  return *instance;
}

// The mutant whose devices share one counter counts all of them on the first.
int counter_of(int index) {
  return is_mutant("shared_memory_counter") ? 0 : index;
}

struct Block {
  void* data;
  size_t bytes;
  int index;
  c10::Storage host;  // set when the memory was adopted: it goes back with it
};

void free_block(void* context) {
  auto* block = static_cast<Block*>(context);
  discharge(block->index, block->bytes);
  if (!block->host) {
    c10::free_cpu(block->data);
  }
  delete block;
}

[[noreturn]] void out_of_memory(int index, size_t bytes, DeviceStats& stats, const std::string& why) {
  stats.num_ooms += 1;
  const auto used = static_cast<size_t>(stats.allocated_bytes[kAll].current);
  const auto budget = static_cast<size_t>(settings().budget);
  TORCH_CHECK_WITH(OutOfMemoryError, false, "vdev out of memory. Tried to allocate ", format_size(bytes), ". Device ",
      index, " has a total capacity of ", format_size(budget), " of which ",
      format_size(budget > used ? budget - used : 0), " is free. This process has ", format_size(used),
      " allocated. ", why);
  std::abort();  // not reached
}

struct DeviceMemory final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t bytes) override {
    const int index = is_mutant("wrong_device_index") ? 0 : current_device();
    check_index(index);
    const c10::Device device(kVdev, static_cast<c10::DeviceIndex>(index));
    if (bytes == 0) {
      return {nullptr, nullptr, &c10::detail::deleteNothing, device};
    }
    charge(index, bytes);
    void* data = c10::alloc_cpu(bytes);
    return {data, new Block{data, bytes, index, {}}, &free_block, device};
  }
  void copy_data(void* dest, const void* src, std::size_t count) const override {
    default_copy_data(dest, src, count);
  }
  bool initialized() override {
    return settings().count > 0;
  }
  void emptyCache(c10::MempoolId_t) override {}  // nothing is cached: what is freed is gone
  void recordStream(const c10::DataPtr&, c10::Stream) override {}  // work is done when its call returns
  DeviceStats getDeviceStats(c10::DeviceIndex index) override {
    check_index(index);
    std::lock_guard<std::mutex> lock(accounts().mutex);
    DeviceStats stats = accounts().devices[counter_of(index)];
    if (is_mutant("lying_memory_counter")) {
      stats.allocated_bytes[kAll].current /= 2;
      stats.allocated_bytes[kAll].peak /= 2;
    }
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex index) override {
    check_index(index);
    std::lock_guard<std::mutex> lock(accounts().mutex);
    auto& stats = accounts().devices[counter_of(index)];
    for (auto* stat : {&stats.allocated_bytes, &stats.reserved_bytes, &stats.active_bytes, &stats.requested_bytes,
                       &stats.allocation, &stats.segment, &stats.active}) {
      (*stat)[kAll].reset_accumulated();
    }
    stats.num_alloc_retries = stats.num_ooms = stats.num_device_alloc = stats.num_device_free = 0;
  }
  void resetPeakStats(c10::DeviceIndex index) override {
    check_index(index);
    std::lock_guard<std::mutex> lock(accounts().mutex);
    auto& stats = accounts().devices[counter_of(index)];
    for (auto* stat : {&stats.allocated_bytes, &stats.reserved_bytes, &stats.active_bytes, &stats.requested_bytes,
                       &stats.allocation, &stats.segment, &stats.active}) {
      (*stat)[kAll].reset_peak();
    }
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex index) override {
    check_index(index);
    std::lock_guard<std::mutex> lock(accounts().mutex);
    const auto used = static_cast<size_t>(accounts().devices[counter_of(index)].allocated_bytes[kAll].current);
    const auto total = static_cast<size_t>(settings().budget);
    return {total > used ? total - used : 0, total};
  }
};

// Page-locked host memory, as far as anybody can tell: the blocks are known by their addresses.
struct PinnedMemory final : c10::Allocator {
  std::mutex mutex;
  std::map<uintptr_t, size_t> blocks;

  c10::DataPtr allocate(size_t bytes) override {
    void* data = c10::alloc_cpu(std::max<size_t>(bytes, 1));
    std::lock_guard<std::mutex> lock(mutex);
    blocks[reinterpret_cast<uintptr_t>(data)] = std::max<size_t>(bytes, 1);
    return {data, data, &release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return &release;
  }
  void copy_data(void* dest, const void* src, std::size_t count) const override {
    default_copy_data(dest, src, count);
  }
  static void release(void* data) {
    auto& self = static_cast<PinnedMemory&>(pinned_allocator());
    {
      std::lock_guard<std::mutex> lock(self.mutex);
      self.blocks.erase(reinterpret_cast<uintptr_t>(data));
    }
    c10::free_cpu(data);
  }
};

}  // namespace

c10::DeviceAllocator& allocator() {
  static auto* instance = new DeviceMemory();
  return *instance;
}

c10::Allocator& pinned_allocator() {
  static auto* instance = new PinnedMemory();
  return *instance;
}

bool is_pinned(const void* data) {
  auto& pinned = static_cast<PinnedMemory&>(pinned_allocator());
  std::lock_guard<std::mutex> lock(pinned.mutex);
  const auto address = reinterpret_cast<uintptr_t>(data);
  auto block = pinned.blocks.upper_bound(address);
  return block != pinned.blocks.begin() && address < (--block)->first + block->second;
}

void charge(int index, size_t bytes) {
  auto& all = accounts();
  std::lock_guard<std::mutex> lock(all.mutex);
  auto& stats = all.devices[counter_of(index)];
  const Settings& s = settings();
  all.touched[index] = true;
  if (++all.num_allocations == s.oom_at || (s.oom_above > 0 && bytes > static_cast<size_t>(s.oom_above))) {
    out_of_memory(index, bytes, stats, "The fault oom of VDEV_FAULT wanted it so.");
  }
  const auto used = static_cast<size_t>(stats.allocated_bytes[kAll].current);
  if (used + bytes > static_cast<size_t>(s.budget)) {
    out_of_memory(index, bytes, stats, "VDEV_MEMORY_BYTES sets the capacity; without it, it is the host's memory.");
  }
  for (auto* stat : {&stats.allocated_bytes, &stats.reserved_bytes, &stats.active_bytes, &stats.requested_bytes}) {
    (*stat)[kAll].increase(bytes);
  }
  for (auto* stat : {&stats.allocation, &stats.segment, &stats.active}) {
    (*stat)[kAll].increase(1);
  }
  stats.num_device_alloc += 1;
}

void discharge(int index, size_t bytes) {
  if (settings().memory_leak) {
    return;
  }
  std::lock_guard<std::mutex> lock(accounts().mutex);
  auto& stats = accounts().devices[counter_of(index)];
  for (auto* stat : {&stats.allocated_bytes, &stats.reserved_bytes, &stats.active_bytes, &stats.requested_bytes}) {
    (*stat)[kAll].decrease(bytes);
  }
  for (auto* stat : {&stats.allocation, &stats.segment, &stats.active}) {
    (*stat)[kAll].decrease(1);
  }
  stats.num_device_free += 1;
}

bool has_allocated(int index) {
  std::lock_guard<std::mutex> lock(accounts().mutex);
  return accounts().touched[index];
}

c10::Storage adopt(const c10::Storage& host, int index) {
  const int owner = is_mutant("wrong_device_index") ? 0 : index;
  const c10::Device device(kVdev, static_cast<c10::DeviceIndex>(owner));
  const size_t bytes = host.nbytes();
  c10::DataPtr data(nullptr, nullptr, &c10::detail::deleteNothing, device);
  if (bytes > 0) {
    charge(owner, bytes);
    void* address = host.mutable_data();
    data = c10::DataPtr(address, new Block{address, bytes, owner, host}, &free_block, device);
  }
  return c10::Storage(c10::Storage::use_byte_size_t(), bytes, std::move(data), &allocator(), /*resizable=*/true);
}

void resize_storage(c10::StorageImpl& storage, size_t bytes) {
  CurrentDevice at_its_device(storage.device().index());
  c10::DataPtr grown = allocator().allocate(bytes);
  const size_t kept = std::min(bytes, storage.nbytes());
  if (kept > 0 && storage.data() != nullptr) {
    std::memcpy(grown.get(), storage.data(), kept);
  }
  storage.set_data_ptr_noswap(std::move(grown));
  storage.set_nbytes(bytes);
}

}  // namespace vdev

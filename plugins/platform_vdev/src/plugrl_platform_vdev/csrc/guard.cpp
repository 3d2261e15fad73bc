#include "guard.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <array>
#include <atomic>
#include <chrono>

#include "memory.h"

namespace vdev {
namespace {

using Clock = std::chrono::steady_clock;

thread_local int t_device = 0;
thread_local std::array<c10::StreamId, kMaxDevices> t_streams{};
std::array<std::atomic<bool>, kMaxDevices> g_used{};
std::atomic<c10::StreamId> g_next_stream{1};

// Work on a stream is done when the call that queues it returns, so an event is complete once it is recorded.
struct RecordedEvent {
  Clock::time_point at;
};

c10::Device device_of(int index) {
  return c10::Device(kVdev, static_cast<c10::DeviceIndex>(index));
}

c10::Stream stream_of(int index, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, device_of(index), id);
}

int index_of(c10::Device device) {
  const int index = device.has_index() ? device.index() : t_device;
  check_index(index);
  return index;
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override {
    return kVdev;
  }
  c10::Device exchangeDevice(c10::Device device) const override {
    const int before = t_device;
    set_current_device(device.index());
    return device_of(before);
  }
  c10::Device getDevice() const override {
    return device_of(t_device);
  }
  void setDevice(c10::Device device) const override {
    set_current_device(device.index());
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    t_device = device.index();
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(settings().count);
  }

  c10::Stream getStream(c10::Device device) const override {
    const int index = index_of(device);
    return stream_of(index, t_streams[index]);
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return stream_of(index_of(device), 0);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return stream_of(index_of(device), g_next_stream++);
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    return stream_of(index_of(device), g_next_stream++);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const int index = index_of(stream.device());
    const auto before = t_streams[index];
    t_streams[index] = stream.id();
    return stream_of(index, before);
  }
  bool queryStream(const c10::Stream&) const override {
    return true;
  }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeDevice(const c10::DeviceIndex index) const override {
    check_index(index);
  }
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex index, const c10::EventFlag)
      const override {
    TORCH_CHECK(index == -1 || index == stream.device_index(), "An event of vdev:", static_cast<int>(index),
        " cannot be recorded on a stream of vdev:", static_cast<int>(stream.device_index()), ".");
    if (*event == nullptr) {
      *event = new RecordedEvent();
    }
    static_cast<RecordedEvent*>(*event)->at = Clock::now();
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override {
    return true;
  }
  void synchronizeEvent(void*) const override {}
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<RecordedEvent*>(event);
  }
  double elapsedTime(void* start, void* end, const c10::DeviceIndex) const override {
    TORCH_CHECK(start != nullptr && end != nullptr, "Both events must be recorded before their times are compared.");
    const auto passed = static_cast<RecordedEvent*>(end)->at - static_cast<RecordedEvent*>(start)->at;
    return std::chrono::duration<double, std::milli>(passed).count();
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

}  // namespace

int current_device() {
  return t_device;
}

void set_current_device(int index) {
  check_index(index);
  g_used[index] = true;
  t_device = index;
}

bool is_used(int index) {
  return g_used[index] || has_allocated(index);
}

CurrentDevice::CurrentDevice(int index) : before_(t_device) {
  if (index >= 0) {
    check_index(index);
    t_device = index;
  }
}

CurrentDevice::~CurrentDevice() {
  t_device = before_;
}

void check_index(int64_t index) {
  const bool accepts_any = is_mutant("index_7_accepted") && index >= 0 && index < kMaxDevices;
  TORCH_CHECK(accepts_any || (index >= 0 && index < settings().count), "vdev:", index, " does not exist: ",
      settings().count, " device(s) are visible to this process (VDEV_DEVICES and VDEV_VISIBLE_DEVICES say which).");
}

}  // namespace vdev

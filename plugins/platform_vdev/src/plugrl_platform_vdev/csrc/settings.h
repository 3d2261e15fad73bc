// What the Python side decided before the device was registered, and the questions the other files ask about it.
#pragma once
#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

namespace vdev {

constexpr c10::DeviceType kVdev = c10::DeviceType::PrivateUse1;
// More than can be configured: the mutant that accepts any index must find a counter for it.
constexpr int kMaxDevices = 128;

struct Settings {
  int count = 0;           // visible devices
  int64_t budget = 0;      // bytes per device
  bool strict = false;     // refuse operators outside `declared`
  std::unordered_set<std::string> declared;     // operator names without overload: "aten::add"
  std::unordered_set<std::string> unsupported;  // fault op_unsupported
  std::string mutant;      // name of a deliberate mistake; empty is none
  std::string log_folder;  // empty is no log
  int64_t oom_at = 0;      // fault: the n-th allocation of this process fails; 0 is none
  int64_t oom_above = 0;   // fault: an allocation of more bytes fails; 0 is none
  int64_t lost_at = 0;     // fault: the n-th operator, and every later one, finds the device lost; 0 is none
  int slow_device = -1;    // fault: every operator on this device sleeps; -1 is none
  int64_t slow_microseconds = 0;
  bool stale_rng = false;    // fault: a draw does not move the generator on
  bool memory_leak = false;  // fault: what is freed stays counted
};

inline Settings& settings() {
  static Settings* instance = new Settings();  // never destroyed: tensors may outlive static storage
  return *instance;
}

inline bool is_mutant(std::string_view name) {
  return settings().mutant == name;
}

// Raise for an index of no visible device.
void check_index(int64_t index);

}  // namespace vdev
